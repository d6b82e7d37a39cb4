//! Open alerts of high priority of this gateway's patients.
//!
//! While an alert is open, each upload is sent over two links to ingest at once, on different
//! paths.
//!
//! - An alert of the edge rules is open until its rule ends it, the wearer cancels it, or a person
//!   acknowledges it. The alert expires [`NEWS_WITHIN`] after the edge rules last raised it.
//! - An alert that the core reports is open until a person acknowledges it, for [`UNATTENDED_MAX`]
//!   at most.
//!
//! Each list from the core is complete and replaces the list before it. A list may arrive before
//! the edge alert of the same episode, and again after a reconnect.
//!
//! An acknowledgement covers the edge alert of the same patient and rule, for one episode. The end
//! of the episode at the gateway uses the acknowledgement up. So the clocks of gateway and core are
//! never compared.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use contracts::vitals::{EdgeAlert, HighAlert, HighAlerts, Priority};
use parking_lot::Mutex;
use tokio::sync::watch;

/// Alerts that are remembered, of the edge and of the core each. A gateway with so many open alerts
/// sends redundantly already, so further alerts change nothing.
const ALARMS_MAX: usize = 1_024;
/// An alert of the edge rules counts as open for this time after the rules last raised it.
pub const NEWS_WITHIN: Duration = Duration::from_secs(600);
/// An alert that nobody acknowledges counts as open for this time after the core reported it. The
/// limit bounds the cost of copies where no person is on duty.
pub const UNATTENDED_MAX: Duration = Duration::from_secs(3_600);

/// Patient, device and rule.
type Key = (String, String, String);

#[derive(Debug, Default)]
struct Table {
    /// Raised here, and when there was news last.
    edge: HashMap<Key, Instant>,
    core: Vec<Known>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Of<'a> {
    Patient(&'a str),
    /// No patient is known.
    Device(&'a str),
}

/// An alert as the core reports it.
#[derive(Debug)]
struct Known {
    alert: HighAlert,
    since: Instant,
    /// The episode that was acknowledged is over at this gateway, so a later one is not covered.
    used_up: bool,
}

/// Clones are the same.
#[derive(Clone, Debug)]
pub struct Alarms {
    table: Arc<Mutex<Table>>,
    is_on: watch::Sender<bool>,
}

impl Default for Alarms {
    fn default() -> Self {
        Self {
            table: Arc::default(),
            is_on: watch::Sender::new(false),
        }
    }
}

impl Alarms {
    /// To be called before the alerts are stored, so that they themselves go redundantly.
    pub fn note(&self, alerts: &[EdgeAlert], now: Instant) {
        if alerts.is_empty() {
            return;
        }
        let mut table = self.table.lock();
        for alert in alerts {
            let (patient, device) = (alert.patient.clone(), alert.device.clone());
            let key = (patient, device, alert.rule.clone());
            if alert.resolved || alert.cancelled {
                table.edge.remove(&key);
                table.use_up(&key);
            } else if !alert.acknowledged_by.is_empty() {
                table.edge.remove(&key);
            } else if alert.priority() == Priority::High
                && (table.edge.len() < ALARMS_MAX || table.edge.contains_key(&key))
            {
                table.edge.insert(key, now);
            }
        }
        self.publish(&table, now);
    }

    /// Takes the alerts of high priority that the core has open.
    pub fn on_core(&self, alerts: HighAlerts, now: Instant) {
        let mut table = self.table.lock();
        let before = std::mem::take(&mut table.core);
        let before: HashMap<String, (Instant, bool)> = before
            .into_iter()
            .map(|known| (known.alert.id, (known.since, known.used_up)))
            .collect();
        let alerts = alerts.alerts.into_iter().take(ALARMS_MAX);
        table.core = alerts
            .map(|alert| {
                let (since, used_up) = before.get(&alert.id).copied().unwrap_or((now, false));
                Known {
                    alert,
                    since,
                    used_up,
                }
            })
            .collect();
        self.publish(&table, now);
    }

    /// Forgets alerts without news.
    pub fn expire(&self, now: Instant) {
        let mut table = self.table.lock();
        let within = |since: &Instant| now.saturating_duration_since(*since) < NEWS_WITHIN;
        table.edge.retain(|_, since| within(since));
        self.publish(&table, now);
    }

    fn publish(&self, table: &Table, now: Instant) {
        let open = table.open(now);
        metrics::gauge!("braid_gateway_alarms_open").set(open as f64);
        let is_on = open > 0;
        self.is_on
            .send_if_modified(|before| std::mem::replace(before, is_on) != is_on);
    }

    /// Whether an alert is open.
    pub fn watch(&self) -> watch::Receiver<bool> {
        self.is_on.subscribe()
    }
}

impl Table {
    /// Number of open alerts.
    fn open(&self, now: Instant) -> usize {
        let covering = |known: &&Known| known.alert.acknowledged && !known.used_up;
        let covering = self.core.iter().filter(covering);
        let covered: HashSet<_> = covering.map(|it| of_patient(&it.alert)).collect();
        let wearers = wearers(&self.core);
        let edge = self.edge.keys().map(|key| of(key, &wearers));
        let unattended = self.core.iter().filter(|known| {
            let waited = now.saturating_duration_since(known.since);
            !known.alert.acknowledged && waited < UNATTENDED_MAX
        });
        let core = unattended.map(|it| of_patient(&it.alert));
        let edge = edge.filter(|alarm| !covered.contains(alarm));
        edge.chain(core).collect::<HashSet<_>>().len()
    }

    fn use_up(&mut self, key: &Key) {
        let patient = match of(key, &wearers(&self.core)) {
            (Of::Patient(patient), _) => patient.to_owned(),
            // The core knows no such alert.
            (Of::Device(_), _) => return,
        };
        for Known { alert, used_up, .. } in &mut self.core {
            let is_same = alert.patient == patient && alert.rule == key.2;
            *used_up |= is_same && alert.acknowledged;
        }
    }
}

fn of_patient(alert: &HighAlert) -> (Of<'_>, &str) {
    (Of::Patient(&alert.patient), &alert.rule)
}

/// The patient of each device and rule, by the core.
fn wearers(core: &[Known]) -> HashMap<(&str, &str), &str> {
    let alerts = core.iter().map(|known| &known.alert);
    alerts
        .map(|it| ((it.device.as_str(), it.rule.as_str()), it.patient.as_str()))
        .collect()
}

/// An alert of the edge, which often names no patient: the core knows who wears the device.
fn of<'a>(
    (patient, device, rule): &'a Key,
    wearers: &HashMap<(&str, &str), &'a str>,
) -> (Of<'a>, &'a str) {
    let of = match patient.is_empty() {
        true => wearers
            .get(&(device.as_str(), rule.as_str()))
            .map_or(Of::Device(device), |patient| Of::Patient(patient)),
        false => Of::Patient(patient),
    };
    (of, rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alert(patient: &str, rule: &str) -> EdgeAlert {
        EdgeAlert {
            patient: patient.to_owned(),
            device: "watch".to_owned(),
            rule: rule.to_owned(),
            priority: Priority::High.into(),
            ..EdgeAlert::default()
        }
    }

    fn resolved(alert: EdgeAlert) -> EdgeAlert {
        EdgeAlert {
            resolved: true,
            ..alert
        }
    }

    /// Alerts of ada by their ids, and whether each is acknowledged.
    fn core(alerts: &[(&str, bool)]) -> HighAlerts {
        let alerts = alerts.iter().map(|(id, acknowledged)| HighAlert {
            id: (*id).to_owned(),
            patient: "ada".to_owned(),
            device: "watch".to_owned(),
            rule: "spo2".to_owned(),
            acknowledged: *acknowledged,
        });
        HighAlerts {
            alerts: alerts.collect(),
        }
    }

    #[test]
    fn an_alarm_lasts_until_its_rule_ends_it_or_ten_minutes_pass() {
        let (alarms, start) = (Alarms::default(), Instant::now());
        let is_on = alarms.watch();
        let medium = EdgeAlert {
            priority: Priority::Medium.into(),
            ..alert("ann", "trend")
        };
        alarms.note(&[medium], start);
        assert!(!*is_on.borrow(), "only high alerts");
        alarms.note(&[alert("ann", "spo2"), alert("bob", "spo2")], start);
        assert!(*is_on.borrow());
        alarms.note(&[resolved(alert("ann", "spo2"))], start);
        assert!(*is_on.borrow(), "that of another patient is open");
        let cancelled = EdgeAlert {
            cancelled: true,
            ..alert("bob", "spo2")
        };
        alarms.note(&[cancelled], start);
        assert!(!*is_on.borrow());
        alarms.note(&[alert("ann", "spo2")], start);
        alarms.expire(start + NEWS_WITHIN / 2);
        assert!(*is_on.borrow());
        // Raised again: news.
        alarms.note(&[alert("ann", "spo2")], start + NEWS_WITHIN / 2);
        alarms.expire(start + NEWS_WITHIN);
        assert!(*is_on.borrow());
        alarms.expire(start + NEWS_WITHIN * 2);
        assert!(!*is_on.borrow());
    }

    #[test]
    fn an_acknowledgement_at_the_gateway_ends_it_too() {
        let (alarms, start) = (Alarms::default(), Instant::now());
        let is_on = alarms.watch();
        alarms.note(&[alert("ada", "spo2")], start);
        let acknowledged = EdgeAlert {
            acknowledged_by: "Eve Carer".to_owned(),
            ..alert("ada", "spo2")
        };
        alarms.note(&[acknowledged], start);
        assert!(!*is_on.borrow());
    }

    #[test]
    fn an_acknowledgement_ends_it_for_this_episode_alone() {
        let (alarms, start) = (Alarms::default(), Instant::now());
        let is_on = alarms.watch();
        for raised in [alert("ada", "spo2"), alert("", "spo2")] {
            alarms.note(std::slice::from_ref(&raised), start);
            alarms.on_core(core(&[("1", false)]), start);
            assert!(*is_on.borrow());
            alarms.on_core(core(&[("1", true)]), start);
            assert!(!*is_on.borrow());
            alarms.note(&[alert("ada", "pulse"), alert("ben", "spo2")], start);
            assert!(*is_on.borrow(), "of another rule, and of another patient");
            let others = [alert("ada", "pulse"), alert("ben", "spo2")].map(resolved);
            alarms.note(&others, start);
            assert!(!*is_on.borrow());
            // The next episode begins before the core reports the end of this one.
            alarms.note(&[resolved(raised.clone()), raised.clone()], start);
            alarms.on_core(core(&[("1", true)]), start);
            assert!(*is_on.borrow());
            alarms.on_core(core(&[("2", false)]), start);
            assert!(*is_on.borrow());
            alarms.on_core(core(&[("2", true)]), start);
            assert!(!*is_on.borrow());
            alarms.note(&[resolved(raised)], start);
            alarms.on_core(core(&[]), start);
            assert!(!*is_on.borrow());
        }
    }

    #[test]
    fn an_alert_of_the_core_is_open_until_acknowledged_and_for_an_hour_at_most() {
        let (alarms, start) = (Alarms::default(), Instant::now());
        let is_on = alarms.watch();
        alarms.on_core(core(&[("1", false)]), start);
        assert!(*is_on.borrow());
        // Ended at the edge: the core keeps it until somebody acknowledges.
        alarms.note(&[resolved(alert("ada", "spo2"))], start);
        assert!(*is_on.borrow());
        alarms.on_core(core(&[("1", false)]), start + UNATTENDED_MAX / 2);
        alarms.expire(start + UNATTENDED_MAX * 99 / 100);
        assert!(*is_on.borrow());
        alarms.expire(start + UNATTENDED_MAX);
        assert!(!*is_on.borrow());
    }

    #[test]
    fn the_tables_are_bounded() {
        let (alarms, start) = (Alarms::default(), Instant::now());
        let ids: Vec<String> = (0..ALARMS_MAX + 5).map(|id| id.to_string()).collect();
        for patient in &ids {
            alarms.note(&[alert(patient, "spo2")], start);
        }
        assert_eq!(alarms.table.lock().edge.len(), ALARMS_MAX);
        let many: Vec<(&str, bool)> = ids.iter().map(|id| (id.as_str(), false)).collect();
        alarms.on_core(core(&many), start);
        assert_eq!(alarms.table.lock().core.len(), ALARMS_MAX);
    }
}
