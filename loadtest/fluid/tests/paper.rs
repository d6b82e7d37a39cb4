//! The paper's figures, from the files that the lab ships.
#![allow(clippy::unwrap_used)]

use fluid::{Experiment, equilibrium, settling_s};

fn experiment(name: &str) -> Experiment {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../lab/scenarios/fluid");
    let text = std::fs::read_to_string(format!("{folder}/{name}.toml")).unwrap();
    Experiment::from_toml(&text).unwrap()
}

const ALL: [&str; 7] = [
    "one-station",
    "three-stations",
    "convoy",
    "static",
    "competitor",
    "responsive",
    "threshold",
];

#[test]
fn all_seven_experiments_run_without_a_warning() {
    for name in ALL {
        let experiment = experiment(name);
        let run = experiment.solve().unwrap();
        assert!(run.warnings.is_empty(), "{name}: {:?}", run.warnings);
        let values = || run.rates.iter().flatten();
        assert!(values().all(|it| it.is_finite() && *it >= 0.0), "{name}");
        assert!(values().any(|it| *it > 5.0), "{name}: nothing flows");
        assert!(
            !experiment.assumed.is_empty(),
            "{name} names what it assumes"
        );
    }
}

#[test]
fn the_way_takes_just_under_nine_minutes() {
    let seconds = experiment("convoy").settings.duration_s;
    assert!((525.0..540.0).contains(&seconds), "{seconds}");
    let full = experiment("responsive").settings.duration_s;
    assert!(full > 690.0, "{full}: figure 16 has a label t23");
}

/// Section III-D: beyond the stations the satellite carries 13.6, 68 % of its capacity (15).
#[test]
fn the_satellite_settles_at_13_6() {
    let run = experiment("convoy").solve().unwrap();
    let at_the_end = *run.rates[3].last().unwrap();
    assert!((at_the_end - 13.6).abs() < 0.1, "{at_the_end}");
    // Figure 9: first it reaches about 12.8, and it rises slightly after t5 = 150 s.
    let at = |t: f64| run.rates[3][run.times_s.iter().position(|it| *it >= t).unwrap()];
    assert!((at(15.0) - 12.8).abs() < 0.2, "{}", at(15.0));
    assert!(at(185.0) > at(150.0) + 0.3, "{} {}", at(150.0), at(185.0));
}

/// Section III-G.
#[test]
fn the_satellite_settles_at_80_3_percent_with_high_responsiveness() {
    let run = experiment("responsive").solve().unwrap();
    let highest = run.rates[3].iter().copied().fold(0.0, f64::max);
    let share = highest / 20.0;
    assert!((share - 0.803).abs() < 0.002, "{share}");
}

/// Section III-E.
#[test]
fn the_static_convoy_has_the_published_capacities_and_settles_in_5_to_10_s() {
    let run = experiment("static").solve().unwrap();
    let published = [16.97, 8.30, 19.59, 20.0, 18.99, 4.77, 18.56];
    for (ours, paper) in run.capacities.iter().zip(published) {
        assert!((ours[0] - paper).abs() < 0.01, "{} {paper}", ours[0]);
    }
    let settled: Vec<f64> = run
        .rates
        .iter()
        .map(|rates| settling_s(&run.times_s, rates, 0.05).unwrap())
        .collect();
    let last = settled.iter().copied().fold(0.0, f64::max);
    assert!((5.0..=10.0).contains(&last), "{settled:?}");
    // B3 before the satellite, and the satellite before B1.
    assert!(
        settled[2] < settled[3] && settled[3] < settled[0],
        "{settled:?}"
    );
}

/// Section III-F: without WiFi, convoy and competitor share the satellite equally.
#[test]
fn the_competitor_shares_equally_beyond_the_stations() {
    let run = experiment("competitor").solve().unwrap();
    let (ours, other) = (run.rates[3].last().unwrap(), run.rates[7].last().unwrap());
    assert!((ours - other).abs() < 0.02 * other, "{ours} {other}");
    assert!(
        *ours > 20.0,
        "{ours}: slightly above the dedicated channel's 20"
    );
}

#[test]
fn the_equilibrium_is_where_the_dynamics_end() {
    let mut experiment = experiment("static");
    let run = experiment.solve().unwrap();
    for (resource, capacity) in experiment.network.resources.iter_mut().zip(&run.capacities) {
        resource.nominal = capacity[0];
        resource.capacity = fluid::Capacity::Constant;
    }
    let stationary = equilibrium(&experiment.network, &[f64::INFINITY]).unwrap();
    for (rates, expected) in run.rates.iter().zip(&stationary.rates) {
        let last = rates.last().unwrap();
        assert!((last - expected).abs() < 0.02, "{last} {expected}");
    }
}

#[test]
fn unstable_parameters_are_warned_of() {
    let mut experiment = experiment("static");
    experiment.network.increase = 0.1;
    let run = experiment.solve().unwrap();
    assert_eq!(run.warnings.len(), 1);
    let warning = run.warnings[0].to_string();
    assert!(warning.contains("condition (6)"), "{warning}");
    experiment.settings.step_s = 0.01;
    assert_eq!(experiment.solve().unwrap().warnings.len(), 2);
}
