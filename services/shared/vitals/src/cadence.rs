//! The rhythm of one metric of one patient: when the next reading is overdue. Sans-IO, in bounded
//! space.
//!
//! The interval is the third largest of the gaps that the newest readings left, over one to two
//! windows of [`WINDOW_US`].
//!
//! - A large gap counts and a mean does not, so a sensor that measures in bursts is judged by the
//!   pause between its bursts. Small gaps, as of duplicates or of two sensors, change nothing.
//! - Two gaps are no rhythm: a pause, a lost stretch, or a clock that stepped ahead. The third
//!   within two windows is one, so what comes again raises no alarm for hours.
//! - A reading that is not newer than the newest one adds nothing, so a late batch has no effect. A
//!   backlog in order has the gaps of its own times.
//! - A gap beyond the limit of any worn metric is a pause and adds nothing. The learned gaps stay.
//! - The window counts time between readings alone, so a sensor that is off forgets nothing.
//!
//! All times of one cadence are of one clock: the dashboard has the event time, the watch for
//! silence its own monotonic clock.

use crate::silence::{WORN_STALE_US, is_worn};

/// The next reading is overdue after so many intervals.
const INTERVALS: i64 = 3;
/// Nothing is overdue sooner. A hand-over between networks takes seconds.
pub const SHORTEST_US: i64 = 30_000_000;
/// Readings before a rhythm is known: the third largest of their five gaps is the median.
const READINGS_MIN: u32 = 6;
/// Gaps that are remembered of each window.
const GAPS: usize = 3;
/// At least three of the longest gaps that count.
const WINDOW_US: i64 = GAPS as i64 * WORN_STALE_US;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cadence {
    newest_us: i64,
    readings: u32,
    /// Time that the gaps of the present window cover.
    covered_us: i64,
    /// The largest gaps of the present window and of the one before, in descending order.
    present: [i64; GAPS],
    before: [i64; GAPS],
}

impl Cadence {
    pub fn learn(&mut self, time_us: i64) {
        if self.readings == 0 {
            self.newest_us = time_us;
            self.readings = 1;
            return;
        }
        let gap_us = time_us.saturating_sub(self.newest_us);
        if gap_us <= 0 {
            return;
        }
        self.newest_us = time_us;
        if gap_us > WORN_STALE_US {
            return;
        }
        self.readings = self.readings.saturating_add(1);
        insert(&mut self.present, gap_us);
        self.covered_us += gap_us;
        if self.covered_us >= WINDOW_US {
            self.before = std::mem::take(&mut self.present);
            self.covered_us = 0;
        }
    }

    /// The clock of the readings was set back to here. The step is no gap.
    pub fn set_back(&mut self, time_us: i64) {
        self.newest_us = time_us;
        self.readings = self.readings.max(1);
    }

    /// `None`: too few readings are known.
    fn interval_us(&self) -> Option<i64> {
        let mut largest = self.before;
        for gap_us in self.present {
            insert(&mut largest, gap_us);
        }
        (self.readings >= READINGS_MIN).then_some(largest[GAPS - 1])
    }

    /// Age from which the newest reading is stale: three intervals, at least [`SHORTEST_US`], never
    /// beyond the metric's limit in the rules. The limit alone holds until a rhythm is known, and
    /// for a metric that is not worn all the time.
    pub fn stale_after_us(&self, limit_us: i64) -> i64 {
        match self.interval_us() {
            Some(interval_us) if is_worn(limit_us) => {
                let overdue_us = interval_us.saturating_mul(INTERVALS);
                overdue_us.max(SHORTEST_US).min(limit_us)
            }
            _ => limit_us,
        }
    }
}

/// Keeps the largest in descending order.
fn insert(largest: &mut [i64; GAPS], mut gap_us: i64) {
    for there in largest {
        if gap_us > *there {
            std::mem::swap(there, &mut gap_us);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000;
    const T0: i64 = 1_800_000_000 * S;
    const LIMIT_US: i64 = 600 * S;

    /// Seconds after which a stream with readings at these seconds is stale.
    fn stale_s(seconds: impl IntoIterator<Item = i64>) -> i64 {
        let mut cadence = Cadence::default();
        for second in seconds {
            cadence.learn(T0 + second * S);
        }
        cadence.stale_after_us(LIMIT_US) / S
    }

    #[test]
    fn three_intervals_at_least_half_a_minute_and_at_most_the_limit() {
        for (interval, expected) in [(1, 30), (10, 30), (20, 60), (60, 180), (300, 600)] {
            let times = (0..40).map(|n| n * interval);
            assert_eq!(stale_s(times), expected, "each {interval} s");
        }
        let mut each_second = Cadence::default();
        (0..100).for_each(|n| each_second.learn(T0 + n * S));
        assert_eq!(each_second.stale_after_us(20 * S), 20 * S, "a strict rule");
        let hours = 4 * 3600 * S;
        assert_eq!(each_second.stale_after_us(hours), hours, "a cuff");
    }

    #[test]
    fn the_limit_holds_until_a_rhythm_is_known() {
        assert_eq!(stale_s([]), 600);
        assert_eq!(stale_s(0..5), 600);
        assert_eq!(stale_s(0..6), 30);
        assert_eq!(stale_s((0..9).map(|day| day * 43_200)), 600, "twice a day");
    }

    #[test]
    fn what_comes_once_or_twice_changes_no_rhythm() {
        let steady = || (0..600).chain(1_000..1_600);
        assert_eq!(stale_s(steady()), 30, "a pause");
        assert_eq!(stale_s(steady().chain(1_800..1_900)), 30, "two pauses");
        assert_eq!(stale_s(steady().chain(0..600)), 30, "a late batch");
        assert_eq!(stale_s(steady().flat_map(|n| [n, n])), 30, "duplicates");
        let ahead = (0..60).chain(400..410).chain(60..500);
        assert_eq!(stale_s(ahead), 30, "a clock that was ahead for a while");
        // Two sensors half a second apart, each once a minute.
        let mut both = Cadence::default();
        for minute in 0..60 {
            both.learn(T0 + minute * 60 * S);
            both.learn(T0 + minute * 60 * S + S / 2);
        }
        assert_eq!(both.stale_after_us(LIMIT_US), 59_500_000 * 3);
    }

    #[test]
    fn bursts_are_a_rhythm_from_the_third_pause_on_and_are_forgotten_later() {
        let bursts = |count| (0..count).flat_map(|burst| (0..30).map(move |n| burst * 180 + n));
        assert_eq!(stale_s(bursts(3)), 30);
        assert_eq!(stale_s(bursts(4)), 3 * 151);
        let steady = |length: i64| bursts(20).chain(3_600..3_600 + length);
        assert_eq!(stale_s(steady(1_000)), 3 * 151);
        assert_eq!(stale_s(steady(3_700)), 30);
    }

    #[test]
    fn a_sensor_that_was_off_is_judged_by_its_rhythm_at_once() {
        assert_eq!(stale_s((0..60).chain([90_000])), 30);
    }

    #[test]
    fn a_clock_that_was_set_back_begins_no_new_rhythm() {
        let mut cadence = Cadence::default();
        (0..60).for_each(|n| cadence.learn(T0 + (3_600 + n) * S));
        cadence.set_back(T0);
        (0..2_000).for_each(|n| cadence.learn(T0 + n * 60 * S));
        assert_eq!(cadence.stale_after_us(LIMIT_US), 180 * S);
    }
}
