//! One round that looks at the path without the own queue. The window is below one product until that little is in flight; what is then sent
//! for a part of a round trip tells the round trip, when it is acknowledged, since what was acknowledged before was sent into the queue that is
//! drained. The window opens again meanwhile.

use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DrainedRound {
    drained_at: Option<Instant>,
    refilled_at: Option<Instant>,
    /// Smallest round trip that was sent since the queue was drained.
    seen: Option<Duration>,
}

impl DrainedRound {
    /// The queue is still to be drained.
    pub(super) const BEGUN: Self = Self {
        drained_at: None,
        refilled_at: None,
        seen: None,
    };

    pub(super) fn drained(now: Instant) -> Self {
        Self {
            drained_at: Some(now),
            ..Self::BEGUN
        }
    }

    pub(super) fn is_drained(self) -> bool {
        self.drained_at.is_some()
    }

    /// The window is open again.
    pub(super) fn is_refilled(self) -> bool {
        self.refilled_at.is_some()
    }

    /// A round trip of `rtt` has ended. The smallest one of the round, once all that was sent into the drained queue is acknowledged; `part` is how
    /// long the queue stays so.
    pub(super) fn on_round_trip(
        &mut self,
        now: Instant,
        rtt: Duration,
        part: Duration,
    ) -> Option<Duration> {
        let drained_at = self.drained_at?;
        if self.refilled_at.is_none() && now >= drained_at + part {
            self.refilled_at = Some(now);
        }
        let sent = now.checked_sub(rtt).filter(|sent| *sent >= drained_at)?;
        let is_over = self.refilled_at.is_some_and(|at| sent >= at);
        if is_over && self.seen.is_some() {
            return self.seen;
        }
        self.seen = Some(self.seen.map_or(rtt, |seen| seen.min(rtt)));
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn only_what_was_sent_into_the_drained_queue_counts() {
        let start = Instant::now();
        let mut round = DrainedRound::drained(start);
        let mut at = |ms: u32, rtt: u32| round.on_round_trip(start + ms * MS, rtt * MS, 5 * MS);
        assert_eq!(at(2, 30), None, "sent before");
        assert_eq!(at(25, 22), None, "sent at 3 ms");
        assert_eq!(
            at(26, 20),
            None,
            "sent at 6 ms, but before the refill was noticed"
        );
        assert_eq!(at(60, 10), Some(20 * MS));
        assert!(round.is_refilled());
        let mut begun = DrainedRound::BEGUN;
        assert_eq!(begun.on_round_trip(start + 90 * MS, MS, 5 * MS), None);
        assert!(!begun.is_drained() && !begun.is_refilled());
    }
}
