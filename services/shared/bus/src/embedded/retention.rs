//! The search for old records, one partition a step, so that a publish waits for one step only.
//! Sans-IO.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use crate::Topic;

/// Interval of the search for old records.
const RETENTION_EVERY: Duration = Duration::from_secs(30);
/// Records of one partition removed in one transaction, so that a publish waits for few
/// milliseconds.
pub(super) const RETENTION_STEP: u32 = 500;

/// A round over all partitions that is under way, and the time of the next one.
#[derive(Default)]
pub(super) struct Retention {
    /// Partitions of this round that may have old records. Bounded by the partitions.
    left: VecDeque<(Topic, u32)>,
    /// Records are too old by this time.
    now_us: i64,
    /// Beginning of the last round.
    begun: Option<Instant>,
    /// The round was asked for.
    is_asked_for: bool,
    /// Answered at the end of the round. Bounded by the callers, who wait.
    replies: Vec<oneshot::Sender<()>>,
}

impl Retention {
    /// When there is something to do. `None`: at once.
    pub(super) fn due(&self) -> Option<Instant> {
        let is_under_way = self.is_asked_for || !self.left.is_empty();
        let next = self.begun.filter(|_| !is_under_way);
        next.map(|begun| begun + RETENTION_EVERY)
    }

    /// Begins a round now, which answers at its end.
    pub(super) fn ask(&mut self, reply: oneshot::Sender<()>) {
        self.is_asked_for = true;
        self.replies.push(reply);
    }

    pub(super) fn is_to_begin(&self, now: Instant) -> bool {
        self.is_asked_for || (self.left.is_empty() && self.due().is_none_or(|at| now >= at))
    }

    /// Since the beginning of the last round.
    pub(super) fn passed(&self, now: Instant) -> Duration {
        let begun = self.begun.unwrap_or(now);
        now.saturating_duration_since(begun)
    }

    pub(super) fn begin(
        &mut self,
        now: Instant,
        now_us: i64,
        partitions: impl Iterator<Item = (Topic, u32)>,
    ) {
        self.left = partitions.collect();
        self.now_us = now_us;
        self.put_off(now);
    }

    /// The next round comes after the interval.
    pub(super) fn put_off(&mut self, now: Instant) {
        self.begun = Some(now);
        self.is_asked_for = false;
        self.end();
    }

    /// The partition to look at, and the time by which its records are too old.
    pub(super) fn next(&mut self) -> Option<(Topic, u32, i64)> {
        let (topic, partition) = self.left.pop_front()?;
        Some((topic, partition, self.now_us))
    }

    /// A partition with more to remove comes again, behind the others.
    pub(super) fn on_removed(&mut self, partition: (Topic, u32), removed: u64) {
        if removed >= u64::from(RETENTION_STEP) {
            self.left.push_back(partition);
        }
        self.end();
    }

    fn end(&mut self) {
        if self.left.is_empty() {
            for reply in self.replies.drain(..) {
                // A caller that has gone needs no answer.
                let _ = reply.send(());
            }
        }
    }
}
