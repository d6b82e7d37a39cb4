//! Paths of a longer round trip carry only what the fastest one cannot carry sooner.
//!
//! A packet on a path of a longer round trip arrives later by the difference, and all later data of
//! the stream waits for it. That is a gain only while the backlog keeps the fastest path busy for
//! as long. A page, or the first bulk of a game, ends before. The late path meanwhile has the
//! status Backup, because the packet of each of its pings would also carry data.

use std::time::{Duration, Instant};

use noq_proto::PathId;

use super::{BULK_ENDS_AFTER, Path, PathUpkeep};

/// A path is late if its round trip exceeds the fastest one by more than this part of the fastest
/// plus [`LATE_MIN`].
const LATE_PART: u32 = 2;
const LATE_MIN: Duration = Duration::from_millis(5);

impl PathUpkeep {
    /// Excess of the round trip over the fastest one. `None`: the path is not late.
    fn lateness(&self, now: Instant, id: PathId, path: &Path) -> Option<Duration> {
        let fastest = self.fastest.get().filter(|fastest| *fastest != id)?;
        let fastest = self.paths.get(&fastest)?;
        let quickest = Some(fastest.rtt).filter(|_| self.lives(now, fastest))?;
        let late = path.rtt.saturating_sub(quickest);
        let gathers = self.gathers && self.config.steer_acknowledgements;
        (gathers && late > quickest / LATE_PART + LATE_MIN).then_some(late)
    }

    /// Notes which late paths may take part. To be called when the fastest path is chosen.
    pub(super) fn look_at_lateness(&mut self, now: Instant) {
        let reported = self.backlog_at.is_some_and(|at| now < at + BULK_ENDS_AFTER);
        let fastest = self.fastest.get().and_then(|id| self.paths.get(&id));
        let slot = fastest.and_then(Path::any_slot);
        // A backlog that cannot be told is long enough.
        let backlog = slot.and_then(|slot| self.scheduler.backlog_time(now, slot));
        let backlog = backlog.unwrap_or(Duration::MAX);
        let in_time: Vec<PathId> = (self.paths.iter())
            .filter(|(id, path)| {
                let late = self.lateness(now, **id, path);
                reported || late.is_some_and(|late| backlog >= late)
            })
            .map(|(id, _)| *id)
            .collect();
        for id in in_time {
            if let Some(path) = self.paths.get_mut(&id) {
                path.in_time_at = Some(now);
            }
        }
    }

    /// Whether the path leaves all data to quicker ones.
    pub(super) fn is_late(&self, now: Instant, id: PathId, path: &Path) -> bool {
        self.lateness(now, id, path).is_some()
            && path.in_time_at.is_none_or(|at| now >= at + BULK_ENDS_AFTER)
    }

    /// Sets in the scheduler whether all data has one path, which must not be deferred then.
    pub(super) fn set_single_path(&self, now: Instant, thin: bool) {
        let mut others = (self.paths.iter())
            .filter(|(id, path)| self.fastest.get() != Some(**id) && self.lives(now, path))
            .peekable();
        let only_late =
            others.peek().is_some() && others.all(|(id, path)| self.is_late(now, *id, path));
        let is_single = self.fastest.get().is_some() && (thin || only_late);
        self.scheduler.set_single_path(is_single);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use noq_proto::PathStatus;

    use super::*;
    use crate::Coupling;
    use crate::path_scheduler::{PathModel, PathScheduler};
    use crate::path_upkeep::{Command, Event, InterfaceId, Side, UpkeepConfig};

    const MS: Duration = Duration::from_millis(1);
    const QUICK: PathId = PathId::ZERO;
    const LATE_RTT: Duration = Duration::from_millis(140);

    /// A client over a path of 20 ms and 1 MB/s and another of `late_rtt`, which has this backlog
    /// from 500 ms on. Returns when the other path becomes available.
    fn joins_at(
        late_rtt: Duration,
        (written, reported): (u64, bool),
        quick_dies: bool,
    ) -> Option<Duration> {
        let scheduler = PathScheduler::new();
        let start = Instant::now();
        let mut steering = PathUpkeep::new(UpkeepConfig::new(Side::Client), scheduler.clone());
        let interfaces = [InterfaceId(0), InterfaceId(1)];
        let other = PathId::from(1u8);
        for interface in interfaces {
            steering.on_event(start, Event::LinkUp { interface });
        }
        scheduler.enter();
        let interface = Some(interfaces[0]);
        steering.on_event(start, Event::Connected { interface });
        while steering.poll(start).is_some() {}
        scheduler.enter();
        let interface = interfaces[1];
        let path = other;
        steering.on_event(start, Event::Opened { interface, path });
        steering.on_event(start, Event::Established { path });
        for tick in 1..150u32 {
            let (passed, now) = (MS * 10 * tick, start + MS * 10 * tick);
            scheduler.tick(now);
            let begun = passed >= MS * 500;
            let bytes = if begun { written } else { 0 };
            steering.on_event(now, Event::Written { bytes });
            if begun {
                scheduler.admission(0, true);
                scheduler.report(
                    now,
                    PathModel {
                        rate_bytes_per_s: 1e6,
                        busy: true,
                        ..scheduler.models()[0]
                    },
                    false,
                    Coupling::Off,
                );
            }
            if begun && reported {
                steering.on_event(now, Event::Backlog { bytes: 1 });
            }
            for (path, rtt) in [(QUICK, MS * 20), (other, late_rtt)] {
                let datagrams = u64::from(tick);
                let is_dead = quick_dies && begun && path == QUICK;
                if !is_dead {
                    let heard = Event::Received {
                        path,
                        datagrams,
                        rtt,
                    };
                    steering.on_event(now, heard);
                }
            }
            while let Some(command) = steering.poll(now) {
                let status = PathStatus::Available;
                let path = other;
                if begun && command == (Command::SetStatus { path, status }) {
                    return Some(passed - MS * 500);
                }
            }
        }
        None
    }

    #[test]
    fn a_late_path_joins_when_the_backlog_is_as_long_as_it_is_late() {
        let joins_at = |backlog| joins_at(LATE_RTT, backlog, false);
        assert_eq!(joins_at((1_000_000, false)), Some(MS * 120));
        assert_eq!(joins_at((60_000, false)), None, "sent in 60 ms");
        assert_eq!(joins_at((60_000, true)), Some(Duration::ZERO));
    }

    #[test]
    fn a_late_path_takes_over_from_a_dead_one() {
        let joins_at = |late_rtt| joins_at(late_rtt, (60_000, false), true);
        assert_eq!(joins_at(LATE_RTT), Some(MS * 80));
        // One lost answer is no reason to wait in a queue of a second.
        assert_eq!(joins_at(MS * 620), Some(MS * 290));
    }
}
