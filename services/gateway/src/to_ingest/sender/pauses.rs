//! Pauses before a link is opened after a loss.
//!
//! Attempts that fail in a row have growing pauses. A link that was up for a while ends the row,
//! also without an acknowledgement. Alerts are rare, so their links may never have carried any.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use service_kit::Backoff;

use super::{Generation, RETRY_INITIAL, RETRY_MAX};

/// A link that is lost sooner counts as a failed attempt. Links that last longer make attempts as
/// rare as the longest pause does.
const SETTLED_AFTER: Duration = RETRY_MAX;

#[derive(Debug)]
pub(super) struct Pauses {
    backoff: Backoff,
    /// End of the pause after the last loss, until a link is opened.
    retry_at: Option<Instant>,
    /// Since when each link is up that was neither lost nor closed.
    pub(super) up_since: HashMap<Generation, Instant>,
}

impl Pauses {
    pub(super) fn new() -> Self {
        Self {
            backoff: Backoff::new(RETRY_INITIAL, RETRY_MAX),
            retry_at: None,
            up_since: HashMap::new(),
        }
    }

    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    pub(super) fn on_open(&mut self) {
        self.retry_at = None;
    }

    pub(super) fn on_up(&mut self, now: Instant, generation: Generation) {
        self.up_since.insert(generation, now);
    }

    /// The link is lost or closed. Returns whether it had been up for a while.
    pub(super) fn on_end(&mut self, now: Instant, generation: Generation) -> bool {
        let since = self.up_since.remove(&generation);
        since.is_some_and(|since| now.saturating_duration_since(since) >= SETTLED_AFTER)
    }

    pub(super) fn on_acknowledged(&mut self) {
        self.backoff.reset();
    }

    /// A link must be opened again. One event may end all links, so losses within a pause lengthen
    /// neither this pause nor the next one.
    pub(super) fn on_lost(&mut self, now: Instant, was_settled: bool, random: f64) {
        let pending = self.retry_at.filter(|at| *at > now);
        if was_settled {
            self.backoff.reset();
        } else if pending.is_some() {
            return;
        }
        let at = now + self.backoff.next_delay_with(random);
        self.retry_at = Some(pending.map_or(at, |pending| pending.min(at)));
    }
}
