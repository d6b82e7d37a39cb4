//! Whether one path still lives: a keepalive clock per path.
//!
//! Every `interval` the path is pinged; it is suspect after half of the allowed silent intervals and dead after all of them.
//! Anything received on the path counts as a sign of life. Under dense traffic silence means something sooner: the path is
//! suspect when it falls out of its rhythm (mean and deviation of the gaps between arrivals), and dead after twice that.
//!
//! But traffic may just have ended. Where pings are so rare that none was due in that silence, it is no verdict: the path is asked, by as
//! many pings as the keepalive allows to stay unanswered, and dead when the last one's answer is overdue. What answers teaches the new rhythm.

use std::time::{Duration, Instant};

/// Bounds of what a policy may ask for.
const INTERVAL_MIN: Duration = Duration::from_millis(10);
const INTERVAL_MAX: Duration = Duration::from_secs(10);
const SILENT_INTERVALS_MAX: u32 = 100;

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
    /// A policy from outside, within what is sensible: no storm of pings, and no silence without end.
    pub(crate) fn bounded(self) -> Self {
        Self {
            interval: self.interval.clamp(INTERVAL_MIN, INTERVAL_MAX),
            silent_intervals: self.silent_intervals.clamp(1, SILENT_INTERVALS_MAX),
        }
    }

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

/// Shortest silence that makes a path suspect or, under dense traffic, dead.
const DENSE_SILENCE_SUSPECT: Duration = Duration::from_millis(90);
const DENSE_SILENCE_FATAL: Duration = Duration::from_millis(200);
const RHYTHM_SLACK: Duration = Duration::from_millis(60);
/// Between the pings that ask a path that has fallen silent.
const ASK_GAP: Duration = Duration::from_millis(50);
/// An answer is overdue after so many round trips and the slack of a rhythm.
const ANSWER_ROUND_TRIPS: u32 = 2;

/// How regularly something happens: mean and deviation of the gaps between the events.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rhythm {
    mean: Duration,
    deviation: Duration,
    beats: u32,
}

impl Rhythm {
    pub(crate) fn beat(&mut self, gap: Duration) {
        if self.beats == 0 {
            self.mean = gap;
            self.deviation = gap / 2;
        } else {
            self.deviation = (self.deviation * 3 + self.mean.abs_diff(gap)) / 4;
            self.mean = (self.mean * 7 + gap) / 8;
        }
        self.beats = self.beats.saturating_add(1);
    }

    /// A gap longer than this is out of rhythm; unbounded until the rhythm is known.
    pub(crate) fn silence_max(&self, slack: Duration) -> Duration {
        if self.beats < 8 {
            return Duration::MAX;
        }
        (self.mean + self.deviation * 4 + slack.max(RHYTHM_SLACK)).max(DENSE_SILENCE_SUSPECT)
    }
}

/// The keepalive clock of one path.
#[derive(Debug, Clone)]
pub(crate) struct Liveness {
    keepalive: Keepalive,
    heard_at: Instant,
    ping_at: Instant,
    received_datagrams: u64,
    rhythm: Rhythm,
    rtt: Duration,
    /// Pings that asked since the path was last heard, and when the last one was sent.
    asked: u32,
    asked_at: Option<Instant>,
    /// Factor on the silence before the path counts as dead.
    patience: u32,
}

impl Liveness {
    /// `patience` multiplies the silence that is fatal: the end that cannot save what is in flight waits for the one that can.
    pub(crate) fn new(keepalive: Keepalive, patience: u32, now: Instant) -> Self {
        Self {
            keepalive,
            heard_at: now,
            ping_at: now + keepalive.interval,
            received_datagrams: 0,
            rhythm: Rhythm::default(),
            rtt: Duration::ZERO,
            asked: 0,
            asked_at: None,
            patience,
        }
    }

    pub(crate) fn set_keepalive(&mut self, keepalive: Keepalive) {
        self.keepalive = keepalive;
    }

    pub(crate) fn heard_at(&self) -> Instant {
        self.heard_at
    }

    /// Report the path's cumulative counter and its round trip; returns whether the counter rose.
    pub(crate) fn received(&mut self, now: Instant, datagrams: u64, rtt: Duration) -> bool {
        self.rtt = rtt;
        let heard = datagrams > self.received_datagrams;
        self.received_datagrams = self.received_datagrams.max(datagrams);
        if heard {
            self.rhythm
                .beat(now.saturating_duration_since(self.heard_at));
            self.heard_at = now;
            self.asked = 0;
            self.asked_at = None;
        }
        heard
    }

    pub(crate) fn is_suspect(&self, now: Instant) -> bool {
        now >= self.suspect_at()
    }

    pub(crate) fn is_dead(&self, now: Instant) -> bool {
        now >= self.dead_at()
    }

    fn silence_suspect(&self) -> Duration {
        // Under pings alone the one after a missing ping is overdue too.
        let at_most = self.keepalive.silence_max() / 2 + self.keepalive.interval / 2;
        self.rhythm.silence_max(RHYTHM_SLACK).min(at_most)
    }

    pub(crate) fn suspect_at(&self) -> Instant {
        self.heard_at + self.silence_suspect()
    }

    /// Silence that is fatal by the rhythm.
    fn silence_fatal(&self) -> Duration {
        (self.silence_suspect() * 2).max(DENSE_SILENCE_FATAL)
    }

    pub(crate) fn dead_at(&self) -> Instant {
        let at_most = self.heard_at + self.keepalive.silence_max() * self.patience;
        let by_rhythm = self.heard_at + self.silence_fatal() * self.patience;
        let by_answer = self.next_ask().map(|at| {
            let left = self.keepalive.silent_intervals.saturating_sub(self.asked);
            at + ASK_GAP * left + self.rtt * ANSWER_ROUND_TRIPS + RHYTHM_SLACK
        });
        by_rhythm.max(by_answer.unwrap_or(by_rhythm)).min(at_most)
    }

    /// When the path would be asked next, where its rhythm is so dense that it passes for dead before two pings were due.
    fn next_ask(&self) -> Option<Instant> {
        (self.silence_fatal() < self.keepalive.interval * 2).then(|| {
            self.asked_at
                .map_or(self.suspect_at(), |asked_at| asked_at + ASK_GAP)
        })
    }

    /// When a ping is due that asks whether the path lives, if one is.
    pub(crate) fn ask_at(&self) -> Option<Instant> {
        self.next_ask()
            .filter(|_| self.asked < self.keepalive.silent_intervals)
    }

    /// Whether that ping is due; if so it counts as sent.
    pub(crate) fn take_ask(&mut self, now: Instant) -> bool {
        let due = self.ask_at().is_some_and(|at| now >= at);
        if due {
            self.asked += 1;
            self.asked_at = Some(now);
        }
        due
    }

    pub(crate) fn ping_at(&self) -> Instant {
        self.ping_at
    }

    pub(crate) fn ping_at_once(&mut self, now: Instant) {
        self.ping_at = now;
    }

    /// Whether a ping is due; if so the next one is scheduled, after another interval if one is given.
    pub(crate) fn take_ping(&mut self, now: Instant, interval: Option<Duration>) -> bool {
        if now < self.ping_at {
            return false;
        }
        self.ping_at = now + interval.unwrap_or(self.keepalive.interval);
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
        let mut path = Liveness::new(Keepalive::default(), 1, start);
        assert!(!path.is_suspect(start + ms(249)));
        assert!(path.is_suspect(start + ms(250)));
        assert!(!path.is_dead(start + ms(399)));
        assert!(path.is_dead(start + ms(400)));
        assert!(path.received(start + ms(399), 1, ms(20)));
        assert!(!path.received(start + ms(420), 1, ms(20)));
        assert!(!path.is_dead(start + ms(420)));
        assert!(path.is_dead(start + ms(799)));
    }

    #[test]
    fn a_late_poll_sends_one_ping_not_many() {
        let start = Instant::now();
        let mut path = Liveness::new(Keepalive::default(), 1, start);
        let late = start + Duration::from_secs(3);
        assert!(path.take_ping(late, None));
        assert!(!path.take_ping(late, None));
    }
}
