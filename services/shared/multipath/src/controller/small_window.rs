//! Growth of a window of a few packets.
//!
//! Such a window measures little more than it holds: the library sends no packet without room for a
//! full one, and acknowledgements come late. So a rate that was measured too low keeps the window
//! small, and the small window keeps the rate low. The cause may be a queue of the other direction,
//! which ends the start-up of a sender that only acknowledges. So a larger window is tried.

use super::trials::Trials;

/// Rounds between two trials on a link that is as slow as measured.
const PAUSE_MAX: u32 = 128;
/// Growth of the rate that a trial has to show.
const GROWTH: f64 = 1.1;

/// The window of a trial, in BDPs and in packets beyond them.
pub(super) const TRIAL_WINDOW: f64 = 1.5;
pub(super) const TRIAL_PACKETS: u64 = 1;

#[derive(Debug, Clone)]
pub(super) struct SmallWindow(Trials);

impl SmallWindow {
    pub(super) fn new() -> Self {
        Self(Trials::new(PAUSE_MAX, GROWTH))
    }

    pub(super) fn is_on_trial(&self) -> bool {
        self.0.is_on_trial()
    }

    /// A round has ended in which the window was small and limited the sender.
    pub(super) fn on_limited_round(&mut self, rate: f64) {
        self.0.on_limited_round(rate, true);
    }

    /// A round has ended in which the window was large, or the application had too little to send.
    pub(super) fn on_other_round(&mut self) {
        self.0.on_other_round();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::trials::{PAUSE_MIN, TRIAL_ROUNDS};

    /// Rounds on trial among so many with this rate.
    fn trials(window: &mut SmallWindow, rounds: u32, rate: impl Fn(u32) -> f64) -> u32 {
        let mut on_trial = 0;
        for round in 0..rounds {
            window.on_limited_round(rate(round));
            on_trial += u32::from(window.is_on_trial());
        }
        on_trial
    }

    #[test]
    fn a_link_that_is_as_slow_as_measured_is_tried_rarely() {
        let mut window = SmallWindow::new();
        assert_eq!(trials(&mut window, PAUSE_MIN - 1, |_| 1e5), 0);
        assert_eq!(trials(&mut window, TRIAL_ROUNDS, |_| 1e5), TRIAL_ROUNDS);
        assert_eq!(trials(&mut window, 2 * PAUSE_MIN, |_| 1e5), 0);
        trials(&mut window, 1_000, |_| 1e5);
        assert!(trials(&mut window, 1_300, |_| 1e5) <= 2 * 10);
    }

    #[test]
    fn trials_follow_each_other_while_the_rate_grows() {
        let mut window = SmallWindow::new();
        trials(&mut window, PAUSE_MIN, |_| 1e5);
        let grows = |round: u32| 1e5 * 1.1_f64.powi(round as i32);
        assert_eq!(trials(&mut window, 20, grows), 20);
        window.on_other_round();
        assert!(!window.is_on_trial());
    }
}
