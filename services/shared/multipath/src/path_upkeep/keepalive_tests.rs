//! Policies that change the keepalive of both ends close no healthy path and hide no cut: in
//! virtual time, over seeds.

use std::time::Duration;

use super::keepalive_plan_tests::{Plan, Random};
use super::keepalive_world_tests::{CLIENT, MS, SERVER, World};
use crate::Keepalive;

fn every(interval_ms: u64, silent_intervals: u32) -> Keepalive {
    Keepalive {
        interval: Duration::from_millis(interval_ms),
        silent_intervals,
    }
}

/// Random policies at random times.
pub(super) fn policies(seed: u64, length_s: u64) -> Vec<(Duration, Keepalive)> {
    let mut random = Random(seed ^ 0x5eed);
    let mut at = Duration::ZERO;
    let mut all = Vec::new();
    loop {
        at += match random.below(3) {
            0 => random.ms(1, 700),
            _ => random.ms(3_000, 20_000),
        };
        if at >= Duration::from_secs(length_s) {
            return all;
        }
        let intervals_ms = [50, 100, 300, 1_000, 2_500, 5_000, 10_000];
        let interval_ms = intervals_ms[random.below(7) as usize];
        all.push((at, every(interval_ms, 7 + random.below(4) as u32)));
    }
}

#[test]
fn no_policy_closes_a_healthy_path() {
    for seed in 0..48 {
        let mut plan = Plan::quiet(seed, 120);
        plan.bulk = seed % 4 < 2;
        plan.policies = policies(seed, 120);
        plan.busy = match seed % 3 {
            0 => |_| false,
            1 => |second| second % 7 < 2,
            _ => |second| second % 31 < 11,
        };
        plan.loss = seed % 2;
        let ends = World::new(plan).run();
        assert_eq!(ends[CLIENT].closed, [], "seed {seed}");
        assert_eq!(ends[SERVER].closed, [], "seed {seed}");
    }
}

/// From 100 ms to 5 s in the third second.
#[test]
fn a_rare_keepalive_is_kept_to_by_both_ends() {
    let mut plan = Plan::quiet(1, 60);
    plan.policies = vec![(MS * 3_000, every(5_000, 4))];
    let ends = World::new(plan).run();
    for end in ends {
        assert_eq!(end.closed, []);
        assert_eq!(end.terms(), every(5_000, 4).into());
    }
}

#[test]
fn a_policy_that_never_reaches_one_end_closes_nothing() {
    for seed in 0..12 {
        let mut plan = Plan::quiet(seed, 90);
        plan.policies = policies(seed, 60);
        plan.mute = MS * (400 * seed as u32);
        let ends = World::new(plan).run();
        assert_eq!(ends[CLIENT].closed, [], "seed {seed}");
        assert_eq!(ends[SERVER].closed, [], "seed {seed}");
    }
}

#[test]
fn a_peer_of_an_older_release_closes_no_path() {
    for seed in 0..12 {
        for old in [CLIENT, SERVER] {
            let mut plan = Plan::quiet(seed, 90);
            plan.policies = policies(seed, 90);
            plan.busy = |second| second % 13 < 3;
            plan.old = Some(old);
            let ends = World::new(plan).run();
            assert_eq!(ends[1 - old].closed, [], "seed {seed}, old {old}");
        }
    }
}

/// Time from a cut to the close at the client, and the bound that the terms in force promise.
fn closed_after(plan: Plan) -> (Duration, Duration) {
    let (cut, seed) = (plan.cut, plan.seed);
    let [client, _] = World::new(plan).run();
    let [(at, 1)] = client.closed[..] else {
        panic!("seed {seed}: {:?}", client.closed);
    };
    (at - cut, client.promised)
}

/// The round trip, the jitter, and the pauses of both shells.
const SLACK: Duration = Duration::from_millis(600);

#[test]
fn a_cut_at_any_moment_of_a_change_is_noticed_as_the_terms_in_force_promise() {
    for seed in 0..24 {
        let at = MS * 30_000;
        let mut plan = Plan::quiet(seed, 160);
        let change = match seed % 2 {
            0 => [every(100, 4), every(5_000, 4)],
            _ => [every(5_000, 4), every(100, 4)],
        };
        plan.policies = vec![(MS * 1_000, change[0]), (at, change[1])];
        plan.cut = at + MS * 40 * (seed as u32 / 2) - MS * 200;
        let (after, promised) = closed_after(plan);
        assert!(
            after <= promised + SLACK,
            "seed {seed}: {after:?}, {promised:?}"
        );
    }
}

/// The proposal of a rarer keepalive is under way: the client still judges by the denser one.
#[test]
fn a_cut_during_an_open_proposal_is_detected_by_the_denser_keepalive() {
    let mut plan = Plan::quiet(3, 40);
    plan.policies = vec![(MS * 5_000, every(5_000, 4))];
    plan.cut = MS * 5_000;
    plan.mute = MS * 5_000;
    let (after, _) = closed_after(plan);
    assert!(after <= every(100, 4).silence_max() + SLACK, "{after:?}");
}

/// Back to the denser keepalive: a later cut is detected by it, whenever the rare pings were.
#[test]
fn a_cut_after_a_change_to_a_denser_keepalive_is_noticed_by_that() {
    for seed in 0..12 {
        let mut plan = Plan::quiet(seed, 60);
        plan.policies = vec![(MS * 1_000, every(5_000, 4)), (MS * 30_000, every(100, 4))];
        plan.cut = MS * 33_000;
        let (after, _) = closed_after(plan);
        assert!(
            after <= every(100, 4).silence_max() + SLACK,
            "seed {seed}: {after:?}"
        );
    }
}

/// Within traffic a cut is detected soon, however rare the pings are.
#[test]
fn a_cut_under_traffic_is_noticed_by_its_rhythm_at_a_rare_keepalive() {
    for seed in 0..12 {
        let mut plan = Plan::quiet(seed, 60);
        plan.policies = vec![(MS * 1_000, every(5_000, 4))];
        plan.busy = |second| second >= 10;
        plan.cut = MS * 20_010;
        let (after, _) = closed_after(plan);
        assert!(after <= MS * 1_500, "seed {seed}: {after:?}");
    }
}
