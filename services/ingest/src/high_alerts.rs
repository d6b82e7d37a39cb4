//! Open alerts of high priority, for the gateways of their patients.
//!
//! A gateway uploads redundantly while one is open that nobody has acknowledged. The store is read
//! at the start and at intervals, and the bus brings what changes between. A record that the bus
//! brings during a reading may be newer than the answer of the store. So it is kept and applied to
//! that answer. The later revision of an alert holds.

use std::collections::BTreeMap;

use contracts::{
    alerts::{Alert, AlertState},
    vitals::{HighAlert, HighAlerts as Answer, Priority},
};
use parking_lot::Mutex;
use tokio::sync::watch;

/// Open alerts that are known. Further ones are left out and counted: their gateways then go by
/// what their own rules raise.
pub(crate) const ALERTS_MAX: usize = 10_000;
/// Alerts in one answer. One patient's are few, so only a gateway of very many patients has more.
pub(crate) const ANSWER_ALERTS_MAX: usize = 1_024;
/// Records of the bus that are kept during one reading of the store. If more come, the reading
/// counts for nothing and is repeated.
const MEANWHILE_MAX: usize = 4_096;

#[derive(Debug, Default)]
struct Known {
    /// By patient and by the alert's id, with its revision.
    by_patient: BTreeMap<String, BTreeMap<String, (u32, HighAlert)>>,
    count: usize,
}

#[derive(Debug, Default)]
struct State {
    /// `None`: the store was not read yet.
    known: Option<Known>,
    /// Records since the running reading of the store began; empty without a reading.
    meanwhile: Vec<Alert>,
    reading: Reading,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Reading {
    #[default]
    Idle,
    Running,
    /// More than `MEANWHILE_MAX` records came.
    Overtaken,
}

#[derive(Debug)]
pub(crate) struct HighAlerts {
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

impl Default for HighAlerts {
    fn default() -> Self {
        HighAlerts {
            state: Mutex::default(),
            changed: watch::Sender::new(()),
        }
    }
}

impl HighAlerts {
    /// Must be called before each reading of the store.
    pub(crate) fn on_reading(&self) {
        let mut state = self.state.lock();
        state.meanwhile.clear();
        state.reading = Reading::Running;
    }

    /// Replaces everything by what the store has and the bus brought during the reading. Returns
    /// `false` if too many records came: the state is unchanged, and the store must be read again.
    pub(crate) fn on_stored(&self, alerts: impl IntoIterator<Item = Alert>) -> bool {
        let mut state = self.state.lock();
        let reading = std::mem::take(&mut state.reading);
        let meanwhile = std::mem::take(&mut state.meanwhile);
        if reading == Reading::Overtaken {
            return false;
        }
        let mut known = Known::default();
        for alert in alerts.into_iter().chain(meanwhile) {
            known.take(alert);
        }
        state.known = Some(known);
        drop(state);
        self.changed.send_replace(());
        true
    }

    /// Takes the next revision of an alert. Before the first reading of the store it counts for
    /// nothing: the store has it by then.
    pub(crate) fn on_alert(&self, alert: Alert) {
        let mut state = self.state.lock();
        if state.reading == Reading::Running {
            match state.meanwhile.len() < MEANWHILE_MAX {
                true => state.meanwhile.push(alert.clone()),
                false => {
                    state.reading = Reading::Overtaken;
                    state.meanwhile.clear();
                }
            }
        }
        if state.known.as_mut().is_some_and(|known| known.take(alert)) {
            self.changed.send_replace(());
        }
    }

    /// Notified of every change.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Those of these patients. `None`: not known yet.
    pub(crate) fn of<'a>(&self, patients: impl Iterator<Item = &'a String>) -> Option<Answer> {
        let state = self.state.lock();
        let known = state.known.as_ref()?;
        let alerts = patients.filter_map(|patient| known.by_patient.get(patient));
        let alerts = alerts.flat_map(BTreeMap::values);
        let alerts = alerts.map(|(_, alert)| alert.clone());
        Some(Answer {
            alerts: alerts.take(ANSWER_ALERTS_MAX).collect(),
        })
    }
}

impl Known {
    /// Whether this changed anything.
    fn take(&mut self, alert: Alert) -> bool {
        let of_patient = self.by_patient.get(&alert.patient);
        let before = of_patient.and_then(|alerts| alerts.get(&alert.id));
        if before.is_some_and(|(revision, _)| *revision >= alert.revision) {
            return false;
        }
        let was_known = before.is_some();
        let is_open = matches!(
            alert.state(),
            AlertState::Active | AlertState::Acknowledged | AlertState::Latched
        );
        if alert.priority() != Priority::High || !is_open || alert.backfill {
            return was_known && self.forget(&alert);
        }
        if !was_known && self.count >= ALERTS_MAX {
            metrics::counter!("braid_ingest_high_alerts_left_out_total").increment(1);
            return false;
        }
        self.count += usize::from(!was_known);
        let high = HighAlert {
            id: alert.id.clone(),
            patient: alert.patient.clone(),
            device: alert.device,
            rule: alert.rule,
            acknowledged: !alert.acknowledged_by.is_empty(),
        };
        let of_patient = self.by_patient.entry(alert.patient).or_default();
        of_patient.insert(alert.id, (alert.revision, high));
        true
    }

    fn forget(&mut self, alert: &Alert) -> bool {
        let Some(of_patient) = self.by_patient.get_mut(&alert.patient) else {
            return false;
        };
        if of_patient.remove(&alert.id).is_none() {
            return false;
        }
        self.count -= 1;
        if of_patient.is_empty() {
            self.by_patient.remove(&alert.patient);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alert(id: &str, revision: u32, state: AlertState) -> Alert {
        Alert {
            id: id.into(),
            patient: "ada".into(),
            rule: "spo2".into(),
            priority: Priority::High.into(),
            state: state.into(),
            acknowledged_by: match state {
                AlertState::Acknowledged => "Eve".into(),
                _ => String::new(),
            },
            revision,
            ..Alert::default()
        }
    }

    /// Ids of ada's alerts, and whether each is acknowledged.
    fn of_ada(alerts: &HighAlerts) -> Option<Vec<(String, bool)>> {
        let answer = alerts.of(["ada".to_owned(), "ben".to_owned()].iter())?;
        let alerts = answer.alerts.into_iter();
        Some(alerts.map(|it| (it.id, it.acknowledged)).collect())
    }

    #[test]
    fn an_alert_is_known_from_its_raising_until_its_end() {
        let (alerts, one) = (HighAlerts::default(), || "1".to_owned());
        alerts.on_alert(alert("0", 1, AlertState::Active));
        assert_eq!(of_ada(&alerts), None, "the store is read first");
        alerts.on_stored([alert("1", 1, AlertState::Active)]);
        assert_eq!(of_ada(&alerts), Some(vec![(one(), false)]));
        let mut changes = alerts.changes();
        alerts.on_alert(alert("1", 2, AlertState::Acknowledged));
        assert!(changes.has_changed().is_ok_and(|changed| changed));
        assert_eq!(of_ada(&alerts), Some(vec![(one(), true)]));
        changes.mark_unchanged();
        alerts.on_alert(alert("1", 1, AlertState::Active));
        assert!(!changes.has_changed().is_ok_and(|it| it), "published again");
        let medium = Alert {
            priority: Priority::Medium.into(),
            ..alert("2", 1, AlertState::Active)
        };
        let backfill = Alert {
            backfill: true,
            ..alert("3", 1, AlertState::Active)
        };
        let of_eve = Alert {
            patient: "eve".into(),
            ..alert("4", 1, AlertState::Latched)
        };
        for alert in [medium, backfill, of_eve] {
            alerts.on_alert(alert);
        }
        assert_eq!(of_ada(&alerts), Some(vec![(one(), true)]));
        alerts.on_alert(alert("1", 3, AlertState::Resolved));
        assert_eq!(of_ada(&alerts), Some(vec![]));
    }

    #[test]
    fn alerts_and_answers_are_bounded() {
        let alerts = HighAlerts::default();
        let many = (0..=ALERTS_MAX).map(|n| alert(&n.to_string(), 1, AlertState::Active));
        alerts.on_stored(many);
        let known = alerts.state.lock().known.as_ref().map(|it| it.count);
        assert_eq!(known, Some(ALERTS_MAX));
        assert_eq!(of_ada(&alerts).map(|it| it.len()), Some(ANSWER_ALERTS_MAX));
    }

    #[test]
    fn a_reading_of_the_store_undoes_nothing_that_came_meanwhile() {
        let alerts = HighAlerts::default();
        let raised = |id| alert(id, 1, AlertState::Active);
        alerts.on_reading();
        assert!(alerts.on_stored(["1", "2"].map(raised)));
        // The store answers with what it had before these three.
        alerts.on_reading();
        alerts.on_alert(alert("1", 2, AlertState::Acknowledged));
        alerts.on_alert(alert("2", 2, AlertState::Resolved));
        alerts.on_alert(raised("3"));
        assert!(alerts.on_stored(["1", "2"].map(raised)));
        let then = vec![("1".to_owned(), true), ("3".to_owned(), false)];
        assert_eq!(of_ada(&alerts), Some(then.clone()));
        // A later answer that has them is not undone by an earlier revision.
        alerts.on_reading();
        alerts.on_alert(raised("1"));
        let stored = [alert("1", 2, AlertState::Acknowledged), raised("3")];
        assert!(alerts.on_stored(stored));
        assert_eq!(of_ada(&alerts), Some(then));
        // Records from before a reading are in its answer.
        alerts.on_reading();
        assert!(alerts.on_stored([]));
        assert_eq!(of_ada(&alerts), Some(vec![]));
    }

    #[test]
    fn records_during_the_first_reading_count() {
        let alerts = HighAlerts::default();
        alerts.on_reading();
        alerts.on_alert(alert("1", 1, AlertState::Active));
        assert_eq!(of_ada(&alerts), None);
        assert!(alerts.on_stored([]));
        assert_eq!(of_ada(&alerts), Some(vec![("1".to_owned(), false)]));
    }

    #[test]
    fn a_reading_during_too_many_records_counts_for_nothing() {
        let alerts = HighAlerts::default();
        alerts.on_reading();
        assert!(alerts.on_stored([]));
        alerts.on_reading();
        for n in 0..=MEANWHILE_MAX {
            alerts.on_alert(alert("1", n as u32 + 1, AlertState::Active));
        }
        assert!(!alerts.on_stored([]));
        assert_eq!(of_ada(&alerts), Some(vec![("1".to_owned(), false)]));
        alerts.on_reading();
        assert!(alerts.on_stored([]));
        assert_eq!(of_ada(&alerts), Some(vec![]));
    }
}
