//! Downloads on the drives: tables 4 and 5.

use crate::drive::Environment;
use crate::error::LabError;
use crate::exhibit::{Exhibit, Table};
use crate::lte::{self as of_lte, Cells};
use crate::plot::{Axis, Bar, Bars};
use crate::references;
use crate::report::{deviation, mean};
use crate::scenario::{Controller, Direction};
use crate::studies::versions::{self, Paths, Ran, Version, two};
use crate::task::Task;

/// How drives come about, for the notes of each experiment on them.
pub(super) const DRIVES: &str = "\
     The paper's data set is not public: drives are drawn by its formulas for SINR and capacity, \
     with path loss, shadowing that is correlated over the distance, and places of cells that were \
     fitted to its published statistics. The propagation delay of a link follows its capacity by \
     the power law through the two points of figure 3.";

const CONTROLLERS: [Controller; 5] = [
    Controller::Bbr,
    Controller::Cubic,
    Controller::Fast,
    Controller::Newreno,
    Controller::Ours,
];
/// Controllers of the quick report.
const CONTROLLERS_QUICK: [Controller; 3] = [Controller::Bbr, Controller::Cubic, Controller::Ours];

/// Runs of one controller, by case.
struct Row {
    controller: Controller,
    by_case: Vec<Ran>,
}

pub(super) fn run(task: &Task<'_>, environment: Environment) -> Result<Exhibit, LabError> {
    let name = environment.name();
    let id = format!("lte.{name}");
    let table = if environment == Environment::Residential {
        "Table 4"
    } else {
        "Table 5"
    };
    let title = format!("40 MB downloads, {name}: {}", table.to_lowercase());
    let points = task.pick(3, 18);
    let mut exhibit = Exhibit::new(&title, &task.command(&id)).note(DRIVES).note(
        "sp: one link that always has the best cell's capacity. Case N: the N best cells of each \
         second are up, and the client's system tells of changes; case 1 breaks before it makes. \
         Rows give goodput by capacity as means of all starting points, as the paper's tables do.",
    );
    exhibit.notes.push(format!(
        "{points} starting points. FAST here follows the published FAST TCP; the paper's is \
         picoquic's own variant. `reno` of the paper stands beside the library's newreno."
    ));
    if task.quick {
        let note = "A quick report has three controllers of five.";
        exhibit.notes.push(note.to_owned());
    }
    let drive = of_lte::drive(environment, task.seed);
    let controllers: &[Controller] = if task.quick {
        &CONTROLLERS_QUICK
    } else {
        &CONTROLLERS
    };
    let mut rows = Vec::new();
    for &controller in controllers {
        let paths = Paths::All;
        let version = Version {
            name: controller.name(),
            controller,
            paths,
        };
        let mut by_case = Vec::new();
        for cells in Cells::ALL {
            let direction = Direction::Download;
            let scenarios =
                of_lte::scenarios(&drive, cells, task.seed, points, controller, direction);
            let what = format!("{id} {}", cells.name());
            by_case.extend(versions::run(task, &what, &[version], &scenarios)?);
        }
        rows.push(Row {
            controller,
            by_case,
        });
    }
    if let Some(ours) = rows.last() {
        let reports: Vec<_> = ours.by_case.iter().map(|ran| ran.reports.clone()).collect();
        exhibit.figures = of_lte::figures("lte.by_capacity", environment, &reports);
    }
    exhibit.tables.push(paper_and_ours(name, table, &rows));
    exhibit.plot(&format!("lte.{name}_share"), shares(name, &rows));
    exhibit.plot(&format!("lte.{name}_times"), times(name, &rows));
    Ok(exhibit)
}

/// The paper's name of a controller.
fn in_paper(controller: Controller) -> &'static str {
    match controller {
        Controller::Newreno => "reno",
        other => other.name(),
    }
}

const PAPER: [&str; 5] = ["bbr", "cubic", "fast", "reno", "mptcp"];

fn paper_and_ours(name: &str, place: &str, rows: &[Row]) -> Table {
    let columns = [
        "case",
        "transport",
        "goodput [Mbit/s]",
        "SD",
        "capacity [Mbit/s]",
        "SD",
        "share [%]",
        "time [s]",
        "SD",
        "completed [%]",
    ];
    let mut table = Table::new(&format!("{place}: downloads of 40 MB, {name}"), &columns);
    for (index, cells) in Cells::ALL.into_iter().enumerate() {
        let case = cells.name();
        for transport in PAPER {
            let value = |column: &str| {
                references::value(&format!("lte.{name}.{transport}.{case}.{column}"))
            };
            let multi = matches!(cells, Cells::Best(count) if count > 1);
            let capacity = if multi { "mp_capacity" } else { "sp_capacity" };
            let deviation = if multi {
                "mp_capacity_sd"
            } else {
                "sp_capacity_sd"
            };
            let share = value("goodput").zip(value(capacity));
            table.row(vec![
                case.clone(),
                format!("paper: {transport}"),
                two(value("goodput")),
                two(value("goodput_sd")),
                two(value(capacity)),
                two(value(deviation)),
                two(share.map(|(goodput, capacity)| 100.0 * goodput / capacity)),
                two(value("time")),
                two(value("time_sd")),
                String::new(),
            ]);
        }
        for row in rows {
            let Some(ran) = row.by_case.get(index) else {
                continue;
            };
            let goodput = ran.of(versions::goodput);
            let capacity = ran.of(versions::capacity);
            let time = ran.of(versions::time);
            table.row(vec![
                case.clone(),
                label(row.controller),
                two(Some(mean(&goodput))),
                two(Some(deviation(&goodput))),
                two(Some(mean(&capacity))),
                two(Some(deviation(&capacity))),
                two(Some(of_lte::ratio_of_means(&ran.reports))),
                two(Some(mean(&time))),
                two(Some(deviation(&time))),
                format!("{:.0}", ran.completed_percent()),
            ]);
        }
    }
    table
}

fn label(controller: Controller) -> String {
    match controller {
        Controller::Ours => "Braid".to_owned(),
        other => format!("here: {}", other.name()),
    }
}

fn case_names() -> Vec<String> {
    Cells::ALL.into_iter().map(Cells::name).collect()
}

fn shares(name: &str, rows: &[Row]) -> Bars {
    let cases = case_names();
    let cases: Vec<&str> = cases.iter().map(String::as_str).collect();
    let title = format!("Goodput by capacity of the links in use, {name}");
    let axis = Axis::new("share of the capacity", "%").range(0.0, 100.0);
    let mut bars = Bars::new(&title, axis, &cases);
    for transport in ["bbr", "cubic", "mptcp"] {
        let own = Cells::ALL.map(|cells| {
            let case = cells.name();
            let value = |column: &str| {
                references::value(&format!("lte.{name}.{transport}.{case}.{column}"))
            };
            let multi = matches!(cells, Cells::Best(count) if count > 1);
            let capacity = value(if multi { "mp_capacity" } else { "sp_capacity" });
            let share = value("goodput").zip(capacity);
            share.map_or_else(Bar::none, |(goodput, capacity)| {
                Bar::value(100.0 * goodput / capacity)
            })
        });
        bars = bars.series(&format!("paper: {transport}"), &own);
    }
    for row in rows {
        let own: Vec<Bar> = row
            .by_case
            .iter()
            .map(|ran| Bar::value(of_lte::ratio_of_means(&ran.reports)))
            .collect();
        bars = bars.series(&label(row.controller), &own);
    }
    bars
}

fn times(name: &str, rows: &[Row]) -> Bars {
    let cases = case_names();
    let cases: Vec<&str> = cases.iter().map(String::as_str).collect();
    let title = format!("Completion time of 40 MB, mean and standard deviation, {name}");
    let mut bars = Bars::new(&title, Axis::new("time", "s").from_zero(), &cases);
    let paper = |transport: &str| {
        Cells::ALL.map(|cells| {
            let value = |column: &str| {
                references::value(&format!("lte.{name}.{transport}.{}.{column}", cells.name()))
            };
            let time = value("time").zip(value("time_sd"));
            time.map_or_else(Bar::none, |(mean, deviation)| {
                Bar::with_whiskers(mean, (mean - deviation).max(0.0), mean + deviation)
            })
        })
    };
    bars = bars
        .series("paper: bbr", &paper("bbr"))
        .series("paper: cubic", &paper("cubic"));
    for row in rows {
        let shown = [
            in_paper(Controller::Bbr),
            in_paper(Controller::Cubic),
            "ours",
        ];
        if shown.contains(&in_paper(row.controller)) {
            let own: Vec<Bar> = row
                .by_case
                .iter()
                .map(|ran| Bar::of(&ran.of(versions::time)))
                .collect();
            bars = bars.series(&label(row.controller), &own);
        }
    }
    bars
}
