//! Transfers over LTE drives (the drive-test paper of the README): its cases on synthetic drives,
//! and the same transport over recorded ones.
//!
//! - `sp`: one link that always has the best cell's capacity.
//! - case N: the N best cells of each second are up. A change of the ranking takes a link down,
//!   with what it holds, and brings another up; the client's system reports both. Case 1 is break
//!   before make.
//!
//! In the report a link's propagation delay follows its capacity, second by second, by the paper's
//! two points. `braid-lab lte` and recorded drives keep round trips of 50 ms, and 6 ms more for
//! each further link. Queues are one BDP of the link's best second.

use std::path::PathBuf;
use std::sync::Arc;

use emulated_link::link::Trace;

use crate::address::INTERFACES_MAX;
use crate::drive::{Drive, Environment};
use crate::figures::Figure;
use crate::mechanisms::Mechanisms;
use crate::references;
use crate::report::{RunReport, mean, percentile, sorted};
use crate::runner::Runner;
use crate::scenario::{
    Controller, Direction, Half, Interface, RateSpec, Scenario, ScenarioError, load_trace,
};
use crate::seed::derive_seed;

const BYTES: u64 = 40_000_000;
const START_POINTS: u32 = 18;
const LIMIT_S: f64 = 300.0;
const DRIVE_S: usize = 3600;
const RTT_FIRST_MS: f64 = 50.0;
const RTT_STEP_MS: f64 = 6.0;
/// Seconds of which the statistics are taken.
const STATISTICS_S: usize = 120_000;
/// Share of the greater case's time that still counts as no worse.
const MORE_LINKS_TOLERANCE: f64 = 0.99;

/// How far the generator's means and medians may be from the published ones.
const BODY_DEVIATION_MAX_PERCENT: f64 = 10.0;
/// How far its lower percentiles may be from them, in Mbit/s.
const TAIL_DEVIATION_MAX_MBIT: f64 = 4.0;
/// How far its numbers of cells, and the capacities of the best of them, may be.
const CELLS_DEVIATION_MAX_PERCENT: f64 = 10.0;
/// The points of figure 3, in Mbit/s.
const DELAY_POINTS_MBIT: [f64; 2] = [50.0, 200.0];

/// One-way propagation delay of a link of this capacity: the power law through the two points of
/// figure 3. The text does not print the curve, and a straight line would fall below zero.
pub fn delay_ms(mbit: f64) -> f64 {
    let [low, high] = DELAY_POINTS_MBIT;
    let at = |mbit: f64| references::value(&format!("lte.delay.{mbit}.delay"));
    let (Some(low_ms), Some(high_ms)) = (at(low), at(high)) else {
        return RTT_FIRST_MS / 2.0;
    };
    let exponent = (high_ms / low_ms).ln() / (high / low).ln();
    low_ms * (mbit / low).powf(exponent)
}

/// Cells that a run may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cells {
    /// The best cell of each second behind one link.
    Ideal,
    /// This many of the best cells.
    Best(usize),
}

impl Cells {
    pub const ALL: [Self; 5] = [
        Self::Ideal,
        Self::Best(1),
        Self::Best(2),
        Self::Best(3),
        Self::Best(4),
    ];

    pub fn name(self) -> String {
        match self {
            Self::Ideal => "sp".to_owned(),
            Self::Best(count) => format!("case{count}"),
        }
    }
}

/// Target in percent of the capacity of the links in use.
pub fn target(environment: Environment, cells: Cells) -> f64 {
    match (environment, cells) {
        (_, Cells::Ideal) => 93.0,
        (_, Cells::Best(1)) => 85.0,
        (Environment::Residential, Cells::Best(_)) => 90.0,
        (_, Cells::Best(_)) => 88.0,
    }
}

pub fn scenario(
    drive: &Drive,
    cells: Cells,
    start: usize,
    seed: u64,
    controller: Controller,
    direction: Direction,
) -> Scenario {
    let seconds = LIMIT_S as usize;
    let interfaces = match cells {
        Cells::Ideal => {
            let steps = (0..seconds).map(|second| {
                let best = drive.ranking(start + second)[0];
                (second as f64, drive.capacity(start + second, best))
            });
            vec![interface("best", steps.collect(), &[])]
        }
        Cells::Best(count) => {
            // The handshake runs over the first interface, so that is the best cell at the start.
            let order = drive.ranking(start);
            order
                .iter()
                .map(|&carrier| {
                    let steps = (0..seconds)
                        .map(|second| (second as f64, drive.capacity(start + second, carrier)));
                    let mut changes: Vec<(f64, bool)> = Vec::new();
                    for second in 0..seconds {
                        let chosen = drive
                            .ranking(start + second)
                            .iter()
                            .take(count)
                            .any(|&other| other == carrier);
                        let up = chosen && drive.capacity(start + second, carrier) > 0.0;
                        if changes.last().map_or(!up, |change| change.1 != up) {
                            changes.push((second as f64, up));
                        }
                    }
                    interface(&format!("carrier{carrier}"), steps.collect(), &changes)
                })
                .collect()
        }
    };
    Scenario::transfer(
        format!("lte.{}.{start}", cells.name()),
        seed,
        direction,
        BYTES,
        controller,
        LIMIT_S,
        interfaces,
    )
}

fn interface(name: &str, steps: Vec<(f64, f64)>, changes: &[(f64, bool)]) -> Interface {
    let delays = steps.iter().filter(|step| step.1 > 0.0);
    let delays: Vec<(f64, f64)> = delays.map(|&(at_s, mbit)| (at_s, delay_ms(mbit))).collect();
    let first_ms = delays.first().map_or(RTT_FIRST_MS / 2.0, |step| step.1);
    let mut half = Half::constant(0.0, first_ms);
    half.rate = RateSpec::Steps(steps);
    half.delay_steps = delays;
    half.changes = changes.to_vec();
    Interface {
        announced: true,
        ..Interface::alike(name, half)
    }
}

/// Mean goodput by mean capacity, in percent, as the paper's tables have it.
pub fn ratio_of_means(reports: &[RunReport]) -> f64 {
    let goodput =
        |report: &RunReport| report.delivered_bytes as f64 / report.from_connect_s.max(1e-3);
    let capacity =
        |report: &RunReport| goodput(report) / (report.efficiency_connect / 100.0).max(1e-9);
    let goodputs: Vec<f64> = reports.iter().map(goodput).collect();
    let capacities: Vec<f64> = reports.iter().map(capacity).collect();
    100.0 * mean(&goodputs) / mean(&capacities).max(1e-9)
}

/// Share of pairs, in percent, in which the run with more links was not the slower one.
pub fn more_links_never_hurt(lesser: &[RunReport], greater: &[RunReport]) -> f64 {
    let no_worse = lesser
        .iter()
        .zip(greater)
        .filter(|(lesser, greater)| {
            greater.completed
                && (!lesser.completed
                    || greater.from_connect_s * MORE_LINKS_TOLERANCE <= lesser.from_connect_s)
        })
        .count();
    100.0 * no_worse as f64 / lesser.len().max(1) as f64
}

/// The drive of an environment, and where on it runs begin.
pub fn drive(environment: Environment, seed: u64) -> Drive {
    Drive::generate(environment, DRIVE_S, derive_seed(seed, 4000))
}

/// One transfer for each starting point.
pub fn scenarios(
    drive: &Drive,
    cells: Cells,
    seed: u64,
    points: u32,
    controller: Controller,
    direction: Direction,
) -> Vec<Scenario> {
    (0..points.max(1))
        .map(|point| {
            let start = point as usize * DRIVE_S / points.max(1) as usize;
            let seed = derive_seed(seed, 4100 + u64::from(point));
            scenario(drive, cells, start, seed, controller, direction)
        })
        .collect()
}

/// Constant delays in place of those that follow the capacity.
fn keep_delays(scenario: &mut Scenario) {
    for (position, interface) in scenario.interfaces.iter_mut().enumerate() {
        let delay_ms = (RTT_FIRST_MS + RTT_STEP_MS * position as f64) / 2.0;
        for half in [&mut interface.to_server, &mut interface.to_client] {
            half.delay_ms = delay_ms;
            half.delay_steps.clear();
        }
    }
}

/// The rows of one environment, from the runs of its cases in the order of [`Cells::ALL`].
pub fn figures(prefix: &str, environment: Environment, by_case: &[Vec<RunReport>]) -> Vec<Figure> {
    let id = |what: &str| format!("{prefix}.{}.{what}", environment.name());
    let mut figures: Vec<Figure> = Cells::ALL
        .into_iter()
        .zip(by_case)
        .map(|(cells, reports)| {
            let id = id(&cells.name());
            let paper = references::figure(&id);
            let target = target(environment, cells);
            Figure::at_least(id, "%", paper, target, ratio_of_means(reports))
        })
        .collect();
    for (lesser, greater) in [(2, 3), (3, 4)] {
        let id = id(&format!("case{greater}_no_worse_than_case{lesser}"));
        if let (Some(lesser), Some(greater)) = (by_case.get(lesser), by_case.get(greater)) {
            let share = more_links_never_hurt(lesser, greater);
            figures.push(Figure::at_least(id, "%", None, 100.0, share));
        }
    }
    figures
}

/// The cases on synthetic drives of one environment.
pub fn run(
    runner: &Runner,
    prefix: &str,
    environment: Environment,
    seed: u64,
    points: Option<u32>,
    controller: Controller,
    direction: Direction,
) -> Result<(Vec<Figure>, Vec<RunReport>), ScenarioError> {
    let drive = drive(environment, seed);
    let points = points.unwrap_or(START_POINTS).max(1);
    let mut by_case = Vec::new();
    for cells in Cells::ALL {
        let mut scenarios = scenarios(&drive, cells, seed, points, controller, direction);
        scenarios.iter_mut().for_each(keep_delays);
        let id = format!("{prefix}.{}.{}", environment.name(), cells.name());
        by_case.push(runner.run(&id, &scenarios, Mechanisms::default())?);
    }
    let figures = figures(prefix, environment, &by_case);
    Ok((figures, by_case.into_iter().flatten().collect()))
}

/// Recorded drives: the first trace alone, then one more at a time.
pub fn run_recorded(
    runner: &Runner,
    prefix: &str,
    files: &[PathBuf],
    seed: u64,
    points: Option<u32>,
    controller: Controller,
    direction: Direction,
) -> Result<(Vec<Figure>, Vec<RunReport>), ScenarioError> {
    let mut traces: Vec<(String, Trace)> = Vec::new();
    for file in files.iter().take(INTERFACES_MAX) {
        let name = file.file_stem().unwrap_or_default();
        traces.push((name.to_string_lossy().into_owned(), load_trace(file)?));
    }
    let points = points.unwrap_or(START_POINTS).max(1);
    let mut figures = Vec::new();
    let mut by_case: Vec<Vec<RunReport>> = Vec::new();
    for count in 1..=traces.len() {
        let scenarios: Vec<Scenario> = (0..points)
            .map(|point| {
                let interfaces = recorded_interfaces(&traces[..count], point, points);
                let name = format!("lte.recorded.{count}.{point}");
                let seed = derive_seed(seed, 4200 + u64::from(point));
                let limit_s = 2.0 * LIMIT_S;
                Scenario::transfer(
                    name, seed, direction, BYTES, controller, limit_s, interfaces,
                )
            })
            .collect();
        let id = format!("{prefix}.recorded.case{count}");
        let reports = runner.run(&id, &scenarios, Mechanisms::default())?;
        let target = if count == 1 { 85.0 } else { 88.0 };
        figures.push(Figure::at_least(
            id,
            "%",
            None,
            target,
            ratio_of_means(&reports),
        ));
        by_case.push(reports);
    }
    for (lesser, pair) in by_case.windows(2).enumerate().skip(1) {
        let id = format!(
            "{prefix}.recorded.case{}_no_worse_than_case{}",
            lesser + 2,
            lesser + 1
        );
        figures.push(Figure::at_least(
            id,
            "%",
            None,
            100.0,
            more_links_never_hurt(&pair[0], &pair[1]),
        ));
    }
    Ok((figures, by_case.into_iter().flatten().collect()))
}

/// An interface for each trace, each begun at the `point`th of so many equal parts of it.
fn recorded_interfaces(traces: &[(String, Trace)], point: u32, points: u32) -> Vec<Interface> {
    let interface = |(position, (name, trace)): (usize, &(String, Trace))| {
        let period_ms = trace.period().as_millis() as u64;
        let start_ms = period_ms * u64::from(point) / u64::from(points);
        let rtt_ms = RTT_FIRST_MS + RTT_STEP_MS * position as f64;
        let mut half = Half::constant(0.0, rtt_ms / 2.0);
        half.rate = RateSpec::Loaded(Arc::new(trace.starting_at(start_ms)));
        Interface::alike(name, half)
    };
    traces.iter().enumerate().map(interface).collect()
}

/// Statistics of the synthetic data set beside those published, and the deviations that are
/// asserted.
pub fn statistics(prefix: &str, seed: u64) -> Vec<Figure> {
    let mut figures = Vec::new();
    for environment in Environment::ALL {
        let drive = Drive::generate(environment, STATISTICS_S, derive_seed(seed, 4300));
        let name = environment.name();
        let id = format!("{prefix}.{name}.cells");
        let visible = mean(&drive.cells());
        figures.push(Figure::shown(
            id.clone(),
            "cells",
            references::figure(&id),
            visible,
        ));
        if environment == Environment::Dataset {
            figures.extend(capacities(prefix, &drive));
            continue;
        }
        for count in 1..=4 {
            let id = format!("{prefix}.{name}.capacity_of_best_{count}");
            let best = mean(&drive.best(count));
            figures.push(Figure::shown(
                id.clone(),
                "Mbit/s",
                references::figure(&id),
                best,
            ));
        }
    }
    let deviations = deviations(prefix, &figures);
    figures.extend(deviations);
    figures
}

/// Percentiles of table 3.
pub const SHARES: [(&str, Option<f64>); 7] = [
    ("mean", None),
    ("p50", Some(0.5)),
    ("p20", Some(0.2)),
    ("p10", Some(0.1)),
    ("p5", Some(0.05)),
    ("p1", Some(0.01)),
    ("p01", Some(0.001)),
];

/// The rows of table 3: their names, and the sorted capacities.
pub fn aggregations(drive: &Drive) -> [(&'static str, Vec<f64>); 4] {
    [
        ("op1", sorted(drive.operator(0))),
        ("op2", sorted(drive.operator(1))),
        ("best_single", sorted(drive.best(1))),
        ("multipath", sorted(drive.best(usize::MAX))),
    ]
}

/// The value of a sorted sample that a column of table 3 asks for.
pub fn share_of(values: &[f64], share: Option<f64>) -> f64 {
    share.map_or_else(
        || mean(values),
        |share| percentile(values, share).unwrap_or(0.0),
    )
}

fn capacities(prefix: &str, drive: &Drive) -> Vec<Figure> {
    let rows = aggregations(drive).into_iter();
    rows.flat_map(|(row, values)| {
        SHARES.map(|(column, share)| {
            let id = format!("{prefix}.dataset.{row}.{column}");
            let paper = references::figure(&id);
            Figure::shown(id, "Mbit/s", paper, share_of(&values, share))
        })
    })
    .collect()
}

/// The largest deviations from what is published, within named bounds.
fn deviations(prefix: &str, figures: &[Figure]) -> [Figure; 3] {
    let worst = |wanted: &dyn Fn(&str) -> bool, percent: bool| {
        let rows = figures.iter().filter(|row| wanted(&row.id));
        let each = rows.filter_map(|row| {
            let difference = (row.measured - row.reference?).abs();
            Some(if percent {
                100.0 * difference / row.reference?.max(1e-9)
            } else {
                difference
            })
        });
        each.fold(0.0, f64::max)
    };
    let is_dataset = |id: &str| id.contains(".dataset.") && !id.ends_with(".cells");
    let is_body = |id: &str| ["mean", "p50"].iter().any(|end| id.ends_with(end));
    let body = worst(&|id| is_dataset(id) && is_body(id), true);
    let tail = worst(&|id| is_dataset(id) && !is_body(id), false);
    let cells = worst(&|id| !is_dataset(id), true);
    let id = |what: &str| format!("{prefix}.deviation.{what}");
    [
        Figure::at_most(id("body"), "%", None, BODY_DEVIATION_MAX_PERCENT, body),
        Figure::at_most(id("tail"), "Mbit/s", None, TAIL_DEVIATION_MAX_MBIT, tail),
        Figure::at_most(id("cells"), "%", None, CELLS_DEVIATION_MAX_PERCENT, cells),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_passes_through_the_points_of_figure_3() {
        assert!((delay_ms(50.0) - 20.0).abs() < 1e-9);
        assert!((delay_ms(200.0) - 100.0).abs() < 1e-9);
        assert!((5.0..9.0).contains(&delay_ms(20.0)));
    }

    /// The generator reproduces what the paper publishes, within the bounds above.
    #[test]
    fn the_drives_have_the_published_statistics() {
        let figures = statistics("lte", 77);
        let bounded: Vec<&Figure> = figures.iter().filter(|row| row.target.is_some()).collect();
        assert_eq!(bounded.len(), 3);
        for row in bounded {
            assert!(row.met, "{row:?}");
        }
    }
}
