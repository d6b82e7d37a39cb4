//! When forgotten episodes of one rule lasted. A backlog of hours is replayed into times whose
//! episodes are stored and told already.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Forgotten episodes of one rule. Beyond it the earliest is dropped.
const PAST_MAX: usize = 128;
/// Event time for which they are kept: an outage of a day.
const PAST_FOR_US: i64 = 90_000_000_000;

/// Beginnings and ends, in order of beginning.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Past(VecDeque<(i64, i64)>);

impl Past {
    pub(crate) fn add(&mut self, since_us: i64, until_us: i64) {
        let place = self.0.partition_point(|it| it.0 <= since_us);
        self.0.insert(place, (since_us, until_us));
        if self.0.len() > PAST_MAX {
            self.0.pop_front();
        }
    }

    /// Drops what no backlog reaches.
    pub(crate) fn trim(&mut self, now_us: i64) {
        self.0
            .retain(|it| now_us.saturating_sub(it.1) <= PAST_FOR_US);
    }

    /// Whether a stretch is within an episode that had begun before. A stretch that begins with an
    /// episode has its id, so the store knows the answer.
    pub(crate) fn has(&self, since_us: i64, at_us: i64) -> bool {
        let is_named = self.0.iter().any(|it| it.0 == since_us);
        let is_within = |it: &(i64, i64)| it.0 < since_us && since_us < it.1 && at_us <= it.1;
        !is_named && self.0.iter().any(is_within)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_bounded_by_number_and_by_time() {
        let mut past = Past::default();
        for n in 0..200 {
            past.add(n * 10, n * 10 + 5);
        }
        assert!(!past.has(3, 4), "the earliest are dropped");
        assert!(past.has(1_993, 1_995));
        assert!(!past.has(1_993, 1_996), "it outlasts the episode");
        assert!(!past.has(1_990, 1_991), "it has the episode's id");
        assert!(!past.has(1_995, 1_995), "the episode has ended");
        past.add(1_979, 1_995);
        assert!(!past.has(1_990, 1_991), "whatever else lasted then");
        past.trim(PAST_FOR_US + 1_985);
        assert!(past.has(1_983, 1_985));
        past.trim(PAST_FOR_US + 2_000);
        assert!(past.is_empty());
    }
}
