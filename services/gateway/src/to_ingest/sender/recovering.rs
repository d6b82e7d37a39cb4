//! The link that a silent path may hold up.
//!
//! A path that is silent may be alive: packets or their acknowledgements were lost. So the link
//! that the spare relieves is not closed. Once everything sent on it is acknowledged, or at once if
//! it already is, it becomes the spare, without another handshake.

use std::time::{Duration, Instant};

use super::{Generation, Sender};

/// Time for which a link may recover before another spare is opened. A silent path that is dead is
/// closed in less, and its data goes by another one.
const RECOVER_MAX: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug)]
pub(super) struct Recovering {
    generation: Generation,
    /// End of the entries that were sent on it.
    sent: u64,
    pub(super) until: Instant,
}

impl Sender {
    /// A path is silent: the spare takes over, and the current link may recover. Copies have links
    /// on other paths, and keep them.
    pub(super) fn on_silence(&mut self, now: Instant) {
        let Some(spare) = self.spare.take() else {
            // Copies cover a second silence. New links would be opened over a path in trouble.
            if !(self.redundant && self.recovering.is_some()) {
                self.want_another();
            }
            return;
        };
        if let Some(opening) = &mut self.opening {
            opening.disturbed = true;
        }
        let (sent, answered) = self.begin_current();
        match self.current.replace(spare) {
            Some(generation) if answered >= sent => self.spare = Some(generation),
            Some(generation) => {
                let recovering = Recovering {
                    generation,
                    sent,
                    until: now + RECOVER_MAX,
                };
                let before = self.recovering.replace(recovering);
                self.closing.extend(before.map(|it| it.generation));
            }
            None => {}
        }
        self.start_over();
    }

    /// Another link becomes current, on which nothing was sent. Returns the end of the entries that
    /// were sent on the one before, and of those that it has acknowledged.
    pub(super) fn begin_current(&mut self) -> (u64, u64) {
        std::mem::take(&mut self.on_current)
    }

    /// A link has acknowledged everything up to the position.
    pub(super) fn on_answered(&mut self, generation: Generation, position: u64) {
        if self.current == Some(generation) {
            let (_, answered) = &mut self.on_current;
            *answered = position.max(*answered);
        }
        let is_clear = |it: &mut Recovering| it.generation == generation && position >= it.sent;
        if self.recovering.take_if(is_clear).is_none() {
            return;
        }
        match self.spare {
            None => self.spare = Some(generation),
            Some(_) => self.closing.push_back(generation),
        }
    }

    /// The link did not recover in time.
    pub(super) fn end_recovery(&mut self, now: Instant) {
        if let Some(late) = self.recovering.take_if(|it| now >= it.until) {
            self.closing.push_back(late.generation);
        }
    }

    pub(super) fn lose_recovering(&mut self, generation: Generation) -> bool {
        let lost = self.recovering.take_if(|it| it.generation == generation);
        lost.is_some()
    }

    /// Whether a spare is there, or may be soon while the current link is good.
    pub(super) fn has_spare(&self) -> bool {
        let is_good = self.current.is_some() && !self.replace;
        self.spare.is_some() || is_good && self.recovering.is_some()
    }
}
