//! Single runs over time: figures 6 and 7, and the link that all paths share (figure 4).

use super::drives::DRIVES;
use crate::drive::Environment;
use crate::error::LabError;
use crate::exhibit::{Exhibit, Table};
use crate::figure6 as of_figure6;
use crate::figures::Figure;
use crate::lte::{self as of_lte, Cells};
use crate::plot::{Axis, Lines};
use crate::references;
use crate::report::{BIN, RunReport, mean};
use crate::scenario::{Controller, Direction, RateSpec, Scenario};
use crate::studies::versions::{self, BBR, BRAID, CUBIC, two};
use crate::task::Task;

/// Points of a rate over time: Mbit/s in windows of so many bins.
fn rates(bins: &[u64], window: usize) -> Vec<(f64, f64)> {
    let width_s = BIN.as_secs_f64() * window as f64;
    let windows = bins.chunks(window).zip(0u32..);
    windows
        .map(|(bytes, at)| {
            let sum: u64 = bytes.iter().sum();
            (f64::from(at) * width_s, sum as f64 * 8e-6 / width_s)
        })
        .collect()
}

/// Bytes of all links together, by bin: free of the waiting in order.
fn sum_of_links(report: &RunReport) -> Vec<u64> {
    let lengths = report.links.iter().map(|link| link.bins.len());
    let length = lengths.max().unwrap_or_default();
    let bin = |index: usize| {
        let bins = report.links.iter().filter_map(|link| link.bins.get(index));
        bins.sum()
    };
    (0..length).map(bin).collect()
}

pub(super) fn figure6(task: &Task<'_>) -> Result<Exhibit, LabError> {
    let direction = Direction::Download;
    let scenario = of_figure6::scenario(task.seed, Controller::Ours, direction);
    let title = "A link that comes and goes: figure 6";
    let mut exhibit = Exhibit::new(title, &task.command("lte.figure6")).note(
        "4 Mbit/s all the time and 8 Mbit/s at 2 to 4 s and 6 to 8 s, round trips 40 ms. A \
         returned link is to carry 80 % of its rate within 300 ms.",
    );
    let ran = versions::run(task, "lte.figure6", &[BRAID, CUBIC], &[scenario])?;
    let mut chart = Lines::new(
        "Rate of all links, beside the capacity",
        Axis::new("time", "s").range(0.0, 10.0),
        Axis::new("rate", "Mbit/s").from_zero(),
    );
    for own in &ran {
        if let Some(report) = own.reports.first() {
            chart = chart.series(own.version.name, &rates(&sum_of_links(report), 2));
        }
    }
    if let Some(report) = ran.first().and_then(|ran| ran.reports.first()) {
        exhibit.figures = of_figure6::figures("figure6", report);
        for link in &report.links {
            chart = chart.series(&format!("Braid, {}", link.name), &rates(&link.bins, 2));
        }
    }
    let capacity = [
        (0.0, 4.0),
        (2.0, 12.0),
        (4.0, 4.0),
        (6.0, 12.0),
        (8.0, 4.0),
        (10.0, 4.0),
    ];
    exhibit.plot("lte.fig6", chart.steps("capacity", &capacity));
    Ok(exhibit)
}

pub(super) fn figure7(task: &Task<'_>) -> Result<Exhibit, LabError> {
    let drive = of_lte::drive(Environment::Road, task.seed);
    let direction = Direction::Download;
    let points = 18;
    let cells = Cells::Best(2);
    let scenarios = of_lte::scenarios(
        &drive,
        cells,
        task.seed,
        points,
        Controller::Ours,
        direction,
    );
    // A run in whose first 15 s a link changes at least twice, as in the paper's.
    let changing = scenarios
        .iter()
        .find(|scenario| changes_before(scenario, 15.0) >= 2);
    let scenario = changing.or(scenarios.first()).cloned();
    let title = "One run of case 2 on the road: figure 7";
    let mut exhibit = Exhibit::new(title, &task.command("lte.figure7")).note(DRIVES).note(
        "The paper shows new paths that take seconds to rise after a handover. Here each link's \
         share and the capacity of the links that are up, in windows of 0.3 s.",
    );
    let scenarios: Vec<Scenario> = scenario.into_iter().collect();
    let ran = versions::run(task, "lte.figure7", &[BBR, BRAID], &scenarios)?;
    for (own, chart) in ran.iter().zip(["lte.fig7_bbr", "lte.fig7_braid"]) {
        let (Some(report), Some(scenario)) = (own.reports.first(), scenarios.first()) else {
            continue;
        };
        exhibit.plot(chart, over_time(own.version.name, report, scenario));
    }
    Ok(exhibit)
}

fn changes_before(scenario: &Scenario, before_s: f64) -> usize {
    let changes = scenario
        .interfaces
        .iter()
        .flat_map(|interface| &interface.to_client.changes);
    changes
        .filter(|change| change.0 > 0.0 && change.0 < before_s)
        .count()
}

fn over_time(name: &str, report: &RunReport, scenario: &Scenario) -> Lines {
    let end = report.from_connect_s.ceil().clamp(10.0, 40.0);
    let mut chart = Lines::new(
        &format!("{name}: rate of each link, and the capacity"),
        Axis::new("time", "s").range(0.0, end),
        Axis::new("rate", "Mbit/s").from_zero(),
    );
    let inside = |points: Vec<(f64, f64)>| -> Vec<(f64, f64)> {
        points.into_iter().filter(|point| point.0 <= end).collect()
    };
    let seconds = end as usize;
    let mut capacity = vec![0.0; seconds + 1];
    for interface in &scenario.interfaces {
        let half = &interface.to_client;
        let RateSpec::Steps(steps) = &half.rate else {
            continue;
        };
        for (second, sum) in capacity.iter_mut().enumerate() {
            let changes = half.changes.iter();
            let last = changes
                .take_while(|change| change.0 <= second as f64)
                .last();
            if last.is_none_or(|change| change.1) {
                *sum += steps.get(second).map_or(0.0, |step| step.1);
            }
        }
    }
    let points: Vec<(f64, f64)> = capacity
        .iter()
        .enumerate()
        .map(|(second, mbit)| (second as f64, *mbit))
        .collect();
    chart = chart.steps("capacity", &points);
    chart = chart.series("all links", &inside(rates(&sum_of_links(report), 3)));
    for link in &report.links {
        chart = chart.series(&link.name, &inside(rates(&link.bins, 3)));
    }
    chart
}

/// Case 4 behind a shared link next to the server that is narrower than its paths together.
pub(super) fn trunk(task: &Task<'_>) -> Result<Exhibit, LabError> {
    let drive = of_lte::drive(Environment::Residential, task.seed);
    let direction = Direction::Download;
    let points = task.pick(3, 18);
    let title = "A link next to the server that all paths share: figure 4";
    let mut exhibit = Exhibit::new(title, &task.command("lte.trunk")).note(
        "The paper multiplexes all traffic between server and switch on one link, whose rate it \
         does not print. Case 4 of the residential drive, with that link at 15 Mbit/s (narrower \
         than the paths together) and at 1 Gbit/s. The share is goodput by the lesser of both \
         capacities.",
    );
    let columns = [
        "shared link [Mbit/s]",
        "version",
        "goodput [Mbit/s]",
        "share [%]",
    ];
    let mut table = Table::new("Downloads behind a shared link", &columns);
    for mbit in [15.0, 1000.0] {
        let mut scenarios = of_lte::scenarios(
            &drive,
            Cells::Best(4),
            task.seed,
            points,
            Controller::Ours,
            direction,
        );
        for scenario in &mut scenarios {
            scenario.trunk_mbit = Some(mbit);
        }
        for ran in versions::run(task, "lte.trunk", &[CUBIC, BBR, BRAID], &scenarios)? {
            let share = |report: &RunReport| {
                100.0 * versions::goodput(report) / versions::capacity(report).min(mbit)
            };
            let shares: Vec<f64> = ran.reports.iter().map(share).collect();
            table.row(vec![
                format!("{mbit:.0}"),
                ran.version.name.to_owned(),
                two(Some(ran.mean(versions::goodput))),
                two(Some(mean(&shares))),
            ]);
            if ran.version.name == BRAID.name {
                let id = format!("lte.trunk.{mbit:.0}");
                let paper = references::figure(&id);
                exhibit
                    .figures
                    .push(Figure::shown(id, "%", paper, mean(&shares)));
            }
        }
    }
    exhibit.tables.push(table);
    Ok(exhibit)
}
