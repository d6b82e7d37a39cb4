//! Links that serve in bursts, as cellular ones do: packets wait for the next burst, though nothing stands in the queue.
//!
//! Within each round the queue empties, so the smallest round trip is that of the bare path, while the mean one is far above it. A window of
//! products leaves such a link idle in every burst. The swing is what the mean has above the smallest, and what is in flight may be more by as much.
//!
//! Beside a stranger the queue stands: the smallest round trip of a round is above the bare path's, and no swing is told.

use std::time::{Duration, Instant};

/// The least of so many rounds counts: a rate that falls once swings in one round only.
const ROUNDS: usize = 3;
/// A smaller part of the bare round trip is the sawtooth of a steady link.
const SWING_MIN: f64 = 0.15;
/// Told for so long after the last round that showed it.
const REMEMBERED: Duration = Duration::from_millis(500);
/// After so long without one a link is taken for steady.
const STEADY_AFTER: Duration = Duration::from_secs(10);
/// A sender that stands still and goes on again, since it waits for others, looks like a burst; but not for so long.
const KEEPS_ON: Duration = Duration::from_millis(500);

/// How far round trips swing within a round.
#[derive(Debug, Clone)]
pub(crate) struct Swing {
    sum: Duration,
    samples: u32,
    /// The newest first; none is longer than the bare round trip.
    rounds: [Duration; ROUNDS],
    /// Since the link was last taken for steady: the first and the newest round that showed it.
    shown: Option<(Instant, Instant)>,
    is_shown: bool,
}

impl Swing {
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

    /// A round ends whose smallest round trip was `least` on a path of `bare`; `is_empty`: nothing stood in the queue, and nobody drained it. True
    /// when the round shows a link that serves in bursts.
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
        let shows = is_empty && self.least() > bare.mul_f64(SWING_MIN);
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

    /// The link has not served in bursts for long.
    pub(crate) fn is_steady(&self, now: Instant) -> bool {
        !self.shows_within(now, STEADY_AFTER)
    }

    /// It has done so again after [`KEEPS_ON`].
    pub(crate) fn keeps_on(&self) -> bool {
        self.shown
            .is_some_and(|(first, newest)| newest >= first + KEEPS_ON)
    }

    fn least(&self) -> Duration {
        self.rounds.into_iter().min().unwrap_or_default()
    }

    /// What is in flight may last so much longer than the bare round trip; zero on a steady link.
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
    fn pass(swing: &mut Swing, now: Instant, round: [u64; 4], is_empty: bool) {
        let each = round.map(Duration::from_millis);
        each.into_iter().for_each(|rtt| swing.on_sample(rtt));
        let least = each.into_iter().min().unwrap_or_default();
        swing.on_round(now, least, BARE, is_empty);
    }

    /// Rounds, a round trip apart; what is told after the last.
    fn told(rounds: &[[u64; 4]], is_empty: bool) -> Duration {
        let start = Instant::now();
        let mut swing = Swing::new();
        for (number, round) in rounds.iter().enumerate() {
            pass(&mut swing, start + BARE * number as u32, *round, is_empty);
        }
        swing.get()
    }

    #[test]
    fn a_burst_that_stays_alone_does_not_keep_on() {
        let start = Instant::now();
        let mut swing = Swing::new();
        let rounds = |swing: &mut Swing, numbers: std::ops::Range<u32>, round| {
            numbers.for_each(|number| pass(swing, start + BARE * number, round, true));
        };
        let (bursts, steady) = ([50, 70, 90, 110], [50, 51, 52, 51]);
        rounds(&mut swing, 0..5, bursts);
        assert!(!swing.is_steady(start + BARE * 5) && !swing.keeps_on());
        rounds(&mut swing, 5..100, steady);
        assert!(!swing.keeps_on());
        rounds(&mut swing, 100..105, bursts);
        assert!(swing.keeps_on());
        // Long after that all begins anew.
        rounds(&mut swing, 500..505, bursts);
        assert!(!swing.is_steady(start + BARE * 505) && !swing.keeps_on());
    }

    #[test]
    fn bursts_are_told_after_three_rounds_and_a_single_fall_of_the_rate_is_not() {
        let bursts = [50, 70, 90, 110];
        let steady = [51, 52, 51, 52];
        assert_eq!(told(&[bursts; 2], true), Duration::ZERO);
        assert_eq!(told(&[bursts; 3], true), Duration::from_millis(30));
        assert_eq!(
            told(&[steady, bursts, steady, bursts], true),
            Duration::ZERO
        );
    }

    #[test]
    fn a_queue_that_stands_is_no_burst() {
        assert_eq!(told(&[[80, 100, 120, 140]; 9], false), Duration::ZERO);
    }

    #[test]
    fn bursts_are_forgotten() {
        let mut rounds = vec![[50, 70, 90, 110]; 5];
        rounds.extend([[50, 50, 51, 51]; 14]);
        assert_eq!(told(&rounds, true), Duration::ZERO);
    }
}
