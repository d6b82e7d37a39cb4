//! When the acknowledged position is reported to the journal, which is not after each answer.

use std::time::{Duration, Instant};

/// The position is reported after this time, or after this number of entries. Each report wakes the
/// journal's thread, and a crash before a report only causes a repetition.
const TRIM_AFTER: Duration = Duration::from_secs(1);
const TRIM_ENTRIES: u64 = 64;

/// The acknowledged position that is not reported to the journal yet.
pub(super) struct Trims {
    told: u64,
    acknowledged: u64,
    due: Option<Instant>,
}

impl Trims {
    pub(super) fn new(told: u64) -> Self {
        Self {
            told,
            acknowledged: told,
            due: None,
        }
    }

    pub(super) fn note(&mut self, now: Instant, position: u64) {
        self.acknowledged = position;
        let due = if position - self.told < TRIM_ENTRIES {
            now + TRIM_AFTER
        } else {
            now
        };
        self.due = Some(self.due.map_or(due, |before| before.min(due)));
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    pub(super) fn take(&mut self, now: Instant) -> Option<u64> {
        self.due.filter(|due| now >= *due)?;
        self.rest()
    }

    pub(super) fn rest(&mut self) -> Option<u64> {
        self.due.take()?;
        self.told = self.acknowledged;
        Some(self.told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_is_told_seldom_or_once_it_is_much() {
        let start = Instant::now();
        let mut trims = Trims::new(10);
        assert_eq!((trims.due(), trims.rest()), (None, None));
        trims.note(start, 11);
        trims.note(start + TRIM_AFTER / 2, 12);
        assert_eq!(trims.due(), Some(start + TRIM_AFTER));
        assert_eq!(trims.take(start + TRIM_AFTER / 2), None);
        assert_eq!(trims.take(start + TRIM_AFTER), Some(12));
        assert_eq!(trims.due(), None);
        trims.note(start, 13);
        trims.note(start, 12 + TRIM_ENTRIES);
        assert_eq!(trims.take(start), Some(12 + TRIM_ENTRIES));
        trims.note(start, 14 + TRIM_ENTRIES);
        assert_eq!(trims.rest(), Some(14 + TRIM_ENTRIES));
        assert_eq!(trims.rest(), None);
    }
}
