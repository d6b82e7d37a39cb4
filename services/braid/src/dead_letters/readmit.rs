//! `braid dead-letters readmit`: stored uploads through ingest's admission once more, and messages
//! of the hospital through exchange.

use std::sync::Arc;

use bus::Topic;
use ingest::readmission::{NotReadmitted, Readmission};
use store::AuditEntry;

use super::letter::{Letter, LetterId};
use super::reading::{read, unknown};
use super::say;
use crate::engines::Engines;
use crate::process::Failure;
use crate::signed::Signed;

/// Reasons printed for one upload; further ones are counted.
const REASONS_MAX: usize = 20;

pub async fn run(
    engines: Engines,
    ids: &[LetterId],
    every: bool,
    signed: &Signed,
) -> Result<(), Failure> {
    let letters = read(&*engines.bus).await?;
    let chosen: Vec<&Letter> = if every {
        let waiting = letters.values();
        waiting
            .filter(|letter| letter.is_upload() || letter.is_message())
            .filter(|letter| !letter.replayed)
            .collect()
    } else {
        let named = ids
            .iter()
            .map(|id| letters.get(id).ok_or_else(|| unknown(*id)));
        named.collect::<Result<_, _>>()?
    };
    let readmission = Readmission::new(Arc::clone(&engines.bus), Arc::clone(&engines.store));
    let mut whole = 0;
    for letter in &chosen {
        let id = letter.id;
        if letter.is_message() {
            whole += usize::from(take_message(&engines, letter, signed).await?);
            continue;
        }
        if !letter.is_upload() {
            return Err(Failure::other(format!(
                "{id} is neither an upload nor a message: use `braid dead-letters replay`"
            )));
        }
        let failed = |error: String| Failure::other(format!("{id}: {error}"));
        let kept = letter.upload();
        let gateway = match Readmission::identity(&kept) {
            Ok(gateway) => gateway,
            Err(error) => {
                say(&format!("{id}: {error}"))?;
                continue;
            }
        };
        // Written before the recorded action happens.
        let entry = AuditEntry {
            time_us: contracts::now_us(),
            who: signed.by.who(&*engines.store, &gateway.tenant).await?,
            tenant: gateway.tenant,
            action: "readmit upload".to_owned(),
            patient: String::new(),
            detail: format!("dead letter {id} of gateway {}", gateway.id),
        };
        let audited = engines
            .store
            .append_audit(vec![entry.because(&signed.reason)]);
        audited.await.map_err(|error| failed(error.to_string()))?;
        let readmitted = match readmission.readmit(kept).await {
            Ok(readmitted) => readmitted,
            Err(error @ NotReadmitted::Failed(_)) => return Err(failed(error.to_string())),
            // The letter stays; later letters do not depend on it.
            Err(error) => {
                say(&format!("{id}: {error}"))?;
                continue;
            }
        };
        say(&format!(
            "{id}: {} samples, {} alerts, {} gaps admitted, {} quarantined, {} refused",
            readmitted.samples,
            readmitted.alerts,
            readmitted.gaps,
            readmitted.apart,
            readmitted.refused.len()
        ))?;
        for reason in readmitted.refused.iter().take(REASONS_MAX) {
            say(&format!("  refused: {reason}"))?;
        }
        if readmitted.refused.is_empty() {
            let noted = engines.bus.publish(Topic::DeadLetters, vec![letter.note()]);
            noted.await.map_err(|error| failed(error.to_string()))?;
            whole += 1;
        }
    }
    say(&format!("{whole} of {} completely admitted", chosen.len()))
}

/// Whether the store has the hospital's message now.
async fn take_message(
    engines: &Engines,
    letter: &Letter,
    signed: &Signed,
) -> Result<bool, Failure> {
    let id = letter.id;
    let failed = |error: String| Failure::other(format!("{id}: {error}"));
    let (bytes, tenant) = letter.message();
    let message = match exchange::Message::parse(bytes) {
        Ok(message) => message,
        Err(error) => {
            say(&format!("{id}: {error}"))?;
            return Ok(false);
        }
    };
    // Written before the recorded action happens.
    let entry = AuditEntry {
        time_us: contracts::now_us(),
        who: signed.by.who(&*engines.store, &tenant).await?,
        tenant: tenant.clone(),
        action: "readmit message".to_owned(),
        patient: String::new(),
        detail: format!("dead letter {id} of the hospital"),
    };
    let audited = engines
        .store
        .append_audit(vec![entry.because(&signed.reason)]);
    audited.await.map_err(|error| failed(error.to_string()))?;
    let patients = exchange::Patients::new(Arc::clone(&engines.store), &tenant);
    let changes = match exchange::take(&patients, &message).await {
        Ok(changes) => changes,
        Err(error @ exchange::Taken::Unavailable(_)) => return Err(failed(error.to_string())),
        Err(error) => {
            say(&format!("{id}: {error}"))?;
            return Ok(false);
        }
    };
    say(&format!("{id}: {changes} changes of patients"))?;
    let noted = engines.bus.publish(Topic::DeadLetters, vec![letter.note()]);
    noted.await.map_err(|error| failed(error.to_string()))?;
    Ok(true)
}
