//! Rest in virtual time: what it costs, what it closes and what it notices.

use std::time::{Duration, Instant};

use noq_proto::{PathId, PathStatus};

use super::{
    keepalive_plan_tests::Plan,
    keepalive_tests::policies,
    keepalive_world_tests::{CLIENT, MS, SERVER, World},
};
use crate::{Command, Event, KeepaliveTerms, PathScheduler, PathUpkeep, Rest, Side, UpkeepConfig};

/// The longest time to the verdict over a path at rest: the interval, and the questions.
const NOTICED_MAX: Duration = Duration::from_secs(27);

fn at_rest(seed: u64, length_s: u64) -> Plan {
    let mut plan = Plan::quiet(seed, length_s);
    plan.rest = Rest::AGREED;
    plan
}

#[test]
fn an_idle_connection_sends_a_ping_each_25_seconds_on_each_path() {
    for seed in 0..8 {
        let ends = World::new(at_rest(seed, 1_030)).run();
        assert_eq!(ends[CLIENT].closed, [], "seed {seed}");
        assert_eq!(ends[SERVER].closed, [], "seed {seed}");
        // Dense pings for three seconds at the start, then one in 25 s: 30 and 41.
        for (path, sent) in ends[CLIENT].sent.into_iter().enumerate() {
            assert!((60..=80).contains(&sent), "seed {seed}, {path}: {sent}");
        }
        // The server answers on the standby.
        let standby = ends[SERVER].sent.into_iter().min();
        assert!(standby <= Some(80), "seed {seed}: {standby:?}");
    }
}

/// Policies change, data comes in bursts, and packets are lost. Only the pings of a path at rest
/// tell that it lives.
#[test]
fn no_healthy_path_is_closed_at_rest() {
    for seed in 0..96 {
        let mut plan = at_rest(seed, 300);
        plan.bulk = seed % 4 < 2;
        plan.policies = policies(seed, 300);
        plan.busy = match seed % 3 {
            0 => |_| false,
            1 => |second| second % 37 < 2,
            _ => |second| second % 61 < 11,
        };
        plan.loss = seed % 2;
        let ends = World::new(plan).run();
        assert_eq!(ends[CLIENT].closed, [], "seed {seed}");
        assert_eq!(ends[SERVER].closed, [], "seed {seed}");
    }
}

#[test]
fn a_path_at_rest_that_is_cut_is_closed_within_its_interval() {
    for seed in 0..16 {
        let mut plan = at_rest(seed, 120);
        plan.cut = MS * 40_000 + MS * 1_500 * seed as u32;
        let cut = plan.cut;
        let [client, _] = World::new(plan).run();
        let [(at, 1)] = client.closed[..] else {
            panic!("seed {seed}: {:?}", client.closed);
        };
        assert!(at > cut && at - cut <= NOTICED_MAX, "seed {seed}: {at:?}");
    }
}

fn with_copies(seed: u64, length_s: u64) -> Plan {
    let mut plan = at_rest(seed, length_s);
    plan.rest.copies = true;
    plan.copies = |second| second % 60 >= 20;
    plan
}

#[test]
fn copies_are_no_reason_for_dense_pings() {
    for seed in 0..8 {
        let ends = World::new(with_copies(seed, 600)).run();
        for (index, end) in ends.iter().enumerate() {
            assert_eq!(end.closed, [], "seed {seed}, {index}");
            // The copies themselves, and dense pings for three seconds after each of 21 changes.
            // Dense pings of 400 s would be 4,000 more.
            for sent in end.sent {
                assert!(
                    (800..=1_700).contains(&sent),
                    "seed {seed}, {index}: {sent}"
                );
            }
        }
    }
}

#[test]
fn no_healthy_path_is_closed_while_copies_begin_and_end() {
    for seed in 0..192 {
        let mut plan = with_copies(seed, 300);
        plan.bulk = seed % 4 < 2;
        plan.one_way = seed % 8 < 4;
        plan.policies = policies(seed, 300);
        plan.busy = match seed % 3 {
            0 => |_| false,
            1 => |second| second % 37 < 2,
            _ => |second| second % 61 < 23,
        };
        plan.copies = match seed % 5 {
            0 => |second| second % 7 < 2,
            1 => |second| second % 29 < 27,
            _ => plan.copies,
        };
        plan.alerts = match seed % 7 {
            0..3 => |_| false,
            3 => |second| second % 41 < 3,
            _ => |second| second % 23 < 11,
        };
        plan.loss = seed % 2;
        let ends = World::new(plan).run();
        assert_eq!(ends[CLIENT].closed, [], "seed {seed}");
        assert_eq!(ends[SERVER].closed, [], "seed {seed}");
    }
}

/// Each copy asks its path: the next one after the cut has no answer, and then four questions.
#[test]
fn a_path_that_is_cut_while_copies_are_sent_is_closed_within_two_seconds() {
    for seed in 0..16 {
        let mut plan = with_copies(seed, 60);
        plan.cut = MS * 30_000 + MS * 1_500 * seed as u32;
        let cut = plan.cut;
        let [client, _] = World::new(plan).run();
        let [(at, 1)] = client.closed[..] else {
            panic!("seed {seed}: {:?}", client.closed);
        };
        assert!(
            at > cut && at - cut <= MS * 2_000,
            "seed {seed}: {:?}",
            at - cut
        );
    }
}

/// The paths that a server closes within a minute whose client sends on one path only, and nothing
/// on the other.
fn closed_by_a_server(rest: Rest) -> Vec<PathId> {
    let scheduler = PathScheduler::new();
    let mut steering = PathUpkeep::new(UpkeepConfig::new(Side::Server), scheduler.clone());
    let start = Instant::now();
    let silent = PathId::MAX;
    for path in [PathId::ZERO, silent] {
        scheduler.enter();
        let event = match path {
            PathId::ZERO => Event::Connected { interface: None },
            path => Event::Established { path },
        };
        steering.on_event(start, event);
    }
    let mut closed = Vec::new();
    for tick in 0..1_200 {
        let now = start + MS * 50 * tick;
        let terms = KeepaliveTerms::default().with_rest(rest);
        steering.on_event(now, Event::Keepalive(terms));
        let heard = |path, datagrams| Event::Received {
            path,
            datagrams,
            rtt: MS * 40,
        };
        steering.on_event(now, heard(PathId::ZERO, u64::from(tick) * 20));
        // A burst, as at the start of a transfer.
        steering.on_event(now, heard(silent, u64::from(tick.min(20)) * 20));
        for _ in 0..20 {
            match steering.poll(now) {
                Some(Command::Close { path }) => closed.push(path),
                Some(_) => {}
                None => break,
            }
        }
    }
    closed
}

/// A client of another make sends on the paths that it likes, and answers what it is asked.
#[test]
fn silence_of_a_client_that_agreed_on_no_pings_closes_nothing() {
    assert_eq!(closed_by_a_server(Rest::default()), [PathId::MAX]);
    assert_eq!(closed_by_a_server(Rest::FOREIGN), []);
}

/// The path that a server prefers whose client uses another one with this round trip.
fn preferred_by_a_server(rtt_used: Duration, writes: bool) -> PathId {
    let scheduler = PathScheduler::new();
    let mut steering = PathUpkeep::new(UpkeepConfig::new(Side::Server), scheduler.clone());
    let start = Instant::now();
    let (used, other) = (PathId::ZERO, PathId::from(1u8));
    scheduler.enter();
    steering.on_event(start, Event::Connected { interface: None });
    scheduler.enter();
    steering.on_event(start, Event::Established { path: other });
    let mut available = used;
    for tick in 0..200u32 {
        let now = start + MS * 50 * tick;
        let terms = KeepaliveTerms::default().with_rest(Rest::AGREED);
        steering.on_event(now, Event::Keepalive(terms));
        let status = PathStatus::Backup;
        steering.on_event(
            now,
            Event::RemoteStatus {
                path: other,
                status,
            },
        );
        for (path, rtt) in [(used, rtt_used), (other, MS * 300)] {
            let datagrams = u64::from(tick);
            let heard = Event::Received {
                path,
                datagrams,
                rtt,
            };
            steering.on_event(now, heard);
        }
        let bytes = if writes { u64::from(tick) * 100 } else { 0 };
        steering.on_event(now, Event::Written { bytes });
        while let Some(command) = steering.poll(now) {
            if let Command::SetStatus {
                path,
                status: PathStatus::Available,
            } = command
            {
                available = path;
            }
        }
    }
    available
}

/// The client does not see the queues on the way to it.
#[test]
fn a_server_with_data_leaves_the_clients_path_for_a_clearly_quicker_one() {
    assert_eq!(preferred_by_a_server(MS * 400, true), PathId::from(1u8));
    assert_eq!(preferred_by_a_server(MS * 400, false), PathId::ZERO);
    assert_eq!(preferred_by_a_server(MS * 330, true), PathId::ZERO);
}
