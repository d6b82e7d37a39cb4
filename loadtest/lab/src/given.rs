//! `braid-lab run FILE --report`: the report for a scenario that somebody wrote.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::error::LabError;
use crate::exhibit::{Exhibit, Finished, Section, Table};
use crate::options::ReportOptions;
use crate::page;
use crate::plot::{Axis, Boxes, Lines};
use crate::report::{BIN, RunReport, mean, percentile, sorted};
use crate::runner::Runner;
use crate::scenario::{Compare, Scenario};
use crate::studies::versions::{self, Paths, Ran, Version, two};
use crate::task::Task;

/// Points of a rate over time are means over so many bins.
const WINDOW_BINS: usize = 5;

/// Runs the scenario with every seed, controller and choice of paths that it asks for.
pub(crate) fn run(
    runner: &Runner,
    scenario: &Scenario,
    file: &str,
    out: PathBuf,
) -> Result<ExitCode, LabError> {
    let task = Task {
        keeps: None,
        runner,
        seed: scenario.seed,
        quick: false,
        traces: &[],
    };
    let exhibit = exhibit(&task, scenario, file)?;
    let completed = exhibit.1;
    let finished = [Finished {
        id: "given",
        section: Section::Given,
        exhibit: exhibit.0,
    }];
    let options = ReportOptions::for_file(scenario.seed, out);
    println!("{}", page::report(&options, &finished)?);
    Ok(if completed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn exhibit(task: &Task<'_>, scenario: &Scenario, file: &str) -> Result<(Exhibit, bool), LabError> {
    let compare = scenario.compare.clone().unwrap_or_default();
    let scenarios = seeded(scenario, &compare);
    let names = names(scenario, &compare);
    let mut ran: Vec<(String, Ran)> = Vec::new();
    for (name, version) in names {
        let own = versions::run(task, &name, &[version], &scenarios)?;
        ran.extend(own.into_iter().map(|own| (name.clone(), own)));
    }
    let mut exhibit = Exhibit::new(&scenario.name, &format!("braid-lab run {file} --report"));
    let seeds: Vec<String> = scenarios.iter().map(|own| own.seed.to_string()).collect();
    exhibit.notes.push(format!("Seeds: {}.", seeds.join(", ")));
    exhibit.tables.push(links(scenario));
    exhibit.tables.push(results(&ran));
    let of = |get: fn(&RunReport) -> Vec<f64>| -> Vec<(String, Vec<f64>)> {
        let each = ran
            .iter()
            .map(|(name, ran)| (name.clone(), ran.reports.iter().flat_map(get).collect()));
        each.collect()
    };
    let messages = of(|report| report.messages_ms.clone());
    if messages.iter().any(|entry| !entry.1.is_empty()) {
        let chart = Lines::cdf("Delay of messages", Axis::new("delay", "ms").log());
        let chart = messages
            .iter()
            .fold(chart, |chart, entry| chart.sample(&entry.0, &entry.1));
        exhibit.plot("given.delays", chart);
    }
    let times = of(|report| vec![report.page_s.unwrap_or(report.from_connect_s)]);
    let samples: Vec<(&str, &[f64])> = times
        .iter()
        .map(|(name, values)| (name.as_str(), values.as_slice()))
        .collect();
    let boxes = Boxes::new("Time to the last byte", Axis::new("time", "s").from_zero());
    exhibit.plot("given.times", boxes.group("", &samples));
    for (number, (name, ran)) in ran.iter().enumerate() {
        if let Some(report) = ran.reports.first() {
            exhibit.plot(&format!("given.rates_{number}"), rates(name, report));
        }
    }
    let completed = ran
        .iter()
        .all(|(_, ran)| ran.reports.iter().all(|report| report.completed));
    Ok((exhibit, completed))
}

fn seeded(scenario: &Scenario, compare: &Compare) -> Vec<Scenario> {
    if compare.seeds.is_empty() {
        return vec![scenario.clone()];
    }
    compare
        .seeds
        .iter()
        .map(|&seed| Scenario {
            seed,
            ..scenario.clone()
        })
        .collect()
}

/// The scenario's own controller first, over all links; then what it is compared with.
fn names(scenario: &Scenario, compare: &Compare) -> Vec<(String, Version)> {
    let mut controllers = vec![scenario.controller];
    controllers.extend(
        compare
            .controllers
            .iter()
            .filter(|other| **other != scenario.controller),
    );
    let mut names = Vec::new();
    for controller in controllers {
        let version = |paths| Version {
            name: controller.name(),
            controller,
            paths,
        };
        names.push((controller.name().to_owned(), version(Paths::All)));
        if compare.single_paths && scenario.interfaces.len() > 1 {
            for (index, interface) in scenario.interfaces.iter().enumerate() {
                let name = format!("{}, {} alone", controller.name(), interface.name);
                names.push((name, version(Paths::One(index))));
            }
        }
    }
    names
}

fn links(scenario: &Scenario) -> Table {
    let columns = [
        "link",
        "delay, one way [ms]",
        "jitter [ms]",
        "changes of state",
    ];
    let mut table = Table::new("Links, in the direction of the data", &columns);
    for interface in &scenario.interfaces {
        let half = interface.half(scenario.direction);
        table.row(vec![
            interface.name.clone(),
            two(Some(half.delay_ms)),
            two(Some(half.jitter_ms)),
            format!("{}", half.changes.len()),
        ]);
    }
    table
}

fn results(ran: &[(String, Ran)]) -> Table {
    let columns = [
        "version",
        "completed [%]",
        "time [s]",
        "goodput [Mbit/s]",
        "efficiency [%]",
        "sent again [%]",
        "message p50 [ms]",
        "p99 [ms]",
        "share of the first link [%]",
    ];
    let mut table = Table::new("Results, means over the seeds", &columns);
    for (name, ran) in ran {
        let delays = ran
            .reports
            .iter()
            .flat_map(|report| report.messages_ms.iter().copied());
        let delays = sorted(delays);
        let times: Vec<f64> = ran
            .reports
            .iter()
            .map(|report| report.page_s.unwrap_or(report.from_connect_s))
            .collect();
        table.row(vec![
            name.clone(),
            format!("{:.0}", ran.completed_percent()),
            two(Some(mean(&times))),
            two(Some(ran.mean(versions::goodput))),
            two(Some(ran.mean(versions::efficiency))),
            two(Some(ran.mean(versions::resent_percent))),
            two(percentile(&delays, 0.5)),
            two(percentile(&delays, 0.99)),
            two(Some(ran.mean(first_share))),
        ]);
    }
    table
}

fn first_share(report: &RunReport) -> f64 {
    let sum: u64 = report.carried_bytes.iter().sum();
    let first = report.carried_bytes.first().copied().unwrap_or_default();
    100.0 * first as f64 / sum.max(1) as f64
}

fn rates(name: &str, report: &RunReport) -> Lines {
    let points = |bins: &[u64]| -> Vec<(f64, f64)> {
        let width_s = BIN.as_secs_f64() * WINDOW_BINS as f64;
        let windows = bins.chunks(WINDOW_BINS).zip(0u32..);
        windows
            .map(|(bytes, at)| {
                let sum: u64 = bytes.iter().sum();
                (f64::from(at) * width_s, sum as f64 * 8e-6 / width_s)
            })
            .collect()
    };
    let chart = Lines::new(
        &format!("{name}: rates over time, first seed"),
        Axis::new("time", "s").from_zero(),
        Axis::new("rate", "Mbit/s").from_zero(),
    );
    let chart = chart.series("delivered", &points(&report.timeline.bins));
    report.links.iter().fold(chart, |chart, link| {
        chart.series(&link.name, &points(&link.bins))
    })
}
