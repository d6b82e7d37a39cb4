//! The facts of a run, sent and found: readings, rows, alerts, calls and letters.

use std::collections::BTreeSet;

use contracts::query::Proof;

/// One reading of a sensor. Patient, metric and number identify it.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    pub patient: &'static str,
    pub metric: &'static str,
    pub number: u64,
    pub time_us: i64,
    pub value: f64,
}

/// A row of the store.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub device: String,
    pub patient: String,
    pub metric: &'static str,
    pub number: u64,
    pub time_us: i64,
    /// When ingest received it.
    pub arrived_us: i64,
    pub value: f64,
}

/// The newest state of an alert in the store.
#[derive(Clone, Debug, PartialEq)]
pub struct Raised {
    pub id: String,
    pub patient: String,
    pub gateway: String,
    pub rule: String,
    pub since_us: i64,
    pub changed_us: i64,
    /// Lower-case: `active`, `latched`, `resolved`.
    pub state: String,
    pub acknowledged_by: String,
}

/// A call of the webhook.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub key: String,
    pub id: String,
    pub patient: String,
    pub rule: String,
    pub since_us: i64,
    pub revision: u64,
    pub state: String,
    pub is_reminder: bool,
    /// When it arrived.
    pub at_us: i64,
}

impl Call {
    /// Whether this repeats the other call.
    pub fn repeats(&self, other: &Call) -> bool {
        let at_us = self.at_us;
        *self
            == Call {
                at_us,
                ..other.clone()
            }
    }
}

/// A letter to somebody on call.
#[derive(Clone, Debug, PartialEq)]
pub struct Letter {
    pub to: String,
    /// Ids of the alerts to which it links.
    pub alerts: Vec<String>,
}

#[derive(Clone, Debug, Default)]
pub struct Found {
    pub rows: Vec<Row>,
    pub alerts: Vec<Raised>,
    pub calls: Vec<Call>,
    pub letters: Vec<Letter>,
    /// The system's own, of each patient.
    pub proofs: Vec<Proof>,
}

impl Found {
    /// Number of reminders; a repeated call counts once.
    pub fn reminders(&self) -> usize {
        let calls = self.calls.iter().filter(|call| call.is_reminder);
        let keys: BTreeSet<&str> = calls.map(|call| call.key.as_str()).collect();
        keys.len()
    }
}
