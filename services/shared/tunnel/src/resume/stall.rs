//! Detects the standstill of a tunnel that still has its carrying stream. Sans-IO.
//!
//! Silence alone means little, since the other side may have no data. So the client sends a ping in
//! the same stream, in order. Ping and answer are stuck behind bytes that a dead path lost. Any
//! arrival counts as progress, since a ping may wait behind other data.
//!
//! A ping is sent when written bytes stay unconfirmed for `QUIET`, and whenever a path of the
//! session gets into trouble. Without progress the tunnel has stalled after `TROUBLED_MAX` if a
//! path was in trouble lately, otherwise after `SILENT_MAX`. Each move to another stream doubles
//! both limits, up to `PATIENCE_MAX` times. So a slow link does not get the same bytes over and
//! over. A time without stalls restores the limits.
//!
//! A bulk tunnel may also wait because urgent streams use the whole link. So a stall has no
//! consequence while the session brings data to other streams.

use std::time::{Duration, Instant};

use crate::paths::TROUBLE_LASTS;

const QUIET: Duration = Duration::from_millis(500);
/// Longest time without progress while a path was in trouble lately.
const TROUBLED_MAX: Duration = Duration::from_millis(750);
/// Longest time without progress otherwise.
const SILENT_MAX: Duration = Duration::from_secs(5);
/// Highest multiple of both limits.
const PATIENCE_MAX: u32 = 16;

/// Time without data for any stream after which a session counts as standing.
const SESSION_STANDS: Duration = Duration::from_secs(2);

/// Time without a stall after which the limits are restored.
const CALM: Duration = Duration::from_secs(30);

/// The action that follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Fine,
    /// Send a ping with this number.
    Ask(u64),
    /// Move to another stream.
    Stalled,
}

#[derive(Debug)]
struct Asked {
    number: u64,
    at: Instant,
}

#[derive(Debug)]
pub(super) struct Stall {
    asked: Option<Asked>,
    numbers: u64,
    troubled_at: Option<Instant>,
    trouble_asked: bool,
    patience: u32,
    stalled_at: Option<Instant>,
    /// The session's count of arrivals, and the time of its last increase.
    arrivals: u64,
    arrived_at: Option<Instant>,
}

impl Default for Stall {
    fn default() -> Self {
        Self {
            asked: None,
            numbers: 0,
            troubled_at: None,
            trouble_asked: true,
            patience: 1,
            stalled_at: None,
            arrivals: 0,
            arrived_at: None,
        }
    }
}

impl Stall {
    /// A path of the session has got into trouble.
    pub(super) fn on_trouble(&mut self, now: Instant) {
        self.troubled_at = Some(now);
        self.trouble_asked = false;
    }

    /// The tunnel has a new carrying stream; earlier pings do not concern it.
    pub(super) fn on_attached(&mut self) {
        self.asked = None;
    }

    /// A count that rises with every arrival on any stream of the session. The session may be
    /// another one than before.
    pub(super) fn on_arrivals(&mut self, now: Instant, arrivals: u64) {
        if arrivals != self.arrivals {
            self.arrivals = arrivals;
            self.arrived_at = Some(now);
        }
    }

    /// Whether the session serves at least other streams.
    pub(super) fn session_moves(&self, now: Instant) -> bool {
        self.arrived_at
            .is_some_and(|at| now.saturating_duration_since(at) < SESSION_STANDS)
    }

    /// Whether an answer is awaited.
    pub(super) fn waits(&self) -> bool {
        self.asked.is_some()
    }

    /// Moves since the last calm.
    pub(super) fn has_moved(&self) -> bool {
        self.patience > 1
    }

    /// `heard_at` is the time of the stream's last arrival, `ponged` the last answered ping.
    /// `waits` says whether written bytes are unconfirmed.
    pub(super) fn look(
        &mut self,
        now: Instant,
        heard_at: Instant,
        ponged: u64,
        waits: bool,
    ) -> Verdict {
        if self
            .stalled_at
            .is_some_and(|at| now.saturating_duration_since(at) > CALM)
        {
            self.stalled_at = None;
            self.patience = 1;
        }
        let silent = now.saturating_duration_since(heard_at);
        if let Some(asked) = &self.asked {
            if ponged >= asked.number {
                self.asked = None;
            } else {
                let troubled = self
                    .troubled_at
                    .is_some_and(|at| now.saturating_duration_since(at) < TROUBLE_LASTS);
                let max = if troubled { TROUBLED_MAX } else { SILENT_MAX };
                let waited = now.saturating_duration_since(heard_at.max(asked.at));
                if waited < max * self.patience {
                    return Verdict::Fine;
                }
                self.asked = None;
                self.stalled_at = Some(now);
                self.patience = (self.patience * 2).min(PATIENCE_MAX);
                return Verdict::Stalled;
            }
        }
        if (waits && silent >= QUIET) || !self.trouble_asked {
            self.trouble_asked = true;
            self.numbers += 1;
            self.asked = Some(Asked {
                number: self.numbers,
                at: now,
            });
            return Verdict::Ask(self.numbers);
        }
        Verdict::Fine
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_without_unconfirmed_bytes_is_no_stall() {
        let start = Instant::now();
        let mut stall = Stall::default();
        let later = start + Duration::from_secs(100);
        assert_eq!(stall.look(later, start, 0, false), Verdict::Fine);
        assert!(!stall.waits());
    }

    #[test]
    fn an_answer_or_any_other_arrival_is_progress() {
        let start = Instant::now();
        let mut stall = Stall::default();
        assert_eq!(stall.look(start + QUIET, start, 0, true), Verdict::Ask(1));
        let answered = start + QUIET + SILENT_MAX;
        assert_eq!(stall.look(answered, answered, 1, true), Verdict::Fine);
        assert!(!stall.waits());
        let asked = answered + QUIET;
        assert_eq!(stall.look(asked, answered, 1, true), Verdict::Ask(2));
        // Data other than the answer arrived a moment ago.
        let later = asked + SILENT_MAX * 3;
        assert_eq!(stall.look(later, later - QUIET, 1, true), Verdict::Fine);
        assert!(stall.waits());
    }

    #[test]
    fn a_troubled_path_shortens_the_wait_and_moves_lengthen_it() {
        let mut now = Instant::now();
        let mut stall = Stall::default();
        let mut number = 0;
        for patience in [1, 2, 4, 8, 16, 16] {
            let heard_at = now;
            stall.on_trouble(now);
            number += 1;
            assert_eq!(stall.look(now, heard_at, 0, false), Verdict::Ask(number));
            let limit = TROUBLED_MAX.min(TROUBLE_LASTS) * patience;
            if limit >= TROUBLE_LASTS {
                stall.on_trouble(now + limit);
            }
            let early = now + limit - Duration::from_millis(1);
            assert_eq!(stall.look(early, heard_at, 0, false), Verdict::Fine);
            now += limit;
            assert_eq!(stall.look(now, heard_at, 0, false), Verdict::Stalled);
            stall.on_attached();
            stall.trouble_asked = true;
        }
        now += CALM * 2;
        assert_eq!(stall.look(now, now, 0, false), Verdict::Fine);
        assert!(!stall.has_moved());
    }

    #[test]
    fn a_session_moves_while_other_streams_get_data() {
        let start = Instant::now();
        let mut stall = Stall::default();
        stall.on_arrivals(start, 0);
        assert!(!stall.session_moves(start), "nothing came yet");
        stall.on_arrivals(start, 1);
        let later = start + SESSION_STANDS;
        assert!(stall.session_moves(later - QUIET));
        stall.on_arrivals(later, 1);
        assert!(!stall.session_moves(later));
        // Another session, with fewer arrivals.
        stall.on_arrivals(later, 0);
        assert!(stall.session_moves(later));
    }
}
