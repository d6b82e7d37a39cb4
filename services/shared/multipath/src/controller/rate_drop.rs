//! A rate that falls for seconds. Beside a sender that takes the share of a full queue, a window of
//! BDPs shrinks with the rate it measures, a little each round. No round trip shows this, because
//! the sender's own short queue is as long.

use std::time::Duration;

/// Time constant of the smoothed rate.
const SMOOTHED_OVER: Duration = Duration::from_secs(2);
/// Time after the start-up until the rate counts as the rate of the link.
const SETTLES_AFTER: Duration = Duration::from_secs(1);
/// Less than this part of the settled rate is a drop.
const LEFT_MIN: f64 = 0.93;

/// The smoothed rate and its reference.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RateDrop {
    smoothed: f64,
    /// The largest smoothed rate since the last RTT probe, or the rate at its end.
    settled: f64,
}

impl RateDrop {
    /// A round has ended. During start-up (`cruising_for` is none) its rate is no reference.
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

    /// An RTT probe has examined the link.
    pub(super) fn on_probe_end(&mut self) {
        self.settled = self.smoothed;
    }

    pub(super) fn is_significant(&self) -> bool {
        self.smoothed < self.settled * LEFT_MIN
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    const ROUND: Duration = Duration::from_millis(50);

    /// State after a start-up with this rate and a second of cruising.
    fn started(rate: f64) -> RateDrop {
        let mut drop = RateDrop::default();
        drop.on_round(rate, ROUND, None);
        cruise(&mut drop, 1..25, |_| rate);
        assert!(!drop.is_significant());
        drop
    }

    /// The first round after the start-up in which the drop is significant.
    fn cruise(drop: &mut RateDrop, rounds: Range<u32>, rate: impl Fn(u32) -> f64) -> Option<u32> {
        let mut rounds = rounds.into_iter();
        rounds.find(|&round| {
            drop.on_round(rate(round), ROUND, Some(ROUND * round));
            drop.is_significant()
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
    fn an_rtt_probe_ends_a_rate_drop() {
        let mut drop = started(1e6);
        assert!(cruise(&mut drop, 25..45, |_| 0.5e6).is_some());
        drop.on_probe_end();
        assert!(!drop.is_significant());
    }

    #[test]
    fn a_short_peak_of_the_start_up_is_no_reference() {
        let mut drop = RateDrop::default();
        drop.on_round(2e6, ROUND, None);
        let settling = |round: u32| if round < 2 { 2e6 } else { 1e6 };
        assert_eq!(cruise(&mut drop, 1..20, settling), None);
    }
}
