//! Whether one path still lives: a keepalive clock per path.
//!
//! Every `interval` the path is pinged; it is suspect after half of the allowed silent intervals and dead after all of them.
//! Anything received on the path counts as a sign of life, so under traffic no ping is needed for detection by the peer.

use std::time::{Duration, Instant};

/// How a path is probed: K and T_KA of the keepalive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    pub interval: Duration,
    /// Silent intervals after which the path counts as dead.
    pub silent_intervals: u32,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self {
            interval: Duration::from_millis(100),
            silent_intervals: 4,
        }
    }
}

impl Keepalive {
    /// Silence that a path may keep and still count as alive, beside its round trip.
    pub fn silence_max(&self) -> Duration {
        self.interval * self.silent_intervals.max(1)
    }
}

/// What a path is in, as reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathState {
    /// Opened, not yet answered by the peer.
    Validating,
    /// Carries data.
    Available,
    /// Alive, carries data only when no other path is available.
    Backup,
    /// Silent for longer than half of what the keepalive allows; not yet closed.
    Suspect,
    Closed,
}

/// The keepalive clock of one path.
#[derive(Debug, Clone)]
pub(crate) struct Liveness {
    keepalive: Keepalive,
    heard_at: Instant,
    ping_at: Instant,
    received_datagrams: u64,
}

impl Liveness {
    pub(crate) fn new(keepalive: Keepalive, now: Instant) -> Self {
        Self {
            keepalive,
            heard_at: now,
            ping_at: now + keepalive.interval,
            received_datagrams: 0,
        }
    }

    pub(crate) fn set_keepalive(&mut self, keepalive: Keepalive) {
        self.keepalive = keepalive;
    }

    pub(crate) fn heard_at(&self) -> Instant {
        self.heard_at
    }

    /// Report the path's cumulative counter; returns whether it rose.
    pub(crate) fn received(&mut self, now: Instant, datagrams: u64) -> bool {
        let heard = datagrams > self.received_datagrams;
        self.received_datagrams = self.received_datagrams.max(datagrams);
        if heard {
            self.heard_at = now;
        }
        heard
    }

    pub(crate) fn is_suspect(&self, now: Instant) -> bool {
        now >= self.suspect_at()
    }

    pub(crate) fn is_dead(&self, now: Instant) -> bool {
        now >= self.dead_at()
    }

    /// The suspicion starts when a ping and the one after it are both overdue.
    pub(crate) fn suspect_at(&self) -> Instant {
        self.heard_at + self.keepalive.silence_max() / 2 + self.keepalive.interval / 2
    }

    pub(crate) fn dead_at(&self) -> Instant {
        self.heard_at + self.keepalive.silence_max()
    }

    pub(crate) fn ping_at(&self) -> Instant {
        self.ping_at
    }

    /// Whether a ping is due; if so the next one is scheduled.
    pub(crate) fn take_ping(&mut self, now: Instant) -> bool {
        if now < self.ping_at {
            return false;
        }
        self.ping_at = now + self.keepalive.interval;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_makes_suspect_then_dead() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        let mut path = Liveness::new(Keepalive::default(), start);
        assert!(!path.is_suspect(start + ms(249)));
        assert!(path.is_suspect(start + ms(250)));
        assert!(!path.is_dead(start + ms(399)));
        assert!(path.is_dead(start + ms(400)));
        assert!(path.received(start + ms(399), 1));
        assert!(!path.received(start + ms(420), 1));
        assert!(!path.is_dead(start + ms(420)));
        assert!(path.is_dead(start + ms(799)));
    }

    #[test]
    fn a_late_poll_sends_one_ping_not_many() {
        let start = Instant::now();
        let mut path = Liveness::new(Keepalive::default(), start);
        let late = start + Duration::from_secs(3);
        assert!(path.take_ping(late));
        assert!(!path.take_ping(late));
    }
}
