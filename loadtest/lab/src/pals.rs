//! PALS, randomised: two disjoint paths, 0.1-5 Mbit/s, 0-250 ms, 20 MB, as in the paper of that
//! name (see the README), and its regional table.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::figures::Figure;
use crate::mechanisms::Mechanisms;
use crate::packet::HEADER_SHARE;
use crate::references;
use crate::report::{RunReport, mean, percentile, sorted};
use crate::runner::Runner;
use crate::scenario::{Controller, Direction, Interface, Scenario, ScenarioError, Vitals};
use crate::seed::derive_seed;

const BYTES: u64 = 20_000_000;
const CUT_S: f64 = 15.0;
/// A run may take this many times what its capacity allows, and a minute.
const PATIENCE: f64 = 6.0;

/// The randomised experiments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    NoLoss,
    Loss,
    Handover,
    /// The handover with vitals beside the bulk, until 25 s.
    Vitals,
}

/// How the paper's end-to-end latency is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    RoundTrip,
    OneWay,
}

/// Parameters that a set of runs has in common.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    pub seed: u64,
    pub scenarios: u32,
    pub controller: Controller,
    pub direction: Direction,
    pub reading: Reading,
}

/// The scenarios of one case; the same seed gives the same links in every case.
pub fn scenarios(case: Case, setting: Setting) -> Vec<Scenario> {
    (0..setting.scenarios)
        .map(|index| scenario(case, setting, index))
        .collect()
}

fn scenario(case: Case, setting: Setting, index: u32) -> Scenario {
    let seed = derive_seed(setting.seed, 1000 + u64::from(index));
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut draw = || {
        let rate = random.random_range(0.1..5.0);
        let latency = random.random_range(0.0..250.0);
        let loss = random.random_range(0.01..0.05);
        (rate, latency, loss)
    };
    let links = [draw(), draw()];
    let cut = index as usize % 2;
    let mut interfaces = Vec::new();
    for (position, (rate, latency, loss)) in links.into_iter().enumerate() {
        let rtt_ms = if setting.reading == Reading::OneWay {
            latency * 2.0
        } else {
            latency
        };
        let loss = if case == Case::NoLoss { 0.0 } else { loss };
        let interface = Interface::symmetric(["wifi", "cellular"][position], rate, rtt_ms, loss);
        let is_cut = matches!(case, Case::Handover | Case::Vitals) && position == cut;
        interfaces.push(if is_cut {
            interface.with_changes(&[(CUT_S, false)])
        } else {
            interface
        });
    }
    let capacity = match case {
        Case::Handover | Case::Vitals => links[1 - cut].0,
        _ => links[0].0 + links[1].0,
    };
    let name = format!("pals.{}.{index}", name_of(case));
    Scenario {
        competitors: Vec::new(),
        mix: None,
        background: None,
        buffers: None,
        trunk_mbit: None,
        steering: None,
        compare: None,
        name,
        seed,
        direction: setting.direction,
        bytes: BYTES,
        streams: 1,
        chaos: None,
        steered: None,
        pace: Vec::new(),
        thin: None,
        controller: setting.controller,
        vitals: (case == Case::Vitals).then_some(Vitals {
            interval_ms: 100,
            bytes: 200,
        }),
        limit_s: if case == Case::Vitals {
            CUT_S + 10.0
        } else {
            BYTES as f64 * 8e-6 / capacity * PATIENCE + 60.0
        },
        interfaces,
    }
}

/// The part of the figures' ids between experiment and figure.
pub fn section_of(case: Case) -> &'static str {
    if case == Case::Vitals {
        "handover.vitals"
    } else {
        name_of(case)
    }
}

pub fn name_of(case: Case) -> &'static str {
    match case {
        Case::NoLoss => "noloss",
        Case::Loss => "loss",
        Case::Handover => "handover",
        Case::Vitals => "vitals",
    }
}

/// The targets that one case's reports answer.
pub fn figures(case: Case, prefix: &str, reports: &[RunReport]) -> Vec<Figure> {
    let of = |get: fn(&RunReport) -> f64| sorted(reports.iter().map(get));
    let from_connect = of(|report| report.efficiency_connect);
    let average = mean(&from_connect);
    let stream = mean(&of(|report| report.efficiency_stream));
    let worst = from_connect.first().copied().unwrap_or(0.0);
    match case {
        Case::NoLoss => vec![
            Figure::at_least(
                format!("{prefix}.noloss.efficiency"),
                "%",
                references::figure("pals.noloss.efficiency"),
                94.0,
                average,
            ),
            Figure::at_least(format!("{prefix}.noloss.worst"), "%", None, 91.0, worst),
            Figure::shown(
                format!("{prefix}.noloss.efficiency_stream"),
                "%",
                None,
                stream,
            ),
        ],
        Case::Loss => vec![
            Figure::at_least(
                format!("{prefix}.loss.efficiency"),
                "%",
                references::figure("pals.loss.efficiency"),
                91.0,
                average,
            ),
            Figure::shown(format!("{prefix}.loss.worst"), "%", None, worst),
            Figure::shown(
                format!("{prefix}.loss.efficiency_stream"),
                "%",
                None,
                stream,
            ),
        ],
        Case::Handover => handover_figures(prefix, reports),
        Case::Vitals => {
            let gaps = gaps_s(reports, |report| report.vitals_gap_ms);
            let gap = |name: &str, target, quantile| {
                let id = format!("{prefix}.handover.{name}");
                let seen = percentile(&gaps, quantile).unwrap_or(f64::INFINITY);
                Figure::at_most(id, "s", None, target, seen)
            };
            vec![
                gap("vitals_gap_p50", 0.25, 0.5),
                gap("vitals_gap_p99", 0.6, 0.99),
            ]
        }
    }
}

fn gaps_s(reports: &[RunReport], get: fn(&RunReport) -> Option<f64>) -> Vec<f64> {
    sorted(reports.iter().filter_map(get).map(|gap_ms| gap_ms / 1e3))
}

fn handover_figures(prefix: &str, reports: &[RunReport]) -> Vec<Figure> {
    let id = |name: &str| format!("{prefix}.handover.{name}");
    let from_connect = sorted(reports.iter().map(|report| report.efficiency_connect));
    let stream = sorted(reports.iter().map(|report| report.efficiency_stream));
    let worst = from_connect.first().copied().unwrap_or(0.0);
    let completed = 100.0 * reports.iter().filter(|report| report.completed).count() as f64
        / reports.len().max(1) as f64;
    let gaps = gaps_s(reports, |report| report.bulk_gap_ms);
    let gap = |name: &str, target, quantile| {
        let seen = percentile(&gaps, quantile).unwrap_or(f64::INFINITY);
        Figure::at_most(id(name), "s", None, target, seen)
    };
    vec![
        Figure::at_least(
            id("efficiency"),
            "%",
            references::figure("pals.handover.efficiency"),
            90.5,
            mean(&from_connect),
        ),
        Figure::at_least(
            id("completed"),
            "%",
            references::figure("pals.handover.completed"),
            100.0,
            completed,
        ),
        gap("bulk_gap_p50", 0.8, 0.5),
        gap("bulk_gap_p99", 2.0, 0.99),
        Figure::shown(id("worst"), "%", None, worst),
        Figure::shown(id("efficiency_stream"), "%", None, mean(&stream)),
    ]
}

/// Runs one case.
pub fn run(
    runner: &Runner,
    case: Case,
    setting: Setting,
    mechanisms: Mechanisms,
) -> Result<Vec<RunReport>, ScenarioError> {
    runner.run(
        &format!("pals {}", name_of(case)),
        &scenarios(case, setting),
        mechanisms,
    )
}

/// A scenario of table III.
#[derive(Debug, Clone)]
pub struct Region {
    pub region: &'static str,
    pub case: &'static str,
    pub fixed_mbit: f64,
    pub mobile_mbit: f64,
}

impl Region {
    /// The time that the loss-adjusted sum of the capacities allows, in goodput.
    pub fn ideal_s(&self) -> f64 {
        let mbit = (self.fixed_mbit + self.mobile_mbit) * (1.0 - REGIONAL_LOSS);
        BYTES as f64 * 8e-6 / mbit
    }
}

/// Table III, region by region, best case first.
pub fn regions() -> Vec<Region> {
    let regions = ["global", "europe", "usa", "south_america"];
    let each = regions.into_iter().flat_map(|region| {
        ["best", "worst"].map(|case| {
            let speed =
                |link: &str| references::value(&format!("pals.speeds.{region}.{case}_{link}"));
            Some(Region {
                region,
                case,
                fixed_mbit: speed("fixed")?,
                mobile_mbit: speed("mobile")?,
            })
        })
    });
    each.flatten().collect()
}

const REGIONAL_RTT_MS: f64 = 24.0;
const REGIONAL_LOSS: f64 = 0.05;

/// Uploads over both links of a region, each with losses of its own.
pub fn regional_scenarios(region: &Region, seed: u64, repetitions: u32) -> Vec<Scenario> {
    (0..repetitions)
        .map(|repetition| {
            let link =
                |name, mbit| Interface::symmetric(name, mbit, REGIONAL_RTT_MS, REGIONAL_LOSS);
            Scenario::transfer(
                format!("regional.{}.{}.{repetition}", region.region, region.case),
                derive_seed(seed, 2000 + u64::from(repetition)),
                Direction::Upload,
                BYTES,
                Controller::Ours,
                200.0,
                vec![
                    link("fixed", region.fixed_mbit),
                    link("mobile", region.mobile_mbit),
                ],
            )
        })
        .collect()
}

/// The regional table: `repetitions` transfers per cell.
pub fn regional(
    runner: &Runner,
    prefix: &str,
    seed: u64,
    repetitions: u32,
    controller: Controller,
    direction: Direction,
) -> Result<(Vec<Figure>, Vec<RunReport>), ScenarioError> {
    let mut figures = Vec::new();
    let mut all = Vec::new();
    for region in regions() {
        let id = format!("{prefix}.{}.{}", region.region, region.case);
        let mut scenarios = regional_scenarios(&region, seed, repetitions);
        for scenario in &mut scenarios {
            scenario.controller = controller;
            scenario.direction = direction;
        }
        let reports = runner.run(&id, &scenarios, Mechanisms::default())?;
        let ideal_s = region.ideal_s();
        let paper_s = references::figure(&format!("{id}.time"));
        let times: Vec<f64> = reports.iter().map(|report| report.from_connect_s).collect();
        figures.push(Figure::at_most(
            format!("{id}.ratio"),
            "x",
            paper_s.map(|paper_s| paper_s / ideal_s),
            1.15,
            mean(&times) / ideal_s,
        ));
        figures.push(Figure::shown(
            format!("{id}.time"),
            "s",
            paper_s,
            mean(&times),
        ));
        figures.push(Figure::shown(
            format!("{id}.ratio_of_goodput_limit"),
            "x",
            None,
            mean(&times) / ideal_s * HEADER_SHARE,
        ));
        all.extend(reports);
    }
    Ok((figures, all))
}
