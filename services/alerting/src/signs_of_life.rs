//! Age of each sign of life by the monotonic clock of this member. Sans-IO.
//!
//! A sign is a stored row with a time from another machine. If a row changed between two rounds, a
//! sign came in that interval, whatever any wall clock shows. The row's own time counts if it fits
//! the interval, because it is exact and the same for every member. A time that does not fit comes
//! from a wrong clock and moves to the nearer end of the interval. If a row has not changed since
//! it was first seen, only its own time is known.

use std::collections::HashMap;

/// The newest sign of life of one row, or of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sign {
    /// On the clock of the round: its present minus this is the age.
    pub at_us: i64,
    /// As the store has it, by the clock that stamped it; [`i64::MIN`]: there is none.
    pub stored_us: i64,
    /// When this member first saw it, by the monotonic clock.
    pub seen_us: i64,
    /// When this member saw it come, by the monotonic clock; `None`: it was there before.
    pub came_us: Option<i64>,
}

impl Sign {
    pub(crate) const NONE: Sign = Sign {
        at_us: i64::MIN,
        stored_us: i64::MIN,
        seen_us: i64::MIN,
        came_us: None,
    };

    /// The later of two in every respect.
    pub(crate) fn or(self, other: Sign) -> Sign {
        Sign {
            at_us: self.at_us.max(other.at_us),
            stored_us: self.stored_us.max(other.stored_us),
            seen_us: self.seen_us.max(other.seen_us),
            came_us: self.came_us.max(other.came_us),
        }
    }

    /// Its age alone. It is later than nothing, so it ends no silence.
    pub(crate) fn age(self) -> Sign {
        Sign {
            stored_us: i64::MIN,
            came_us: None,
            ..self
        }
    }

    /// Whether it came after the stored evidence, or after this member knew of the silence. The
    /// second holds also when the clock that stamps arrivals was set back.
    pub(crate) fn is_after(&self, stored_us: i64, known_us: i64) -> bool {
        self.stored_us > stored_us || self.came_us > Some(known_us)
    }
}

/// Largest expected difference between the clocks of two machines of the core.
pub(crate) const CLOCKS_DIFFER_US: i64 = 30_000_000;

/// The difference of clocks that is ignored: at most half of `silent_after_us`, so that none makes
/// a silent device present.
pub(crate) fn clocks_differ_us(silent_after_us: i64) -> i64 {
    CLOCKS_DIFFER_US.min(silent_after_us / 2)
}

/// Rows of the newest round, as many as the store returned.
pub(crate) struct Signs<K> {
    rows: HashMap<K, Row>,
    /// Time of the previous round.
    looked_us: Option<i64>,
    slack_us: i64,
}

#[derive(Clone, Copy)]
struct Row {
    time_us: i64,
    /// When the row was first seen with this time.
    seen_us: i64,
    /// The last round in which the row had another time.
    before_us: Option<i64>,
}

impl<K: std::hash::Hash + Eq> Signs<K> {
    pub(crate) fn new(silent_after_us: i64) -> Signs<K> {
        Signs {
            rows: HashMap::new(),
            looked_us: None,
            slack_us: clocks_differ_us(silent_after_us),
        }
    }

    /// The signs of one round, in the order of the rows.
    pub(crate) fn of_round(
        &mut self,
        rows: impl Iterator<Item = (K, i64)>,
        now_us: i64,
        monotonic_us: i64,
    ) -> Vec<Sign> {
        let mut known = std::mem::take(&mut self.rows);
        let mut signs = Vec::new();
        for (key, stored_us) in rows {
            let row = match known.remove(&key) {
                Some(row) if row.time_us == stored_us => row,
                Some(_) => Row {
                    time_us: stored_us,
                    seen_us: monotonic_us,
                    before_us: self.looked_us,
                },
                None => Row {
                    time_us: stored_us,
                    seen_us: monotonic_us,
                    before_us: None,
                },
            };
            let to_now = |at_us: i64| now_us.saturating_sub(monotonic_us.saturating_sub(at_us));
            let mut at_us = stored_us;
            let latest_us = to_now(row.seen_us);
            if at_us > latest_us.saturating_add(self.slack_us) {
                at_us = latest_us;
            }
            if let Some(before_us) = row.before_us {
                let earliest_us = to_now(before_us);
                if at_us < earliest_us.saturating_sub(self.slack_us) {
                    at_us = earliest_us;
                }
            }
            signs.push(Sign {
                at_us,
                stored_us,
                seen_us: row.seen_us,
                came_us: row.before_us.map(|_| row.seen_us),
            });
            self.rows.insert(key, row);
        }
        self.looked_us = Some(monotonic_us);
        signs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000;
    const HOUR: i64 = 3600 * S;
    const T0: i64 = 1_800_000_000 * S;

    /// The age in seconds of one row. Its time is wrong by `error_us`, and it came at second
    /// `came_s`.
    fn age_s(signs: &mut Signs<&'static str>, came_s: i64, error_us: i64, at_s: i64) -> i64 {
        let now_us = T0 + at_s * S;
        let rows = [("row", T0 + came_s * S + error_us)];
        let sign = signs.of_round(rows.into_iter(), now_us, at_s * S)[0];
        (now_us - sign.at_us) / S
    }

    #[test]
    fn ages_follow_the_monotonic_clock_whatever_the_times_say() {
        for error_us in [0, S, 90 * S, -90 * S, HOUR, -HOUR] {
            let mut signs = Signs::new(60 * S);
            age_s(&mut signs, -1, error_us, 0);
            for second in (5..60).step_by(5) {
                let age = age_s(&mut signs, second - 1, error_us, second);
                assert!((0..=5).contains(&age), "{error_us}: {age}");
            }
            for second in (60..300).step_by(5) {
                let age = age_s(&mut signs, 54, error_us, second);
                assert!((age - (second - 54)).abs() <= 5, "{error_us}: {age}");
            }
        }
    }

    #[test]
    fn a_time_ahead_counts_from_when_it_is_met() {
        let mut signs = Signs::new(60 * S);
        assert_eq!(age_s(&mut signs, 0, 5 * HOUR, 10), 0);
        assert_eq!(age_s(&mut signs, 0, 5 * HOUR, 110), 100);
    }

    #[test]
    fn a_row_that_was_there_before_the_first_round_keeps_its_time() {
        let mut signs = Signs::new(60 * S);
        assert_eq!(age_s(&mut signs, -3600, 0, 0), 3600);
        assert_eq!(age_s(&mut signs, -3600, 0, 10), 3610);
    }

    #[test]
    fn a_step_of_the_readers_clock_makes_nothing_older() {
        let mut signs = Signs::new(60 * S);
        for (round, step_us) in [0, 0, 90 * S, 90 * S, -HOUR, -HOUR].into_iter().enumerate() {
            let monotonic_us = round as i64 * 5 * S;
            let now_us = T0 + monotonic_us + step_us;
            let rows = [("row", T0 + monotonic_us - S)];
            let sign = signs.of_round(rows.into_iter(), now_us, monotonic_us)[0];
            if round > 0 {
                assert!((0..=5 * S).contains(&(now_us - sign.at_us)));
            }
        }
    }

    #[test]
    fn a_sign_comes_after_a_silence_by_its_time_or_because_it_was_seen_to_come() {
        let mut signs = Signs::new(60 * S);
        let mut at = |stored_us, second: i64| {
            let rows = [("row", stored_us)];
            signs.of_round(rows.into_iter(), T0 + second * S, second * S)[0]
        };
        let evidence_us = T0 - HOUR;
        // The silence is known from the first look on.
        assert!(!at(evidence_us, 0).is_after(evidence_us, 0));
        assert!(at(evidence_us, 0).is_after(evidence_us - 1, 0));
        assert!(!at(evidence_us, 5).is_after(evidence_us, 0));
        // The clock that stamps arrivals was set back by a day.
        assert!(at(evidence_us - 24 * HOUR, 10).is_after(evidence_us, 0));
        assert!(!at(evidence_us - 24 * HOUR, 15).is_after(evidence_us, 10 * S));
    }
}
