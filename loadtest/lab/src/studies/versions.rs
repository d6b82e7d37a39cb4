//! Transports that are compared in virtual time: a controller, over one path or over all.

use crate::error::LabError;
use crate::mechanisms::Mechanisms;
use crate::report::{RunReport, mean};
use crate::scenario::{Controller, Scenario};
use crate::task::Task;

/// Which links of a scenario a version uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paths {
    /// This one alone.
    One(usize),
    All,
}

/// One transport.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Version {
    pub(crate) name: &'static str,
    pub(crate) controller: Controller,
    pub(crate) paths: Paths,
}

impl Version {
    const fn new(name: &'static str, controller: Controller, paths: Paths) -> Self {
        Self {
            name,
            controller,
            paths,
        }
    }

    /// The scenario as this version runs it.
    pub(crate) fn of(&self, scenario: &Scenario) -> Scenario {
        let mut own = scenario.clone();
        own.controller = self.controller;
        if let Paths::One(index) = self.paths
            && let Some(interface) = scenario.interfaces.get(index)
        {
            own.interfaces = vec![interface.clone()];
            // Those on the other links would come to this one.
            let links = scenario.interfaces.len();
            let competitors = scenario.competitors.iter().enumerate();
            own.competitors = competitors
                .filter(|(number, _)| number % links == index)
                .map(|(_, controller)| *controller)
                .collect();
        }
        own
    }
}

/// Single-path versions; the paper's single path is its first.
pub(crate) const QUIC_CUBIC: Version =
    Version::new("QUIC cubic, one path", Controller::Cubic, Paths::One(0));
pub(crate) const QUIC_BBR: Version =
    Version::new("QUIC bbr, one path", Controller::Bbr, Paths::One(0));
pub(crate) const BRAID_ONE: Version =
    Version::new("Braid, one path", Controller::Ours, Paths::One(0));
pub(crate) const OLIA: Version = Version::new("MPQUIC olia", Controller::Olia, Paths::All);
pub(crate) const CUBIC: Version = Version::new("MPQUIC cubic", Controller::Cubic, Paths::All);
pub(crate) const NEWRENO: Version = Version::new("MPQUIC newreno", Controller::Newreno, Paths::All);
pub(crate) const BBR: Version = Version::new("MPQUIC bbr", Controller::Bbr, Paths::All);
pub(crate) const BRAID: Version = Version::new("Braid", Controller::Ours, Paths::All);

/// The runs of one version.
pub(crate) struct Ran {
    pub(crate) version: Version,
    pub(crate) reports: Vec<RunReport>,
}

impl Ran {
    pub(crate) fn of(&self, get: fn(&RunReport) -> f64) -> Vec<f64> {
        self.reports.iter().map(get).collect()
    }

    pub(crate) fn mean(&self, get: fn(&RunReport) -> f64) -> f64 {
        mean(&self.of(get))
    }

    pub(crate) fn completed_percent(&self) -> f64 {
        let done = self
            .reports
            .iter()
            .filter(|report| report.completed)
            .count();
        100.0 * done as f64 / self.reports.len().max(1) as f64
    }
}

/// Runs every version over every scenario, in the order of both.
pub(crate) fn run(
    task: &Task<'_>,
    what: &str,
    versions: &[Version],
    scenarios: &[Scenario],
) -> Result<Vec<Ran>, LabError> {
    let each: Vec<(Version, &[Scenario])> = versions
        .iter()
        .map(|version| (*version, scenarios))
        .collect();
    run_each(task, what, &each)
}

/// Runs each version over its own scenarios, all of them at once: a core without work takes a run
/// of the next version.
pub(crate) fn run_each(
    task: &Task<'_>,
    what: &str,
    each: &[(Version, &[Scenario])],
) -> Result<Vec<Ran>, LabError> {
    let own = |(version, scenarios): &(Version, &[Scenario])| -> Vec<Scenario> {
        scenarios
            .iter()
            .map(|scenario| version.of(scenario))
            .collect()
    };
    let all: Vec<Vec<Scenario>> = each.iter().map(own).collect();
    let counts: Vec<usize> = all
        .iter()
        .map(|own| own.iter().filter(|one| task.runner.is_asked(one)).count())
        .collect();
    let reports = task
        .runner
        .run(what, &all.concat(), Mechanisms::default())?;
    let mut reports = reports.into_iter();
    let ran = each.iter().zip(counts).map(|((version, _), count)| Ran {
        version: *version,
        reports: reports.by_ref().take(count).collect(),
    });
    Ok(ran.collect())
}

/// Mbit/s that arrived, from connect().
pub(crate) fn goodput(report: &RunReport) -> f64 {
    report.delivered_bytes as f64 * 8e-6 / report.from_connect_s.max(1e-3)
}

/// Mbit/s that the links could carry meanwhile.
pub(crate) fn capacity(report: &RunReport) -> f64 {
    goodput(report) / (report.efficiency_connect / 100.0).max(1e-9)
}

/// Percent of the sent packets that were declared lost and sent again.
pub(crate) fn resent_percent(report: &RunReport) -> f64 {
    100.0 * report.lost_packets as f64 / report.sent_packets.max(1) as f64
}

pub(crate) fn time(report: &RunReport) -> f64 {
    report.from_connect_s
}

pub(crate) fn efficiency(report: &RunReport) -> f64 {
    report.efficiency_connect
}

/// Quotients of two versions' times, run by run; infinite where the slower one never completed.
pub(crate) fn ratios(slower: &Ran, faster: &Ran) -> Vec<f64> {
    let pairs = slower.reports.iter().zip(&faster.reports);
    let ratio = |(slower, faster): (&RunReport, &RunReport)| {
        if slower.completed {
            time(slower) / time(faster).max(1e-6)
        } else {
            f64::INFINITY
        }
    };
    pairs.map(ratio).collect()
}

/// `2.31`, or a dash where there is nothing.
pub(crate) fn two(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Direction, Interface};

    #[test]
    fn a_link_alone_keeps_the_competitors_that_it_had() {
        let interfaces = ["a", "b"].map(|name| Interface::symmetric(name, 5.0, 20.0, 0.0));
        let mut scenario = Scenario::transfer(
            "competing",
            1,
            Direction::Download,
            1,
            Controller::Ours,
            1.0,
            interfaces.into(),
        );
        scenario.competitors = vec![Controller::Cubic, Controller::Bbr, Controller::Newreno];
        let alone = |paths| Version { paths, ..BRAID }.of(&scenario).competitors;
        assert_eq!(
            alone(Paths::One(0)),
            [Controller::Cubic, Controller::Newreno]
        );
        assert_eq!(alone(Paths::One(1)), [Controller::Bbr]);
        assert_eq!(alone(Paths::All), scenario.competitors);
    }
}
