//! Which experiments answer which flags: directions, cases, and what `--only` leaves out.

use crate::drive::Environment;
use crate::exhibit::Drawn;
use crate::figures::Figure;
use crate::mechanisms::Mechanisms;
use crate::options::Options;
use crate::pals::{Case, Reading, Setting};
use crate::report::RunReport;
use crate::runner::Runner;
use crate::scenario::{Controller, Direction, ScenarioError};
use crate::traces::trace_files;
use crate::{
    bottleneck as at_bottleneck, figure6 as of_figure6, lte as of_lte, many as of_many,
    pals as of_pals, rival as of_rival, robust as of_robust,
};

/// Scenarios of a PALS figure when not said otherwise.
const PALS_SCENARIOS: u32 = 100;
const REGIONAL_REPETITIONS: u32 = 50;
/// Each is fifteen transfers, and a comparison for every number of paths from two to eight.
const UNEQUAL_DRAWINGS: u32 = 20;
const ROBUST_RUNS: u32 = 1000;
/// The table of controllers is for comparison: fewer runs do.
const COMPARED_SCENARIOS: u32 = 20;

/// Figures and the runs behind them.
#[derive(Debug, Default)]
pub struct Findings {
    pub figures: Vec<Figure>,
    pub reports: Vec<RunReport>,
}

impl Findings {
    fn add(&mut self, (figures, reports): (Vec<Figure>, Vec<RunReport>)) {
        self.figures.extend(figures);
        self.reports.extend(reports);
    }
}

type PartOutcome = Result<(Vec<Figure>, Vec<RunReport>), ScenarioError>;
type Outcome = Result<Findings, ScenarioError>;

pub fn pals(runner: &Runner, options: &Options) -> Outcome {
    let mut findings = Findings::default();
    for (direction, suffix) in options.selection.directions() {
        for (reading, name) in [
            (Reading::RoundTrip, "pals"),
            (Reading::OneWay, "pals_one_way"),
        ] {
            if reading == Reading::OneWay && options.compares {
                continue;
            }
            let prefix = format!("{name}{suffix}");
            for case in [Case::NoLoss, Case::Loss, Case::Handover, Case::Vitals] {
                // Vitals go up only.
                let moot = case == Case::Vitals && direction == Direction::Download;
                let of = |case| format!("{prefix}.{}", of_pals::section_of(case));
                let wanted = match case {
                    Case::Handover => options.selection.wants_beside(&of(case), &of(Case::Vitals)),
                    _ => options.selection.wants(&of(case)),
                };
                if moot || !wanted {
                    continue;
                }
                let setting = Setting {
                    seed: options.seed,
                    scenarios: options.scenarios.unwrap_or(PALS_SCENARIOS),
                    controller: options.controller,
                    direction,
                    reading,
                };
                let runs = of_pals::run(runner, case, setting, Mechanisms::default())?;
                let figures = of_pals::figures(case, &prefix, &runs).into_iter();
                // The targets are those of the first reading.
                let figures = figures.map(|figure| {
                    if reading == Reading::OneWay {
                        figure.without_target()
                    } else {
                        figure
                    }
                });
                findings.add((figures.collect(), runs));
            }
        }
    }
    Ok(findings)
}

pub fn regional(runner: &Runner, options: &Options) -> Outcome {
    let repetitions = options.scenarios.unwrap_or(REGIONAL_REPETITIONS);
    each_direction(options, "regional", |prefix, direction| {
        of_pals::regional(
            runner,
            prefix,
            options.seed,
            repetitions,
            options.controller,
            direction,
        )
    })
}

pub fn lte(runner: &Runner, options: &Options) -> Outcome {
    let mut findings = Findings::default();
    for (direction, suffix) in options.selection.directions() {
        // The paper downloads.
        let prefix = if suffix.is_empty() {
            "lte.upload"
        } else {
            "lte"
        };
        let (seed, points, controller) = (options.seed, options.scenarios, options.controller);
        for environment in [Environment::Residential, Environment::Road] {
            if options
                .selection
                .wants(&format!("{prefix}.{}.", environment.name()))
            {
                findings.add(of_lte::run(
                    runner,
                    prefix,
                    environment,
                    seed,
                    points,
                    controller,
                    direction,
                )?);
            }
        }
        if options.selection.wants(&format!("{prefix}.recorded")) {
            let files = trace_files(&options.traces)?;
            if files.is_empty() {
                eprintln!("{prefix}.recorded skipped: give recorded traces by --traces");
            } else {
                findings.add(of_lte::run_recorded(
                    runner, prefix, &files, seed, points, controller, direction,
                )?);
            }
        }
    }
    if options.selection.wants("lte.") {
        findings
            .figures
            .extend(of_lte::statistics("lte", options.seed));
    }
    Ok(findings)
}

pub fn figure6(runner: &Runner, options: &Options) -> Outcome {
    each_direction(options, "figure6", |prefix, direction| {
        of_figure6::run(runner, prefix, options.seed, options.controller, direction)
    })
}

pub fn rival(runner: &Runner, options: &Options) -> Outcome {
    each_direction(options, "rival", |prefix, direction| {
        of_rival::run(runner, prefix, options.seed, options.controller, direction)
    })
}

pub fn unequal(runner: &Runner, options: &Options) -> Outcome {
    each_direction(options, "unequal", |prefix, direction| {
        of_many::run(
            runner,
            prefix,
            options.seed,
            options.scenarios.unwrap_or(UNEQUAL_DRAWINGS),
            options.controller,
            direction,
        )
    })
}

pub fn bottleneck(runner: &Runner, options: &Options) -> Outcome {
    let mut findings = Findings::default();
    for (direction, suffix) in options.selection.directions() {
        let setting = at_bottleneck::Setting {
            seed: options.seed,
            controller: options.controller,
            direction,
        };
        let prefix = format!("bottleneck{suffix}");
        for part in ["with", "alone"] {
            if options.selection.wants(&format!("{prefix}.{part}")) {
                findings.add(at_bottleneck::run(runner, &prefix, setting)?);
                break;
            }
        }
        type Part = fn(&Runner, &str, at_bottleneck::Setting) -> PartOutcome;
        let parts: [(&str, Part); 3] = [
            ("drop", at_bottleneck::falling::run),
            ("coupled", at_bottleneck::coupled::run),
            ("table", at_bottleneck::table),
        ];
        for (part, run) in parts {
            let prefix = format!("{prefix}.{part}");
            if options.selection.wants(&prefix) {
                findings.add(run(runner, &prefix, setting)?);
            }
        }
    }
    Ok(findings)
}

/// With a chart of each mode.
pub fn steering(
    runner: &Runner,
    options: &Options,
) -> Result<(Findings, Vec<Drawn>), ScenarioError> {
    let mut charts = Vec::new();
    let mut findings = Findings::default();
    for (direction, suffix) in options.selection.directions() {
        let prefix = format!("steering{suffix}");
        if options.selection.wants(&prefix) {
            let outcome = crate::steering::run(runner, &prefix, options.seed, direction)?;
            charts.extend(outcome.charts);
            findings.add((outcome.figures, outcome.reports));
        }
    }
    Ok((findings, charts))
}

pub fn robust(runner: &Runner, options: &Options) -> Outcome {
    let mut findings = Findings::default();
    if options.selection.wants("robust") {
        let runs = options.scenarios.unwrap_or(ROBUST_RUNS);
        findings.figures = of_robust::figures("robust", runner, options.seed, runs)?;
    }
    Ok(findings)
}

/// A figure of this machine, and so none of `all`.
pub fn speed(runner: &Runner) -> Outcome {
    Ok(Findings {
        figures: vec![crate::speed::figure(runner.identity())?],
        reports: Vec::new(),
    })
}

/// Everything that has a target.
pub fn all(runner: &Runner, options: &Options) -> Outcome {
    let mut findings = Findings::default();
    for experiment in [
        pals, regional, lte, figure6, rival, unequal, bottleneck, robust,
    ] {
        let more = experiment(runner, options)?;
        findings.add((more.figures, more.reports));
    }
    Ok(findings)
}

/// The table of controllers: the same experiments, one row per controller, nothing to be met.
pub fn controllers(runner: &Runner, options: &Options) -> Outcome {
    let mut findings = Findings::default();
    for controller in Controller::ALL {
        let mut own = options.clone();
        own.controller = controller;
        own.compares = true;
        own.scenarios = options.scenarios.or(Some(COMPARED_SCENARIOS));
        for experiment in [pals, regional, lte, figure6, rival] {
            let more = experiment(runner, &own)?;
            let figures = more.figures.into_iter();
            let figures = figures.filter(|figure| figure.target.is_some());
            let figures = figures.map(|figure| figure.prefixed(controller.name()).without_target());
            findings.add((figures.collect(), more.reports));
        }
    }
    Ok(findings)
}

/// PALS with loss and with the handover, each mechanism in turn switched off.
pub fn mechanisms(runner: &Runner, options: &Options) -> Outcome {
    let all = Mechanisms::default();
    let variants = [
        ("all", all),
        (
            "without_gate",
            Mechanisms {
                path_scheduler: false,
                ..all
            },
        ),
        (
            "without_acknowledgement_steering",
            Mechanisms {
                steer_acknowledgements: false,
                ..all
            },
        ),
        (
            "without_startup_floor",
            Mechanisms {
                startup_floor: false,
                ..all
            },
        ),
        (
            "without_liveness",
            Mechanisms {
                liveness: false,
                ..all
            },
        ),
        (
            "without_reroute",
            Mechanisms {
                reroute: false,
                ..all
            },
        ),
    ];
    let mut findings = Findings::default();
    for (name, mechanisms) in variants {
        for case in [Case::NoLoss, Case::Loss, Case::Handover] {
            let prefix = format!("{name}.pals.{}", of_pals::section_of(case));
            if !options.selection.wants(&prefix) {
                continue;
            }
            let setting = Setting {
                seed: options.seed,
                scenarios: options.scenarios.unwrap_or(COMPARED_SCENARIOS),
                controller: Controller::Ours,
                direction: options.selection.direction.unwrap_or(Direction::Upload),
                reading: Reading::RoundTrip,
            };
            let runs = of_pals::run(runner, case, setting, mechanisms)?;
            let figures = of_pals::figures(case, "pals", &runs).into_iter();
            findings.add((
                figures
                    .map(|figure| figure.prefixed(name).without_target())
                    .collect(),
                runs,
            ));
        }
    }
    Ok(findings)
}

fn each_direction(
    options: &Options,
    name: &str,
    run: impl Fn(&str, Direction) -> PartOutcome,
) -> Outcome {
    let mut findings = Findings::default();
    for (direction, suffix) in options.selection.directions() {
        let prefix = format!("{name}{suffix}");
        if options.selection.wants(&prefix) {
            findings.add(run(&prefix, direction)?);
        }
    }
    Ok(findings)
}
