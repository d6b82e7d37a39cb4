//! Transfers over LTE drives (the drive-test paper of the README): its cases on synthetic drives, and the same transport over recorded ones.
//!
//! - `sp`: one link that always has the best cell's capacity.
//! - case N: the N best cells of each second are up. A change of the ranking takes a link down, with what it holds, and brings
//!   another up; the client's system tells it so. Case 1 is break before make.
//!
//! Round trips are 50 ms and 6 ms more per carrier; queues are one BDP of the link's best second.

use std::path::Path;
use std::sync::Arc;

use testkit::link::Trace;

use crate::drive::{Drive, Environment};
use crate::figures::Figure;
use crate::host::Mechanisms;
use crate::report::{RunReport, mean, percentile, sorted};
use crate::runner::Runner;
use crate::scenario::{
    Controller, Direction, Half, Interface, RateSpec, Scenario, ScenarioError, load_trace,
};
use crate::world::derive_seed;

const BYTES: u64 = 40_000_000;
const START_POINTS: u32 = 18;
const LIMIT_S: f64 = 300.0;
const DRIVE_S: usize = 3600;
const RTT_FIRST_MS: f64 = 50.0;
const RTT_STEP_MS: f64 = 6.0;
/// Seconds of which the statistics are taken.
const STATISTICS_S: usize = 120_000;
/// What a lesser case may have less than a greater one and still count as no worse.
const MORE_LINKS_TOLERANCE: f64 = 0.99;

/// Files of recorded drives, without their ending, in the order in which links are added.
pub const RECORDED: [&str; 3] = ["ATT-LTE-driving", "TMobile-LTE-short", "Verizon-LTE-short"];

/// Links that a run may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// The best cell of each second behind one link.
    Ideal,
    /// This many of the best cells.
    Best(usize),
}

impl Links {
    const ALL: [Self; 5] = [
        Self::Ideal,
        Self::Best(1),
        Self::Best(2),
        Self::Best(3),
        Self::Best(4),
    ];

    fn name(self) -> String {
        match self {
            Self::Ideal => "sp".to_owned(),
            Self::Best(count) => format!("case{count}"),
        }
    }
}

/// What the paper and kernel MPTCP reached, and what is asked for, in percent of the capacity of the links in use.
fn reference(environment: Environment, links: Links) -> (Option<f64>, f64) {
    match (environment, links) {
        (Environment::Residential, Links::Ideal) => (Some(87.0), 93.0),
        (Environment::Residential, Links::Best(1)) => (Some(54.0), 85.0),
        (Environment::Residential, Links::Best(4)) => (Some(70.0), 90.0),
        (Environment::Residential, Links::Best(_)) => (Some(66.0), 90.0),
        (_, Links::Ideal) => (Some(86.0), 93.0),
        (_, Links::Best(1)) => (Some(52.0), 85.0),
        (_, Links::Best(2)) => (Some(71.0), 88.0),
        (_, Links::Best(3)) => (Some(73.0), 88.0),
        (_, Links::Best(_)) => (Some(66.0), 88.0),
    }
}

fn scenario(
    drive: &Drive,
    links: Links,
    start: usize,
    seed: u64,
    controller: Controller,
    direction: Direction,
) -> Scenario {
    let seconds = LIMIT_S as usize;
    let interfaces = match links {
        Links::Ideal => {
            let steps = (0..seconds).map(|second| {
                let best = drive.ranking(start + second)[0];
                (second as f64, drive.capacity(start + second, best))
            });
            vec![interface("best", steps.collect(), &[], 0)]
        }
        Links::Best(count) => {
            // The handshake runs over the first interface, so that is the best cell at the start.
            let order = drive.ranking(start);
            order
                .iter()
                .enumerate()
                .map(|(position, &carrier)| {
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
                    interface(
                        &format!("carrier{carrier}"),
                        steps.collect(),
                        &changes,
                        position,
                    )
                })
                .collect()
        }
    };
    Scenario::transfer(
        format!("lte.{}.{start}", links.name()),
        seed,
        direction,
        BYTES,
        controller,
        LIMIT_S,
        interfaces,
    )
}

fn interface(
    name: &str,
    steps: Vec<(f64, f64)>,
    changes: &[(f64, bool)],
    position: usize,
) -> Interface {
    let delay_ms = (RTT_FIRST_MS + RTT_STEP_MS * position as f64) / 2.0;
    let mut half = Half::constant(0.0, delay_ms);
    half.rate = RateSpec::Steps(steps);
    half.changes = changes.to_vec();
    Interface {
        announced: true,
        ..Interface::alike(name, half)
    }
}

/// Mean capacities of the best one to four cells in the paper's measurements.
fn best_capacities(environment: Environment) -> Option<[f64; 4]> {
    match environment {
        Environment::Dataset => None,
        Environment::Residential => Some([13.4, 20.9, 23.7, 25.4]),
        Environment::Road => Some([18.3, 26.7, 29.5, 30.6]),
    }
}

/// Mean goodput by mean capacity, in percent, as the paper's tables have it.
fn ratio_of_means(reports: &[RunReport]) -> f64 {
    let goodput =
        |report: &RunReport| report.delivered_bytes as f64 / report.from_connect_s.max(1e-3);
    let capacity =
        |report: &RunReport| goodput(report) / (report.efficiency_connect / 100.0).max(1e-9);
    let goodputs: Vec<f64> = reports.iter().map(goodput).collect();
    let capacities: Vec<f64> = reports.iter().map(capacity).collect();
    100.0 * mean(&goodputs) / mean(&capacities).max(1e-9)
}

/// Share of pairs, in percent, in which the run with more links was not the slower one.
fn more_links_never_hurt(lesser: &[RunReport], greater: &[RunReport]) -> f64 {
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
    let drive = Drive::generate(environment, DRIVE_S, derive_seed(seed, 4000));
    let points = points.unwrap_or(START_POINTS).max(1);
    let mut figures = Vec::new();
    let mut by_case = Vec::new();
    for links in Links::ALL {
        let scenarios: Vec<Scenario> = (0..points)
            .map(|point| {
                let start = point as usize * DRIVE_S / points as usize;
                scenario(
                    &drive,
                    links,
                    start,
                    derive_seed(seed, 4100 + u64::from(point)),
                    controller,
                    direction,
                )
            })
            .collect();
        let id = format!("{prefix}.{}.{}", environment.name(), links.name());
        let reports = runner.run(&id, &scenarios, Mechanisms::default())?;
        let (paper, target) = reference(environment, links);
        figures.push(Figure::at_least(
            id,
            "%",
            paper,
            target,
            ratio_of_means(&reports),
        ));
        by_case.push(reports);
    }
    for (lesser, greater) in [(2, 3), (3, 4)] {
        let id = format!(
            "{prefix}.{}.case{greater}_no_worse_than_case{lesser}",
            environment.name()
        );
        figures.push(Figure::at_least(
            id,
            "%",
            None,
            100.0,
            more_links_never_hurt(&by_case[lesser], &by_case[greater]),
        ));
    }
    Ok((figures, by_case.into_iter().flatten().collect()))
}

/// Recorded drives: one to three operators' traces at once.
pub fn run_recorded(
    runner: &Runner,
    prefix: &str,
    folder: &Path,
    seed: u64,
    points: Option<u32>,
    controller: Controller,
    direction: Direction,
) -> Result<(Vec<Figure>, Vec<RunReport>), ScenarioError> {
    let mut traces: Vec<(String, Trace)> = Vec::new();
    for name in RECORDED {
        let file = folder.join(format!("{name}.down"));
        if file.exists() {
            traces.push((name.to_owned(), load_trace(&file)?));
        }
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

/// Statistics of the synthetic data set beside those published.
pub fn statistics(prefix: &str, seed: u64) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (environment, cells) in Environment::ALL.into_iter().zip([2.97, 3.99, 3.19]) {
        let drive = Drive::generate(environment, STATISTICS_S, derive_seed(seed, 4300));
        let visible: Vec<f64> = drive
            .seconds
            .iter()
            .map(|second| second.iter().filter(|&&capacity| capacity > 0.0).count() as f64)
            .collect();
        figures.push(Figure::shown(
            format!("{prefix}.{}.cells", environment.name()),
            "cells",
            Some(cells),
            mean(&visible),
        ));
        if let Some(paper) = best_capacities(environment) {
            for (count, paper) in (1..).zip(paper) {
                let sums: Vec<f64> = (0..STATISTICS_S)
                    .map(|second| {
                        let best = drive.ranking(second);
                        best.iter()
                            .take(count)
                            .map(|&carrier| drive.capacity(second, carrier))
                            .sum()
                    })
                    .collect();
                let id = format!("{prefix}.{}.capacity_of_best_{count}", environment.name());
                figures.push(Figure::shown(id, "Mbit/s", Some(paper), mean(&sums)));
            }
            continue;
        }
        let operators = &drive.operators;
        let operator = |wanted: usize| {
            drive.seconds.iter().map(move |second| {
                let own = second
                    .iter()
                    .zip(operators)
                    .filter(move |(_, operator)| **operator == wanted);
                own.map(|(capacity, _)| *capacity).fold(0.0, f64::max)
            })
        };
        let rows = [
            (
                "op1",
                sorted(operator(0)),
                [25.74, 23.24, 9.05, 4.70, 3.12, 0.43, 0.03],
            ),
            (
                "op2",
                sorted(operator(1)),
                [19.37, 16.58, 2.17, 0.59, 0.22, 0.03, 0.01],
            ),
            (
                "best_single",
                sorted(
                    drive
                        .seconds
                        .iter()
                        .map(|second| second.iter().copied().fold(0.0, f64::max)),
                ),
                [36.57, 36.63, 25.08, 22.69, 20.56, 17.59, 15.48],
            ),
            (
                "multipath",
                sorted(drive.seconds.iter().map(|second| second.iter().sum())),
                [46.45, 44.94, 39.92, 38.41, 36.91, 34.78, 32.97],
            ),
        ];
        for (name, values, paper) in rows {
            let shares = [
                ("mean", None),
                ("p50", Some(0.5)),
                ("p20", Some(0.2)),
                ("p10", Some(0.1)),
                ("p5", Some(0.05)),
                ("p1", Some(0.01)),
                ("p01", Some(0.001)),
            ];
            for ((label, share), paper) in shares.into_iter().zip(paper) {
                let measured = share.map_or_else(
                    || mean(&values),
                    |share| percentile(&values, share).unwrap_or(0.0),
                );
                figures.push(Figure::shown(
                    format!("{prefix}.dataset.{name}.{label}"),
                    "Mbit/s",
                    Some(paper),
                    measured,
                ));
            }
        }
    }
    figures
}
