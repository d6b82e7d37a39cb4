//! Round trips that are longer under load, although no queue stands.
//!
//! A link with jitter that keeps the order of packets delivers each with the longest jitter of
//! those before it. The smallest round trip is that of lucky single packets. A window of the rate
//! and the smallest round trip then delivers less than it measured, and so both fall, down to a few
//! packets. Where round trips jump from packet to packet, a larger window is tried. In a queue the
//! round trip would grow with the window; here the rate does, and the round trip under load is the
//! path's own.
//!
//! A queue of other senders moves slowly, so its round trips do not jump. A trial in such a queue
//! would take a larger share of the link.

use std::time::{Duration, Instant};

use super::trials::{Begins, Trials};

/// Longest number of rounds between two trials.
const PAUSE_MAX: u32 = 64;
/// The window of a trial, in windows before it.
const TRIAL_WINDOW: f64 = 1.5;
/// Growth of the rate that a trial has to show.
const GROWTH: f64 = 1.3;
/// A mean round trip below this factor of the smallest one leaves nothing to find.
const LONG: f64 = 1.2;
/// Timers and wake-ups of busy hosts explain smaller jumps.
const HOSTS: Duration = Duration::from_millis(4);
/// Round trips jump if the mean difference of two in a row is this part of what the mean one has
/// beyond the smallest.
const JUMP: f64 = 0.16;
/// The same two for a window of few packets. Spare packets are a larger part of it, and between two
/// of them a queue of others moves further.
const LONG_OF_FEW: f64 = 1.55;
const JUMP_OF_FEW: f64 = 0.4;
const FEW_PACKETS: u64 = 32;
/// Round trips that the mean difference covers.
const JUMP_SAMPLES: u32 = 16;

#[derive(Debug, Clone)]
pub(super) struct Stretched {
    trials: Trials,
    /// Window of the trial, while there is one.
    window: u64,
    is_known: bool,
    rtt: Option<Duration>,
    /// Mean difference of two round trips in a row.
    jump: Duration,
    round_began: Option<Instant>,
}

/// A round in which the window limited the sender.
#[derive(Debug, Clone, Copy)]
pub(super) struct LimitedRound {
    pub(super) delivered: u64,
    pub(super) window: u64,
    pub(super) mtu: u64,
    /// The base round trip, the mean one, and the smallest of the round.
    pub(super) base: Duration,
    pub(super) mean: Duration,
    pub(super) seen: Duration,
}

impl LimitedRound {
    fn jumps(&self, jump: Duration) -> bool {
        let (long, part) = if self.window < FEW_PACKETS * self.mtu {
            (LONG_OF_FEW, JUMP_OF_FEW)
        } else {
            (LONG, JUMP)
        };
        let beyond = self.mean.saturating_sub(self.base);
        self.mean > self.base.mul_f64(long) && jump >= beyond.mul_f64(part).max(HOSTS)
    }
}

impl Stretched {
    pub(super) fn new() -> Self {
        Self {
            trials: Trials::new(PAUSE_MAX, GROWTH),
            window: 0,
            is_known: false,
            rtt: None,
            jump: Duration::ZERO,
            round_began: None,
        }
    }

    /// A trial has found a longer base round trip. Shorter ones of single packets do not count.
    pub(super) fn is_known(&self) -> bool {
        self.is_known
    }

    /// The least window, zero without a trial.
    pub(super) fn window(&self) -> u64 {
        if self.trials.is_on_trial() {
            self.window
        } else {
            0
        }
    }

    pub(super) fn on_round_trip(&mut self, rtt: Duration) {
        if let Some(last) = self.rtt.replace(rtt) {
            self.jump = (self.jump * (JUMP_SAMPLES - 1) + last.abs_diff(rtt)) / JUMP_SAMPLES;
        }
    }

    /// Returns the base round trip that a trial has found.
    pub(super) fn on_limited_round(
        &mut self,
        now: Instant,
        round: LimitedRound,
    ) -> Option<Duration> {
        let began = self.round_began.replace(now)?;
        let lasted = now.saturating_duration_since(began).as_secs_f64();
        if lasted <= 0.0 {
            return None;
        }
        let rate = round.delivered as f64 / lasted;
        let begins = self.trials.on_limited_round(rate, round.jumps(self.jump))?;
        let (before, found) = match begins {
            Begins::Anew => (round.window, None),
            Begins::NextOne => (self.window, Some(round.seen.max(round.base))),
        };
        self.window = (before as f64 * TRIAL_WINDOW) as u64;
        self.is_known |= found.is_some();
        found
    }

    /// A round has ended that the application limited, or whose rate depends on more than the
    /// window.
    pub(super) fn on_other_round(&mut self, now: Instant) {
        self.round_began = Some(now);
        self.trials.on_other_round();
    }

    /// The path is another one.
    pub(super) fn forget(&mut self) {
        *self = Self::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: u64 = 1_000;
    const BASE: u32 = 10;

    /// A path in front of which the window stands, with round trips in milliseconds.
    struct Path {
        stretched: Stretched,
        now: Instant,
        base: Duration,
        window: u64,
    }

    impl Path {
        fn new() -> Self {
            Self {
                stretched: Stretched::new(),
                now: Instant::now(),
                base: ms(BASE),
                window: 50 * MTU,
            }
        }

        /// A round of `rtt` whose round trips differ by `jump`, at most with this rate in bytes a
        /// second. Returns the window that it had, and what was found.
        fn round(&mut self, rtt: u32, jump: u32, rate_max: f64) -> (u64, Option<Duration>) {
            for n in 0..2 * JUMP_SAMPLES {
                self.stretched.on_round_trip(ms(rtt + n % 2 * jump));
            }
            let window = self.window.max(self.stretched.window());
            let lasted = (window as f64 / rate_max).max(f64::from(rtt) / 1e3);
            self.now += Duration::from_secs_f64(lasted);
            let round = LimitedRound {
                delivered: window,
                window,
                mtu: MTU,
                base: self.base,
                mean: ms(rtt),
                seen: ms(rtt),
            };
            let found = self.stretched.on_limited_round(self.now, round);
            self.base = found.unwrap_or(self.base);
            (window, found)
        }
    }

    const fn ms(ms: u32) -> Duration {
        Duration::from_millis(ms as u64)
    }

    #[test]
    fn a_rate_that_grows_with_the_window_shows_a_longer_path() {
        let mut path = Path::new();
        let found = (0..20).find_map(|_| path.round(60, 20, 1e9).1);
        assert_eq!(found, Some(ms(60)));
        assert!(path.stretched.is_known());
        // The next trial follows at once, until the link's rate ends the growth.
        let largest = (0..20).map(|_| path.round(60, 20, 5e6).0).max();
        assert!(largest > Some(250 * MTU), "{largest:?}");
        path.stretched.forget();
        assert!(!path.stretched.is_known() && path.stretched.window() == 0);
    }

    #[test]
    fn a_queue_that_grows_with_the_window_is_tried_rarely_and_changes_nothing() {
        let mut path = Path::new();
        let rounds: Vec<_> = (0..1_000).map(|_| path.round(60, 20, 8e5)).collect();
        assert!(rounds.iter().all(|round| round.1.is_none()));
        let on_trial = rounds.iter().filter(|round| round.0 > path.window).count();
        assert!((2..=60).contains(&on_trial), "{on_trial}");
    }

    #[test]
    fn round_trips_that_do_not_jump_are_a_queue() {
        let tried = |packets: u64, jump: u32| {
            let mut path = Path::new();
            path.window = packets * MTU;
            (0..100).any(|_| path.round(60, jump, 1e9).0 > path.window)
        };
        assert!(!tried(50, 7), "0.14 of 50 ms");
        assert!(tried(50, 9), "0.18");
        assert!(!tried(10, 19), "0.38 of few packets");
        assert!(tried(10, 21), "0.42");
        let mut path = Path::new();
        let is_left = |window: u64| window == 50 * MTU;
        assert!((0..100).all(|_| is_left(path.round(11, 9, 1e9).0)), "1.1");
        assert!((0..100).all(|_| is_left(path.round(16, 3, 1e9).0)), "hosts");
    }

    #[test]
    fn a_round_that_the_application_limits_ends_the_trial() {
        let mut path = Path::new();
        while path.stretched.window() == 0 {
            path.round(60, 20, 1e9);
        }
        path.stretched.on_other_round(path.now);
        assert_eq!(path.stretched.window(), 0);
    }
}
