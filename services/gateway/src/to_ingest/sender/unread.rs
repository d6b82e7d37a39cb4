//! Pauses while the journal cannot be read. No event says that it can be read again.

use std::time::{Duration, Instant};

use super::{RETRY_INITIAL, RETRY_MAX, Sender, doubled};

/// The attempts in a row that found no readable entry.
#[derive(Debug, Default)]
pub(super) struct Unread {
    times: u32,
    again_at: Option<Instant>,
}

impl Unread {
    pub(super) fn is_waiting(&self, now: Instant) -> bool {
        self.again_at.is_some_and(|at| now < at)
    }
}

impl Sender {
    pub(super) fn on_unread(&mut self, now: Instant) {
        self.sending = false;
        let pause: Duration = doubled(RETRY_INITIAL, self.unread.times).min(RETRY_MAX);
        self.unread = Unread {
            times: self.unread.times.saturating_add(1),
            again_at: Some(now + pause),
        };
    }

    /// When entries that could not be read are tried again.
    pub(super) fn read_again_at(&self) -> Option<Instant> {
        let again_at = self.unread.again_at;
        again_at.filter(|_| self.next < self.durable)
    }
}
