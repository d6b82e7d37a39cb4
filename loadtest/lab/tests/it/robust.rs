//! Random runs: every seed that ever failed, then the first ones of the standard series.

use lab::Identity;
use lab::robust::{self, Ending};
use rayon::prelude::*;

/// One seed per line, with the cause after it.
const FAILED: &str = include_str!("robust_seeds.txt");
const STANDARD: std::ops::RangeInclusive<u64> = 1..=80;

fn listed() -> Vec<u64> {
    FAILED
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| line.split_once(' ').unwrap().0.parse().unwrap())
        .collect()
}

fn endings(seeds: &[u64]) -> Vec<(u64, Ending)> {
    let identity = Identity::new().unwrap();
    seeds
        .par_iter()
        .map(|&seed| (seed, robust::run(seed, &identity).unwrap().0))
        .collect()
}

fn bad(endings: Vec<(u64, Ending)>) -> Vec<(u64, Ending)> {
    endings
        .into_iter()
        .filter(|(_, ending)| matches!(ending, Ending::Bad(_)))
        .collect()
}

#[test]
fn seeds_that_failed_once_do_not_fail_again() {
    let seeds = listed();
    assert!(!seeds.is_empty());
    assert_eq!(bad(endings(&seeds)), Vec::new());
}

/// Ending with an error is the exception.
#[test]
fn random_runs_deliver_or_end_cleanly() {
    let endings = endings(&STANDARD.collect::<Vec<_>>());
    let delivered = endings
        .iter()
        .filter(|(_, ending)| *ending == Ending::Delivered)
        .count();
    assert_eq!(bad(endings), Vec::new());
    assert!(delivered >= 72, "{delivered}");
}

/// The series is only worth something if it does what it says.
#[test]
fn the_series_has_everything_in_it() {
    let scenarios: Vec<_> = STANDARD.map(robust::scenario).collect();
    let any = |what: fn(&lab::scenario::Interface) -> bool| {
        scenarios
            .iter()
            .flat_map(|scenario| &scenario.interfaces)
            .any(what)
    };
    assert!(any(|link| link.to_server.changes.len() > 2));
    assert!(any(
        |link| link.to_client.reorder && link.to_client.jitter_ms > 1.0
    ));
    assert!(any(|link| link.to_client.duplicate > 0.0));
    assert!(any(|link| link.to_server.corrupt > 0.0));
    assert!(any(|link| matches!(
        &link.to_server.rate,
        lab::scenario::RateSpec::Steps(steps) if steps.iter().any(|step| step.1 == 0.0)
    )));
    for wanted in [
        lab::scenario::AddressChange::Own,
        lab::scenario::AddressChange::Translated,
    ] {
        let has = |link: &lab::scenario::Interface| {
            link.address_changes.iter().any(|change| change.1 == wanted)
        };
        assert!(scenarios.iter().flat_map(|s| &s.interfaces).any(has));
    }
    for paths in 1..=8 {
        assert!(scenarios.iter().any(|s| s.interfaces.len() == paths));
    }
    let chaotic = scenarios.iter().filter(|s| s.chaos.is_some()).count();
    assert!(chaotic > 40 && chaotic < 80, "{chaotic}");
}
