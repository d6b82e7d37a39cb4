//! Which samples of a patient are stored, and which are not: a proof.
//!
//! A gateway numbers the samples of each stream without holes, and accounts once a minute for the
//! numbers that it has given. A number that it gave and that is not stored is missing, wherever it
//! was lost. Silence proves nothing: a stretch is complete only as far as the accounts of every
//! gateway reach at which the patient wore the device.
//!
//! - A journal accounts for everything that it ever took, so the first account covers what came
//!   before it. Between the last account of one journal and the first of the next, nothing is
//!   known.
//! - A missing sample is dated by the stored neighbours. It counts if its time may lie within the
//!   stretch.
//! - Rows of gaps and of the quarantine explain missing samples. They do not replace them.

mod stream;

use std::collections::{BTreeMap, BTreeSet};

use contracts::{
    query::{Proof, ProofState},
    vitals::quarantined::Entry,
};

pub use stream::says;

use stream::Compared;

use crate::{
    Asked, Assignment, Of, QuarantineQuery, QueryError, SENSOR_JUMPS_MAX, Scope, Store,
    StreamStored,
};

/// Longest stretch of one proof.
pub const RANGE_US_MAX: i64 = 31 * 86_400 * 1_000_000;
/// Entries of the quarantine that are compared, of one device.
const APART_MAX: usize = 5000;
/// How far outside the stretch a gap's row may lie that explains a number.
const SLACK_US: i64 = 86_400 * 1_000_000;

/// Compares accounts with rows, and asks gateways again for samples that are missing without a
/// cause. `None`: the patient is not known in scope.
pub async fn prove(
    store: &dyn Store,
    scope: &Scope,
    patient: &str,
    (from_us, to_us): (i64, i64),
    now_us: i64,
) -> Result<Option<Proof>, QueryError> {
    let to_us = to_us.min(from_us.saturating_add(RANGE_US_MAX));
    if store.patient(scope, patient).await?.is_none() {
        return Ok(None);
    }
    let mut worn = store.assignments(scope, Of::Patient(patient)).await?;
    worn.retain(|it| it.from_us < to_us && it.until_us > from_us);
    let devices: BTreeSet<String> = worn.iter().map(|it| it.device.clone()).collect();
    let devices: Vec<String> = devices.into_iter().collect();
    let gateways: BTreeSet<String> = worn.iter().map(|it| it.gateway.clone()).collect();
    let gateways: Vec<String> = gateways.into_iter().collect();
    let journals = store.journals(&gateways).await?;
    let mut runs = store.ledger_runs(&devices).await?;
    // Another gateway's word about a device that it never had counts for nothing.
    runs.retain(|run| {
        let is_of = |it: &Assignment| it.device == run.device && it.gateway == run.gateway;
        worn.iter().any(is_of)
    });
    let named: BTreeSet<(String, String)> = runs
        .iter()
        .map(|run| (run.device.clone(), run.stream.clone()))
        .collect();
    let others: Vec<(String, String)> = named.iter().cloned().collect();
    let stored = store
        .stored_sequences(patient, &others, from_us, to_us)
        .await?;
    let slack = (
        from_us.saturating_sub(SLACK_US),
        to_us.saturating_add(SLACK_US),
    );
    let gaps = store.gaps(scope, patient, slack.0, slack.1).await?;
    let jumps = store.sensor_jumps(patient, from_us, to_us).await?;
    let apart = apart(store, scope, &devices, slack).await?;
    let mut streams: BTreeMap<(String, String), StreamStored> = stored
        .into_iter()
        .map(|it| ((it.device.clone(), it.stream.clone()), it))
        .collect();
    for key in named {
        streams.entry(key).or_default();
    }
    let mut proof = Proof {
        patient: patient.to_owned(),
        from_us,
        to_us,
        made_us: now_us,
        ..Proof::default()
    };
    let mut asks: BTreeMap<String, Vec<Asked>> = BTreeMap::new();
    for ((device, stream), stored) in streams {
        let of = Compared {
            device: &device,
            stream: &stream,
            stored: &stored,
            runs: runs
                .iter()
                .filter(|it| it.device == device && it.stream == stream)
                .collect(),
            worn: worn.iter().filter(|it| it.device == device).collect(),
            journals: &journals,
            gaps: gaps
                .iter()
                .filter(|it| it.device == device && it.stream == stream)
                .collect(),
            jumps: jumps
                .iter()
                .filter(|it| it.device == device && it.stream == stream)
                .collect(),
            are_jumps_cut: jumps.len() >= SENSOR_JUMPS_MAX,
            apart: apart.get(&(device.clone(), stream.clone())),
            range: (from_us, to_us),
            now_us,
        };
        let (stream, asked) = of.prove();
        proof.streams.push(stream);
        for (gateway, range) in asked {
            asks.entry(gateway).or_default().push(range);
        }
    }
    conclude(&mut proof, &devices);
    for (gateway, ranges) in asks {
        if let Err(error) = store.ask_again(&gateway, ranges, now_us).await {
            tracing::warn!(gateway, %error, "the gateway is not asked again for missing samples");
        }
    }
    Ok(Some(proof))
}

async fn apart(
    store: &dyn Store,
    scope: &Scope,
    devices: &[String],
    (from_us, until_us): (i64, i64),
) -> Result<BTreeMap<(String, String), BTreeSet<u64>>, QueryError> {
    let mut apart: BTreeMap<(String, String), BTreeSet<u64>> = BTreeMap::new();
    for device in devices {
        let query = QuarantineQuery {
            device: device.clone(),
            from_us,
            until_us,
            after: i64::MIN,
            limit: APART_MAX,
            ..QuarantineQuery::default()
        };
        for entry in store.quarantined(scope, &query).await? {
            if let Some(Entry::Sample(sample)) = entry.quarantined.entry {
                let stream = (sample.device, sample.stream);
                apart.entry(stream).or_default().insert(sample.sequence);
            }
        }
    }
    Ok(apart)
}

fn conclude(proof: &mut Proof, devices: &[String]) {
    let unknown: Vec<&str> = devices
        .iter()
        .filter(|device| proof.streams.iter().all(|it| it.device != **device))
        .map(String::as_str)
        .collect();
    let worst = proof.streams.iter().max_by_key(|it| it.state);
    let (mut state, mut because) = worst.map_or((ProofState::NotProven, String::new()), |it| {
        (it.state(), it.because.clone())
    });
    let mut until_us = proof.streams.iter().map(|it| it.complete_until_us).min();
    if state != ProofState::Incomplete && (!unknown.is_empty() || proof.streams.is_empty()) {
        state = ProofState::NotProven;
        until_us = Some(proof.from_us);
        because = if unknown.is_empty() {
            "the patient wore no sensor in this time".to_owned()
        } else {
            format!("no gateway has accounted for sensor {}", unknown.join(", "))
        };
    }
    proof.state = state.into();
    proof.because = because;
    proof.complete_until_us = until_us.unwrap_or(proof.from_us);
}
