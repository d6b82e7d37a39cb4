//! How long a silent path is waited for, where the others are far later.
//!
//! One lost answer looks like a cut, and the queue of another path may be seconds long. Data that
//! moves there is late for certain. So a silent path keeps its data for as long as the best other
//! path would delay a packet more. Data is at most twice as late as by the better choice.

use std::time::{Duration, Instant};

use super::{Path, PathUpkeep};

/// Longest wait for a silent path. The round trip of another one at rest may be an old one.
const PATIENCE_MAX: Duration = Duration::from_secs(2);

impl PathUpkeep {
    /// Until when data waits for the path, whatever its silence. None: it has no interface, or no
    /// other path lives.
    pub(super) fn waits_until(&self, now: Instant, path: &Path) -> Option<Instant> {
        let others = self.paths.values().filter(|other| {
            other.established && !std::ptr::eq(*other, path) && !self.seems_lost(now, other)
        });
        let later = others.map(|other| other.rtt.saturating_sub(path.rtt) / 2);
        let least = later.min().filter(|_| !self.is_without_interface(path))?;
        path.liveness
            .heard_at()
            .checked_add(least.min(PATIENCE_MAX))
    }

    pub(super) fn is_waited_for(&self, now: Instant, path: &Path) -> bool {
        self.waits_until(now, path).is_some_and(|until| now < until)
    }

    /// When the wait for a silent path ends.
    pub(super) fn patience_ends_at(&self, path: &Path) -> Option<Instant> {
        let now = self.polled_at.filter(|at| self.seems_lost(*at, path))?;
        self.waits_until(now, path)
    }
}
