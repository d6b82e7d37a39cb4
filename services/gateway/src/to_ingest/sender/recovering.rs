//! The link that a silent path may hold up.
//!
//! A path that is silent may be alive: packets or their acknowledgements were lost. So the link
//! that the spare relieves is not closed. Once everything sent on it is acknowledged it becomes the
//! spare, without another handshake.

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
            self.want_another();
            return;
        };
        if let Some(generation) = self.current.replace(spare) {
            let recovering = Recovering {
                generation,
                sent: self.next,
                until: now + RECOVER_MAX,
            };
            let before = self.recovering.replace(recovering);
            self.closing.extend(before.map(|it| it.generation));
        }
        self.start_over();
    }

    /// A link has acknowledged everything up to the position.
    pub(super) fn on_answered(&mut self, generation: Generation, position: u64) {
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

    /// Whether a spare is there, or may be soon.
    pub(super) fn has_spare(&self) -> bool {
        self.spare.is_some() || self.recovering.is_some()
    }
}
