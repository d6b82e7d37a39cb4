//! A rate that falls for seconds. Alone on a link of a steady rate nothing falls; but beside a sender that takes what a full queue gives, a window of products
//! shrinks with the rate it measures, a little each round, until nothing is left: no round trip tells it, since the own short queue would be as long.

use std::time::Duration;

/// The rate is smoothed over this time.
const SMOOTHED_OVER: Duration = Duration::from_secs(2);
/// So long after the start-up the rate is taken for the link's.
const SETTLES_AFTER: Duration = Duration::from_secs(1);
/// Less of the settled rate than this is a fall.
const LEFT_MIN: f64 = 0.93;

/// The smoothed rate, and what it was.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Fall {
    smoothed: f64,
    /// The largest smoothed rate since the last drained round, or at its end.
    settled: f64,
}

impl Fall {
    /// A round of this length has ended, so long after the start-up, whose rate says nothing of a fall.
    pub(super) fn on_round(&mut self, rate: f64, round: Duration, cruising_for: Option<Duration>) {
        let Some(cruising_for) = cruising_for else {
            self.smoothed = rate;
            return;
        };
        let weight = round.div_duration_f64(SMOOTHED_OVER).min(1.0);
        self.smoothed += (rate - self.smoothed) * weight;
        if cruising_for > SETTLES_AFTER {
            self.settled = self.settled.max(self.smoothed);
        }
    }

    /// A drained round has looked at the link.
    pub(super) fn on_drained(&mut self) {
        self.settled = self.smoothed;
    }

    pub(super) fn is_far(&self) -> bool {
        self.smoothed < self.settled * LEFT_MIN
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    const ROUND: Duration = Duration::from_millis(50);

    /// A start-up that ended with this rate, and a second of it.
    fn started(rate: f64) -> Fall {
        let mut fall = Fall::default();
        fall.on_round(rate, ROUND, None);
        cruise(&mut fall, 1..25, |_| rate);
        assert!(!fall.is_far());
        fall
    }

    /// The first of these rounds after the start-up in which the rate has fallen far.
    fn cruise(fall: &mut Fall, rounds: Range<u32>, rate: impl Fn(u32) -> f64) -> Option<u32> {
        let mut rounds = rounds.into_iter();
        rounds.find(|&round| {
            fall.on_round(rate(round), ROUND, Some(ROUND * round));
            fall.is_far()
        })
    }

    #[test]
    fn a_rate_that_is_taken_little_by_little_falls_and_one_that_stays_does_not() {
        let mut stays = started(1e6);
        assert_eq!(cruise(&mut stays, 25..400, |_| 1e6), None);
        let shrinks = |round: u32| 1e6 * 0.99_f64.powf(f64::from(round - 25));
        let noticed = cruise(&mut started(1e6), 25..400, shrinks);
        assert!(noticed.is_some_and(|round| round < 65), "{noticed:?}");
    }

    #[test]
    fn what_a_drained_round_has_looked_at_is_no_fall_any_more() {
        let mut fall = started(1e6);
        assert!(cruise(&mut fall, 25..45, |_| 0.5e6).is_some());
        fall.on_drained();
        assert!(!fall.is_far());
    }

    #[test]
    fn what_the_start_up_took_for_a_moment_is_nothing_to_fall_from() {
        let mut fall = Fall::default();
        fall.on_round(2e6, ROUND, None);
        let settling = |round: u32| if round < 2 { 2e6 } else { 1e6 };
        assert_eq!(cruise(&mut fall, 1..20, settling), None);
    }
}
