//! Waits for the canary's alerts. Sans-IO: takes the alerts as they arrive, and returns how long
//! ago one was raised and one cleared.
//!
//! An alert counts from the time of its reading, not from its arrival. A canary that takes ten
//! minutes proves that real alerts take as long.

use std::time::Duration;

use consumer_health::Moment;
use contracts::alerts::{Alert, AlertState};

#[derive(Debug)]
pub(crate) struct Canary {
    begun: Moment,
    raised: Option<Moment>,
    cleared: Option<Moment>,
}

impl Canary {
    pub(crate) fn new(now: Moment) -> Canary {
        Canary {
            begun: now,
            raised: None,
            cleared: None,
        }
    }

    pub(crate) fn on_alert(&mut self, alert: &Alert, now: Moment) {
        let age_us = now.wall_us.saturating_sub(alert.changed_us).max(0);
        let age = Duration::from_micros(age_us.unsigned_abs());
        // An alert from before the start of this machine is too old to count.
        let Some(at) = now.at.checked_sub(age) else {
            return;
        };
        let read = Moment {
            at,
            wall_us: now.wall_us - age_us,
        };
        let last = match alert.state() {
            AlertState::Active => &mut self.raised,
            AlertState::Resolved => &mut self.cleared,
            _ => return,
        };
        if last.is_none_or(|last| last.at < read.at) {
            *last = Some(read);
        }
    }

    /// The last time at which both halves had arrived.
    pub(crate) fn since(&self) -> Moment {
        let raised = self.raised.unwrap_or(self.begun);
        let cleared = self.cleared.unwrap_or(self.begun);
        if raised.at < cleared.at {
            raised
        } else {
            cleared
        }
    }

    pub(crate) fn age(&self, now: Moment) -> Duration {
        now.at.saturating_duration_since(self.since().at)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn at(begun: Instant, second: u64) -> Moment {
        Moment {
            at: begun + Duration::from_secs(second),
            wall_us: i64::try_from(second * 1_000_000).unwrap_or(i64::MAX),
        }
    }

    fn alert(state: AlertState, second: i64) -> Alert {
        Alert {
            state: state.into(),
            changed_us: second * 1_000_000,
            ..Alert::default()
        }
    }

    #[test]
    fn both_halves_must_come_and_come_again() {
        let begun = Instant::now();
        let mut canary = Canary::new(at(begun, 0));
        let age = |canary: &Canary, second| canary.age(at(begun, second)).as_secs();
        assert_eq!(age(&canary, 50), 50, "nothing has come");
        canary.on_alert(&alert(AlertState::Active, 60), at(begun, 61));
        assert_eq!(age(&canary, 62), 62, "it was not cleared");
        canary.on_alert(&alert(AlertState::Resolved, 90), at(begun, 91));
        assert_eq!(age(&canary, 92), 32);
        canary.on_alert(&alert(AlertState::Active, 120), at(begun, 121));
        assert_eq!(age(&canary, 122), 32, "the other half is older");
        assert_eq!(age(&canary, 300), 210);
    }

    #[test]
    fn one_that_comes_late_counts_from_its_reading_and_none_moves_back() {
        let begun = Instant::now();
        let mut canary = Canary::new(at(begun, 0));
        for state in [AlertState::Active, AlertState::Resolved] {
            canary.on_alert(&alert(state, 600), at(begun, 1_000));
            canary.on_alert(&alert(state, 300), at(begun, 1_001));
            canary.on_alert(&alert(AlertState::Acknowledged, 1_001), at(begun, 1_001));
        }
        assert_eq!(canary.age(at(begun, 1_001)).as_secs(), 401);
        // A clock that is ahead makes no alert younger than now.
        for state in [AlertState::Active, AlertState::Resolved] {
            canary.on_alert(&alert(state, 5_000), at(begun, 1_002));
        }
        assert_eq!(canary.age(at(begun, 1_003)).as_secs(), 1);
    }
}
