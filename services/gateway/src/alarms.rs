//! High alerts of the edge rules that nobody has dealt with, as far as the gateway knows.
//!
//! While one is open, uploads go redundantly: each over two links at once, on different paths. An
//! alert is open from when it is raised until its rule ends it or the wearer cancels it. The core
//! does not report acknowledgements to gateways, so an alert without news counts for
//! [`NEWS_WITHIN`] at most.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use contracts::vitals::{EdgeAlert, Priority};
use parking_lot::Mutex;
use tokio::sync::watch;

/// Alerts that are remembered. A gateway with so many open ones is redundant already, so further
/// ones change nothing.
const ALARMS_MAX: usize = 1_024;
/// An alert counts as open for this time after its last news.
pub const NEWS_WITHIN: Duration = Duration::from_secs(600);

/// By patient, or by device where no patient is named, and by rule.
type Key = (String, String, String);

/// Clones are the same.
#[derive(Clone, Debug)]
pub struct Alarms {
    open: Arc<Mutex<HashMap<Key, Instant>>>,
    is_on: watch::Sender<bool>,
}

impl Default for Alarms {
    fn default() -> Self {
        Self {
            open: Arc::default(),
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
        let mut open = self.open.lock();
        for alert in alerts {
            let (patient, device) = (alert.patient.clone(), alert.device.clone());
            let key = (patient, device, alert.rule.clone());
            if alert.resolved || alert.cancelled {
                open.remove(&key);
            } else if alert.priority() == Priority::High
                && (open.len() < ALARMS_MAX || open.contains_key(&key))
            {
                open.insert(key, now);
            }
        }
        self.publish(&open);
    }

    /// Forgets alerts without news.
    pub fn expire(&self, now: Instant) {
        let mut open = self.open.lock();
        open.retain(|_, since| now.saturating_duration_since(*since) < NEWS_WITHIN);
        self.publish(&open);
    }

    fn publish(&self, open: &HashMap<Key, Instant>) {
        metrics::gauge!("braid_gateway_alarms_open").set(open.len() as f64);
        let is_on = !open.is_empty();
        self.is_on
            .send_if_modified(|before| std::mem::replace(before, is_on) != is_on);
    }

    /// Whether an alert is open.
    pub fn watch(&self) -> watch::Receiver<bool> {
        self.is_on.subscribe()
    }
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
        let resolved = EdgeAlert {
            resolved: true,
            ..alert("ann", "spo2")
        };
        alarms.note(&[resolved], start);
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
    fn the_table_is_bounded() {
        let (alarms, start) = (Alarms::default(), Instant::now());
        for patient in 0..ALARMS_MAX + 5 {
            alarms.note(&[alert(&patient.to_string(), "spo2")], start);
        }
        assert_eq!(alarms.open.lock().len(), ALARMS_MAX);
    }
}
