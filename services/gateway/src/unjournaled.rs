//! Alerts that the journal could not take. They stay in memory until the journal or the core has
//! them. Pure.
//!
//! The rules do not raise them again. Until an alert is stored or sent, its device is refused, so
//! that no later alert of the device overtakes it.

use std::collections::VecDeque;

use contracts::vitals::EdgeAlert;

/// At this number samples are refused with 503, and sensors keep their readings. The alerts of one
/// request may exceed it, because a request is judged as a whole.
pub const UNJOURNALED_ALERTS_MAX: usize = 1024;

pub type UnjournaledId = u64;

#[derive(Debug, Default)]
pub struct Unjournaled {
    /// Oldest first.
    alerts: VecDeque<(UnjournaledId, EdgeAlert)>,
    next: UnjournaledId,
}

impl Unjournaled {
    pub fn add(&mut self, alerts: impl IntoIterator<Item = EdgeAlert>) {
        for alert in alerts {
            self.alerts.push_back((self.next, alert));
            self.next += 1;
        }
    }

    pub fn len(&self) -> usize {
        self.alerts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.alerts.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.alerts.len() >= UNJOURNALED_ALERTS_MAX
    }

    pub fn concerns(&self, device: &str) -> bool {
        self.alerts.iter().any(|(_, alert)| alert.device == device)
    }

    /// The oldest ones.
    pub fn first(&self, count: usize) -> Vec<(UnjournaledId, EdgeAlert)> {
        self.alerts.iter().take(count).cloned().collect()
    }

    /// Removes stored or sent alerts. Some may be gone already.
    pub fn remove(&mut self, ids: &[UnjournaledId]) {
        self.alerts.retain(|(id, _)| !ids.contains(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_first_and_a_device_is_known_until_its_last_is_gone() {
        let alert = |device: &str| EdgeAlert {
            device: device.into(),
            ..EdgeAlert::default()
        };
        let mut held = Unjournaled::default();
        held.add([alert("ill"), alert("worse")]);
        held.add([alert("ill")]);
        let first = held.first(2);
        assert_eq!(first[1].1.device, "worse");
        held.remove(&[first[0].0, first[1].0]);
        assert!(held.concerns("ill") && !held.concerns("worse"));
        // Told and kept at a time.
        held.remove(&[first[0].0, 2]);
        assert!(held.is_empty() && !held.concerns("ill"));
        held.add((0..UNJOURNALED_ALERTS_MAX).map(|_| alert("ill")));
        assert!(held.is_full());
        assert_eq!(held.first(1)[0].0, 3, "no number twice");
    }
}
