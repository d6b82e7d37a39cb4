//! The express lane of high alerts: from the outbox to those who notify people, past the topic.
//!
//! A backlog of the topic, or a bus that is away, delays no high alert. Each of them also goes
//! through the topic. A decision that is made twice is one notice, so nothing is lost if this lane
//! is full or its member ends.

use std::collections::HashSet;

use contracts::{
    alerts::{Alert, AlertState},
    vitals::Priority,
};
use parking_lot::Mutex;
use store::OutboxEntry;
use tokio::sync::mpsc;

use crate::canary::is_canary;

/// Alerts that wait for a decision. Beyond it they come through the topic alone.
const WAITING_MAX: usize = 1_024;
/// Entries that are known to be offered. Beyond it some are offered twice.
const OFFERED_MAX: usize = 4_096;

pub(crate) fn is_high(alert: &Alert) -> bool {
    alert.priority() == Priority::High
}

/// Where the outbox puts high alerts.
pub(crate) struct Offers {
    lane: mpsc::Sender<Alert>,
    offered: HashSet<u64>,
}

/// Where the next high alert is taken.
pub(crate) struct Express(Mutex<mpsc::Receiver<Alert>>);

pub(crate) fn lane() -> (Offers, Express) {
    let (lane, waiting) = mpsc::channel(WAITING_MAX);
    let offers = Offers {
        lane,
        offered: HashSet::new(),
    };
    (offers, Express(Mutex::new(waiting)))
}

impl Offers {
    /// New high alerts only: their later transitions follow through the topic.
    pub(crate) fn offer(&mut self, entries: &[OutboxEntry]) {
        for entry in entries {
            let Some(alert) = entry.alert.as_ref().filter(|it| is_high(it)) else {
                continue;
            };
            // A canary proves the topic, too.
            let is_passing = alert.backfill || is_canary(&alert.patient);
            if alert.state() != AlertState::Active || is_passing {
                continue;
            }
            if self.offered.len() >= OFFERED_MAX {
                self.offered.clear();
            }
            if self.offered.insert(entry.id) && self.lane.try_send(alert.clone()).is_err() {
                metrics::counter!("braid_alerting_express_full_total").increment(1);
            }
        }
    }
}

impl Express {
    pub(crate) fn next(&self) -> Option<Alert> {
        self.0.lock().try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_new_high_alerts_take_the_express_lane_and_each_once() {
        let (mut offers, express) = lane();
        let entry = |id, priority: Priority, state: AlertState| OutboxEntry {
            id,
            alert: Some(Alert {
                id: id.to_string(),
                priority: priority.into(),
                state: state.into(),
                ..Alert::default()
            }),
        };
        let entries = [
            entry(1, Priority::Medium, AlertState::Active),
            entry(2, Priority::High, AlertState::Resolved),
            entry(3, Priority::High, AlertState::Active),
            OutboxEntry { id: 4, alert: None },
        ];
        offers.offer(&entries);
        offers.offer(&entries);
        assert_eq!(express.next().map(|alert| alert.id), Some("3".to_owned()));
        assert_eq!(express.next(), None);
        let flood: Vec<OutboxEntry> = (10..3_000)
            .map(|id| entry(id, Priority::High, AlertState::Active))
            .collect();
        offers.offer(&flood);
        assert_eq!(std::iter::from_fn(|| express.next()).count(), WAITING_MAX);
    }
}
