//! The drives themselves: figures 1 to 3, tables 2 and 3.

use super::drives::DRIVES;
use crate::drive::{Drive, Environment};
use crate::error::LabError;
use crate::exhibit::{Exhibit, Table};
use crate::lte as of_lte;
use crate::plot::{Axis, Lines, Marker};
use crate::references;
use crate::report::mean;
use crate::seed::derive_seed;
use crate::studies::versions::two;
use crate::task::Task;

/// Seconds of a drive whose capacities figure 1 shows.
const SHOWN_S: usize = 600;
/// Seconds of a drive behind tables and distributions.
const SECONDS: usize = 120_000;

pub(super) fn run(task: &Task<'_>) -> Result<Exhibit, LabError> {
    let title = "Drives: cells, capacities and delay; tables 2 and 3, figures 1 to 3";
    let mut exhibit = Exhibit::new(title, &task.command("lte.dataset"))
        .note(DRIVES)
        .note(
            "The rows with a target assert the generator: the largest deviation from the published \
         means and medians of table 3 (body), from its lower percentiles (tail), and from \
          the numbers of cells and the capacities of the best ones (cells).",
        );
    exhibit.figures = of_lte::statistics("lte", task.seed);
    exhibit.figures.retain(|row| row.target.is_some());
    let seed = derive_seed(task.seed, 4300);
    let drives = Environment::ALL.map(|environment| Drive::generate(environment, SECONDS, seed));
    let [dataset, ..] = &drives;
    exhibit.tables.push(cells_table(&drives));
    exhibit.tables.push(capacity_table(dataset));
    exhibit.plot("lte.fig1_1s", windows(dataset, 1));
    exhibit.plot("lte.fig1_5s", windows(dataset, 5));
    let mut cells = Lines::cdf(
        "Number of available cells",
        Axis::new("cells", "").range(0.0, 5.0),
    );
    for (environment, drive) in Environment::ALL.iter().zip(&drives) {
        cells = cells.sample(environment.name(), &drive.cells());
    }
    exhibit.plot("lte.fig2", cells);
    let curve: Vec<(f64, f64)> = (1..=220)
        .map(|mbit| (f64::from(mbit), of_lte::delay_ms(f64::from(mbit))))
        .collect();
    let points: Vec<(f64, f64)> = [50.0, 200.0]
        .iter()
        .filter_map(|mbit| {
            Some((
                *mbit,
                references::value(&format!("lte.delay.{mbit}.delay"))?,
            ))
        })
        .collect();
    let axes = [
        Axis::new("capacity", "Mbit/s").from_zero(),
        Axis::new("delay", "ms").from_zero(),
    ];
    let [x, y] = axes;
    let delay = Lines::new("Propagation delay by capacity", x, y)
        .series("used here", &curve)
        .with("points of the paper", Marker::Dots, &points);
    exhibit.plot("lte.fig3", delay);
    Ok(exhibit)
}

fn cells_table(drives: &[Drive]) -> Table {
    let columns = ["environment", "paper", "ours"];
    let mut table = Table::new("Table 2: mean number of available cells", &columns);
    for (environment, drive) in Environment::ALL.iter().zip(drives) {
        let name = environment.name();
        let paper = references::value(&format!("lte.cells.{name}.mean"));
        table.row(vec![
            name.to_owned(),
            two(paper),
            two(Some(mean(&drive.cells()))),
        ]);
    }
    table
}

fn capacity_table(dataset: &Drive) -> Table {
    let mut columns = vec!["aggregation", "of"];
    columns.extend(of_lte::SHARES.map(|share| share.0));
    let mut table = Table::new(
        "Table 3: capacity in Mbit/s over the whole data set",
        &columns,
    );
    for (row, values) in of_lte::aggregations(dataset) {
        let paper = of_lte::SHARES
            .map(|(column, _)| two(references::value(&format!("lte.capacity.{row}.{column}"))));
        let ours = of_lte::SHARES.map(|(_, share)| two(Some(of_lte::share_of(&values, share))));
        for (whose, cells) in [("paper", paper), ("ours", ours)] {
            let mut all = vec![row.to_owned(), whose.to_owned()];
            all.extend(cells);
            table.row(all);
        }
    }
    table
}

/// Capacity of the two strongest cells, averaged over windows.
fn windows(drive: &Drive, seconds: usize) -> Lines {
    let best = drive.best(1);
    let second: Vec<f64> = drive
        .best(2)
        .iter()
        .zip(&best)
        .map(|(two, one)| two - one)
        .collect();
    let averaged = |values: &[f64]| -> Vec<(f64, f64)> {
        let shown = values.iter().copied().take(SHOWN_S).collect::<Vec<f64>>();
        let windows = shown.chunks(seconds).zip(0u32..);
        windows
            .map(|(window, at)| (f64::from(at) * seconds as f64, mean(window)))
            .collect()
    };
    Lines::new(
        &format!("Capacity of the two strongest cells, windows of {seconds} s"),
        Axis::new("time", "s").range(0.0, SHOWN_S as f64),
        Axis::new("capacity", "Mbit/s").from_zero(),
    )
    .steps("strongest", &averaged(&best))
    .steps("second", &averaged(&second))
}
