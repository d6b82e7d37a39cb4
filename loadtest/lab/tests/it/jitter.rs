//! Links whose jitter keeps the order of packets. Under load each packet has the longest delay of
//! those before it, so the smallest round trip says little; virtual time, exact.

use lab::scenario::Scenario;
use lab::{Identity, Mechanisms, run};

/// Times of 20 MiB with each seed, over the first link or over both.
fn times(profile: &str, links: usize) -> Vec<f64> {
    let identity = Identity::new().unwrap();
    let times = (1..=3).map(|seed| {
        let mut scenario: Scenario = Scenario::from_toml(profile).unwrap();
        scenario.seed = seed;
        scenario.interfaces.truncate(links);
        let report = run(&scenario, &identity, Mechanisms::default()).unwrap();
        assert!(report.completed, "seed {seed}, {links} links: {report:?}");
        report.from_connect_s
    });
    times.collect()
}

/// 50 Mbit/s carry 20 MiB in 3.4 s. A window of rate and smallest round trip falls to four packets
/// and takes more than two minutes.
#[test]
fn jitter_alone_does_not_end_a_path() {
    let profile = include_str!("../../scenarios/yardstick/jit_20.toml");
    let alone = times(profile, 1);
    assert!(alone.iter().all(|time| *time < 8.0), "{alone:?}");
    let both = times(profile, 2);
    assert!(both.iter().all(|time| *time < 3.4), "{both:?}");
}

/// 20 Mbit/s carry 20 MiB in 8.4 s, of which 2 % of loss take one tenth.
#[test]
fn nor_does_jitter_with_loss() {
    let profile = include_str!("../../scenarios/yardstick/congested.toml");
    let alone = times(profile, 1);
    assert!(alone.iter().all(|time| *time < 13.0), "{alone:?}");
}
