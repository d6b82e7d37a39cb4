//! How steering obeys the schedule of its session: by the status of a path, and by the path
//! scheduler where the status is too coarse.

use std::task::{Context, Poll};
use std::time::Instant;

use noq_proto::{PathId, PathStatus};

use super::{Path, PathUpkeep};
use crate::steering_rules::{PathSchedule, Rank};

impl PathUpkeep {
    pub(super) fn on_schedule(&mut self, id: PathId, schedule: PathSchedule) {
        if let Some(path) = self.paths.get_mut(&id) {
            path.schedule = schedule;
        }
    }

    pub(super) fn on_spread(&mut self, now: Instant, gathers: bool, copies: u8) {
        self.copies.change(now, copies > 1);
        // A copy must take another path than the packet that it copies.
        self.gathers = gathers && copies <= 1;
        self.scheduler.set_spread(!self.gathers, copies > 1);
    }

    /// Hands the ranks to the path scheduler.
    pub(super) fn set_ranks(&self, now: Instant) {
        for path in self.paths.values() {
            if let Some(slot) = path.slot.or(path.ranked_slot) {
                let alive = self.lives(now, path);
                self.scheduler.set_rank(slot, path.schedule, alive);
                let open = path.status == PathStatus::Available;
                self.scheduler.set_open(slot, open);
            }
        }
    }

    /// Whether a path before this one in the order is alive.
    fn is_preceded(&self, now: Instant, path: &Path) -> bool {
        self.paths.values().any(|other| {
            let schedule = other.schedule;
            let before = schedule.rank.is_some() && schedule.place < path.schedule.place;
            before && self.lives(now, other)
        })
    }

    /// Whether the schedule leaves all data to other paths.
    pub(super) fn stands_by(&self, now: Instant, path: &Path, bulk: bool) -> bool {
        match path.schedule.rank {
            None => true,
            Some(Rank::Active) => false,
            Some(Rank::Spill) => !bulk && self.is_preceded(now, path),
            Some(Rank::Standby) => self.is_preceded(now, path),
        }
    }

    /// A copy of an alert needs the path at the moment.
    pub(super) fn opens_for_copies(&self, now: Instant, path: &Path) -> bool {
        let until = self.scheduler.copies_until();
        path.schedule.is_held_for_copies() && until.is_some_and(|at| now < at)
    }

    /// Whether the path carries nothing but copies of alerts, if anything.
    pub(super) fn leaves_all_but_copies(&self, now: Instant, path: &Path) -> bool {
        path.schedule.is_held_for_copies() && self.stands_by(now, path, true)
    }

    /// The peer opens and closes the path for single copies. That moves no acknowledgements.
    pub(super) fn is_news_of_copies(&self, now: Instant, id: PathId) -> bool {
        let path = self.paths.get(&id);
        self.copies(now) && path.is_some_and(|path| self.stands_by(now, path, true))
    }

    /// Ready when a copy waits until its path is open.
    pub fn poll_copy_waits(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.scheduler.poll_copy_waits(cx)
    }

    /// The slots of the paths that leave all data to others. Their window is zero, and their rate
    /// is soon that of their pings. These must pass all the same: the peer would judge the paths
    /// silent.
    pub(super) fn slots_aside(&self, now: Instant) -> Vec<(PathId, usize)> {
        let aside = (self.paths.iter()).filter(|(_, path)| self.stands_by(now, path, true));
        aside
            .filter_map(|(id, path)| Some((*id, path.any_slot()?)))
            .collect()
    }

    /// Whether small flows may stay on this path.
    pub(super) fn may_gather(&self, now: Instant, path: &Path) -> bool {
        !self.stands_by(now, path, false)
    }
}
