//! The same downloads over recorded drives, from any set of Mahimahi files.

use crate::error::LabError;
use crate::exhibit::{Exhibit, Table};
use crate::lte as of_lte;
use crate::plot::{Axis, Boxes};
use crate::scenario::{Controller, Direction};
use crate::studies::versions::two;
use crate::task::Task;

pub(super) fn run(task: &Task<'_>) -> Result<Exhibit, LabError> {
    let title = "Recorded drives";
    let mut exhibit = Exhibit::new(title, &task.command("lte.recorded")).note(
        "Mahimahi traces, in the order of their names: the first alone, then one more at a time. \
         Round trips 50 ms and 6 ms more for each further trace; a line of a trace serves one \
         packet of 1500 bytes.",
    );
    if task.traces.is_empty() {
        exhibit
            .skipped
            .push("no recorded drives were given; --traces takes files or folders".into());
        return Ok(exhibit);
    }
    exhibit.command += " --traces DIR";
    let points = task.pick(3, 18);
    let mut table = Table::new("Traces", &["number", "file"]);
    for (number, file) in (1..).zip(task.traces) {
        let name = file
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        table.row(vec![format!("{number}"), name]);
    }
    exhibit.tables.push(table);
    let mut shares = Table::new("Time of 40 MB in seconds", &["traces", "mean", "runs"]);
    let (figures, reports) = of_lte::run_recorded(
        task.runner,
        "lte",
        task.traces,
        task.seed,
        Some(points),
        Controller::Ours,
        Direction::Download,
    )?;
    exhibit.figures = figures;
    let mut boxes = Boxes::new(
        "Share of the recorded capacity",
        Axis::new("goodput by capacity", "%").range(0.0, 100.0),
    );
    let per_case = points as usize;
    for (number, case) in (1..).zip(reports.chunks(per_case)) {
        let values: Vec<f64> = case
            .iter()
            .map(|report| report.efficiency_connect)
            .collect();
        let times: Vec<f64> = case.iter().map(|report| report.from_connect_s).collect();
        let name = format!("{number} traces");
        boxes = boxes.group(&name, &[("Braid", &values)]);
        let mean = two(Some(crate::report::mean(&times)));
        shares.row(vec![format!("{number}"), mean, format!("{}", case.len())]);
    }
    exhibit.tables.push(shares);
    exhibit.plot("lte.recorded", boxes);
    Ok(exhibit)
}
