//! Removes everything about a patient. The row of the id stays without content. So keys in the
//! caches of other processes stay valid, and rows that come later are found.

use contracts::{
    alerts::{Alert, Document},
    vitals::{Quarantined, quarantined::Entry},
};
use prost::Message;
use rusqlite::{Connection, OptionalExtension};

use crate::{RULES, SILENCE, SPO2_SCALE, patient_of, patients::ERASE_STEP};

/// The patient of a kind of removals.
pub(super) const KIND: &str = "patient";

/// Erased patients with their keys.
const ERASED: &str = "SELECT p.key, p.id FROM removals r JOIN patients p ON p.id = r.subject
    WHERE r.kind = 'patient' AND r.removed_us >= ?1";

/// Rows of the log whose details are free text. Those of an erasure are not.
const FREE_TEXT: &str = "patient = ?1 AND detail <> '' AND action <> 'erase patient'";

pub(super) fn is_erased(connection: &Connection, patient: &str) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM removals WHERE kind = ?1 AND subject = ?2)")?
        .query_row((KIND, patient), |row| row.get(0))
}

/// Erases the patient and the records merged into it, except for the rows of readings.
pub(super) fn erase(connection: &Connection, patient: &str, at_us: i64) -> rusqlite::Result<()> {
    let merged: Vec<String> = connection
        .prepare_cached("SELECT id FROM patients WHERE merged_into = ?1 AND merged_into <> ''")?
        .query_map([patient], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    for id in merged.iter().map(String::as_str).chain([patient]) {
        connection
            .prepare_cached("INSERT OR IGNORE INTO removals VALUES (?1, ?2, 0, ?3)")?
            .execute((KIND, id, at_us))?;
        remove_small(connection, id)?;
        connection
            .prepare_cached(
                "UPDATE patients SET tenant = '', name = id, spo2_scale = 1, status = 2, status_us = 0,
                     merged_into = '', revision = 0, record = x'' WHERE id = ?1",
            )?
            .execute([id])?;
    }
    Ok(())
}

/// Everything but readings and the row of the id.
fn remove_small(connection: &Connection, patient: &str) -> rusqlite::Result<()> {
    remove_alerts(connection, patient)?;
    remove_quarantined(connection, patient)?;
    remove_documents(connection, patient)?;
    for delete in [
        "DELETE FROM assignments WHERE patient = ?1",
        "DELETE FROM patient_identifiers WHERE patient = ?1",
        "DELETE FROM rule_states WHERE key = ?1",
        "DELETE FROM latest WHERE patient = (SELECT key FROM patients WHERE id = ?1)",
        "DELETE FROM gaps WHERE patient = (SELECT key FROM patients WHERE id = ?1)",
    ] {
        connection.prepare_cached(delete)?.execute([patient])?;
    }
    // The log keeps who did something and when.
    let newest: Option<i64> = connection
        .prepare_cached(&format!("SELECT max(key) FROM audit WHERE {FREE_TEXT}"))?
        .query_row([patient], |row| row.get(0))?;
    if let Some(newest) = newest {
        connection
            .prepare_cached(&format!(
                "INSERT INTO audit SELECT NULL, time_us, tenant, who, action, patient, '' FROM audit
                 WHERE {FREE_TEXT} AND key <= ?2 ORDER BY key"
            ))?
            .execute((patient, newest))?;
        connection
            .prepare_cached(&format!(
                "DELETE FROM audit WHERE {FREE_TEXT} AND key <= ?2"
            ))?
            .execute((patient, newest))?;
    }
    Ok(())
}

fn remove_alerts(connection: &Connection, patient: &str) -> rusqlite::Result<()> {
    let alerts: Vec<String> = connection
        .prepare_cached("SELECT id FROM alerts WHERE patient = ?1")?
        .query_map([patient], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    if alerts.is_empty() {
        return Ok(());
    }
    for alert in &alerts {
        for delete in [
            "DELETE FROM notice_outcomes WHERE id IN (SELECT id FROM notices WHERE alert = ?1)",
            "DELETE FROM notice_queue WHERE id IN (SELECT id FROM notices WHERE alert = ?1)",
            "DELETE FROM notices WHERE alert = ?1",
            "DELETE FROM watches WHERE alert = ?1",
            "DELETE FROM silent WHERE alert = ?1",
            "DELETE FROM alert_transitions WHERE id = ?1",
            "DELETE FROM alerts WHERE id = ?1",
        ] {
            connection.prepare_cached(delete)?.execute([alert])?;
        }
    }
    let outbox: Vec<(i64, Vec<u8>)> = connection
        .prepare_cached("SELECT id, payload FROM outbox")?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (id, payload) in outbox {
        if Alert::decode(payload.as_slice()).is_ok_and(|it| it.patient == patient) {
            connection
                .prepare_cached("DELETE FROM outbox WHERE id = ?1")?
                .execute([id])?;
        }
    }
    Ok(())
}

/// Readings that were kept apart and name the patient. Those that name nobody belong to nobody.
fn remove_quarantined(connection: &Connection, patient: &str) -> rusqlite::Result<()> {
    let kept: Vec<(i64, Vec<u8>)> = connection
        .prepare_cached(
            "SELECT key, payload FROM quarantine
             WHERE device IN (SELECT device FROM assignments WHERE patient = ?1)",
        )?
        .query_map([patient], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (key, payload) in kept {
        if names(&payload, patient) {
            connection
                .prepare_cached("DELETE FROM quarantine WHERE key = ?1")?
                .execute([key])?;
        }
    }
    Ok(())
}

/// Whether an entry that was kept apart names the patient.
pub(crate) fn names(payload: &[u8], patient: &str) -> bool {
    match Quarantined::decode(payload).ok().and_then(|it| it.entry) {
        Some(Entry::Sample(it)) => it.patient == patient,
        Some(Entry::Alert(it)) => it.patient == patient,
        Some(Entry::Gap(_)) | None => false,
    }
}

fn remove_documents(connection: &Connection, patient: &str) -> rusqlite::Result<()> {
    let rules = format!("patient:{patient}");
    connection
        .prepare_cached(
            "DELETE FROM documents WHERE (kind = ?1 AND subject = ?2) OR (kind = ?3 AND subject = ?4)",
        )?
        .execute((RULES, rules, SPO2_SCALE, patient))?;
    let silences: Vec<(i64, Vec<u8>)> = connection
        .prepare_cached("SELECT key, payload FROM documents WHERE kind = ?1")?
        .query_map([SILENCE], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (key, payload) in silences {
        let is_of = |it: Document| patient_of(SILENCE, &it.subject, &it.body) == patient;
        if Document::decode(payload.as_slice()).is_ok_and(is_of) {
            connection
                .prepare_cached("DELETE FROM documents WHERE key = ?1")?
                .execute([key])?;
        }
    }
    Ok(())
}

/// Whether an erased patient has any rows.
pub(super) fn has_any(connection: &Connection, since_us: i64) -> rusqlite::Result<bool> {
    connection
        .prepare_cached(&format!(
            "SELECT EXISTS (SELECT 1 FROM ({ERASED}) e WHERE
                 EXISTS (SELECT 1 FROM samples WHERE patient = e.key)
                 OR EXISTS (SELECT 1 FROM waveforms WHERE patient = e.key)
                 OR EXISTS (SELECT 1 FROM latest WHERE patient = e.key)
                 OR EXISTS (SELECT 1 FROM gaps WHERE patient = e.key)
                 OR EXISTS (SELECT 1 FROM alerts WHERE patient = e.id))"
        ))?
        .query_row([since_us], |row| row.get(0))
}

/// Removes at most [`ERASE_STEP`] rows of readings, and what else came later.
pub(super) fn step(connection: &Connection, since_us: i64) -> rusqlite::Result<u64> {
    let erased: Vec<(i64, String)> = connection
        .prepare_cached(ERASED)?
        .query_map([since_us], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let mut removed = 0;
    for (key, id) in erased {
        let has_others: Option<i64> = connection
            .prepare_cached(
                "SELECT 1 WHERE EXISTS (SELECT 1 FROM latest WHERE patient = ?1)
                     OR EXISTS (SELECT 1 FROM gaps WHERE patient = ?1)
                     OR EXISTS (SELECT 1 FROM alerts WHERE patient = ?2)",
            )?
            .query_row((key, &id), |row| row.get(0))
            .optional()?;
        if has_others.is_some() {
            remove_small(connection, &id)?;
            removed += 1;
        }
        for delete in [
            "DELETE FROM samples WHERE (stream, sequence) IN
                 (SELECT stream, sequence FROM samples WHERE patient = ?1 LIMIT ?2)",
            "DELETE FROM waveforms WHERE key IN (SELECT key FROM waveforms WHERE patient = ?1 LIMIT ?2)",
        ] {
            let room = ERASE_STEP.saturating_sub(removed);
            removed += connection.prepare_cached(delete)?.execute((key, room))?;
        }
        if removed >= ERASE_STEP {
            break;
        }
    }
    Ok(removed as u64)
}
