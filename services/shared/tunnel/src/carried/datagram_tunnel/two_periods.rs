//! A figure of the current period and of the one before. Sans-IO.

use std::time::{Duration, Instant};

#[derive(Debug, Default)]
pub(super) struct TwoPeriods<T> {
    since: Option<Instant>,
    pub(super) current: T,
    before: T,
}

impl<T: Default + Copy + Ord> TwoPeriods<T> {
    /// Begins another period if the current one has lasted so long.
    pub(super) fn roll(&mut self, now: Instant, lasts: Duration) {
        let passed = now.saturating_duration_since(*self.since.get_or_insert(now));
        if passed < lasts {
            return;
        }
        let ended = std::mem::take(&mut self.current);
        self.before = if passed < 2 * lasts {
            ended
        } else {
            T::default()
        };
        self.since = Some(now);
    }

    pub(super) fn largest(&self) -> T {
        self.current.max(self.before)
    }
}
