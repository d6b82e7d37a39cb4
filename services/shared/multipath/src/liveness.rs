//! Whether one path still lives: a keepalive clock per path.
//!
//! This end pings the path at its send interval. Silence is judged by the keepalive that the peer's
//! pings keep to. The path is suspect after half of the allowed silent intervals and dead after all
//! of them. Anything received on the path counts as a sign of life. Under dense traffic silence
//! means something sooner. The path is suspect when it falls out of its rhythm (mean and deviation
//! of the gaps between arrivals), and dead after twice that.
//!
//! But traffic may just have ended. Where the peer's pings are so rare that fewer than two were due
//! in that silence, silence alone is no verdict. The path is asked, by as many pings as the
//! keepalive allows to stay unanswered, and is dead when the last answer is overdue. An answer is
//! anything received on the path, or the acknowledgement of what was sent on it since it was first
//! asked. It may arrive over another path. An acknowledged path is judged by its keepalive until it
//! is heard again. An end that cannot see which path's packets were acknowledged judges by the
//! keepalive alone.

use std::time::{Duration, Instant};

use crate::agreement::KeepaliveTerms;
use crate::keepalive::DENSE_SILENCE_FATAL;

/// State of a path, as reported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PathState {
    /// Opened, not yet answered by the peer.
    #[default]
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
    terms: KeepaliveTerms,
    heard_at: Instant,
    /// Silence counts from here when this is later than `heard_at`: the terms have changed since.
    judged_from: Instant,
    ping_at: Instant,
    /// The ping at `ping_at` answers an event, so nothing replaces it.
    is_needed: bool,
    received_datagrams: u64,
    rhythm: Rhythm,
    rtt: Duration,
    /// Pings that asked since the path was last heard, and when the first and the last one were
    /// sent.
    asked: u32,
    first_asked_at: Option<Instant>,
    asked_at: Option<Instant>,
    /// A packet sent since the path was first asked has been acknowledged.
    answered: bool,
    /// Factor on the silence before the path counts as dead.
    patience: u32,
    /// This end sees the acknowledgements of the path's packets.
    sees_answers: bool,
}

impl Liveness {
    /// `patience` multiplies the silence that is fatal: the end that cannot save what is in flight
    /// waits for the one that can.
    pub(crate) fn new(
        terms: KeepaliveTerms,
        patience: u32,
        sees_answers: bool,
        now: Instant,
    ) -> Self {
        Self {
            terms,
            heard_at: now,
            judged_from: now,
            ping_at: now + terms.send_interval,
            is_needed: false,
            received_datagrams: 0,
            rhythm: Rhythm::default(),
            rtt: Duration::ZERO,
            asked: 0,
            first_asked_at: None,
            asked_at: None,
            answered: false,
            patience,
            sees_answers,
        }
    }

    /// From now on the path is probed and judged so. A change to denser pings gives the peer's a
    /// round trip on their way. No change brings the deadline forward otherwise, and none makes it
    /// later than the longest silence of all terms since the path was heard.
    pub(crate) fn set_terms(&mut self, now: Instant, terms: KeepaliveTerms) {
        let before = self.terms.judge_by.silence_max();
        let silence = terms.judge_by.silence_max();
        let deadline = self.silent_since() + before;
        let deadline = if silence < before {
            // The message of the change may have taken a faster path.
            deadline.min(now + self.rtt + silence)
        } else {
            deadline.max(self.heard_at + silence)
        };
        self.judged_from = deadline.checked_sub(silence).unwrap_or(self.heard_at);
        self.terms = terms;
        self.ping_at = self.ping_at.min(now + terms.send_interval);
    }

    /// Since when the silence counts.
    fn silent_since(&self) -> Instant {
        self.heard_at.max(self.judged_from)
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
            self.first_asked_at = None;
            self.asked_at = None;
            self.answered = false;
        }
        heard
    }

    /// Whether [`acked`](Self::acked) may change the verdict.
    pub(crate) fn awaits_answer(&self) -> bool {
        self.first_asked_at.is_some() && !self.answered
    }

    /// A packet sent on the path at this time has been acknowledged.
    pub(crate) fn acked(&mut self, sent: Instant) {
        self.answered |= self.first_asked_at.is_some_and(|asked| sent >= asked);
    }

    pub(crate) fn is_suspect(&self, now: Instant) -> bool {
        now >= self.suspect_at()
    }

    pub(crate) fn is_dead(&self, now: Instant) -> bool {
        now >= self.dead_at()
    }

    fn silence_suspect(&self) -> Duration {
        // Under pings alone the one after a missing ping is overdue too.
        let at_most = (self.terms.judge_by.silence_max() + self.terms.judge_by.interval) / 2;
        if self.answered {
            return at_most;
        }
        self.rhythm.silence_max(RHYTHM_SLACK).min(at_most)
    }

    pub(crate) fn suspect_at(&self) -> Instant {
        self.silent_since() + self.silence_suspect()
    }

    /// Silence that is fatal by the rhythm.
    fn silence_fatal(&self) -> Duration {
        (self.silence_suspect() * 2).max(DENSE_SILENCE_FATAL)
    }

    pub(crate) fn dead_at(&self) -> Instant {
        let at_most = self.silent_since() + self.terms.judge_by.silence_max() * self.patience;
        if self.answered {
            return at_most;
        }
        let by_rhythm = self.silent_since() + self.silence_fatal() * self.patience;
        let Some(ask_at) = self.next_ask() else {
            return by_rhythm.min(at_most);
        };
        if !self.sees_answers {
            return at_most;
        }
        let left = self
            .terms
            .judge_by
            .silent_intervals
            .saturating_sub(self.asked);
        let by_answer = ask_at + ASK_GAP * left + self.rtt * ANSWER_ROUND_TRIPS + RHYTHM_SLACK;
        by_rhythm.max(by_answer).min(at_most)
    }

    /// The time of the next question, where the rhythm is dense: the path passes for dead before
    /// two of the peer's pings were due.
    fn next_ask(&self) -> Option<Instant> {
        let is_dense = self.silence_fatal() < self.terms.judge_by.interval * 2;
        (is_dense && !self.answered).then(|| {
            self.asked_at
                .map_or(self.suspect_at(), |asked_at| asked_at + ASK_GAP)
        })
    }

    /// When a ping is due that asks whether the path lives, if one is.
    pub(crate) fn ask_at(&self) -> Option<Instant> {
        self.next_ask()
            .filter(|_| self.asked < self.terms.judge_by.silent_intervals)
    }

    /// Whether that ping is due; if so it counts as sent.
    pub(crate) fn take_ask(&mut self, now: Instant) -> bool {
        let due = self.ask_at().is_some_and(|at| now >= at);
        if due {
            self.asked += 1;
            self.first_asked_at = self.first_asked_at.or(Some(now));
            self.asked_at = Some(now);
        }
        due
    }

    pub(crate) fn ping_at(&self) -> Instant {
        self.ping_at
    }

    pub(crate) fn ping_at_once(&mut self, now: Instant) {
        self.ping_at = now;
        self.is_needed = true;
    }

    /// A packet sent on the path until `at` less an interval serves as well as a ping.
    pub(crate) fn put_off_ping(&mut self, at: Instant) {
        if !self.is_needed {
            self.ping_at = self.ping_at.max(at);
        }
    }

    /// Whether a ping is due; if so the next one is scheduled, after another interval if one is
    /// given.
    pub(crate) fn take_ping(&mut self, now: Instant, interval: Option<Duration>) -> bool {
        if now < self.ping_at {
            return false;
        }
        self.ping_at = now + interval.unwrap_or(self.terms.send_interval);
        self.is_needed = false;
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
        let mut path = Liveness::new(KeepaliveTerms::default(), 1, true, start);
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
        let mut path = Liveness::new(KeepaliveTerms::default(), 1, true, start);
        let late = start + Duration::from_secs(3);
        assert!(path.take_ping(late, None));
        assert!(!path.take_ping(late, None));
    }
}
