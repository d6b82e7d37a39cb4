//! Pauses between attempts: exponential and bounded, with jitter, so that a thousand gateways do
//! not return in step.

use std::time::Duration;

use rand::RngExt;

/// Attempt `n` waits between half and all of `initial * 2^n`, at most `max`.
#[derive(Clone, Debug)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
    attempts: u32,
}

impl Backoff {
    pub fn new(initial: Duration, max: Duration) -> Backoff {
        Backoff {
            initial,
            max,
            attempts: 0,
        }
    }

    /// 100 ms doubling to 5 s, for a client of a service that restarts.
    pub fn for_reconnect() -> Backoff {
        Backoff::new(Duration::from_millis(100), Duration::from_secs(5))
    }

    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Called after a success.
    pub fn reset(&mut self) {
        self.attempts = 0;
    }

    /// The pause before the next attempt.
    pub fn next_delay(&mut self) -> Duration {
        self.next_delay_with(rand::rng().random_range(0.0..1.0))
    }

    /// The same with the caller's random number in `[0, 1)`, for tests and simulations.
    pub fn next_delay_with(&mut self, random: f64) -> Duration {
        let ceiling = self
            .initial
            .saturating_mul(1_u32.checked_shl(self.attempts).unwrap_or(u32::MAX))
            .min(self.max);
        self.attempts = self.attempts.saturating_add(1);
        ceiling.mul_f64(0.5 + 0.5 * random.clamp(0.0, 1.0))
    }

    pub async fn wait(&mut self) {
        tokio::time::sleep(self.next_delay()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_bound_and_starts_again_after_a_success() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        let delays: Vec<_> = (0..40).map(|_| backoff.next_delay_with(1.0)).collect();
        assert_eq!(delays[0], Duration::from_millis(100));
        assert_eq!(delays[1], Duration::from_millis(200));
        assert!(
            delays[4..]
                .iter()
                .all(|delay| *delay == Duration::from_secs(1))
        );
        backoff.reset();
        assert_eq!(backoff.next_delay_with(0.0), Duration::from_millis(50));
    }
}
