//! Rest in virtual time: what it costs, what it closes and what it notices.

use std::time::Duration;

use super::{
    keepalive_tests::policies,
    keepalive_world_tests::{CLIENT, MS, Plan, SERVER, World},
};
use crate::Rest;

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
