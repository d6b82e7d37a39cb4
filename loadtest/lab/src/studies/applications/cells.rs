//! A cell of figure 19: an application over a pair of networks, by single paths and by both.

use multipath::steering_rules::{Document, Mode, Rule};
use serde::{Deserialize, Serialize};

use super::traffic::{self, Application, Pair};
use crate::error::LabError;
use crate::plot::{Cell, Heat, Verdict};
use crate::report::{RunReport, mean, percentile, sorted};
use crate::scenario::{Controller, Scenario};
use crate::seed::derive_seed;
use crate::studies::versions::{self, Paths, Version};
use crate::task::Task;

/// Length of video and games.
const SECONDS: (f64, f64) = (8.0, 60.0);
/// Multipath is better, or only slightly, from here on, in percent.
const BETTER_PERCENT: f64 = 10.0;
/// How far multipath may be behind the best single path.
pub(crate) const SLIGHTLY_PERCENT: f64 = 2.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Transport {
    /// The library's Cubic on every path.
    Cubic,
    Braid,
    /// Braid under a steering rule of this mode; its single paths are Braid's.
    Steered(Mode),
    /// MPTCP of this machine, in kernel time; its single paths are TCP's.
    Mptcp,
    /// SCTP of userland with concurrent multipath transfer; its single paths are SCTP's.
    CmtSctp,
    /// The product's own tunnel in kernel time.
    Tunnel,
}

impl Transport {
    pub(crate) fn id(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Braid => "braid",
            Self::Steered(Mode::SmallestDelay) => "smallest_delay",
            Self::Steered(Mode::ActiveStandby) => "active_standby",
            Self::Steered(Mode::Priority) => "priority",
            Self::Steered(mode) => mode.name(),
            Self::Mptcp => "mptcp",
            Self::CmtSctp => "cmt_sctp",
            Self::Tunnel => "tunnel",
        }
    }

    /// For readers.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Steered(mode) => mode.name(),
            Self::Cubic | Self::Braid => self.id(),
            Self::Mptcp => "MPTCP against TCP",
            Self::CmtSctp => "CMT-SCTP against SCTP",
            Self::Tunnel => "Braid in kernel time",
        }
    }

    /// Names of both single paths and of both together.
    pub(crate) fn names(self) -> [&'static str; 3] {
        match self {
            Self::Cubic => ["cubic 1", "cubic 2", "cubic"],
            Self::Braid | Self::Tunnel => ["Braid 1", "Braid 2", "Braid"],
            Self::Mptcp => ["TCP 1", "TCP 2", "MPTCP"],
            Self::CmtSctp => ["SCTP 1", "SCTP 2", "CMT-SCTP"],
            Self::Steered(mode) => [mode.name(); 3],
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quantile {
    P50,
    P99,
}

impl Quantile {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::P50 => "p50",
            Self::P99 => "p99",
        }
    }

    fn share(self) -> f64 {
        match self {
            Self::P50 => 0.5,
            Self::P99 => 0.99,
        }
    }
}

/// Figures that are kept of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Measured {
    page_s: f64,
    /// Delays of messages.
    p50_ms: f64,
    p99_ms: f64,
    mean_ms: f64,
    /// Differences of successive delays at p99.
    jitter_ms: f64,
    /// By path.
    carried_bytes: Vec<u64>,
}

/// The runs of one transport: over each path alone, and over both.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Runs {
    pub(crate) transport: Transport,
    pub(crate) single: [Vec<Measured>; 2],
    pub(crate) multi: Vec<Measured>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CellRuns {
    pub(crate) application: Application,
    pub(crate) background: bool,
    pub(crate) pair: Pair,
    pub(crate) runs: Vec<Runs>,
}

pub(crate) fn run(
    task: &Task<'_>,
    application: Application,
    background: bool,
    pair: Pair,
    repetitions: u32,
) -> Result<CellRuns, LabError> {
    let id = format!(
        "applications.cell.{}.{}",
        application.key(background),
        pair.key()
    );
    task.part(&id, || {
        run_with(task, application, background, pair, repetitions, None)
    })
}

pub(crate) fn run_with(
    task: &Task<'_>,
    application: Application,
    background: bool,
    pair: Pair,
    repetitions: u32,
    buffer_bytes: Option<u64>,
) -> Result<CellRuns, LabError> {
    let seconds = if task.quick { SECONDS.0 } else { SECONDS.1 };
    // A page is one value a run: its quantiles need more of them.
    let repetitions = if application.is_page() {
        repetitions * 3
    } else {
        repetitions
    };
    let scenarios: Vec<Scenario> = (0..repetitions)
        .flat_map(|repetition| {
            let seed = derive_seed(task.seed, 5000 + u64::from(repetition));
            traffic::scenarios(application, background, pair, seed, seconds, buffer_bytes)
        })
        .collect();
    let what = format!("{} {}", application.key(background), pair.title());
    // A quick report leaves out the library's own.
    let cubic = (!task.quick).then_some((Transport::Cubic, Controller::Cubic));
    let own: Vec<(Transport, Controller)> = cubic
        .into_iter()
        .chain([(Transport::Braid, Controller::Ours)])
        .collect();
    let modes = MODES.map(|mode| {
        let own = scenarios.iter().cloned();
        let own: Vec<Scenario> = own.map(|scenario| steered(mode, scenario)).collect();
        (mode, own)
    });
    let mut each: Vec<(Version, &[Scenario])> = Vec::new();
    for &(transport, controller) in &own {
        let version = |paths| Version {
            name: transport.id(),
            controller,
            paths,
        };
        let all = [Paths::One(0), Paths::One(1), Paths::All].map(version);
        each.extend(all.map(|version| (version, scenarios.as_slice())));
    }
    each.extend(modes.iter().map(|(mode, own)| {
        let version = Version {
            name: mode.name(),
            controller: Controller::Ours,
            paths: Paths::All,
        };
        (version, own.as_slice())
    }));
    let ran = versions::run_each(task, &what, &each)?;
    let mut measured = ran
        .iter()
        .zip(&each)
        .map(|(ran, (_, own))| measured(&ran.reports, own));
    let mut runs: Vec<Runs> = Vec::new();
    for (transport, _) in own {
        if let (Some(first), Some(second), Some(multi)) =
            (measured.next(), measured.next(), measured.next())
        {
            runs.push(Runs {
                transport,
                single: [first, second],
                multi,
            });
        }
    }
    let braid = runs.iter().find(|runs| runs.transport == Transport::Braid);
    let single = braid.map(|braid| braid.single.clone());
    runs.extend(modes.iter().zip(measured).filter_map(|((mode, _), multi)| {
        Some(Runs {
            transport: Transport::Steered(*mode),
            single: single.clone()?,
            multi,
        })
    }));
    Ok(CellRuns {
        application,
        background,
        pair,
        runs,
    })
}

/// Steering modes that are tried beside the automatic setting.
pub(crate) const MODES: [Mode; 4] = [
    Mode::SmallestDelay,
    Mode::ActiveStandby,
    Mode::Priority,
    Mode::Redundant,
];

/// The same under a steering rule of that mode. Modes with an order take the first path first,
/// which is the WLAN where there is one.
fn steered(mode: Mode, mut scenario: Scenario) -> Scenario {
    let names = scenario.interfaces.iter();
    let ordered = matches!(mode, Mode::ActiveStandby | Mode::Priority);
    let rule = Rule {
        name: "lab".to_owned(),
        mode,
        accesses: names
            .filter(|_| ordered)
            .map(|interface| interface.name.clone())
            .collect(),
        metered: true,
        roaming: true,
        ..Rule::default()
    };
    scenario.steer(Document {
        rules: vec![rule],
        ..Document::default()
    });
    scenario
}

impl CellRuns {
    pub(crate) fn is(&self, application: Application, background: bool, pair: Pair) -> bool {
        self.application == application && self.background == background && self.pair == pair
    }

    pub(crate) fn has(&self, transport: Transport) -> bool {
        self.of(transport).is_some()
    }

    fn of(&self, transport: Transport) -> Option<&Runs> {
        self.runs.iter().find(|runs| runs.transport == transport)
    }

    /// The quantile over both paths, and over the better one alone.
    pub(crate) fn both(&self, transport: Transport, quantile: Quantile) -> Option<(f64, f64)> {
        let runs = self.of(transport)?;
        if self.application.is_page() {
            // One value a run: the better path in each, then the quantile over all.
            let share = quantile.share();
            let best = sorted(runs.best(|it| it.page_s));
            let multi = sorted(runs.multi.iter().map(|it| it.page_s));
            return Some((percentile(&multi, share)?, percentile(&best, share)?));
        }
        Some(runs.means(match quantile {
            Quantile::P50 => |it| it.p50_ms,
            Quantile::P99 => |it| it.p99_ms,
        }))
    }

    /// Differences of successive delays at p99, likewise.
    pub(crate) fn jitter_both(&self, transport: Transport) -> Option<(f64, f64)> {
        Some(self.of(transport)?.means(|it| it.jitter_ms))
    }

    /// By how much multipath is worse, in percent; negative where it is better.
    pub(crate) fn change_percent(&self, transport: Transport, quantile: Quantile) -> Option<f64> {
        let (multi, single) = self.both(transport, quantile)?;
        (single > 0.0).then(|| 100.0 * (multi / single - 1.0))
    }

    /// Percent of the bytes of the measured connection on the first path.
    pub(crate) fn share_of_first(&self, transport: Transport) -> Option<f64> {
        let runs = self.of(transport)?;
        let sum = |index: usize| -> u64 {
            runs.multi
                .iter()
                .filter_map(|it| it.carried_bytes.get(index))
                .sum()
        };
        let (first, second) = (sum(0), sum(1));
        (first + second > 0).then(|| 100.0 * first as f64 / (first + second) as f64)
    }

    /// Values for box plots: both single paths and multipath of either transport.
    pub(crate) fn samples(&self) -> Vec<(&'static str, Vec<f64>)> {
        let is_page = self.application.is_page();
        let values = |all: &[Measured]| -> Vec<f64> {
            let value = |it: &Measured| if is_page { it.page_s } else { it.mean_ms };
            all.iter().map(value).collect()
        };
        let mut samples = Vec::new();
        for runs in &self.runs {
            let names = runs.transport.names();
            if matches!(runs.transport, Transport::Steered(_)) {
                samples.push((names[2], values(&runs.multi)));
                continue;
            }
            samples.push((names[0], values(&runs.single[0])));
            samples.push((names[1], values(&runs.single[1])));
            samples.push((names[2], values(&runs.multi)));
        }
        samples
    }
}

impl Runs {
    /// The value over the better path alone, in each run.
    fn best(&self, value: impl Fn(&Measured) -> f64) -> impl Iterator<Item = f64> {
        let [first, second] = &self.single;
        let pairs = first.iter().zip(second);
        pairs.map(move |(one, two)| value(one).min(value(two)))
    }

    /// The mean over both paths, and over the better one alone.
    fn means(&self, value: fn(&Measured) -> f64) -> (f64, f64) {
        let multi: Vec<f64> = self.multi.iter().map(value).collect();
        let best: Vec<f64> = self.best(value).collect();
        (mean(&multi), mean(&best))
    }
}

fn measured(reports: &[RunReport], scenarios: &[Scenario]) -> Vec<Measured> {
    let pairs = reports.iter().zip(scenarios);
    pairs
        .map(|(report, scenario)| measured_of(report, scenario))
        .collect()
}

/// A run that did not complete counts with its limit, and so does each message that it lacks.
pub(crate) fn measured_of(report: &RunReport, scenario: &Scenario) -> Measured {
    let limit_ms = scenario.limit_s * 1e3;
    let mut delays = report.messages_ms.clone();
    if let Some(mix) = scenario.mix.as_ref().filter(|_| !report.completed) {
        let all = mix.messages(scenario.seed).len();
        delays.resize(all.max(delays.len()), limit_ms);
    }
    let pairs = delays.windows(2);
    let differences = sorted(pairs.map(|pair| (pair[1] - pair[0]).abs()));
    let mean_ms = mean(&delays);
    let delays = sorted(delays);
    let delay = |share| percentile(&delays, share).unwrap_or(limit_ms);
    Measured {
        page_s: report.page_s.unwrap_or(scenario.limit_s),
        p50_ms: delay(0.5),
        p99_ms: delay(0.99),
        mean_ms,
        jitter_ms: percentile(&differences, 0.99).unwrap_or(limit_ms),
        carried_bytes: report.carried_bytes.clone(),
    }
}

/// A coloured cell for a change in percent.
fn coloured(change: Option<f64>) -> Cell {
    let Some(change) = change else {
        return Cell::new("-", Verdict::Unknown);
    };
    let verdict = if change > SLIGHTLY_PERCENT {
        Verdict::Worse
    } else if change > -SLIGHTLY_PERCENT {
        Verdict::Same
    } else if change > -BETTER_PERCENT {
        Verdict::SlightlyBetter
    } else {
        Verdict::Better
    };
    Cell::new(&format!("{change:+.1} %"), verdict)
}

/// How many cells are red.
pub(crate) fn red_cells(all: &[CellRuns], transport: Transport, quantile: Quantile) -> usize {
    let changes = all
        .iter()
        .filter_map(|cell| cell.change_percent(transport, quantile));
    changes.filter(|change| *change > SLIGHTLY_PERCENT).count()
}

/// The name of a row.
pub(crate) fn row_name(application: Application, background: bool) -> String {
    let beside = if background { ", background" } else { "" };
    format!("{}{beside}", application.title())
}

/// Figure 19 of a transport.
pub(crate) fn heat(all: &[CellRuns], transport: Transport, name: &str, quantile: Quantile) -> Heat {
    let title = format!(
        "{name}: change of {} against the best single path",
        quantile.name()
    );
    let columns = Pair::ALL.map(Pair::title);
    let mut heat = Heat::new(&title, &columns);
    for application in Application::ALL {
        for background in [false, true] {
            let cells = Pair::ALL.map(|pair| {
                let runs = all
                    .iter()
                    .find(|runs| runs.is(application, background, pair));
                coloured(runs.and_then(|runs| runs.change_percent(transport, quantile)))
            });
            heat = heat.row(&row_name(application, background), cells.into());
        }
    }
    heat
}

/// A cell of the paper by its word.
pub(crate) fn paper_cell(word: Option<&str>) -> Cell {
    let verdict = match word {
        Some("better") => Verdict::Better,
        Some("slightly_better") => Verdict::SlightlyBetter,
        Some("same") => Verdict::Same,
        Some("worse") => Verdict::Worse,
        _ => Verdict::Unknown,
    };
    let text = word.unwrap_or("-").replace('_', " ");
    Cell::new(&text, verdict)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Identity, Mechanisms, run};

    /// Means over some seeds of the delays of messages at p50 and p99.
    fn delays(
        (application, background, pair): (Application, bool, Pair),
        paths: Paths,
        mode: Option<Mode>,
    ) -> (f64, f64) {
        let identity = Identity::new().unwrap();
        let version = Version {
            name: "ours",
            controller: Controller::Ours,
            paths,
        };
        let mut all = Vec::new();
        for seed in 1..=3 {
            let scenarios = traffic::scenarios(application, background, pair, seed, 6.0, None);
            for scenario in scenarios {
                let scenario = match mode {
                    Some(mode) => steered(mode, scenario),
                    None => scenario,
                };
                let scenario = version.of(&scenario);
                let report = run(&scenario, &identity, Mechanisms::default()).unwrap();
                all.extend(measured(&[report], &[scenario]));
            }
        }
        let of = |value: fn(&Measured) -> f64| mean(&all.iter().map(value).collect::<Vec<_>>());
        (of(|it| it.p50_ms), of(|it| it.p99_ms))
    }

    #[test]
    fn a_redundant_application_is_no_slower_than_over_its_better_path() {
        let mut slower = Vec::new();
        for application in [Application::Video, Application::Game] {
            for pair in [Pair::WlanWlan, Pair::ThreeThree, Pair::WlanThree] {
                let cell = (application, false, pair);
                let single = [0, 1].map(|path| delays(cell, Paths::One(path), None));
                let auto = delays(cell, Paths::All, None);
                let redundant = delays(cell, Paths::All, Some(Mode::Redundant));
                println!(
                    "{application:?} {pair:?}: {single:.1?}, auto {auto:.1?}, redundant {redundant:.1?}"
                );
                let best = |value: fn(&(f64, f64)) -> f64| {
                    single.iter().map(value).fold(f64::MAX, f64::min)
                };
                if redundant.0 > 1.02 * best(|it| it.0) || redundant.1 > 1.02 * best(|it| it.1) {
                    slower.push(cell);
                }
            }
        }
        assert_eq!(slower, []);
    }

    /// The bulk flow on 3G keeps a queue of two seconds there.
    #[test]
    fn copies_over_a_late_path_delay_nothing() {
        for application in [Application::Video, Application::Game] {
            let cell = (application, true, Pair::WlanThree);
            let wlan = delays(cell, Paths::One(0), None);
            let redundant = delays(cell, Paths::All, Some(Mode::Redundant));
            println!("{application:?}: {wlan:.1?}, redundant {redundant:.1?}");
            assert!(redundant.0 < wlan.0 * 1.05, "{redundant:?} {wlan:?}");
            assert!(redundant.1 < wlan.1 * 1.2, "{redundant:?} {wlan:?}");
        }
    }

    /// Pings alone meet the queue of the bulk flows, before the application begins.
    #[test]
    fn an_application_gets_its_share_beside_bulk_that_began_earlier() {
        for application in [Application::Video, Application::Game] {
            let cell = (application, true, Pair::ThreeThree);
            let single = [0, 1].map(|path| delays(cell, Paths::One(path), None));
            let auto = delays(cell, Paths::All, None);
            println!("{application:?}: {single:.0?}, auto {auto:.0?}");
            // The queue takes half a second.
            assert!(auto.0 < 1_000.0 && auto.1 < 2_500.0, "{auto:?}");
            let best = single.iter().map(|it| it.0).fold(f64::MAX, f64::min);
            assert!(auto.0 <= best * 1.02, "{auto:?} {single:?}");
        }
    }
}
