//! Good manners at a bottleneck (issue 3, 2): fairness to Cubic and BBR, the delay that the queue adds, and a rate that drops tenfold.

use std::time::Duration;

use crate::figures::Figure;
use crate::host::Mechanisms;
use crate::report::{RunReport, mbit_within, percentile, sorted};
use crate::runner::Runner;
use crate::scenario::{Controller, Direction, Interface, RateSpec, Scenario, ScenarioError};
use crate::world::derive_seed;

const RATE_MBIT: f64 = 20.0;
const RTT_MS: f64 = 40.0;
const SHARED_S: f64 = 60.0;
/// Start-up is left out of the shares.
const SHARED_FROM_S: f64 = 10.0;
const DROP_S: f64 = 5.0;
const DROP_TO_MBIT: f64 = 2.0;
const DROP_END_S: f64 = 15.0;
/// Round trips after the drop in which anything goes.
const DROP_GRACE_RTTS: f64 = 3.0;
/// In one bin of 100 ms the drop's three round trips and a bin's edge are told apart only so finely.
const DROP_BIN_S: f64 = 0.1;

/// Jain's index of two shares.
pub fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    if squares > 0.0 {
        sum * sum / (shares.len() as f64 * squares)
    } else {
        0.0
    }
}

pub fn run(
    runner: &Runner,
    prefix: &str,
    seed: u64,
    controller: Controller,
    direction: Direction,
) -> Result<(Vec<Figure>, Vec<RunReport>), ScenarioError> {
    let seed = derive_seed(seed, 5000);
    let link = || vec![Interface::symmetric("shared", RATE_MBIT, RTT_MS, 0.0)];
    let bytes = (RATE_MBIT * 1e6 / 8.0 * SHARED_S) as u64;
    let mut figures = Vec::new();
    let rivals = [Controller::Cubic, Controller::Bbr];
    let mut scenarios: Vec<Scenario> = rivals
        .iter()
        .map(|&rival| {
            let name = format!("{prefix}.with_{}", rival.name());
            let mut scenario =
                Scenario::transfer(name, seed, direction, bytes, controller, SHARED_S, link());
            scenario.competitors = vec![rival];
            scenario
        })
        .collect();
    scenarios.push(Scenario::transfer(
        format!("{prefix}.alone"),
        seed,
        direction,
        bytes / 2,
        controller,
        SHARED_S,
        link(),
    ));
    let mut dropping = Scenario::transfer(
        format!("{prefix}.drop"),
        seed,
        direction,
        bytes,
        controller,
        DROP_END_S,
        link(),
    );
    for interface in &mut dropping.interfaces {
        for half in [&mut interface.to_server, &mut interface.to_client] {
            half.rate = RateSpec::Steps(vec![(0.0, RATE_MBIT), (DROP_S, DROP_TO_MBIT)]);
        }
    }
    scenarios.push(dropping);
    let reports = runner.run(prefix, &scenarios, Mechanisms::default())?;
    let (from, to) = (
        Duration::from_secs_f64(SHARED_FROM_S),
        Duration::from_secs_f64(SHARED_S),
    );
    for (rival, report) in rivals.iter().zip(&reports) {
        let ours = report.timeline.mbit_within(from, to);
        let theirs = report
            .competitors
            .first()
            .map_or(0.0, |other| other.timeline.mbit_within(from, to));
        let fair = (ours + theirs) / 2.0;
        let id = format!("{prefix}.with_{}", rival.name());
        let index = jain(&[ours, theirs]);
        if *rival == Controller::Cubic {
            figures.push(Figure::at_least(
                format!("{id}.jain"),
                "index",
                None,
                0.85,
                index,
            ));
            figures.push(Figure::at_most(
                format!("{id}.share"),
                "x fair",
                None,
                1.3,
                ours / fair.max(1e-9),
            ));
        } else {
            figures.push(Figure::shown(format!("{id}.jain"), "index", None, index));
            figures.push(Figure::shown(
                format!("{id}.share"),
                "x fair",
                None,
                ours / fair.max(1e-9),
            ));
        }
    }
    if let [.., alone, drop] = &reports[..] {
        let queueing = alone
            .links
            .first()
            .map_or(f64::INFINITY, |link| link.queueing_ms_p95);
        figures.push(Figure::at_most(
            format!("{prefix}.alone.queueing_p95"),
            "x RTT",
            None,
            1.0,
            queueing / RTT_MS,
        ));
        figures.push(Figure::shown(
            format!("{prefix}.alone.efficiency"),
            "%",
            None,
            alone.efficiency_stream,
        ));
        let bins = drop
            .links
            .first()
            .map(|link| link.bins.as_slice())
            .unwrap_or_default();
        let settled = DROP_S + DROP_GRACE_RTTS * RTT_MS / 1e3 + DROP_BIN_S;
        let each: Vec<f64> = (0..((DROP_END_S - settled) / 0.5) as u32)
            .map(|step| {
                let from = Duration::from_secs_f64(settled + f64::from(step) * 0.5);
                100.0 * mbit_within(bins, from, from + Duration::from_millis(500)) / DROP_TO_MBIT
            })
            .collect();
        let lowest = percentile(&sorted(each), 0.0).unwrap_or(0.0);
        figures.push(Figure::at_least(
            format!("{prefix}.drop.lowest_half_second"),
            "%",
            None,
            80.0,
            lowest,
        ));
    }
    Ok((figures, reports))
}
