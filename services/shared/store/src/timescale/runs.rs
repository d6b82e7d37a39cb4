//! Which sequences of a stream are stored, as runs of consecutive numbers.
//!
//! The newest run of a stream is its head; all others are older ones, kept apart because they are
//! rarely touched. Invariants: runs neither overlap nor touch where they were compared, and every
//! older run lies below the head. A stream without a head may have older runs anywhere.

/// Inclusive at both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    pub first: i64,
    pub last: i64,
}

impl Run {
    fn holds(self, sequence: i64) -> bool {
        (self.first..=self.last).contains(&sequence)
    }
}

/// The changes that some new sequences make.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Taken {
    /// In order; those of the request that were not stored.
    pub new: Vec<i64>,
    /// `None` only when nothing is stored of the stream at all.
    pub head: Option<Run>,
    /// Older runs that are no more, and those that are instead.
    pub removed: Vec<Run>,
    pub added: Vec<Run>,
}

/// Stretch whose older runs [`take`] must be given (those that overlap it), or `None` when the head
/// alone is enough. `sequences` are in order.
pub fn needs(head: Option<Run>, sequences: &[i64]) -> Option<(i64, i64)> {
    let (first, last) = (*sequences.first()?, *sequences.last()?);
    match head {
        // Without a head the greatest run must be found, wherever it is.
        None => Some((first.saturating_sub(1), i64::MAX)),
        Some(head) if first < head.first => Some((
            first.saturating_sub(1),
            last.min(head.first).saturating_add(1),
        )),
        Some(_) => None,
    }
}

/// `older`: runs that overlap what [`needs`] named, in order. `sequences`: in order and distinct.
pub fn take(head: Option<Run>, older: &[Run], sequences: &[i64]) -> Taken {
    let (Some(&first), Some(&last)) = (sequences.first(), sequences.last()) else {
        return Taken {
            head,
            ..Taken::default()
        };
    };
    // The way of nearly every batch: it goes on where the head ends, without a hole.
    if let Some(head) = head
        && head.last.checked_add(1) == Some(first)
        && last.abs_diff(first) == sequences.len() as u64 - 1
    {
        return Taken {
            new: sequences.to_vec(),
            head: Some(Run {
                first: head.first,
                last,
            }),
            ..Taken::default()
        };
    }
    let mut known: Vec<Run> = older.iter().copied().chain(head).collect();
    known.sort_unstable();
    let holds = |sequence: i64| {
        let after = known.partition_point(|run| run.first <= sequence);
        after > 0 && known[after - 1].holds(sequence)
    };
    let new: Vec<i64> = sequences.iter().copied().filter(|s| !holds(*s)).collect();
    let mut all = known.clone();
    all.extend(new.iter().map(|s| Run {
        first: *s,
        last: *s,
    }));
    all.sort_unstable();
    let mut merged: Vec<Run> = Vec::with_capacity(all.len());
    for run in all {
        match merged.last_mut() {
            Some(before) if before.last.saturating_add(1) >= run.first => {
                before.last = before.last.max(run.last);
            }
            _ => merged.push(run),
        }
    }
    let head = merged.pop();
    let removed = older
        .iter()
        .filter(|run| merged.binary_search(run).is_err())
        .copied()
        .collect();
    let added = merged
        .into_iter()
        .filter(|run| !older.contains(run))
        .collect();
    Taken {
        new,
        head,
        removed,
        added,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// The table of older runs and the head, driven as the store drives them.
    #[derive(Default)]
    struct Stream {
        head: Option<Run>,
        older: BTreeSet<Run>,
    }

    impl Stream {
        fn take(&mut self, sequences: &BTreeSet<i64>) -> Vec<i64> {
            let sequences: Vec<i64> = sequences.iter().copied().collect();
            let older: Vec<Run> = match needs(self.head, &sequences) {
                None => Vec::new(),
                Some((from, to)) => self
                    .older
                    .iter()
                    .filter(|run| run.last >= from && run.first <= to)
                    .copied()
                    .collect(),
            };
            let taken = take(self.head, &older, &sequences);
            for run in &taken.removed {
                assert!(self.older.remove(run));
            }
            for run in &taken.added {
                assert!(self.older.insert(*run));
            }
            self.head = taken.head;
            taken.new
        }

        /// The head makes room for another stream's.
        fn evict(&mut self) {
            self.older.extend(self.head.take());
        }
    }

    proptest! {
        /// A sequence is new exactly the first time, in any order and after an eviction.
        #[test]
        fn each_sequence_is_new_once(
            batches in prop::collection::vec(
                (prop::collection::btree_set(0_i64..120, 0..12), 0_i64..3, prop::bool::weighted(0.1)), 1..60),
        ) {
            let mut stream = Stream::default();
            let mut stored = BTreeSet::new();
            for (batch, far, evicted) in batches {
                let batch: BTreeSet<i64> = batch.iter().map(|s| s + far * 1000).collect();
                let new = stream.take(&batch);
                let expected: Vec<i64> = batch.difference(&stored).copied().collect();
                prop_assert_eq!(&new, &expected);
                stored.extend(new);
                let mut runs: Vec<Run> = stream.older.iter().copied().chain(stream.head).collect();
                prop_assert!(stream.head.is_none_or(|head| runs.iter().all(|run| run.last <= head.last)));
                runs.sort();
                prop_assert!(runs.windows(2).all(|w| w[0].last < w[1].first), "{:?}", runs);
                let held: BTreeSet<i64> = runs.iter().flat_map(|run| run.first..=run.last).collect();
                prop_assert_eq!(&held, &stored);
                if evicted {
                    stream.evict();
                }
            }
        }
    }

    #[test]
    fn a_stream_in_order_is_one_run() {
        let mut stream = Stream::default();
        for from in (1..1000).step_by(10) {
            stream.take(&(from..from + 10).collect());
        }
        assert_eq!(
            stream.head,
            Some(Run {
                first: 1,
                last: 1000
            })
        );
        assert!(stream.older.is_empty());
    }

    #[test]
    fn the_ends_of_the_numbers_are_ordinary() {
        let mut stream = Stream::default();
        let ends = BTreeSet::from([i64::MIN, i64::MAX]);
        assert_eq!(stream.take(&ends).len(), 2);
        assert_eq!(stream.take(&ends).len(), 0);
        assert_eq!(stream.take(&BTreeSet::from([i64::MAX - 1])).len(), 1);
    }
}
