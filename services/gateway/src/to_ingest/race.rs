//! Costs and gains of copies. Sans-IO. A batch may be on several links at once, and the first
//! acknowledgement counts. If it came over a copy, the copy gained the time until the original's.

use std::{collections::VecDeque, time::Duration, time::Instant};

use super::sender::Generation;

/// Batches that are watched; at the bound the oldest counts as undecided.
const BATCHES_MAX: usize = 64;

#[derive(Debug)]
struct Batch {
    /// Position at which it ends, and the link of the original.
    end: u64,
    original: Generation,
    is_copied: bool,
    /// When a copy was acknowledged before the original.
    copy_at: Option<Instant>,
}

#[derive(Debug, Default)]
pub(super) struct Race {
    batches: VecDeque<Batch>,
}

impl Race {
    pub(super) fn on_original(&mut self, generation: Generation, end: u64) {
        if self.batches.len() >= BATCHES_MAX {
            self.batches.pop_front();
        }
        self.batches.push_back(Batch {
            end,
            original: generation,
            is_copied: false,
            copy_at: None,
        });
    }

    /// A copy of everything up to `end` was sent.
    pub(super) fn on_copy(&mut self, end: u64) {
        for batch in self.batches.iter_mut().filter(|batch| batch.end <= end) {
            batch.is_copied = true;
        }
    }

    /// Everything up to `position` is acknowledged on this link. Returns what copies have won.
    pub(super) fn on_answer(
        &mut self,
        now: Instant,
        generation: Generation,
        position: u64,
    ) -> Vec<Duration> {
        let mut won = Vec::new();
        self.batches.retain_mut(|batch| {
            if batch.end > position {
                return true;
            }
            if batch.original != generation {
                batch.copy_at.get_or_insert(now);
                return batch.is_copied;
            }
            let copy_at = batch.copy_at.filter(|_| batch.is_copied);
            won.extend(copy_at.map(|at| now.saturating_duration_since(at)));
            false
        });
        won
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_is_first_wins_the_time_until_the_original() {
        let (start, ms) = (Instant::now(), Duration::from_millis(1));
        let none = Vec::<Duration>::new;
        let mut race = Race::default();
        race.on_original(1, 10);
        race.on_original(1, 20);
        race.on_copy(20);
        race.on_original(1, 30);
        assert_eq!(
            race.on_answer(start, 1, 10),
            none(),
            "the original was first"
        );
        assert_eq!(race.on_answer(start + ms, 2, 20), none());
        assert_eq!(race.on_answer(start + ms * 80, 1, 20), [ms * 79]);
        assert_eq!(race.on_answer(start + ms * 90, 1, 30), none(), "no copy");
        assert!(race.batches.is_empty());
        for end in 0..200 {
            race.on_original(1, end);
        }
        assert_eq!(race.batches.len(), BATCHES_MAX);
    }
}
