//! A path on which the peer sends only pings: nothing sent on the path is acknowledged.
//!
//! A peer that sees a new client address challenges it. The library repeats the challenge only
//! within three probe time-outs. If all are lost, the library keeps the path as not validated, and
//! sends neither data nor acknowledgements on it. Pings still arrive, so the path never looks
//! silent. A connection with only this path stands still.
//!
//! The client detects the missing acknowledgements, frees the path's interface for a new path, and
//! drains and closes the old one. It replaces one path at a time, because the new path may bring
//! the acknowledgements of the others.
//!
//! A new path needs a connection id from the peer. If the peer could never send one, the connection
//! ends with an error, like a connection that cannot release a path.

use std::time::{Duration, Instant};

use super::{Path, PathUpkeep, Side};

/// A pinged path counts as unacknowledged after this time and this number of round trips.
const MUTE_MIN: Duration = Duration::from_secs(2);
const MUTE_ROUND_TRIPS: u32 = 8;
/// Time between the last acknowledgement and the next ping, where pings are dense.
const PING_SLACK: Duration = Duration::from_millis(200);

impl PathUpkeep {
    /// At most one path in each [`MUTE_MIN`] is replaced, which bounds the use of path ids.
    pub(super) fn replace_mute(&mut self, now: Instant) {
        for path in self.paths.values_mut() {
            let is_empty = |slot| self.scheduler.in_flight(slot) == 0;
            if path.slot.is_some_and(is_empty) {
                path.emptied_at = Some(now);
            }
        }
        let recently = self.replaced_at.is_some_and(|at| now < at + MUTE_MIN);
        if self.config.side == Side::Server || !self.config.liveness || recently {
            return;
        }
        let mute = self
            .paths
            .iter()
            .filter(|(_, path)| self.is_mute(now, path));
        let newest_heard = mute.max_by_key(|(_, path)| path.liveness.heard_at());
        let Some(id) = newest_heard.map(|(id, _)| *id) else {
            return;
        };
        self.replaced_at = Some(now);
        self.closing.begin(id);
        if let Some(path) = self.paths.get_mut(&id) {
            path.rerouted_at = Some(now);
            let interface = path.interface.take();
            self.free_interface(now, id, interface);
        }
    }

    fn is_mute(&self, now: Instant, path: &Path) -> bool {
        let Some(slot) = path.slot else {
            return false;
        };
        let patience = MUTE_MIN.max(path.rtt * MUTE_ROUND_TRIPS);
        // The path is received on after this time without an acknowledgement, so it is not merely
        // silent.
        let since = path
            .opened_at
            .max(self.scheduler.acked_at(slot).unwrap_or(path.opened_at));
        // With rare pings the last acknowledgement is old although the ping was just sent.
        let waits = path
            .emptied_at
            .is_none_or(|at| now + PING_SLACK >= at + patience);
        path.established
            && waits
            && path.rerouted_at.is_none()
            && self.scheduler.in_flight(slot) > 0
            && now >= since + patience
            && now < path.liveness.heard_at() + self.terms.judge_by.silence_max()
    }
}

#[cfg(test)]
mod tests {
    use noq_proto::{PathId, PathStatus};

    use super::*;
    use crate::path_scheduler::{PathModel, PathScheduler};
    use crate::path_upkeep::{Command, Event, InterfaceId, OpenFailure, UpkeepConfig};
    use crate::{Coupling, Keepalive, PathState};

    const MS: Duration = Duration::from_millis(1);
    const WIFI: InterfaceId = InterfaceId(0);

    /// A client's only path for this time, with a datagram every 50 ms, acknowledged in the first
    /// second or from a given time on. Returns the commands and their times.
    fn run(length: Duration, acked_from: Duration, has_ids: bool) -> Vec<(Duration, Command)> {
        let scheduler = PathScheduler::new();
        let start = Instant::now();
        let mut steering = PathUpkeep::new(UpkeepConfig::new(Side::Client), scheduler.clone());
        let slot = scheduler.enter();
        steering.on_event(start, Event::LinkUp { interface: WIFI });
        let interface = Some(WIFI);
        steering.on_event(start, Event::Connected { interface });
        let mut done = Vec::new();
        let mut next = 1u32;
        for tick in 1.. {
            let passed = MS * 50 * tick;
            if passed >= length {
                break;
            }
            let now = start + passed;
            scheduler.sent(slot, 1_200, 3_000);
            if passed >= acked_from || passed < Duration::from_secs(1) {
                let model = PathModel {
                    in_flight_bytes: 3_000,
                    ..scheduler.models()[0]
                };
                scheduler.report(now, model, false, Coupling::Off);
            }
            for path in steering.snapshot(now) {
                let heard = Event::Received {
                    path: path.path,
                    datagrams: u64::from(tick),
                    rtt: MS * 40,
                };
                steering.on_event(now, heard);
            }
            for _ in 0..20 {
                let Some(command) = steering.poll(now) else {
                    break;
                };
                match command {
                    Command::Open { interface, .. } if !has_ids => {
                        let failure = OpenFailure::NoIdYet;
                        steering.on_event(now, Event::OpenFailed { interface, failure });
                        continue;
                    }
                    Command::Open { interface, .. } => {
                        scheduler.enter();
                        let path = PathId::from(next);
                        next += 1;
                        steering.on_event(now, Event::Opened { interface, path });
                        steering.on_event(now, Event::Established { path });
                    }
                    Command::Ping { .. } => continue,
                    _ => {}
                }
                done.push((passed, command));
            }
        }
        done
    }

    #[test]
    fn a_path_that_is_heard_but_never_acknowledged_is_replaced() {
        let done = run(MS * 6_000, Duration::MAX, true);
        let status = PathStatus::Available;
        let opened = (
            MS * 2950,
            Command::Open {
                interface: WIFI,
                status,
            },
        );
        assert!(done.contains(&opened), "{done:?}");
        let closed = |(_, command): &&(Duration, Command)| matches!(command, Command::Close { path } if *path == PathId::ZERO);
        assert_eq!(done.iter().filter(closed).count(), 1, "{done:?}");
    }

    #[test]
    fn a_rare_ping_that_is_under_way_makes_no_path_mute() {
        let scheduler = PathScheduler::new();
        let start = Instant::now();
        let mut steering = PathUpkeep::new(UpkeepConfig::new(Side::Client), scheduler.clone());
        let slot = scheduler.enter();
        steering.on_event(start, Event::LinkUp { interface: WIFI });
        let interface = Some(WIFI);
        steering.on_event(start, Event::Connected { interface });
        let rare = Keepalive {
            interval: Duration::from_secs(5),
            silent_intervals: 4,
        };
        steering.on_event(start, Event::Keepalive(rare.into()));
        for tick in 1..2_000u32 {
            let now = start + MS * 50 * tick;
            let model = scheduler.models()[slot];
            // A ping each 5 s, acknowledged after 400 ms.
            match tick % 100 {
                0 => scheduler.sent(slot, 50, 50),
                8 => scheduler.report(now, model, false, Coupling::Off),
                _ => {}
            }
            let in_flight_bytes = if tick % 100 < 8 && tick >= 100 { 50 } else { 0 };
            scheduler.sent(slot, 0, in_flight_bytes);
            let heard = Event::Received {
                path: PathId::ZERO,
                datagrams: u64::from(tick / 20),
                rtt: MS * 100,
            };
            steering.on_event(now, heard);
            while let Some(command) = steering.poll(now) {
                assert!(!matches!(command, Command::Open { .. }), "{tick}");
            }
        }
    }

    #[test]
    fn a_path_that_is_acknowledged_stays() {
        assert_eq!(run(MS * 6_000, Duration::ZERO, true), Vec::new());
    }

    #[test]
    fn a_path_that_is_never_acknowledged_and_cannot_be_replaced_ends_the_connection() {
        let done = run(MS * 100_000, Duration::MAX, false);
        let path = PathId::ZERO;
        assert_eq!(done, [(MS * 34_050, Command::GiveUp { path })]);
        let again = Duration::from_secs(20);
        assert_eq!(run(MS * 100_000, again, false), Vec::new());
    }

    #[test]
    fn a_path_is_not_mute_as_soon_as_it_is_established() {
        let scheduler = PathScheduler::new();
        let start = Instant::now();
        let mut steering = PathUpkeep::new(UpkeepConfig::new(Side::Client), scheduler.clone());
        steering.on_event(start, Event::LinkUp { interface: WIFI });
        steering.on_event(start, Event::Connected { interface: None });
        let slot = scheduler.enter();
        let path = PathId::from(1u32);
        let interface = WIFI;
        steering.on_event(start, Event::Opened { interface, path });
        scheduler.sent(slot, 1_200, 1_200);
        let late = start + Duration::from_secs(30);
        steering.on_event(late, Event::Established { path });
        while steering.poll(late).is_some() {}
        let known = steering.snapshot(late);
        let entry = known.iter().find(|entry| entry.path == path);
        assert_eq!(entry.map(|entry| entry.interface), Some(Some(WIFI)));
        assert_ne!(entry.map(|entry| entry.state), Some(PathState::Suspect));
    }
}
