//! Kernel time in the report: TCP and MPTCP of this machine beside Braid, over the same links, and
//! the prober over real packets.

mod packets;

use serde::{Deserialize, Serialize};

use super::baseline::{self, Transport, available_congestions, best_alone};
use super::bed::{KernelError, KernelReport};
use super::compare::{believed, shortened};
use super::identities::Identities;
use super::permission::refusal;
use super::transfer;
use super::waiting;
use super::yardstick as of_yardstick;
use crate::drive::Environment;
use crate::error::LabError;
use crate::exhibit::{Exhibit, Section, Table};
use crate::figures::Figure;
use crate::lte::{self as of_lte, Cells};
use crate::pals::{self as of_pals, Case, Reading, Setting};
use crate::plot::{Axis, Boxes, Lines};
use crate::references;
use crate::report::mean;
use crate::scenario::{Controller, Direction, Scenario};
use crate::studies::yardstick::names;
use crate::task::{Experiment, Task, Time};

/// Runs are made again until the machine keeps up, at most so often.
const ATTEMPTS: u32 = 3;
/// The kernel's congestion controls in a quick report.
const QUICK: [&str; 1] = ["cubic"];
/// Transports of PALS at once: their links carry 10 Mbit/s together, so they mostly wait.
const PALS_AT_ONCE: usize = 3;
/// The profile of the public yardstick in a quick report.
const QUICK_PROFILE: &str = "lte_starlink";

pub(crate) fn experiments() -> Vec<Experiment> {
    vec![
        Experiment {
            id: "pals.kernel",
            section: Section::Pals,
            time: Time::Kernel,
            cost_s: (31, 1800),
            run: pals,
        },
        Experiment {
            id: "lte.kernel",
            section: Section::Lte,
            time: Time::Kernel,
            cost_s: (1, 1500),
            run: lte,
        },
        Experiment {
            id: "yardstick.kernel",
            section: Section::Yardstick,
            time: Time::Kernel,
            cost_s: (37, 480),
            run: yardstick,
        },
        Experiment {
            id: "keepalive.packets",
            section: Section::Keepalive,
            time: Time::Kernel,
            cost_s: (12, 130),
            run: packets::run,
        },
    ]
}

/// One transport's runs: goodput in Mbit/s and efficiency in percent.
#[derive(Serialize, Deserialize)]
struct Row {
    name: String,
    goodput: Vec<f64>,
    efficiency: Vec<f64>,
    gaps_s: Vec<f64>,
    doubtful: u32,
}

impl Row {
    fn new(name: String) -> Self {
        let (goodput, efficiency, gaps_s) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            name,
            goodput,
            efficiency,
            gaps_s,
            doubtful: 0,
        }
    }

    fn add(&mut self, run: &KernelReport) {
        let report = &run.report;
        let mbit = report.delivered_bytes as f64 * 8e-6 / report.from_connect_s.max(1e-3);
        self.goodput.push(mbit);
        self.efficiency.push(report.efficiency_connect);
        self.gaps_s.extend(report.bulk_gap_ms.map(|ms| ms / 1e3));
        self.doubtful += u32::from(!run.kept.up);
    }
}

/// Braid, and each of the kernel's transports, over every scenario. `id` names the parts that are
/// kept; so many transports run at once, each in namespaces of its own.
fn rows(
    task: &Task<'_>,
    id: &str,
    scenarios: &[Scenario],
    at_once: usize,
) -> Result<Vec<Row>, LabError> {
    let identities = Identities::new().map_err(KernelError::from)?;
    let congestions = if task.quick {
        QUICK.to_vec()
    } else {
        available_congestions()
    };
    let both = [Transport::Tcp, Transport::Mptcp];
    let transports: Vec<(Transport, &str)> = congestions
        .iter()
        .flat_map(|congestion| both.map(|transport| (transport, *congestion)))
        .collect();
    let runs = scenarios.len() * (transports.len() + 1);
    let bar = task.runner.bar(id, runs as u64);
    type Run<'a> = &'a dyn Fn(&Scenario) -> Result<KernelReport, KernelError>;
    let row = |name: String, run: Run<'_>| {
        task.part(&format!("{id}.{}", name.replace(' ', "_")), || {
            let mut row = Row::new(name);
            for scenario in scenarios {
                row.add(&believed(ATTEMPTS, || run(scenario))?.0);
                bar.inc(1);
            }
            Ok(row)
        })
    };
    let own = |other: Option<(Transport, &str)>| {
        let Some((transport, congestion)) = other else {
            let run: Run<'_> = &|scenario| transfer::run(scenario, &identities);
            return row("Braid".to_owned(), run);
        };
        let name = format!("{} {congestion}", transport.name().to_uppercase());
        row(name, &|scenario| {
            let alone = best_alone(scenario);
            let own = if transport == Transport::Tcp {
                &alone
            } else {
                scenario
            };
            baseline::run(own, transport, congestion)
        })
    };
    let others = transports.into_iter().map(Some);
    let all = std::iter::once(None).chain(others).collect();
    let rows = waiting::at_once(at_once, all, own);
    bar.finish_and_clear();
    rows
}

/// Braid's goodput by that of the kernel's transports, over the same scenarios: the ratio of times
/// where both end.
fn ratios(title: &str, rows: &[Row]) -> Lines {
    let axis = Axis::new("ratio of goodputs", "").log();
    let chart = Lines::cdf(title, axis).moment("equal", 1.0);
    let [ours, others @ ..] = rows else {
        return chart;
    };
    others.iter().fold(chart, |chart, other| {
        let pairs = ours.goodput.iter().zip(&other.goodput);
        // A run that delivered nothing is infinitely slower.
        let ratios: Vec<f64> = pairs.map(|(ours, other)| ours / other).collect();
        chart.sample(&format!("Braid / {}", other.name), &ratios)
    })
}

fn table(title: &str) -> Table {
    let columns = [
        "transport",
        "goodput [Mbit/s]",
        "efficiency [%]",
        "worst run [%]",
        "longest gap [s]",
        "runs not believed",
    ];
    Table::new(title, &columns)
}

fn fill(table: &mut Table, rows: &[Row]) {
    for row in rows {
        let worst = row.efficiency.iter().copied().fold(f64::INFINITY, f64::min);
        let gap = row.gaps_s.iter().copied().reduce(f64::max);
        table.row(vec![
            row.name.clone(),
            format!("{:.2}", mean(&row.goodput)),
            format!("{:.2}", mean(&row.efficiency)),
            format!("{worst:.2}"),
            gap.map_or_else(String::new, |gap| format!("{gap:.2}")),
            format!("{}", row.doubtful),
        ]);
    }
}

const NOTE: &str = "\
     Real sockets in network namespaces through an emulator of the same links and seeds. Braid is \
     the product's own tunnel. TCP uses the path that carries most until the end, MPTCP both. A run in \
     which the machine did not keep up is repeated, and counted when that does not help.";

fn pals(task: &Task<'_>) -> Result<Exhibit, LabError> {
    let id = "pals.kernel";
    let title = "PALS in kernel time: TCP and MPTCP of this machine";
    let mut exhibit = Exhibit::new(title, &task.command(id)).note(NOTE).note(
        "The scenarios of the virtual runs, shortened to transfers of about ten seconds; the \
         handover's cut comes at 4 s.",
    );
    if let Some(reason) = refusal()? {
        exhibit.skipped.push(reason);
        return Ok(exhibit);
    }
    if task.quick {
        let note = "A quick report has one scenario with loss, and Cubic alone: no run without \
                    loss, no handover, no BBR and no Reno.";
        exhibit.notes.push(note.to_owned());
    }
    let cases: &[Case] = if task.quick {
        &[Case::Loss]
    } else {
        &[Case::NoLoss, Case::Loss, Case::Handover]
    };
    let setting = Setting {
        seed: task.seed,
        scenarios: task.pick(1, 6),
        controller: Controller::Ours,
        direction: Direction::Upload,
        reading: Reading::RoundTrip,
    };
    let axis = Axis::new("efficiency from connect()", "%").range(0.0, 100.0);
    let mut boxes = Boxes::new("Kernel time: bandwidth efficiency", axis);
    let mut curves = Vec::new();
    for &case in cases {
        let name = of_pals::name_of(case);
        let scenarios: Vec<Scenario> = of_pals::scenarios(case, setting)
            .into_iter()
            .map(shortened)
            .collect();
        let rows = rows(task, &format!("{id}.{name}"), &scenarios, PALS_AT_ONCE)?;
        let mut table = table(&format!("{name}, scenarios: {}", scenarios.len()));
        fill(&mut table, &rows);
        exhibit.tables.push(table);
        let title = format!("Kernel time: Braid's goodput by the transport's, {name}");
        curves.push((format!("pals.kernel_ratios_{name}"), ratios(&title, &rows)));
        let samples: Vec<(&str, &[f64])> = rows
            .iter()
            .map(|row| (row.name.as_str(), row.efficiency.as_slice()))
            .collect();
        boxes = boxes.group(name, &samples);
        exhibit
            .figures
            .extend(ratio(&format!("kernel.report.pals.{name}"), &rows));
    }
    exhibit.plot("pals.kernel", boxes);
    for (id, chart) in curves {
        exhibit.plot(&id, chart);
    }
    Ok(exhibit)
}

/// Braid's mean goodput by that of the best of the others.
fn ratio(id: &str, rows: &[Row]) -> Option<Figure> {
    let [ours, others @ ..] = rows else {
        return None;
    };
    let best = others
        .iter()
        .map(|row| mean(&row.goodput))
        .fold(0.0, f64::max);
    let id = format!("{id}.ours_to_best");
    let ratio = mean(&ours.goodput) / best.max(1e-3);
    Some(Figure::at_least(
        &*id,
        "x",
        references::figure(&id),
        1.0,
        ratio,
    ))
}

fn lte(task: &Task<'_>) -> Result<Exhibit, LabError> {
    let id = "lte.kernel";
    let title = "Drives in kernel time: MPTCP of this machine";
    let mut exhibit = Exhibit::new(title, &task.command(id)).note(NOTE).note(
        "Downloads of 40 MB on the road, from three of the starting points. TCP's one link is the \
         first one; changes of the links are not announced to it.",
    );
    if task.quick {
        exhibit
            .skipped
            .push("not part of a quick report: real time is dear".to_owned());
        return Ok(exhibit);
    }
    if let Some(reason) = refusal()? {
        exhibit.skipped.push(reason);
        return Ok(exhibit);
    }
    let drive = of_lte::drive(Environment::Road, task.seed);
    let axis = Axis::new("goodput by capacity", "%").range(0.0, 100.0);
    let mut boxes = Boxes::new("Kernel time: share of the capacity on the road", axis);
    for cells in [Cells::Ideal, Cells::Best(1), Cells::Best(2), Cells::Best(4)] {
        let direction = Direction::Download;
        let mut scenarios =
            of_lte::scenarios(&drive, cells, task.seed, 3, Controller::Ours, direction);
        for scenario in &mut scenarios {
            scenario.limit_s = scenario.limit_s.min(90.0);
        }
        let name = cells.name();
        let rows = rows(task, &format!("{id}.{name}"), &scenarios, 1)?;
        let mut table = table(&format!("{name}, starting points: {}", scenarios.len()));
        fill(&mut table, &rows);
        exhibit.tables.push(table);
        let samples: Vec<(&str, &[f64])> = rows
            .iter()
            .map(|row| (row.name.as_str(), row.efficiency.as_slice()))
            .collect();
        boxes = boxes.group(&name, &samples);
    }
    exhibit.plot("lte.kernel", boxes);
    Ok(exhibit)
}

fn yardstick(task: &Task<'_>) -> Result<Exhibit, LabError> {
    let id = "yardstick.kernel";
    let title = "Profiles of mqvpn in kernel time, with an inner QUIC flow";
    let mut exhibit = Exhibit::new(title, &task.command(id)).note(
        "The library's single-path QUIC as the application, its UDP in datagrams of the product's \
         tunnel, through the proxy service, in network namespaces. 20 MiB or 12 s. The ratio is by \
         the better leg of the same run. A run in which the machine did not keep up is repeated, \
         and counted when that does not help.",
    );
    if let Some(reason) = refusal()? {
        exhibit.skipped.push(reason);
        return Ok(exhibit);
    }
    if task.quick {
        let note = format!("A quick report has one profile of sixteen, {QUICK_PROFILE}.");
        exhibit.notes.push(note);
    }
    let is_in = |profile: &&str| !task.quick || *profile == QUICK_PROFILE;
    let profiles: Vec<&str> = names().filter(is_in).collect();
    let identities = Identities::new().map_err(KernelError::from)?;
    let bar = task.runner.bar(id, profiles.len() as u64);
    let columns = [
        "profile",
        "path a alone [Mbit/s]",
        "path b alone [Mbit/s]",
        "both [Mbit/s]",
        "ratio to the best leg",
        "mqvpn, best settings",
        "runs not believed",
    ];
    let mut table = Table::new("Inner QUIC flow, goodput from connect()", &columns);
    for profile in profiles {
        let Some(scenario) = of_yardstick::scenario(profile, task.seed)? else {
            continue;
        };
        let legs = of_yardstick::run(&scenario, &identities, ATTEMPTS)?;
        bar.inc(1);
        let mut row = vec![profile.to_owned()];
        row.extend(
            legs.runs
                .iter()
                .map(|run| format!("{:.2}", of_yardstick::mbit(&run.0))),
        );
        let doubtful = legs.runs.iter().filter(|run| !run.0.kept.up).count();
        let figure = legs.figure(profile);
        row.push(format!("{:.2}", legs.ratio()));
        row.push(
            figure
                .reference
                .map_or_else(String::new, |ratio| format!("{ratio:.2}")),
        );
        row.push(format!("{doubtful}"));
        table.row(row);
        exhibit.figures.push(figure);
    }
    bar.finish_and_clear();
    exhibit.tables.push(table);
    Ok(exhibit)
}
