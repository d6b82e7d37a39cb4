//! Links that serve in bursts, as cellular links do: packets wait for the next burst, although the
//! queue is empty.
//!
//! The queue runs empty within each round. The smallest round trip is the minimum of the path, and
//! the mean is far above it. A window of one BDP leaves such a link idle in every burst. The
//! burstiness is the mean above the smallest round trip, and the window may grow by as much.
//!
//! With cross-traffic the queue stands: the smallest round trip of a round is above the minimum of
//! the path, and no burstiness is reported.

use std::time::{Duration, Instant};

/// The smallest value of this number of rounds counts: a single drop of the rate affects one round.
const ROUNDS: usize = 3;
/// A smaller part of the minimum round trip is the sawtooth of a steady link.
const BURSTINESS_MIN: f64 = 0.15;
/// Burstiness is reported for this long after the last round that showed it.
const REMEMBERED: Duration = Duration::from_millis(500);
/// Time without a bursty round until a link counts as steady.
const STEADY_AFTER: Duration = Duration::from_secs(10);
/// Bursts must last longer than this: a sender that pauses for others looks like a short burst.
const KEEPS_ON: Duration = Duration::from_millis(500);

/// Variation of round trips within a round.
#[derive(Debug, Clone)]
pub(crate) struct Burstiness {
    sum: Duration,
    samples: u32,
    /// The newest first; none exceeds the minimum round trip.
    rounds: [Duration; ROUNDS],
    /// First and newest bursty round since the link last counted as steady.
    shown: Option<(Instant, Instant)>,
    is_shown: bool,
}

impl Burstiness {
    pub(crate) fn new() -> Self {
        Self {
            sum: Duration::ZERO,
            samples: 0,
            rounds: [Duration::ZERO; ROUNDS],
            shown: None,
            is_shown: false,
        }
    }

    pub(crate) fn on_sample(&mut self, rtt: Duration) {
        self.sum += rtt;
        self.samples += 1;
    }

    /// A round has ended with `least` as its smallest round trip, on a path with the minimum
    /// `bare`. `is_empty`: the queue was empty, and no RTT probe emptied it. Returns true for a
    /// bursty round.
    pub(crate) fn on_round(
        &mut self,
        now: Instant,
        least: Duration,
        bare: Duration,
        is_empty: bool,
    ) -> bool {
        let mean = std::mem::take(&mut self.sum) / std::mem::take(&mut self.samples).max(1);
        self.rounds.rotate_right(1);
        self.rounds[0] = mean.saturating_sub(least).min(bare);
        let shows = is_empty && self.least() > bare.mul_f64(BURSTINESS_MIN);
        if shows {
            let first = self.shown.filter(|_| !self.is_steady(now));
            self.shown = Some((first.map_or(now, |(first, _)| first), now));
            self.is_shown = true;
        } else if !self.shows_within(now, REMEMBERED) {
            self.is_shown = false;
        }
        shows
    }

    fn shows_within(&self, now: Instant, time: Duration) -> bool {
        self.shown.is_some_and(|(_, at)| now <= at + time)
    }

    /// The link was not bursty lately.
    pub(crate) fn is_steady(&self, now: Instant) -> bool {
        !self.shows_within(now, STEADY_AFTER)
    }

    /// Bursts have lasted for [`KEEPS_ON`].
    pub(crate) fn keeps_on(&self) -> bool {
        self.shown
            .is_some_and(|(first, newest)| newest >= first + KEEPS_ON)
    }

    fn least(&self) -> Duration {
        self.rounds.into_iter().min().unwrap_or_default()
    }

    /// Delay that data in flight may have beyond the minimum round trip; zero on a steady link.
    pub(crate) fn get(&self) -> Duration {
        if self.is_shown {
            self.least()
        } else {
            Duration::ZERO
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BARE: Duration = Duration::from_millis(50);

    /// A round of four samples, in milliseconds.
    fn pass(burstiness: &mut Burstiness, now: Instant, round: [u64; 4], is_empty: bool) {
        let each = round.map(Duration::from_millis);
        each.into_iter().for_each(|rtt| burstiness.on_sample(rtt));
        let least = each.into_iter().min().unwrap_or_default();
        burstiness.on_round(now, least, BARE, is_empty);
    }

    /// Rounds, a round trip apart; returns the value after the last.
    fn reported(rounds: &[[u64; 4]], is_empty: bool) -> Duration {
        let start = Instant::now();
        let mut burstiness = Burstiness::new();
        for (number, round) in rounds.iter().enumerate() {
            pass(
                &mut burstiness,
                start + BARE * number as u32,
                *round,
                is_empty,
            );
        }
        burstiness.get()
    }

    #[test]
    fn a_burst_that_stays_alone_does_not_keep_on() {
        let start = Instant::now();
        let mut burstiness = Burstiness::new();
        let rounds = |burstiness: &mut Burstiness, numbers: std::ops::Range<u32>, round| {
            numbers.for_each(|number| pass(burstiness, start + BARE * number, round, true));
        };
        let (bursts, steady) = ([50, 70, 90, 110], [50, 51, 52, 51]);
        rounds(&mut burstiness, 0..5, bursts);
        assert!(!burstiness.is_steady(start + BARE * 5) && !burstiness.keeps_on());
        rounds(&mut burstiness, 5..100, steady);
        assert!(!burstiness.keeps_on());
        rounds(&mut burstiness, 100..105, bursts);
        assert!(burstiness.keeps_on());
        // Detection starts again after a long time.
        rounds(&mut burstiness, 500..505, bursts);
        assert!(!burstiness.is_steady(start + BARE * 505) && !burstiness.keeps_on());
    }

    #[test]
    fn bursts_are_reported_after_three_rounds_and_a_single_drop_of_the_rate_is_not() {
        let bursts = [50, 70, 90, 110];
        let steady = [51, 52, 51, 52];
        assert_eq!(reported(&[bursts; 2], true), Duration::ZERO);
        assert_eq!(reported(&[bursts; 3], true), Duration::from_millis(30));
        assert_eq!(
            reported(&[steady, bursts, steady, bursts], true),
            Duration::ZERO
        );
    }

    #[test]
    fn a_queue_that_stands_is_no_burst() {
        assert_eq!(reported(&[[80, 100, 120, 140]; 9], false), Duration::ZERO);
    }

    #[test]
    fn bursts_are_forgotten() {
        let mut rounds = vec![[50, 70, 90, 110]; 5];
        rounds.extend([[50, 50, 51, 51]; 14]);
        assert_eq!(reported(&rounds, true), Duration::ZERO);
    }
}
