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

    /// The end of the episode that lasted at `at_us` and had begun before.
    pub(crate) fn lasting_at(&self, at_us: i64) -> Option<i64> {
        let lasted = |it: &&(i64, i64)| it.0 < at_us && at_us < it.1;
        self.0.iter().find(lasted).map(|it| it.1)
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
        assert_eq!(past.lasting_at(3), None, "the earliest are dropped");
        assert_eq!(past.lasting_at(1_993), Some(1_995));
        assert_eq!(past.lasting_at(1_990), None, "not before");
        assert_eq!(past.lasting_at(1_995), None, "it has ended");
        past.trim(PAST_FOR_US + 1_985);
        assert_eq!(past.lasting_at(1_983), Some(1_985));
        past.trim(PAST_FOR_US + 2_000);
        assert!(past.is_empty());
    }
}
