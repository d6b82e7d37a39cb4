//! When a tunnel that still has its carrying stream has come to a standstill: sans-IO.
//!
//! Silence alone says little, since the other side may have nothing to say. So the client asks: a ping travels in the same stream, in order, and
//! its answer too; either is stuck behind the bytes that a dead path took with it. Anything that arrives counts as progress,
//! for a ping may wait behind much that is under way. Asked is when something written remains unconfirmed for `QUIET`, and
//! whenever a path of the session has got into trouble. Without an answer the tunnel has stalled: after `TROUBLED_MAX` when a path was in trouble
//! lately, after `SILENT_MAX` otherwise. Each move to another stream doubles both, up to `PATIENCE_MAX` times, so that a link which is
//! merely slow is not sent the same bytes over and over; a time without stalls brings them back.
//!
//! A tunnel of bulk may also wait because more urgent streams take the whole link, for as long as they please. So nothing follows from a stall for a
//! session that brings something to other streams meanwhile.

use std::time::{Duration, Instant};

use crate::paths::TROUBLE_LASTS;

const QUIET: Duration = Duration::from_millis(500);
const TROUBLED_MAX: Duration = Duration::from_millis(750);
const SILENT_MAX: Duration = Duration::from_secs(5);
const PATIENCE_MAX: u32 = 16;

/// A session that brought nothing to any stream for so long does not move.
const SESSION_STANDS: Duration = Duration::from_secs(2);

/// Without a stall for so long, patience is what it was at the start.
const CALM: Duration = Duration::from_secs(30);

/// What to do.
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
    /// What the session had brought to its streams, and when that was last more than before.
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

    /// The tunnel is carried by a stream that has nothing to do with what was asked before.
    pub(super) fn on_attached(&mut self) {
        self.asked = None;
    }

    /// A count that rises with whatever the session brings to any stream. The session may be another one than before.
    pub(super) fn on_arrivals(&mut self, now: Instant, arrivals: u64) {
        if arrivals != self.arrivals {
            self.arrivals = arrivals;
            self.arrived_at = Some(now);
        }
    }

    /// Whether the session serves at least others.
    pub(super) fn session_moves(&self, now: Instant) -> bool {
        self.arrived_at
            .is_some_and(|at| now.saturating_duration_since(at) < SESSION_STANDS)
    }

    /// Whether an answer is waited for.
    pub(super) fn waits(&self) -> bool {
        self.asked.is_some()
    }

    /// Moves since the last time of calm.
    pub(super) fn has_moved(&self) -> bool {
        self.patience > 1
    }

    /// `heard_at` is when the stream last brought anything, `ponged` the last ping that was answered, `waits` whether something written
    /// is unconfirmed.
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
    fn silence_with_nothing_to_wait_for_is_fine() {
        let start = Instant::now();
        let mut stall = Stall::default();
        let later = start + Duration::from_secs(100);
        assert_eq!(stall.look(later, start, 0, false), Verdict::Fine);
        assert!(!stall.waits());
    }

    #[test]
    fn an_answer_or_anything_else_is_progress() {
        let start = Instant::now();
        let mut stall = Stall::default();
        assert_eq!(stall.look(start + QUIET, start, 0, true), Verdict::Ask(1));
        let answered = start + QUIET + SILENT_MAX;
        assert_eq!(stall.look(answered, answered, 1, true), Verdict::Fine);
        assert!(!stall.waits());
        let asked = answered + QUIET;
        assert_eq!(stall.look(asked, answered, 1, true), Verdict::Ask(2));
        // Something else than the answer came a moment ago.
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
    fn a_session_moves_while_others_hear_something() {
        let start = Instant::now();
        let mut stall = Stall::default();
        stall.on_arrivals(start, 0);
        assert!(!stall.session_moves(start), "nothing came yet");
        stall.on_arrivals(start, 1);
        let later = start + SESSION_STANDS;
        assert!(stall.session_moves(later - QUIET));
        stall.on_arrivals(later, 1);
        assert!(!stall.session_moves(later));
        // Another session, which has brought less.
        stall.on_arrivals(later, 0);
        assert!(stall.session_moves(later));
    }
}
