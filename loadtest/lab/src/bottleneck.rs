//! Behaviour at a bottleneck: fairness to Cubic and BBR, and the delay that the queue adds. Also a
//! rate that drops tenfold, and paths of one connection that meet in one queue.
//!
//! The queue is a drop-tail one of one bandwidth-delay product where nothing else is said. Shares
//! are taken when the start-ups are over; a fair share is the mean of all flows.

use std::time::Duration;

use crate::figures::Figure;
use crate::mechanisms::Mechanisms;
use crate::report::{RunReport, mean};
use crate::runner::Runner;
use crate::scenario::{Controller, Direction, Interface, Scenario, ScenarioError};
use crate::seed::derive_seed;

pub mod coupled;
pub mod falling;

/// The point at which the targets are set.
const RATE_MBIT: f64 = 20.0;
const RTT_MS: f64 = 40.0;
/// Other points, as a table.
const RATES_MBIT: [f64; 3] = [5.0, 20.0, 100.0];
const RTTS_MS: [f64; 3] = [10.0, 40.0, 150.0];
/// Length of a shared transfer, and of one over a product so large that Cubic needs longer to find
/// its share.
const SHARED_S: f64 = 60.0;
const SHARED_LONG_S: f64 = 120.0;
const LONG_FROM_PACKETS: f64 = 300.0;
/// The share of it left out for the start-ups.
const SHARED_FROM: f64 = 1.0 / 6.0;
/// The library's BBR draws its random numbers from the system, so a run against it does not repeat:
/// the mean of some does, nearly.
const BBR_REPETITIONS: usize = 5;
/// Length of a transfer without cross-traffic.
const ALONE_S: f64 = 30.0;
const RIVALS: [Controller; 2] = [Controller::Cubic, Controller::Bbr];

const JAIN_MIN: f64 = 0.85;
const SHARE_MAX: f64 = 1.3;
const QUEUEING_MAX_RTTS: f64 = 1.0;

type Outcome = Result<(Vec<Figure>, Vec<RunReport>), ScenarioError>;

/// The measured controller, the direction, and the seed.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    pub seed: u64,
    pub controller: Controller,
    pub direction: Direction,
}

impl Setting {
    /// A transfer without end over the given links, cut off at `length_s`.
    fn endless(&self, name: String, length_s: f64, interfaces: Vec<Interface>) -> Scenario {
        let fastest = interfaces
            .iter()
            .map(|interface| interface.half(self.direction).rate.mbit_max())
            .sum::<f64>();
        // More than fits, so that no flow ends before the others.
        let bytes = (fastest * 1e6 / 8.0 * length_s * 1.1) as u64;
        Scenario::transfer(
            name,
            derive_seed(self.seed, 5000),
            self.direction,
            bytes,
            self.controller,
            length_s,
            interfaces,
        )
    }
}

impl Setting {
    /// The same transfer beside each rival, with enough repetitions for a verdict.
    fn with_rivals(&self, prefix: &str, length_s: f64, links: &[Interface]) -> Vec<Scenario> {
        let each = RIVALS.iter().flat_map(|&rival| {
            let repetitions = if rival == Controller::Bbr {
                BBR_REPETITIONS
            } else {
                1
            };
            std::iter::repeat_n(rival, repetitions)
        });
        each.map(|rival| {
            let name = format!("{prefix}.with_{}", rival.name());
            let mut scenario = self.endless(name, length_s, links.to_vec());
            scenario.competitors = vec![rival];
            scenario
        })
        .collect()
    }
}

/// Jain's index and the own share beside each rival.
fn fairness(prefix: &str, length_s: f64, reports: &[RunReport]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for rival in RIVALS {
        let id = format!("{prefix}.with_{}", rival.name());
        let runs: Vec<&RunReport> = reports.iter().filter(|report| report.name == id).collect();
        // Left out by name: no run, no figure.
        if runs.is_empty() {
            continue;
        }
        let shares: Vec<Vec<f64>> = runs.iter().map(|run| shares(run, length_s)).collect();
        let of = |value: fn(&[f64]) -> f64| {
            mean(
                &shares
                    .iter()
                    .map(|shares| value(shares))
                    .collect::<Vec<f64>>(),
            )
        };
        figures.push(Figure::at_least(
            format!("{id}.jain"),
            "index",
            None,
            JAIN_MIN,
            of(jain),
        ));
        figures.push(Figure::at_most(
            format!("{id}.share"),
            "x fair",
            None,
            SHARE_MAX,
            of(of_fair),
        ));
        if runs.iter().any(|run| run.links.len() > 1) {
            let coupled: Vec<f64> = runs.iter().map(|run| 100.0 * run.coupled_share).collect();
            figures.push(Figure::shown(
                format!("{id}.coupled"),
                "% of time",
                None,
                mean(&coupled),
            ));
        }
    }
    figures
}

/// Jain's index of some shares.
pub fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    if squares > 0.0 {
        sum * sum / (shares.len() as f64 * squares)
    } else {
        0.0
    }
}

/// Mbit/s of the measured connection and of each other, the start-ups left out.
fn shares(report: &RunReport, length_s: f64) -> Vec<f64> {
    let (from, to) = (
        Duration::from_secs_f64(length_s * SHARED_FROM),
        Duration::from_secs_f64(length_s),
    );
    let others = report.competitors.iter().map(|other| &other.timeline);
    std::iter::once(&report.timeline)
        .chain(others)
        .map(|timeline| timeline.mbit_within(from, to))
        .collect()
}

/// The measured connection's share as a multiple of the fair one.
fn of_fair(shares: &[f64]) -> f64 {
    let fair = shares.iter().sum::<f64>() / shares.len() as f64;
    shares.first().map_or(0.0, |own| own / fair.max(1e-9))
}

fn length_s(rate_mbit: f64, rtt_ms: f64) -> f64 {
    let packets = rate_mbit * 1e6 / 8.0 * rtt_ms / 1e3 / 1500.0;
    if packets >= LONG_FROM_PACKETS {
        SHARED_LONG_S
    } else {
        SHARED_S
    }
}

fn queueing_rtts(report: &RunReport, rtt_ms: f64) -> f64 {
    report
        .links
        .first()
        .map_or(f64::INFINITY, |link| link.queueing_ms_p95 / rtt_ms)
}

/// The run without cross-traffic, unless it was left out by name.
fn alone<'a>(prefix: &str, reports: &'a [RunReport]) -> Option<&'a RunReport> {
    let name = format!("{prefix}.alone");
    reports.iter().find(|report| report.name == name)
}

/// The runs over these links with and without cross-traffic, each so long, whose figures are asked
/// for.
fn beside_and_alone(
    runner: &Runner,
    prefix: &str,
    setting: Setting,
    [beside_s, alone_s]: [f64; 2],
    links: impl Fn() -> Vec<Interface>,
) -> Result<Vec<RunReport>, ScenarioError> {
    let mut scenarios = setting.with_rivals(prefix, beside_s, &links());
    scenarios.push(setting.endless(format!("{prefix}.alone"), alone_s, links()));
    // A run bears the beginning of its figures' ids.
    scenarios.retain(|scenario| runner.wants(&format!("{}.", scenario.name)));
    runner.run(prefix, &scenarios, Mechanisms::default())
}

/// One link with and without cross-traffic.
fn at(runner: &Runner, prefix: &str, setting: Setting, rate_mbit: f64, rtt_ms: f64) -> Outcome {
    let link = || vec![Interface::symmetric("shared", rate_mbit, rtt_ms, 0.0)];
    let length = length_s(rate_mbit, rtt_ms);
    let reports = beside_and_alone(runner, prefix, setting, [length, ALONE_S], link)?;
    let mut figures = fairness(prefix, length, &reports);
    if let Some(alone) = alone(prefix, &reports) {
        figures.push(Figure::at_most(
            format!("{prefix}.alone.queueing_p95"),
            "x RTT",
            None,
            QUEUEING_MAX_RTTS,
            queueing_rtts(alone, rtt_ms),
        ));
        figures.push(Figure::shown(
            format!("{prefix}.alone.efficiency"),
            "%",
            None,
            alone.efficiency_stream,
        ));
    }
    Ok((figures, reports))
}

/// The point at which the targets are set.
pub fn run(runner: &Runner, prefix: &str, setting: Setting) -> Outcome {
    at(runner, prefix, setting, RATE_MBIT, RTT_MS)
}

/// Nine points, of which the controller was tuned at one.
pub fn table(runner: &Runner, prefix: &str, setting: Setting) -> Outcome {
    let mut figures = Vec::new();
    let mut reports = Vec::new();
    for rate_mbit in RATES_MBIT {
        for rtt_ms in RTTS_MS {
            let prefix = format!("{prefix}.{rate_mbit}mbit.{rtt_ms}ms");
            let (more, runs) = at(runner, &prefix, setting, rate_mbit, rtt_ms)?;
            figures.extend(more);
            reports.extend(runs);
        }
    }
    Ok((figures, reports))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jain_is_one_for_equal_shares_and_one_over_n_for_a_single_taker() {
        assert!((jain(&[3.0, 3.0, 3.0]) - 1.0).abs() < 1e-12);
        assert!((jain(&[3.0, 0.0, 0.0]) - 1.0 / 3.0).abs() < 1e-12);
        assert_eq!(jain(&[0.0, 0.0]), 0.0);
        assert!((of_fair(&[3.0, 1.0]) - 1.5).abs() < 1e-12);
    }
}
