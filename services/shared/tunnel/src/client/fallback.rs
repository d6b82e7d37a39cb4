//! Chooses when to fall back from QUIC to TCP, and when to try QUIC again. Sans-IO.
//!
//! UDP counts as blocked when QUIC was tried and got no packet over any access network for
//! `BLOCKED_AFTER`. Then a TCP session is tried beside QUIC's handshakes, and the first that
//! succeeds is used. If the former QUIC session has been silent for as long already, QUIC gets only
//! `HEAD_START` for its handshake.
//!
//! Where every access network refuses UDP by ICMP (`icmp`), UDP counts as blocked at once.
//!
//! During a TCP session QUIC is probed at growing intervals, and at once when an access network
//! arrives. When QUIC answers, it replaces TCP. After UDP was found blocked, a new session tries
//! TCP at once, until QUIC has answered or another network has arrived.

use std::time::{Duration, Instant};

/// Time without a packet over QUIC after which UDP counts as blocked.
pub(crate) const BLOCKED_AFTER: Duration = Duration::from_secs(3);

/// Time for which QUIC's handshake runs alone, however long the former session was silent.
const HEAD_START: Duration = Duration::from_secs(1);

/// Shortest pause between failed attempts over TCP.
const RETRY_MIN: Duration = Duration::from_secs(1);
/// Longest pause between failed attempts over TCP.
const RETRY_MAX: Duration = Duration::from_secs(15);

/// Shortest pause between probes of QUIC; a probe costs a few datagrams over each network.
const PROBE_MIN: Duration = Duration::from_secs(5);
/// Longest pause between probes of QUIC.
const PROBE_MAX: Duration = Duration::from_secs(60);

/// The state machine of the fallback.
#[derive(Debug)]
pub(crate) struct Fallback {
    enabled: bool,
    /// UDP was found blocked, and no later event contradicts that.
    blocked: bool,
    /// Time of the next attempt over TCP; `None` while no session is wanted.
    try_at: Option<Instant>,
    retry: Duration,
    /// Time of the next probe of QUIC; `None` while QUIC is in use.
    probe_at: Option<Instant>,
    probe: Duration,
}

impl Fallback {
    pub(crate) fn new(enabled: bool) -> Self {
        Self {
            enabled,
            blocked: false,
            try_at: None,
            retry: RETRY_MIN,
            probe_at: None,
            probe: PROBE_MIN,
        }
    }

    /// A session is wanted from now on. `heard_at` is the time of the last packet of a former
    /// session.
    pub(crate) fn on_wanted(&mut self, now: Instant, heard_at: Option<Instant>) {
        self.probe_at = None;
        self.retry = RETRY_MIN;
        self.try_at = Some(match heard_at {
            _ if self.blocked => now,
            Some(heard_at) => (heard_at + BLOCKED_AFTER).max(now + HEAD_START),
            None => now + BLOCKED_AFTER,
        });
    }

    /// Every access network refuses UDP, so nothing is gained by waiting. Failed attempts over TCP
    /// keep their pause.
    pub(crate) fn on_refused(&mut self, now: Instant) {
        if !self.blocked {
            self.blocked = true;
            self.try_at = self.try_at.map(|at| at.min(now));
        }
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Whether TCP is due now.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.enabled && self.try_at.is_some_and(|at| at <= now)
    }

    pub(crate) fn on_failed(&mut self, now: Instant) {
        self.try_at = Some(now + self.retry);
        self.retry = (self.retry * 2).min(RETRY_MAX);
    }

    /// A TCP session is established.
    pub(crate) fn on_fallen_back(&mut self, now: Instant) {
        self.blocked = true;
        self.try_at = None;
        self.probe = PROBE_MIN;
        self.probe_at = Some(now + self.probe);
    }

    /// Time of the next probe of QUIC beside the TCP session.
    pub(crate) fn probe_at(&self) -> Option<Instant> {
        self.probe_at
    }

    pub(crate) fn on_probe_failed(&mut self, now: Instant) {
        self.probe = (self.probe * 2).min(PROBE_MAX);
        self.probe_at = Some(now + self.probe);
    }

    /// A QUIC session is established, or the proxy has refused one over QUIC.
    pub(crate) fn on_quic(&mut self) {
        self.blocked = false;
        self.try_at = None;
        self.probe_at = None;
    }

    /// An access network has arrived that may pass UDP.
    pub(crate) fn on_network(&mut self, now: Instant) {
        self.blocked = false;
        if self.try_at.is_some() {
            self.try_at = Some(now + BLOCKED_AFTER);
            self.retry = RETRY_MIN;
        }
        if self.probe_at.is_some() {
            self.probe = PROBE_MIN;
            self.probe_at = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Time at which TCP becomes due, in steps of 10 ms.
    fn due(fallback: &Fallback, from: Instant) -> Option<Duration> {
        let looks = (0..=6_000).map(|step| ms(10 * step));
        looks.into_iter().find(|&at| fallback.is_due(from + at))
    }

    #[test]
    fn quic_gets_its_time_first() {
        let start = Instant::now();
        let mut fallback = Fallback::new(true);
        assert_eq!(due(&fallback, start), None, "nobody wants a session");
        fallback.on_wanted(start, None);
        assert_eq!(due(&fallback, start), Some(BLOCKED_AFTER));
        fallback.on_quic();
        assert_eq!(due(&fallback, start), None);
    }

    #[test]
    fn a_silent_session_counts_as_the_time_of_quic() {
        let start = Instant::now();
        let mut fallback = Fallback::new(true);
        fallback.on_wanted(start + ms(3_000), Some(start));
        assert_eq!(due(&fallback, start + ms(3_000)), Some(HEAD_START));
        // A session that was closed just after a packet has not been silent.
        fallback.on_wanted(start + ms(500), Some(start));
        assert_eq!(due(&fallback, start + ms(500)), Some(ms(2_500)));
    }

    #[test]
    fn where_udp_was_blocked_tcp_is_tried_at_once_until_something_changes() {
        let start = Instant::now();
        let mut fallback = Fallback::new(true);
        fallback.on_fallen_back(start);
        fallback.on_wanted(start, Some(start));
        assert_eq!(due(&fallback, start), Some(ms(0)));
        fallback.on_network(start);
        assert_eq!(due(&fallback, start), Some(BLOCKED_AFTER));
        fallback.on_fallen_back(start);
        fallback.on_quic();
        fallback.on_wanted(start, Some(start));
        assert_eq!(due(&fallback, start), Some(BLOCKED_AFTER));
    }

    #[test]
    fn refused_udp_makes_tcp_due_at_once_but_no_failure_shorter() {
        let start = Instant::now();
        let mut fallback = Fallback::new(true);
        fallback.on_refused(start);
        assert_eq!(due(&fallback, start), None, "nobody wants a session");
        fallback.on_wanted(start, None);
        assert_eq!(due(&fallback, start), Some(ms(0)));
        fallback.on_failed(start);
        fallback.on_refused(start);
        assert_eq!(due(&fallback, start), Some(RETRY_MIN));
        fallback.on_network(start);
        assert_eq!(due(&fallback, start), Some(BLOCKED_AFTER));
        fallback.on_refused(start + ms(40));
        assert_eq!(due(&fallback, start), Some(ms(40)));
    }

    #[test]
    fn failures_are_answered_with_growing_pauses() {
        let start = Instant::now();
        let mut fallback = Fallback::new(true);
        fallback.on_wanted(start, None);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            fallback.on_failed(start);
            pauses.extend(due(&fallback, start).map(|pause| pause.as_secs()));
        }
        assert_eq!(pauses, [1, 2, 4, 8, 15, 15]);
        fallback.on_network(start);
        fallback.on_failed(start);
        assert_eq!(due(&fallback, start), Some(RETRY_MIN));
    }

    #[test]
    fn quic_is_probed_ever_more_rarely_and_at_once_over_a_new_network() {
        let start = Instant::now();
        let mut fallback = Fallback::new(true);
        assert_eq!(fallback.probe_at(), None);
        fallback.on_fallen_back(start);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            pauses.extend(fallback.probe_at().map(|at| (at - start).as_secs()));
            fallback.on_probe_failed(start);
        }
        assert_eq!(pauses, [5, 10, 20, 40, 60, 60]);
        fallback.on_network(start);
        assert_eq!(fallback.probe_at(), Some(start));
        fallback.on_quic();
        assert_eq!(fallback.probe_at(), None);
    }

    #[test]
    fn switched_off_it_is_never_due() {
        let start = Instant::now();
        let mut fallback = Fallback::new(false);
        fallback.on_wanted(start, None);
        assert_eq!(due(&fallback, start), None);
    }
}
