//! The steering against a model of a connection. The last living path stays, every interface that
//! is up is tried again, deadlines lie ahead, and nothing grows without bound.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use multipath::{
    Command, Event, InterfaceId, Keepalive, OpenFailure, PathScheduler, PathState, PathUpkeep,
    Side, UpkeepConfig,
};
use noq_proto::{PathId, PathStatus};
use proptest::prelude::*;

const MS: Duration = Duration::from_millis(1);
/// Commands after which a round of polling has not ended.
const COMMANDS_PER_ROUND_MAX: usize = 200;

/// State of the connection and its network.
struct World {
    start: Instant,
    now: Instant,
    steering: PathUpkeep,
    /// Open paths: interface, established, datagrams received.
    paths: BTreeMap<PathId, (u16, bool, u64)>,
    /// Whether the network behind an interface works.
    works: BTreeMap<u16, bool>,
    next_id: u32,
    opens: usize,
    /// Detours happen, and may die.
    recalls: bool,
    log: Vec<(Duration, Command)>,
}

impl World {
    fn new(reroute: bool, interfaces: u16) -> Self {
        let mut config = UpkeepConfig::new(Side::Client);
        config.reroute = reroute;
        let start = Instant::now();
        let mut steering = PathUpkeep::new(config, PathScheduler::new());
        for interface in 0..interfaces {
            let interface = InterfaceId(interface);
            steering.on_event(start, Event::LinkUp { interface });
        }
        let interface = Some(InterfaceId(0));
        steering.on_event(start, Event::Connected { interface });
        Self {
            start,
            now: start,
            steering,
            paths: BTreeMap::from([(PathId::ZERO, (0, true, 0))]),
            works: (0..interfaces).map(|interface| (interface, true)).collect(),
            next_id: 1,
            opens: 0,
            recalls: reroute,
            log: Vec::new(),
        }
    }

    fn poll(&mut self) {
        for (path, (interface, established, datagrams)) in &mut self.paths {
            if *established && self.works[interface] {
                *datagrams += 1;
            }
            let event = Event::Received {
                path: *path,
                datagrams: *datagrams,
                rtt: MS * (20 + 10 * u32::from(*interface)),
            };
            self.steering.on_event(self.now, event);
        }
        for round in 0.. {
            assert!(round < COMMANDS_PER_ROUND_MAX, "polling does not end");
            let Some(command) = self.steering.poll(self.now) else {
                break;
            };
            self.log.push((self.now - self.start, command));
            self.apply(command);
        }
        if let Some(at) = self.steering.next_deadline() {
            assert!(at > self.now, "a deadline in the past");
        }
        assert!(self.steering.snapshot(self.now).len() <= 32);
    }

    fn apply(&mut self, command: Command) {
        match command {
            Command::Ping { path } | Command::SetStatus { path, .. } => {
                assert!(
                    self.paths.contains_key(&path),
                    "a command for a path that is gone"
                );
            }
            Command::Close { path } => {
                let closed = self.paths.remove(&path);
                assert!(closed.is_some());
                let another = self.paths.values().any(|(_, established, _)| *established);
                assert!(another, "closed the last established path");
                self.steering.on_event(self.now, Event::Abandoned { path });
                self.steering.on_event(self.now, Event::Discarded { path });
            }
            Command::GiveUp { .. } => panic!("gave up although every path was released"),
            Command::Open { interface, status } => {
                assert_eq!(status, PathStatus::Available);
                let taken = self.paths.values().filter(|path| path.0 == interface.0);
                // One more path may remain of a detour that died.
                let bound = usize::from(self.recalls);
                assert!(
                    taken.count() <= bound,
                    "opened a second path on an interface"
                );
                self.opens += 1;
                if self.opens.is_multiple_of(5) {
                    let failure = OpenFailure::NoIdYet;
                    let event = Event::OpenFailed { interface, failure };
                    return self.steering.on_event(self.now, event);
                }
                let path = PathId::from(self.next_id);
                self.next_id += 1;
                self.paths.insert(path, (interface.0, false, 0));
                self.steering
                    .on_event(self.now, Event::Opened { interface, path });
            }
        }
    }

    /// The network answers challenges and pings on every interface that works.
    fn answer(&mut self) {
        let ready: Vec<PathId> = self
            .paths
            .iter()
            .filter(|(_, (interface, established, _))| !established && self.works[interface])
            .map(|(path, _)| *path)
            .collect();
        for path in ready {
            self.paths.get_mut(&path).unwrap().1 = true;
            self.steering
                .on_event(self.now, Event::Established { path });
        }
    }

    fn run(&mut self, length: Duration) {
        let end = self.now + length;
        while self.now < end {
            self.answer();
            self.poll();
            let next = self.steering.next_deadline().unwrap_or(end);
            self.now = next.min(self.now + 20 * MS);
        }
    }

    fn established(&self, interface: u16) -> bool {
        self.paths
            .values()
            .any(|path| path.0 == interface && path.1)
    }
}

#[test]
fn every_interface_gets_a_path() {
    let mut world = World::new(false, 4);
    world.run(Duration::from_secs(1));
    assert!((0..4).all(|interface| world.established(interface)));
}

#[test]
fn a_silent_path_is_put_aside_then_closed_and_found_again_when_it_returns() {
    for reroute in [false, true] {
        let mut world = World::new(reroute, 2);
        world.run(Duration::from_secs(2));
        world.works.insert(0, false);
        let cut = world.now - world.start;
        world.run(Duration::from_secs(5));
        let aside = Command::SetStatus {
            path: PathId::ZERO,
            status: PathStatus::Backup,
        };
        let after = |wanted: Command| {
            let found = world
                .log
                .iter()
                .find(|(at, command)| *at >= cut && *command == wanted);
            found.map(|(at, _)| *at - cut)
        };
        assert!(after(aside).unwrap() <= 300 * MS);
        assert!(after(Command::Close { path: PathId::ZERO }).unwrap() <= 800 * MS);
        assert!(
            world
                .steering
                .snapshot(world.now)
                .iter()
                .any(|path| path.state == PathState::Validating)
        );
        world.works.insert(0, true);
        world.run(Duration::from_secs(2));
        assert!(world.established(0));
    }
}

#[test]
fn a_rerouted_interface_gets_its_own_route_back() {
    let mut world = World::new(true, 2);
    world.run(Duration::from_secs(2));
    world.works.insert(0, false);
    let mut rerouted = false;
    for _ in 0..100 {
        world.run(20 * MS);
        rerouted |= world.steering.route_of(InterfaceId(0)) == InterfaceId(1);
        assert_eq!(world.steering.route_of(InterfaceId(1)), InterfaceId(1));
    }
    assert!(rerouted);
    assert_eq!(world.steering.route_of(InterfaceId(0)), InterfaceId(0));
}

/// The detour dies too. The library has adopted it as the path's own route, so the returning
/// interface gets a fresh path.
#[test]
fn an_interface_whose_reroute_died_is_opened_anew_when_it_returns() {
    let mut world = World::new(true, 2);
    world.run(Duration::from_secs(1));
    for interface in [0, 1] {
        let event = Event::LinkDown {
            interface: InterfaceId(interface),
        };
        world.steering.on_event(world.now, event);
        world.works.insert(interface, false);
        world.run(5 * MS);
    }
    world.run(Duration::from_secs(4));
    assert_eq!(
        world.paths.len(),
        2,
        "nothing is closed while nothing lives"
    );
    let (opens, returned) = (world.opens, world.now);
    world.works.insert(0, true);
    let interface = InterfaceId(0);
    world
        .steering
        .on_event(returned, Event::LinkUp { interface });
    world.run(MS);
    assert_eq!(world.opens, opens + 1, "opened at once");
    assert_eq!(world.steering.route_of(interface), interface);
    world.run(Duration::from_secs(3));
    let left: Vec<u16> = world.paths.values().map(|path| path.0).collect();
    assert_eq!(left, [0], "what was left of the outage is closed");
}

/// The detour falls silent for a moment, like a slow link full of data. The path on it has a window
/// for its own fast link, and would fill the slow link for seconds.
#[test]
fn a_rerouted_path_carries_no_data_beside_the_path_whose_way_it_takes() {
    let mut world = World::new(true, 2);
    world.run(Duration::from_secs(2));
    world.works.insert(0, false);
    while world.steering.route_of(InterfaceId(0)) == InterfaceId(0) {
        world.run(5 * MS);
    }
    world.works.insert(1, false);
    let silent = world.now - world.start;
    world.run(Duration::from_secs(1));
    let available = |path| Command::SetStatus {
        path,
        status: PathStatus::Available,
    };
    let since = |wanted: Command| {
        let mut log = world.log.iter().skip_while(|(at, _)| *at < silent);
        log.any(|(_, command)| *command == wanted)
    };
    assert!(!since(available(PathId::ZERO)));
    let other = PathId::from(1_u32);
    let aside = Command::SetStatus {
        path: other,
        status: PathStatus::Backup,
    };
    assert!(!since(aside), "the other one is all there is");
}

/// After an outage of all paths a server gives the client time to save the data in flight.
#[test]
fn a_server_closes_no_path_as_soon_as_another_is_heard_again() {
    let start = Instant::now();
    let mut server = PathUpkeep::new(UpkeepConfig::new(Side::Server), PathScheduler::new());
    server.on_event(start, Event::Connected { interface: None });
    let other = PathId::from(1_u32);
    server.on_event(start, Event::Established { path: other });
    let patience = Keepalive::default().silence_max() * 4;
    let outage = Duration::from_secs(5);
    let mut closed = None;
    for tick in 0..600 {
        let now = start + tick * 20 * MS;
        for path in [PathId::ZERO, other] {
            let heard = now < start + MS * 500 || path == other && now >= start + outage;
            if heard {
                let (datagrams, rtt) = (u64::from(tick), MS);
                server.on_event(
                    now,
                    Event::Received {
                        path,
                        datagrams,
                        rtt,
                    },
                );
            }
        }
        while let Some(command) = server.poll(now) {
            if matches!(command, Command::Close { .. }) {
                closed = closed.or(Some((now - start, command)));
            }
        }
    }
    let (at, command) = closed.unwrap();
    assert_eq!(command, Command::Close { path: PathId::ZERO });
    assert!(at >= outage + patience, "{at:?}");
}

#[test]
fn a_lost_carrier_is_acted_on_at_once() {
    let mut world = World::new(false, 2);
    world.run(Duration::from_secs(1));
    let down = world.now - world.start;
    let interface = InterfaceId(0);
    world
        .steering
        .on_event(world.now, Event::LinkDown { interface });
    world.run(MS);
    let closed = Command::Close { path: PathId::ZERO };
    assert!(
        world
            .log
            .iter()
            .any(|(at, command)| *at == down && *command == closed)
    );
    world.run(Duration::from_secs(3));
    assert!(!world.established(0), "an interface that is down was used");
    world
        .steering
        .on_event(world.now, Event::LinkUp { interface });
    world.run(Duration::from_secs(1));
    assert!(world.established(0));
}

#[test]
fn the_last_path_is_kept_however_silent() {
    let mut world = World::new(true, 2);
    world.run(Duration::from_secs(1));
    world.works.insert(0, false);
    world.works.insert(1, false);
    world.run(Duration::from_secs(30));
    assert!(
        !world
            .log
            .iter()
            .any(|(_, command)| matches!(command, Command::Close { .. }))
    );
    assert!(world.paths.values().any(|path| path.1));
}

#[test]
fn a_server_opens_nothing_and_pings_what_the_client_opened() {
    let start = Instant::now();
    let mut server = PathUpkeep::new(UpkeepConfig::new(Side::Server), PathScheduler::new());
    server.on_event(start, Event::Connected { interface: None });
    server.on_event(
        start,
        Event::LinkUp {
            interface: InterfaceId(0),
        },
    );
    let path = PathId::from(1u32);
    server.on_event(start, Event::Established { path });
    let mut pinged = Vec::new();
    let now = start + Duration::from_millis(100);
    while let Some(command) = server.poll(now) {
        match command {
            Command::Ping { path } => pinged.push(path),
            Command::SetStatus { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(pinged, [PathId::ZERO, path]);
}

#[derive(Debug, Clone)]
enum Step {
    Run(u16),
    Works(u16, bool),
    Link(u16, bool),
    Abandon(u8),
    RemoteStatus(u8, bool),
    Backlog(u32),
    Keepalive(u8, u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1u16..1500).prop_map(Step::Run),
        2 => (0u16..4, any::<bool>()).prop_map(|(interface, works)| Step::Works(interface, works)),
        1 => (0u16..4, any::<bool>()).prop_map(|(interface, up)| Step::Link(interface, up)),
        1 => any::<u8>().prop_map(Step::Abandon),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(path, backup)| Step::RemoteStatus(path, backup)),
        1 => any::<u32>().prop_map(Step::Backlog),
        1 => (10u8..250, 1u8..10).prop_map(|(ms, k)| Step::Keepalive(ms, k)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_invariants_hold(
        reroute in any::<bool>(),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let mut world = World::new(reroute, 4);
        for step in steps {
            let path_at = |world: &World, index: u8| {
                world.paths.keys().nth(usize::from(index) % world.paths.len().max(1)).copied()
            };
            match step {
                Step::Run(ms) => world.run(MS * u32::from(ms)),
                Step::Works(interface, works) => drop(world.works.insert(interface, works)),
                Step::Link(interface, up) => {
                    let interface = InterfaceId(interface);
                    let event = if up { Event::LinkUp { interface } } else { Event::LinkDown { interface } };
                    world.steering.on_event(world.now, event);
                }
                // The library and the peer may abandon any path, even the last one, but then the
                // connection ends.
                Step::Abandon(index) if world.paths.values().filter(|path| path.1).count() > 1 => {
                    if let Some(path) = path_at(&world, index) {
                        world.paths.remove(&path);
                        world.steering.on_event(world.now, Event::Abandoned { path });
                    }
                }
                Step::Abandon(_) => {}
                Step::RemoteStatus(index, backup) => {
                    if let Some(path) = path_at(&world, index) {
                        let status = if backup { PathStatus::Backup } else { PathStatus::Available };
                        world.steering.on_event(world.now, Event::RemoteStatus { path, status });
                    }
                }
                Step::Backlog(bytes) => {
                    let bytes = u64::from(bytes);
                    world.steering.on_event(world.now, Event::Backlog { bytes });
                }
                Step::Keepalive(ms, silent_intervals) => {
                    let keepalive = Keepalive {
                        interval: MS * u32::from(ms),
                        silent_intervals: u32::from(silent_intervals),
                    };
                    world.steering.on_event(world.now, Event::Keepalive(keepalive.into()));
                }
            }
        }
        // When the network works again, every interface has a path within the longest back-off.
        world.steering.on_event(world.now, Event::Keepalive(Keepalive::default().into()));
        for interface in 0..4 {
            world.works.insert(interface, true);
            let interface = InterfaceId(interface);
            world.steering.on_event(world.now, Event::LinkUp { interface });
        }
        world.run(Duration::from_secs(8));
        for interface in 0..4 {
            prop_assert!(world.established(interface), "interface {interface} has no path");
        }
    }
}
