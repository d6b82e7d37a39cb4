//! Feeds the upkeep of a connection with the schedule of its session: the client's own, or at the
//! proxy the one that it has received.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use multipath::{
    Event, PathUpkeep,
    steering_rules::{PathSchedule, Schedule},
};
use noq::PathId;

use crate::paths::Paths;

/// The last schedule that the upkeep was fed with.
#[derive(Debug, Default)]
pub(crate) struct Scheduled {
    schedule: Arc<Schedule>,
    paths: BTreeMap<PathId, PathSchedule>,
}

impl Scheduled {
    /// To be called before the upkeep is polled.
    pub(super) fn feed(
        &mut self,
        now: Instant,
        schedule: Arc<Schedule>,
        paths: &Paths,
        upkeep: &mut PathUpkeep,
    ) {
        let changed = schedule != self.schedule;
        if !changed && schedule.paths.is_empty() {
            return;
        }
        if changed {
            let (gathers, copies) = (schedule.gathers, schedule.copies);
            upkeep.on_event(now, Event::Spread { gathers, copies });
        }
        let open = paths.open_ids();
        self.paths.retain(|path, _| open.contains(path));
        for path in open {
            let wanted = match paths.name(path) {
                Some(name) => schedule.of(&name),
                // The name arrives a round trip after the path.
                None => schedule.of_unknown(),
            };
            let before = self.paths.insert(path, wanted);
            if before != Some(wanted) {
                let event = Event::Scheduled {
                    path,
                    schedule: wanted,
                };
                upkeep.on_event(now, event);
            }
        }
        self.schedule = schedule;
    }
}
