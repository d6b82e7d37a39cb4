//! Feeds the steering of a connection with the schedule of its session: the client's own, or the
//! one that the client has sent to the proxy.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use multipath::{
    Event, PathController,
    steering_rules::{PathSchedule, Schedule},
};
use noq::PathId;

use super::Steered;
use crate::client::Tunnel;

/// The last schedule that the steering was fed with.
#[derive(Debug, Default)]
pub(crate) struct Scheduled {
    schedule: Arc<Schedule>,
    paths: BTreeMap<PathId, PathSchedule>,
}

impl Tunnel {
    /// Which paths carry data, in which order and parts, of this session and of later ones, at
    /// both ends. A proxy of an older release goes on without a schedule.
    pub fn set_schedule(&self, schedule: Schedule) {
        let held = self.shared.schedule.borrow().clone();
        if *held != schedule {
            self.shared.schedule.send_replace(Arc::new(schedule));
        }
    }
}

impl Steered {
    /// To be called before the steering is polled.
    pub(super) fn obey_schedule(&mut self, now: Instant) {
        let schedule = match &self.ways {
            Some(ways) => ways.schedule.borrow().clone(),
            None => self.paths.schedule(),
        };
        let changed = schedule != self.scheduled.schedule;
        if !changed && schedule.paths.is_empty() {
            return;
        }
        if changed {
            let (gathers, copies) = (schedule.gathers, schedule.copies);
            self.steering
                .on_event(now, Event::Spread { gathers, copies });
        }
        let open = self.paths.open_ids();
        self.scheduled.paths.retain(|path, _| open.contains(path));
        for path in open {
            let wanted = match self.paths.name(path) {
                Some(name) => schedule.of(&name),
                // The name arrives a round trip after the path.
                None => schedule.of_unknown(),
            };
            let before = self.scheduled.paths.insert(path, wanted);
            if before != Some(wanted) {
                let event = Event::Scheduled {
                    path,
                    schedule: wanted,
                };
                self.steering.on_event(now, event);
            }
        }
        self.scheduled.schedule = schedule;
    }

    /// A server learns only here which controller belongs to a path, once the path is established.
    pub(super) fn find_slot(&mut self, now: Instant, path: PathId) {
        if self.ways.is_some() {
            return;
        }
        let controller = self.connection.congestion_state(path);
        let controller = controller.and_then(|it| it.into_any().downcast::<PathController>().ok());
        if let Some(slot) = controller.map(|it| it.slot()) {
            self.steering.on_event(now, Event::Slot { path, slot });
        }
    }
}
