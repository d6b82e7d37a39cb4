//! Whether a consumer makes progress. Sans-IO: takes measurements with their [`Moment`], returns a
//! [`Standing`].
//!
//! For each partition the judge keeps the position, and since when records wait behind it. A
//! partition without waiting records is never at fault. One partition that does not move is enough
//! for a standstill, because its patients get no alerts.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use clocks::CheckedClock;

/// One instant on both clocks. Durations use `at`, and people read `wall_us`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    pub at: Instant,
    /// Microseconds since the Unix epoch.
    pub wall_us: i64,
}

/// One partition as measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionOffsets {
    pub oldest: u64,
    pub next: u64,
    /// First offset that is not done. `None`: no record was ever done.
    pub done: Option<u64>,
}

impl PartitionOffsets {
    /// Number of waiting records, without those that the bus has removed.
    pub fn behind(&self) -> u64 {
        self.next
            .saturating_sub(self.done.unwrap_or(0).max(self.oldest))
    }
}

impl Moment {
    /// The present. The clock decides what people read; durations are measured without it.
    pub fn by(clock: &CheckedClock) -> Moment {
        Moment {
            at: Instant::now(),
            wall_us: clock.now_us(),
        }
    }

    /// `2026-11-25T00:18:48Z`
    pub fn utc(self) -> String {
        calendar::rfc3339(self.wall_us).unwrap_or_else(|| "an unknown time".to_owned())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Not measured so far, and not for long.
    Unknown,
    /// No record waits, or the position has moved recently.
    Well { behind: u64 },
    Still {
        since: Moment,
        /// Sum over all partitions, including those that move.
        behind: u64,
        partitions: Vec<u32>,
    },
    /// The bus or the store does not return the position.
    Unanswered { since: Moment, reason: String },
}

#[derive(Debug)]
struct Kept {
    done: Option<u64>,
    behind: u64,
    /// When the position moved, or when the first record began to wait behind it.
    since: Moment,
}

#[derive(Debug)]
pub struct Judge {
    patience: Duration,
    /// Time of the last measurement, or of the start.
    answered: Moment,
    is_measured: bool,
    unanswered: Option<String>,
    /// When a position moved last while the end was unknown.
    moved: Option<Moment>,
    /// Bounded by the partitions of a topic.
    partitions: BTreeMap<u32, Kept>,
}

impl Judge {
    /// `patience`: longest time without progress while records wait, and longest time without an
    /// answer.
    pub fn new(patience: Duration, now: Moment) -> Judge {
        Judge {
            patience,
            answered: now,
            is_measured: false,
            unanswered: None,
            moved: None,
            partitions: BTreeMap::new(),
        }
    }

    /// Takes all partitions. A partition that is not named no longer exists.
    pub fn on_measured(&mut self, measured: &BTreeMap<u32, PartitionOffsets>, now: Moment) {
        self.answered = now;
        self.is_measured = true;
        self.unanswered = None;
        self.moved = None;
        self.partitions
            .retain(|partition, _| measured.contains_key(partition));
        for (partition, offsets) in measured {
            let behind = offsets.behind();
            let kept = self.partitions.entry(*partition).or_insert(Kept {
                done: offsets.done,
                behind,
                since: now,
            });
            // The position went back because the store was restored from a copy. Work from there is
            // progress.
            if kept.done != offsets.done || kept.behind == 0 {
                kept.since = now;
            }
            (kept.done, kept.behind) = (offsets.done, behind);
        }
    }

    /// Takes the positions that were read, by partition. The end is unknown. A position that moves
    /// shows that the consumer works, whatever the engine answers to this question.
    pub fn on_unanswered(&mut self, reason: String, done: &BTreeMap<u32, u64>, now: Moment) {
        self.unanswered = Some(reason);
        for (partition, done) in done {
            if let Some(kept) = self.partitions.get_mut(partition)
                && kept.done != Some(*done)
            {
                kept.done = Some(*done);
                kept.since = now;
                self.moved = Some(now);
            }
        }
    }

    pub fn standing(&self, now: Moment) -> Standing {
        let lasts = |since: Moment| now.at.saturating_duration_since(since.at) >= self.patience;
        let known = self.moved.unwrap_or(self.answered);
        if let Some(reason) = &self.unanswered
            && lasts(known)
        {
            return Standing::Unanswered {
                since: known,
                reason: reason.clone(),
            };
        }
        if !self.is_measured {
            return Standing::Unknown;
        }
        let behind = self.partitions.values().map(|kept| kept.behind).sum();
        let still = |kept: &&Kept| kept.behind > 0 && lasts(kept.since);
        let since = self
            .partitions
            .values()
            .filter(still)
            .map(|kept| kept.since);
        let Some(since) = since.min_by_key(|since| since.at) else {
            return Standing::Well { behind };
        };
        let partitions = self.partitions.iter().filter(|(_, kept)| still(kept));
        Standing::Still {
            since,
            behind,
            partitions: partitions.map(|(partition, _)| *partition).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(15);

    struct Bench {
        begun: Instant,
        judge: Judge,
    }

    impl Bench {
        fn new() -> Bench {
            let begun = Instant::now();
            let now = Moment {
                at: begun,
                wall_us: 0,
            };
            Bench {
                begun,
                judge: Judge::new(PATIENCE, now),
            }
        }

        fn moment(&self, second: u64) -> Moment {
            Moment {
                at: self.begun + Duration::from_secs(second),
                wall_us: i64::try_from(second * 1_000_000).unwrap_or(i64::MAX),
            }
        }

        /// `(done, next)` of each partition.
        fn measure(&mut self, second: u64, partitions: &[(u64, u64)]) -> Standing {
            let measured = partitions
                .iter()
                .enumerate()
                .map(|(partition, (done, next))| {
                    let offsets = PartitionOffsets {
                        oldest: 0,
                        next: *next,
                        done: Some(*done),
                    };
                    (u32::try_from(partition).unwrap_or(u32::MAX), offsets)
                });
            let now = self.moment(second);
            self.judge.on_measured(&measured.collect(), now);
            self.judge.standing(now)
        }

        fn away(&mut self, second: u64) -> Standing {
            self.without_end(second, &[])
        }

        /// The position of each partition is known, and no end.
        fn without_end(&mut self, second: u64, done: &[u64]) -> Standing {
            let now = self.moment(second);
            let done = (0..).zip(done.iter().copied()).collect();
            self.judge.on_unanswered("away".to_owned(), &done, now);
            self.judge.standing(now)
        }

        fn still(&self, since: u64, behind: u64, partitions: &[u32]) -> Standing {
            Standing::Still {
                since: self.moment(since),
                behind,
                partitions: partitions.to_vec(),
            }
        }
    }

    #[test]
    fn one_partition_that_does_not_move_is_standing_still() {
        let mut bench = Bench::new();
        for second in 0..15 {
            let standing = bench.measure(second, &[(second, second + 3), (7, 8)]);
            assert_eq!(standing, Standing::Well { behind: 4 });
        }
        assert_eq!(
            bench.measure(15, &[(15, 18), (7, 9)]),
            bench.still(0, 5, &[1])
        );
        // As soon as it moves.
        assert_eq!(
            bench.measure(16, &[(16, 19), (8, 9)]),
            Standing::Well { behind: 4 }
        );
        // The next warning follows only after the same time again.
        assert!(matches!(
            bench.measure(30, &[(30, 33), (8, 9)]),
            Standing::Well { .. }
        ));
        assert_eq!(
            bench.measure(31, &[(31, 34), (8, 9)]),
            bench.still(16, 4, &[1])
        );
    }

    #[test]
    fn nothing_to_do_is_no_standing_still() {
        let mut bench = Bench::new();
        for second in (0..600).step_by(60) {
            assert_eq!(
                bench.measure(second, &[(7, 7)]),
                Standing::Well { behind: 0 }
            );
        }
        // A record after a long pause has waited from when it was seen.
        assert_eq!(bench.measure(600, &[(7, 8)]), Standing::Well { behind: 1 });
        assert_eq!(bench.measure(614, &[(7, 8)]), Standing::Well { behind: 1 });
        assert_eq!(bench.measure(615, &[(7, 8)]), bench.still(600, 1, &[0]));
        assert_eq!(bench.measure(616, &[(8, 8)]), Standing::Well { behind: 0 });
    }

    #[test]
    fn a_group_that_never_stored_anything_stands_still_over_what_is_kept() {
        let mut bench = Bench::new();
        let offsets = PartitionOffsets {
            oldest: 5,
            next: 9,
            done: None,
        };
        let measured = BTreeMap::from([(0, offsets)]);
        for second in [0, 15] {
            bench.judge.on_measured(&measured, bench.moment(second));
        }
        assert_eq!(
            bench.judge.standing(bench.moment(15)),
            bench.still(0, 4, &[0])
        );
        // Records that expired before they were read no longer wait.
        let gone = PartitionOffsets {
            oldest: 9,
            ..offsets
        };
        bench
            .judge
            .on_measured(&BTreeMap::from([(0, gone)]), bench.moment(16));
        let standing = bench.judge.standing(bench.moment(60));
        assert_eq!(standing, Standing::Well { behind: 0 });
    }

    #[test]
    fn an_engine_that_does_not_answer_is_said_and_what_was_known_is_kept() {
        let mut bench = Bench::new();
        assert_eq!(bench.away(5), Standing::Unknown);
        assert_eq!(bench.measure(10, &[(3, 4)]), Standing::Well { behind: 1 });
        assert_eq!(bench.away(24), Standing::Well { behind: 1 });
        let since = bench.moment(10);
        let reason = "away".to_owned();
        assert_eq!(bench.away(25), Standing::Unanswered { since, reason });
        // The position has been the same all the time.
        assert_eq!(bench.measure(40, &[(3, 9)]), bench.still(10, 6, &[0]));
        assert_eq!(bench.measure(41, &[(9, 9)]), Standing::Well { behind: 0 });
    }

    /// A broker may deliver and take records while its metadata lacks a partition.
    #[test]
    fn a_consumer_whose_position_moves_is_well_while_the_end_is_unknown() {
        let mut bench = Bench::new();
        bench.measure(0, &[(3, 4), (7, 7)]);
        for second in (3..=66).step_by(3) {
            let standing = bench.without_end(second, &[second, 7]);
            assert_eq!(standing, Standing::Well { behind: 1 }, "{second}");
        }
        // Then nothing moves any more.
        assert!(matches!(
            bench.without_end(80, &[66, 7]),
            Standing::Well { .. }
        ));
        let since = bench.moment(66);
        let reason = "away".to_owned();
        assert_eq!(
            bench.without_end(81, &[66, 7]),
            Standing::Unanswered { since, reason }
        );
    }

    #[test]
    fn a_restored_position_and_a_partition_that_went_are_no_standing_still() {
        let mut bench = Bench::new();
        bench.measure(0, &[(7, 9), (1, 2)]);
        assert_eq!(bench.measure(20, &[(3, 9)]), Standing::Well { behind: 6 });
        assert_eq!(bench.measure(35, &[(3, 9)]), bench.still(20, 6, &[0]));
    }
}
