//! An RTT probe: one round that measures the path without the sender's queue. The window stays
//! below one BDP until no more is in flight. Packets sent after that, for a part of a round trip,
//! measure the minimum; earlier packets went into the queue that drains. Meanwhile the window is
//! restored.

use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RttProbe {
    empty_at: Option<Instant>,
    restored_at: Option<Instant>,
    /// Smallest round trip of packets sent since the queue was empty.
    seen: Option<Duration>,
}

impl RttProbe {
    /// The queue is not yet empty.
    pub(super) const BEGUN: Self = Self {
        empty_at: None,
        restored_at: None,
        seen: None,
    };

    pub(super) fn with_empty_queue(now: Instant) -> Self {
        Self {
            empty_at: Some(now),
            ..Self::BEGUN
        }
    }

    pub(super) fn is_queue_empty(self) -> bool {
        self.empty_at.is_some()
    }

    /// The window is restored.
    pub(super) fn is_restored(self) -> bool {
        self.restored_at.is_some()
    }

    /// A round trip of `rtt` has ended. Returns the smallest round trip of the probe, once
    /// all packets sent into the empty queue are acknowledged. `part` is how long the queue stays
    /// empty.
    pub(super) fn on_round_trip(
        &mut self,
        now: Instant,
        rtt: Duration,
        part: Duration,
    ) -> Option<Duration> {
        let empty_at = self.empty_at?;
        if self.restored_at.is_none() && now >= empty_at + part {
            self.restored_at = Some(now);
        }
        let sent = now.checked_sub(rtt).filter(|sent| *sent >= empty_at)?;
        let is_over = self.restored_at.is_some_and(|at| sent >= at);
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
    fn only_packets_sent_into_the_empty_queue_count() {
        let start = Instant::now();
        let mut round = RttProbe::with_empty_queue(start);
        let mut at = |ms: u32, rtt: u32| round.on_round_trip(start + ms * MS, rtt * MS, 5 * MS);
        assert_eq!(at(2, 30), None, "sent before");
        assert_eq!(at(25, 22), None, "sent at 3 ms");
        assert_eq!(
            at(26, 20),
            None,
            "sent at 6 ms, but before the refill was noticed"
        );
        assert_eq!(at(60, 10), Some(20 * MS));
        assert!(round.is_restored());
        let mut begun = RttProbe::BEGUN;
        assert_eq!(begun.on_round_trip(start + 90 * MS, MS, 5 * MS), None);
        assert!(!begun.is_queue_empty() && !begun.is_restored());
    }
}
