//! The ring solver against equations written out plainly, and the refusals.
#![allow(clippy::unwrap_used)]

use fluid::{Capacity, Experiment, Network, Resource, Route, Settings, Source, equilibrium, solve};

/// Two sources, three routes, one route over two resources, one resource shared; beta not whole.
fn shared() -> Network {
    let resource = |name: &str, nominal, responsiveness| Resource {
        name: name.to_owned(),
        nominal,
        responsiveness,
        capacity: Capacity::Constant,
    };
    let route = |name: &str, source, round_trip_s, resources: &[(usize, f64, f64)]| Route {
        name: name.to_owned(),
        source,
        decrease: 0.875,
        round_trip_s,
        resources: resources.to_vec(),
    };
    let source = |name: &str| Source {
        name: name.to_owned(),
        weight: 1.0,
    };
    Network {
        increase: 0.025,
        sources: vec![source("one"), source("two")],
        routes: vec![
            route("a", 0, 0.04, &[(0, 0.015, 0.025), (1, 0.02, 0.02)]),
            route("b", 0, 0.02, &[(2, 0.01, 0.01)]),
            route("c", 1, 0.03, &[(1, 0.0, 0.03)]),
        ],
        resources: vec![
            resource("x", 20.0, 15.0),
            resource("y", 10.0, 8.5),
            resource("z", 5.0, 16.0),
        ],
    }
}

const SETTINGS: Settings = Settings {
    step_s: 1e-3,
    duration_s: 12.0,
    floor: 0.1,
    record_every_s: 1e-3,
};

/// Equations (1)-(5) with every past value kept.
fn plainly(network: &Network, steps: usize) -> Vec<Vec<f64>> {
    let dt = SETTINGS.step_s;
    let ago = |delay_s: f64| (delay_s / dt).round() as isize;
    let mut x: Vec<Vec<f64>> = vec![vec![0.0]; network.routes.len()];
    let at = |x: &[Vec<f64>], r: usize, n: isize| if n < 0 { 0.0 } else { x[r][n as usize] };
    let mu = |x: &[Vec<f64>], j: usize, n: isize| {
        let mut z = 0.0;
        for (r, route) in network.routes.iter().enumerate() {
            for used in route.resources.iter().filter(|used| used.0 == j) {
                z += at(x, r, n - ago(used.1));
            }
        }
        let resource = &network.resources[j];
        (z / resource.nominal)
            .min(1.0)
            .powf(resource.responsiveness)
    };
    for n in 0..steps as isize {
        let mut next = Vec::new();
        for (r, route) in network.routes.iter().enumerate() {
            let kept: f64 = route
                .resources
                .iter()
                .map(|used| 1.0 - mu(&x, used.0, n - ago(used.2)))
                .product();
            let lambda = 1.0 - kept;
            let y: f64 = network
                .routes
                .iter()
                .enumerate()
                .filter(|(_, other)| other.source == route.source)
                .map(|(other, it)| at(&x, other, n - ago(it.round_trip_s)))
                .sum();
            let echoed = at(&x, r, n - ago(route.round_trip_s)).max(SETTINGS.floor);
            let bracket = network.increase * (1.0 - lambda) - route.decrease * y * lambda;
            let slope = echoed / route.round_trip_s * bracket;
            next.push((x[r][n as usize] + dt * slope).max(0.0));
        }
        for (values, value) in x.iter_mut().zip(next) {
            values.push(value);
        }
    }
    x
}

#[test]
fn the_ring_solver_equals_the_equations_written_out() {
    let network = shared();
    let run = solve(&network, None, &[], SETTINGS).unwrap();
    let expected = plainly(&network, 12_000);
    for (ours, expected) in run.rates.iter().zip(&expected) {
        assert_eq!(ours.len(), expected.len());
        for (one, two) in ours.iter().zip(expected) {
            assert!((one - two).abs() < 1e-9, "{one} {two}");
        }
    }
    assert!(run.rates.iter().all(|rates| *rates.last().unwrap() > 0.5));
}

#[test]
fn demands_bound_sources_and_leave_the_rest_to_others() {
    let network = shared();
    let free = equilibrium(&network, &[f64::INFINITY; 2]).unwrap();
    let bounded = equilibrium(&network, &[f64::INFINITY, 1.0]).unwrap();
    assert!((bounded.rates[2] - 1.0).abs() < 1e-6, "{bounded:?}");
    assert!(bounded.rates[0] > free.rates[0], "{bounded:?} {free:?}");
}

#[test]
fn a_capacity_in_steps_is_followed() {
    let mut network = shared();
    network.resources[2].capacity = Capacity::Steps(vec![(0.0, 1.0), (6.0, 0.2)]);
    let run = solve(&network, None, &[], SETTINGS).unwrap();
    let (before, after) = (run.rates[1][5999], run.rates[1][11_999]);
    assert!(before > 2.0 && after < 1.0, "{before} {after}");
    let capacities = &run.capacities[2];
    assert_eq!((capacities[5999], capacities[6000]), (5.0, 1.0));
    assert!((capacities[11_999] - 1.0).abs() < 1e-9);
}

const GOOD: &str = r#"name = "two"
title = "two routes"
increase = 0.025
decrease = 0.875
duration_s = 10.0

[[source]]
name = "s"

[[resource]]
name = "j"
capacity = 20.0
responsiveness = 16.0

[[route]]
name = "r"
source = "s"
resources = [{ name = "j", there_ms = 15.0, back_ms = 15.0 }]
"#;

#[test]
fn errors_name_line_field_and_an_example() {
    assert!(Experiment::from_toml(GOOD).is_ok());
    let cases = [
        (
            "capacity = 20.0",
            "capacity = nan",
            "line 12: resource[0].capacity",
        ),
        (
            "capacity = 20.0",
            "capacity = -1.0",
            "line 12: resource[0].capacity",
        ),
        (
            "capacity = 20.0",
            "capacity = inf",
            "line 12: resource[0].capacity",
        ),
        ("capacity = 20.0", "capacity = \"much\"", "line 12"),
        ("capacity = 20.0\n", "", "capacity"),
        ("increase = 0.025", "increase = 0.0", "line 3: increase"),
        ("there_ms = 15.0", "there_ms = -1.0", "line 18"),
        (
            "duration_s = 10.0",
            "duration_s = nan",
            "line 5: duration_s",
        ),
        (
            "duration_s = 10.0",
            "duration_s = 1e300",
            "line 5: duration_s",
        ),
        ("duration_s = 10.0", "durations = 10.0", "line 5"),
        (
            "source = \"s\"",
            "source = \"t\"",
            "line 17: route[0].source",
        ),
        (
            "name = \"j\", there",
            "name = \"k\", there",
            "line 18: route[0].resources[0].name",
        ),
    ];
    for (from, to, expected) in cases {
        let error = Experiment::from_toml(&GOOD.replacen(from, to, 1))
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{to}: {error}");
        assert!(error.contains("for example"), "{to}: {error}");
    }
}
