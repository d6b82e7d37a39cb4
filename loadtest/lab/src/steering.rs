//! Steering modes in virtual time: each run shows what the name of its mode says.
//!
//! Wi-Fi of 50 Mbit/s and 20 ms, LTE of 30 Mbit/s and 50 ms. The application first sends less than
//! either carries, then more than Wi-Fi carries; then Wi-Fi is cut for four seconds. A second run
//! sends all that it can without a cut. No mode ends below 0.98 of the best single path, unless its
//! rule forbids that path.

use std::time::Duration;

use multipath::steering_rules::{AccessTerms, Document, Flow, Match, Mode, Rule, Urgency};

use crate::exhibit::Drawn;
use crate::figures::Figure;
use crate::mechanisms::Mechanisms;
use crate::plot::{Axis, Lines};
use crate::report::{BIN, RunReport, mbit_within};
use crate::runner::Runner;
use crate::scenario::{Controller, Direction, Interface, Scenario, ScenarioError};
use crate::seed::derive_seed;
use crate::steered::Steered;

const WIFI: &str = "wifi";
const LTE: &str = "lte";
const WIFI_MBIT: f64 = 50.0;
const LTE_MBIT: f64 = 30.0;
const LIGHT_MBIT: f64 = 20.0;
const HEAVY_MBIT: f64 = 60.0;
/// From when on more is sent than Wi-Fi carries, when it is cut, and when it returns.
const HEAVY_S: f64 = 8.0;
const CUT_S: f64 = 16.0;
const BACK_S: f64 = 20.0;
const END_S: f64 = 26.0;
/// Time after a start or a change that is left out.
const SETTLE_S: f64 = 2.0;
const FULL_S: f64 = 15.0;
const BEST_SINGLE_MIN: f64 = 0.98;

/// Description of the run for the report.
pub const NOTE: &str = "\
     Wi-Fi of 50 Mbit/s and 20 ms, LTE of 30 Mbit/s and 50 ms. The application first sends 20 \
     Mbit/s, from 8 s on 60 Mbit/s; Wi-Fi is cut from 16 s to 20 s. A second run without a cut \
     sends all that it can: no mode ends below 0.98 of the best single path, unless its rule \
     forbids that path. The first two seconds of a phase are left out.";

/// Figures, runs, and a chart of each mode.
#[derive(Debug)]
pub struct Outcome {
    pub figures: Vec<Figure>,
    pub reports: Vec<RunReport>,
    pub charts: Vec<Drawn>,
}

/// Least and largest part of the bytes over Wi-Fi, in percent.
type Band = (f64, f64);

struct Case {
    name: &'static str,
    rule: Rule,
    light: Band,
    heavy: Band,
    /// Least Mbit/s of both while Wi-Fi is cut.
    cut_mbit: f64,
    /// Least of both while more is sent than Wi-Fi carries.
    heavy_mbit: f64,
}

fn rule(mode: Mode, accesses: &[&str], weights: &[(&str, u32)]) -> Rule {
    Rule {
        name: "transfer".into(),
        matches: Match {
            urgency: vec![Urgency::Bulk],
            ..Match::default()
        },
        mode,
        accesses: accesses.iter().map(|&name| name.to_owned()).collect(),
        weights: weights
            .iter()
            .map(|&(name, weight)| (name.to_owned(), weight))
            .collect(),
        metered: true,
        roaming: true,
        ..Rule::default()
    }
}

fn cases() -> Vec<Case> {
    const ALL: Band = (98.0, 100.0);
    const NONE: Band = (0.0, 2.0);
    const ANY: Band = (0.0, 100.0);
    let case = |name, rule, light, heavy| Case {
        name,
        rule,
        light,
        heavy,
        cut_mbit: 0.9 * LTE_MBIT,
        heavy_mbit: 0.95 * HEAVY_MBIT,
    };
    let active = rule(Mode::ActiveStandby, &[WIFI, LTE], &[]);
    vec![
        case("auto", rule(Mode::Auto, &[], &[]), ANY, ANY),
        Case {
            heavy_mbit: 0.9 * WIFI_MBIT,
            ..case("active-standby", active, ALL, ALL)
        },
        case(
            "smallest-delay",
            rule(Mode::SmallestDelay, &[], &[]),
            ALL,
            (70.0, 90.0),
        ),
        case(
            "load-balancing-fixed",
            rule(Mode::LoadBalancing, &[], &[(WIFI, 60), (LTE, 40)]),
            (57.0, 63.0),
            (57.0, 63.0),
        ),
        // In equal parts while both have room, then by what each delivers.
        case(
            "load-balancing-autonomous",
            rule(Mode::LoadBalancing, &[], &[]),
            (45.0, 55.0),
            (50.0, 75.0),
        ),
        case(
            "priority",
            rule(Mode::Priority, &[LTE, WIFI], &[]),
            NONE,
            (48.0, 62.0),
        ),
        // Bulk has no copies: the mode must not cost it a path.
        case("redundant", rule(Mode::Redundant, &[], &[]), ANY, ANY),
        Case {
            heavy_mbit: 0.9 * LTE_MBIT,
            ..case("cap", rule(Mode::Auto, &[], &[]), NONE, NONE)
        },
        Case {
            heavy_mbit: 0.9 * LTE_MBIT,
            ..case(
                "forbidden",
                rule(Mode::Auto, &["cellular"], &[]),
                NONE,
                NONE,
            )
        },
    ]
}

impl Case {
    fn steered(&self) -> Steered {
        let capped = AccessTerms {
            name: Some(WIFI.into()),
            cap_gb: (self.name == "cap").then_some(0.0),
            reset_day: 1,
            ..AccessTerms::default()
        };
        Steered {
            document: Document {
                accesses: vec![capped],
                rules: vec![self.rule.clone()],
                ..Document::default()
            },
            flow: Flow::new("applications", Urgency::Bulk),
        }
    }

    /// Whether the rule lets the transfer take the best path.
    fn may_take_best(&self) -> bool {
        !matches!(self.name, "cap" | "forbidden")
    }
}

fn links() -> Vec<Interface> {
    vec![
        Interface::symmetric(WIFI, WIFI_MBIT, 20.0, 0.0),
        Interface::symmetric(LTE, LTE_MBIT, 50.0, 0.0),
    ]
}

fn transfer(name: String, seed: u64, direction: Direction, end_s: f64) -> Scenario {
    let bytes = ((WIFI_MBIT + LTE_MBIT) * 1e6 / 8.0 * end_s * 1.1) as u64;
    Scenario::transfer(
        name,
        derive_seed(seed, 7_700),
        direction,
        bytes,
        Controller::Ours,
        end_s,
        links(),
    )
}

/// One direction, every mode that is asked for.
pub fn run(
    runner: &Runner,
    prefix: &str,
    seed: u64,
    direction: Direction,
) -> Result<Outcome, ScenarioError> {
    let cases: Vec<Case> = cases()
        .into_iter()
        .filter(|case| runner.wants(&format!("{prefix}.{}", case.name)))
        .collect();
    let mut scenarios = Vec::new();
    for case in &cases {
        let name = format!("{prefix}.{}", case.name);
        let mut profile = transfer(name.clone(), seed, direction, END_S);
        profile.pace = vec![(0.0, LIGHT_MBIT), (HEAVY_S, HEAVY_MBIT)];
        if let Some(wifi) = profile.interfaces.first_mut() {
            let changes = vec![(CUT_S, false), (BACK_S, true)];
            wifi.to_server.changes.clone_from(&changes);
            wifi.to_client.changes = changes;
        }
        profile.steered = Some(case.steered());
        let mut full = transfer(format!("{name}.full"), seed, direction, FULL_S);
        full.steered = Some(case.steered());
        scenarios.extend([profile, full]);
    }
    let mut single = transfer(format!("{prefix}.single"), seed, direction, FULL_S);
    single.interfaces.truncate(1);
    scenarios.push(single);
    let reports = runner.run(prefix, &scenarios, Mechanisms::default())?;
    let (mut figures, mut charts) = (Vec::new(), Vec::new());
    let best = reports
        .iter()
        .find(|report| report.name.ends_with(".single"));
    let best = best.map_or(0.0, full_mbit);
    for case in &cases {
        let name = format!("{prefix}.{}", case.name);
        let found = |name: &str| reports.iter().find(|report| report.name == name);
        if let Some(report) = found(&name) {
            figures.extend(profile_figures(case, &name, report));
            charts.push(chart(&name, report));
        }
        if let Some(full) = found(&format!("{name}.full")) {
            let (id, ratio) = (format!("{name}.of_best_single"), full_mbit(full) / best);
            figures.push(if case.may_take_best() {
                Figure::at_least(id, "", None, BEST_SINGLE_MIN, ratio)
            } else {
                Figure::shown(id, "", None, ratio)
            });
        }
    }
    Ok(Outcome {
        figures,
        reports,
        charts,
    })
}

fn full_mbit(report: &RunReport) -> f64 {
    report
        .timeline
        .mbit_within(seconds(SETTLE_S), seconds(FULL_S))
}

fn seconds(value: f64) -> Duration {
    Duration::from_secs_f64(value)
}

/// Percent of the bytes over Wi-Fi, and Mbit/s in order at the receiver.
fn phase(report: &RunReport, from_s: f64, to_s: f64) -> (f64, f64) {
    let (from, to) = (seconds(from_s + SETTLE_S), seconds(to_s));
    let over = |name: &str| {
        let link = report.links.iter().find(|link| link.name == name);
        link.map_or(0.0, |link| mbit_within(&link.bins, from, to))
    };
    let (wifi, lte) = (over(WIFI), over(LTE));
    let share = 100.0 * wifi / (wifi + lte).max(1e-9);
    (share, report.timeline.mbit_within(from, to))
}

fn profile_figures(case: &Case, name: &str, report: &RunReport) -> Vec<Figure> {
    let (light, _) = phase(report, 0.0, HEAVY_S);
    let (heavy, heavy_mbit) = phase(report, HEAVY_S, CUT_S);
    let (_, cut_mbit) = phase(report, CUT_S, BACK_S);
    let banded = |figures: &mut Vec<Figure>, what: &str, (least, most): Band, share: f64| {
        let id = format!("{name}.{what}");
        if (least, most) == (0.0, 100.0) {
            figures.push(Figure::shown(id, "% wifi", None, share));
        } else if least > 0.0 {
            figures.push(Figure::at_least(id.clone(), "% wifi", None, least, share));
            if most < 100.0 {
                figures.push(Figure::at_most(
                    format!("{id}_most"),
                    "% wifi",
                    None,
                    most,
                    share,
                ));
            }
        } else {
            figures.push(Figure::at_most(id, "% wifi", None, most, share));
        }
    };
    let mut figures = Vec::new();
    banded(&mut figures, "light", case.light, light);
    banded(&mut figures, "heavy", case.heavy, heavy);
    let rates = [
        ("heavy_rate", case.heavy_mbit, heavy_mbit),
        ("cut_rate", case.cut_mbit, cut_mbit),
    ];
    for (what, least, mbit) in rates {
        figures.push(Figure::at_least(
            format!("{name}.{what}"),
            "Mbit/s",
            None,
            least,
            mbit,
        ));
    }
    figures
}

/// Mbit/s of each path over time.
fn chart(name: &str, report: &RunReport) -> Drawn {
    let time = Axis::new("time", "s").range(0.0, END_S);
    // Room for the names of moments above the fastest link.
    let rate = Axis::new("rate", "Mbit/s").range(0.0, 1.25 * WIFI_MBIT);
    let mut lines = Lines::new(name, time, rate);
    for link in &report.links {
        let bins = link.bins.iter().enumerate();
        let points: Vec<(f64, f64)> = bins
            .map(|(bin, bytes)| {
                let at = bin as f64 * BIN.as_secs_f64();
                (at, *bytes as f64 * 8.0 / 1e6 / BIN.as_secs_f64())
            })
            .collect();
        lines = lines.series(&link.name, &points);
    }
    let lines = lines
        .moment("60 Mbit/s are sent", HEAVY_S)
        .moment("wifi is cut", CUT_S)
        .moment("wifi returns", BACK_S);
    Drawn::new(name, lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Identity;

    /// Every mode, both directions; the same as `braid-lab steering`.
    #[test]
    fn every_mode_shows_what_its_name_says() {
        let runner = Runner::new(Identity::new().unwrap(), false);
        for (direction, prefix) in [
            (Direction::Upload, "steering"),
            (Direction::Download, "steering.download"),
        ] {
            let outcome = run(&runner, prefix, 1, direction).unwrap();
            let (figures, reports) = (outcome.figures, outcome.reports);
            assert!(reports.len() > 10);
            let missed: Vec<&Figure> = figures.iter().filter(|figure| !figure.met).collect();
            assert!(missed.is_empty(), "{}", crate::figures::table(&figures));
        }
    }
}
