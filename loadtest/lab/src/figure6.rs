//! Figure 6 of the drive-test paper: a 4 Mbit/s link all the time, an 8 Mbit/s link at 2-4 s and
//! 6-8 s. The smoke test of a returning link.

use std::time::Duration;

use crate::figures::Figure;
use crate::mechanisms::Mechanisms;
use crate::references;
use crate::report::{BIN, RunReport};
use crate::runner::Runner;
use crate::scenario::{Controller, Direction, Interface, Scenario, ScenarioError};

const RTT_MS: f64 = 40.0;
const STEADY_MBIT: f64 = 4.0;
const VISITING_MBIT: f64 = 8.0;
/// More than fits into ten seconds.
const BYTES: u64 = 20_000_000;
const END_S: f64 = 10.0;
/// Share of the link's rate that counts as carrying it.
const SHARE: f64 = 0.8;
const VISITS_S: [(f64, f64); 2] = [(2.0, 4.0), (6.0, 8.0)];

pub fn scenario(seed: u64, controller: Controller, direction: Direction) -> Scenario {
    let mut changes = vec![(0.0, false)];
    changes.extend(
        VISITS_S
            .iter()
            .flat_map(|&(from, to)| [(from, true), (to, false)]),
    );
    let mut visiting =
        Interface::symmetric("visiting", VISITING_MBIT, RTT_MS, 0.0).with_changes(&changes);
    visiting.announced = true;
    let interfaces = vec![
        Interface::symmetric("steady", STEADY_MBIT, RTT_MS, 0.0),
        visiting,
    ];
    Scenario::transfer(
        "figure6", seed, direction, BYTES, controller, END_S, interfaces,
    )
}

/// Milliseconds from the link's return until the first bin in which it carries its share.
fn ramp_ms(report: &RunReport, from_s: f64, to_s: f64) -> f64 {
    let enough = SHARE * VISITING_MBIT * 1e6 / 8.0 * BIN.as_secs_f64();
    let first = (from_s / BIN.as_secs_f64()).round() as usize;
    let last = (to_s / BIN.as_secs_f64()).round() as usize;
    let bins = report
        .links
        .get(1)
        .map(|link| link.bins.as_slice())
        .unwrap_or_default();
    (first..last)
        .find(|&bin| bins.get(bin).is_some_and(|&bytes| bytes as f64 >= enough))
        .map_or(f64::INFINITY, |bin| {
            (bin - first) as f64 * BIN.as_secs_f64() * 1e3
        })
}

pub fn run(
    runner: &Runner,
    prefix: &str,
    seed: u64,
    controller: Controller,
    direction: Direction,
) -> Result<(Vec<Figure>, Vec<RunReport>), ScenarioError> {
    let reports = runner.run(
        prefix,
        &[scenario(seed, controller, direction)],
        Mechanisms::default(),
    )?;
    let rows = reports.iter().flat_map(|report| figures(prefix, report));
    let rows = rows.collect();
    Ok((rows, reports))
}

/// The rows that one run answers.
pub fn figures(prefix: &str, report: &RunReport) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (visit, (from_s, to_s)) in VISITS_S.into_iter().enumerate() {
        let id = format!("{prefix}.return{}", visit + 1);
        let ramp = ramp_ms(report, from_s, to_s);
        figures.push(Figure::at_most(id, "ms", None, 300.0, ramp));
    }
    let alone = report
        .timeline
        .mbit_within(Duration::from_millis(4200), Duration::from_secs(6));
    let id = format!("{prefix}.goodput_alone");
    let paper = references::figure(&id);
    figures.push(Figure::shown(id, "Mbit/s", paper, alone));
    let id = format!("{prefix}.efficiency");
    figures.push(Figure::shown(id, "%", None, report.efficiency_connect));
    figures
}
