//! Copies at rest: a schedule with copies uses several paths, which is no sign of a backlog.
//!
//! Both ends know the schedule, but the news of a change and the statuses of paths travel apart.
//! For a moment after each change an end is active, and takes the use of several paths for copies.
//! The alerts themselves are activity: the one end sends them, and the other one answers.

use std::time::{Duration, Instant};

use super::PathUpkeep;

/// The schedule and the statuses reach the peer within this time of a change, in any order.
const COPIES_NEWS: Duration = Duration::from_secs(1);

/// Both ends are active for so long after an alert or an answer, so a cut is noticed as soon as
/// under other data.
const URGENT_LASTS: Duration = Duration::from_secs(2);

/// Copies of packets by the schedule.
#[derive(Debug, Default)]
pub(super) struct Copies {
    wanted: bool,
    changed_at: Option<Instant>,
    /// Whether copies explained the use of several paths at the last look.
    explained: bool,
    /// Bytes of alerts and their answers, and when they last grew.
    urgent_bytes: u64,
    urgent_at: Option<Instant>,
}

impl Copies {
    pub(super) fn change(&mut self, now: Instant, wanted: bool) {
        if self.wanted != wanted {
            self.wanted = wanted;
            self.changed_at = Some(now);
        }
    }

    pub(super) fn on_urgent(&mut self, now: Instant, bytes: u64) {
        if self.urgent_bytes != bytes {
            self.urgent_bytes = bytes;
            self.urgent_at = Some(now);
        }
    }

    /// The peer may not know of the last change yet.
    fn is_news(&self, now: Instant) -> bool {
        self.changed_at.is_some_and(|at| now < at + COPIES_NEWS)
    }
}

impl PathUpkeep {
    /// The schedule began or ended to have copies a moment ago.
    pub(super) fn copies_are_news(&self, now: Instant) -> bool {
        self.terms.rest.copies && self.copies.is_news(now)
    }

    /// An alert was sent a moment ago, and both ends know that alone it makes them active.
    pub(super) fn alerts_flow(&self, now: Instant) -> bool {
        let urgent = self.copies.urgent_at;
        self.copies(now) && urgent.is_some_and(|at| now < at + URGENT_LASTS)
    }

    /// The use of several paths is no sign of a backlog, or was none a moment ago.
    pub(super) fn copies(&self, now: Instant) -> bool {
        self.terms.rest.copies && (self.copies.wanted || self.copies.is_news(now))
    }

    /// Whether copies explained the use of several paths at the last call, and no longer do.
    pub(super) fn copies_have_ended(&mut self, now: Instant) -> bool {
        let explained = self.copies(now);
        std::mem::replace(&mut self.copies.explained, explained) && !explained
    }
}
