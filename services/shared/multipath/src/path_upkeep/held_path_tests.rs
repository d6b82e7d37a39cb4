//! A path that stands by for all other data carries copies of alerts, and nothing else.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use noq_proto::{PathId, PathStatus};

use crate::coupling::Coupling;
use crate::path_scheduler::{Admission, PathModel};
use crate::steering_rules::{PathSchedule, Rank};
use crate::{Command, CopyWrite, Event, PathScheduler, PathState, PathUpkeep, Side, UpkeepConfig};

const MS: Duration = Duration::from_millis(1);
const TICK: Duration = Duration::from_millis(5);
const LASTS_TICKS: u32 = 1_000;
/// Ticks between two messages.
const MESSAGE_TICKS: u32 = 50;
/// Packets of bulk in a tick: 2 MB/s.
const BULK_PACKETS: u32 = 8;
/// Commands after which a round of polling has not ended.
const COMMANDS_PER_ROUND_MAX: usize = 200;
/// The held path has the lower id, which the library asks first.
const PATHS: [PathId; 2] = [PathId::ZERO, PathId::MAX];
const HELD: usize = 0;
const ACTIVE: usize = 1;

/// A client, and what the library does with its statuses.
struct World {
    scheduler: Arc<PathScheduler>,
    steering: PathUpkeep,
    status: BTreeMap<PathId, PathStatus>,
    status_changes: u32,
}

/// The path of each message's first and second copy, bulk packets on the held path, and changes of
/// a status.
#[derive(Debug, Default)]
struct Outcome {
    copies: [Vec<usize>; 2],
    leaked: u32,
    status_changes: u32,
}

impl World {
    fn new(start: Instant, carries_copies: bool) -> Self {
        let scheduler = PathScheduler::new();
        let mut steering = PathUpkeep::new(UpkeepConfig::new(Side::Client), scheduler.clone());
        scheduler.enter();
        steering.on_event(start, Event::Connected { interface: None });
        scheduler.enter();
        steering.on_event(start, Event::Established { path: PATHS[1] });
        let mut world = Self {
            scheduler,
            steering,
            status: PATHS.map(|path| (path, PathStatus::Available)).into(),
            status_changes: 0,
        };
        world.schedule(start, carries_copies);
        world
    }

    fn schedule(&mut self, now: Instant, carries_copies: bool) {
        let held = PathSchedule {
            place: 1,
            rank: Some(Rank::Standby),
            weight: None,
            carries_copies,
        };
        let active = PathSchedule {
            carries_copies,
            ..PathSchedule::FREE
        };
        for (path, schedule) in PATHS.into_iter().zip([held, active]) {
            self.steering
                .on_event(now, Event::Scheduled { path, schedule });
        }
        let (gathers, copies) = (true, 2);
        self.steering
            .on_event(now, Event::Spread { gathers, copies });
    }

    fn poll(&mut self, now: Instant) {
        for round in 0.. {
            assert!(round < COMMANDS_PER_ROUND_MAX, "polling does not end");
            match self.steering.poll(now) {
                None => break,
                Some(Command::Close { path }) => panic!("{path} is closed"),
                Some(Command::SetStatus { path, status }) => {
                    self.status.insert(path, status);
                    self.status_changes += 1;
                }
                // The packet of a ping carries no data while another path is Available alone.
                Some(Command::Ping { path }) => {
                    let slot = PATHS.iter().position(|it| *it == path).unwrap();
                    if self.status[&path] == PathStatus::Backup {
                        self.scheduler.sent(slot, 30, 0);
                    }
                }
                Some(_) => {}
            }
        }
        let snapshot = self.steering.snapshot(now);
        let held = snapshot.iter().find(|it| it.path == PATHS[HELD]).unwrap();
        assert_eq!(held.state, PathState::Backup, "as people see it");
    }

    /// Sends a packet of data by the path that the library would take.
    fn send(&mut self, bytes: u64) -> Option<usize> {
        let slot = (0..2).find(|slot| {
            self.status[&PATHS[*slot]] == PathStatus::Available
                && self.scheduler.admission(*slot, true) != Admission::Deferred
        })?;
        self.scheduler.sent(slot, bytes, 0);
        Some(slot)
    }

    fn send_copy(&mut self, now: Instant, copy: u8) -> usize {
        let mut cx = Context::from_waker(Waker::noop());
        let write = CopyWrite {
            copy,
            bytes: 450,
            urgent: true,
        };
        for _ in 0..2 {
            match self.scheduler.poll_reserve(&mut cx, now, write) {
                Poll::Ready(reserved) => {
                    let slot = self.send(500).unwrap();
                    assert!(!reserved.is_some_and(|number| self.scheduler.end_reservation(number)));
                    return slot;
                }
                Poll::Pending => {
                    assert!(self.steering.poll_copy_waits(&mut cx).is_ready());
                    self.poll(now);
                }
            }
        }
        panic!("copy {copy} waits");
    }

    fn tick(&mut self, now: Instant, tick: u32) {
        self.scheduler.tick(now);
        // The held path measures no more than its pings, and an earlier copy is in flight.
        for (slot, rate_bytes_per_s) in [(HELD, 300.0), (ACTIVE, 2.5e6)] {
            let model = PathModel {
                busy: slot == ACTIVE,
                rate_bytes_per_s,
                promised_bytes_per_s: rate_bytes_per_s,
                rtt_smoothed: MS * 20,
                rtt_latest: MS * 20,
                rtt_min: MS * 20,
                window_bytes: 60_000,
                in_flight_bytes: [2_000, 0][slot],
                ..self.scheduler.models()[slot]
            };
            self.scheduler.report(now, model, false, Coupling::Off);
        }
        let backlog = Event::Backlog { bytes: 100_000 };
        self.steering.on_event(now, backlog);
        for path in PATHS {
            let (datagrams, rtt) = (u64::from(tick), MS * 20);
            let event = Event::Received {
                path,
                datagrams,
                rtt,
            };
            self.steering.on_event(now, event);
        }
        self.poll(now);
    }
}

fn run(carries_copies: impl Fn(u32) -> bool) -> Outcome {
    let start = Instant::now();
    let mut world = World::new(start, carries_copies(0));
    world.poll(start);
    world.status_changes = 0;
    let mut outcome = Outcome::default();
    for tick in 1..LASTS_TICKS {
        let now = start + TICK * tick;
        world.schedule(now, carries_copies(tick));
        world.tick(now, tick);
        for copy in [0, 1] {
            if tick % MESSAGE_TICKS == 0 {
                let slot = world.send_copy(now, copy);
                outcome.copies[usize::from(copy)].push(slot);
            }
        }
        for _ in 0..BULK_PACKETS {
            outcome.leaked += u32::from(world.send(1_200) == Some(HELD));
        }
    }
    outcome.status_changes = world.status_changes;
    outcome
}

#[test]
fn a_path_that_stands_by_carries_copies_and_no_bulk() {
    let outcome = run(|_| true);
    let messages = outcome.copies[0].len();
    assert!(messages > 15);
    assert_eq!(outcome.copies[0], vec![ACTIVE; messages]);
    assert_eq!(outcome.copies[1], vec![HELD; messages]);
    // The packet of a ping, while the path is open.
    assert!(outcome.leaked as usize <= messages, "{outcome:?}");
    assert_eq!(outcome.status_changes as usize, messages * 2);
}

#[test]
fn without_an_alert_it_carries_nothing() {
    let outcome = run(|_| false);
    let messages = outcome.copies[0].len();
    for copies in &outcome.copies {
        assert_eq!(*copies, vec![ACTIVE; messages]);
    }
    assert_eq!((outcome.leaked, outcome.status_changes), (0, 0));
    let half = LASTS_TICKS / 2;
    let ended = run(|tick| tick < half);
    let before = (half / MESSAGE_TICKS - 1) as usize;
    let (carried, left) = ended.copies[1].split_at(before);
    assert!(carried.iter().all(|slot| *slot == HELD), "{ended:?}");
    assert!(left.iter().all(|slot| *slot == ACTIVE), "{ended:?}");
    assert_eq!(ended.status_changes as usize, before * 2);
}

/// The peer's next packets take the same way, so no round trip is to be measured anew.
#[test]
fn the_peer_restarts_no_measurement_when_the_path_opens_for_a_copy() {
    let start = Instant::now();
    let mut world = World::new(start, false);
    world.poll(start);
    let rest = crate::Rest {
        copies: true,
        ..crate::Rest::default()
    };
    let terms = crate::KeepaliveTerms::from(crate::Keepalive::default()).with_rest(rest);
    world.steering.on_event(start, Event::Keepalive(terms));
    let restarts = |world: &mut World, path| {
        let before = world.scheduler.rebase_epoch();
        for status in [PathStatus::Available, PathStatus::Backup] {
            let event = Event::RemoteStatus { path, status };
            world.steering.on_event(start, event);
        }
        world.scheduler.rebase_epoch() - before
    };
    assert_eq!(restarts(&mut world, PATHS[HELD]), 0);
    assert_eq!(restarts(&mut world, PATHS[ACTIVE]), 2);
}
