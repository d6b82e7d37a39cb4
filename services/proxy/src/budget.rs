//! Requests per second of one gateway: a token bucket. Sans-IO. The last second's worth is not for
//! bulk, so a page with a hundred connections cannot keep an alert out.

use std::time::{Duration, Instant};

use tunnel::Urgency;

/// Burst after a pause, in seconds of the steady rate: a gateway that comes back opens all its
/// tunnels together.
const BURST_SECONDS: f64 = 4.0;

/// After a pause of this length the bucket is full.
pub(crate) const FULL_AFTER: Duration = Duration::from_secs(BURST_SECONDS as u64);

/// Reserve that bulk must leave, in seconds of the steady rate.
const KEPT_SECONDS: f64 = 1.0;

#[derive(Debug)]
pub(crate) struct Budget {
    per_second: f64,
    tokens: f64,
    filled_at: Instant,
}

impl Budget {
    pub(crate) fn new(per_second: u32, now: Instant) -> Self {
        let per_second = f64::from(per_second);
        Self {
            per_second,
            tokens: per_second * BURST_SECONDS,
            filled_at: now,
        }
    }

    /// Spends one request. If the budget has no room, returns the time until it has.
    pub(crate) fn spend(&mut self, urgency: Urgency, now: Instant) -> Result<(), Duration> {
        let passed = now.saturating_duration_since(self.filled_at).as_secs_f64();
        self.filled_at = now;
        let most = self.per_second * BURST_SECONDS;
        self.tokens = (self.tokens + passed * self.per_second).min(most);
        let kept = match urgency {
            Urgency::Bulk => self.per_second * KEPT_SECONDS,
            Urgency::Prompt | Urgency::Urgent => 0.0,
        };
        let missing = 1.0 + kept - self.tokens;
        if missing > 0.0 {
            return Err(Duration::from_secs_f64(missing / self.per_second));
        }
        self.tokens -= 1.0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_then_the_steady_rate() {
        let start = Instant::now();
        let mut budget = Budget::new(10, start);
        let mut spent = |at_ms| {
            budget
                .spend(Urgency::Prompt, start + Duration::from_millis(at_ms))
                .is_ok()
        };
        assert_eq!((0..100).filter(|_| spent(0)).count(), 40);
        assert_eq!((0..100).filter(|_| spent(500)).count(), 5);
        assert!(!spent(550));
        assert!(spent(601));
        // An hour without requests gives no more than the burst.
        assert_eq!((0..100).filter(|_| spent(3_600_000)).count(), 40);
    }

    #[test]
    fn bulk_leaves_a_second_of_the_rate() {
        let start = Instant::now();
        let mut budget = Budget::new(10, start);
        let mut spent = |urgency| {
            (0..100)
                .filter(|_| budget.spend(urgency, start).is_ok())
                .count()
        };
        assert_eq!(spent(Urgency::Bulk), 30);
        assert_eq!(spent(Urgency::Urgent), 10);
        let late = budget.spend(Urgency::Bulk, start + Duration::from_secs(1));
        assert_eq!(late, Err(Duration::from_millis(100)));
        let in_time = budget.spend(Urgency::Bulk, start + Duration::from_millis(1_101));
        assert_eq!(in_time, Ok(()));
    }
}
