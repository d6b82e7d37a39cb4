//! PALS by region: tables III and IV, figures 7 to 11.

use crate::error::LabError;
use crate::exhibit::{Exhibit, Table};
use crate::figures::Figure;
use crate::pals as of_pals;
use crate::plot::{Axis, Boxes, Lines};
use crate::references;
use crate::report::mean;
use crate::studies::versions::{
    self, BBR, BRAID, BRAID_ONE, CUBIC, OLIA, QUIC_CUBIC, Ran, Version,
};
use crate::task::Task;

const VERSIONS: [Version; 6] = [QUIC_CUBIC, BRAID_ONE, OLIA, CUBIC, BBR, BRAID];
/// Charts of the paper by region.
const CHARTS: [(&str, &str, &str); 4] = [
    ("global", "pals.fig7", "Global"),
    ("europe", "pals.fig8", "Europe"),
    ("usa", "pals.fig9", "USA"),
    ("south_america", "pals.fig10", "South America"),
];

pub(super) fn run(task: &Task<'_>) -> Result<Exhibit, LabError> {
    let id = "pals.regional";
    let title = "PALS by region: tables III and IV, figures 7 to 11";
    let mut exhibit = Exhibit::new(title, &task.command(id)).note(
        "20 MB over a fixed and a mobile link of table III, round trip 24 ms, 5 % loss on each. \
         Single-path versions use the fixed link. The limit is the loss-adjusted sum of the \
         capacities; the target is 1.15 times the time that it allows.",
    );
    let mut times = Table::new("Table IV: average time in seconds", &columns());
    let mut speeds = Table::new(
        "Table III: speeds in Mbit/s",
        &[
            "region",
            "fixed, best",
            "mobile, best",
            "fixed, worst",
            "mobile, worst",
        ],
    );
    let mut cells: Vec<(String, Vec<Ran>)> = Vec::new();
    for region in of_pals::regions() {
        let name = format!("{}.{}", region.region, region.case);
        let repetitions = task.pick(2, 50);
        let scenarios = of_pals::regional_scenarios(&region, task.seed, repetitions);
        let ran = versions::run(task, &name, &VERSIONS, &scenarios)?;
        if let Some(ours) = ran.last() {
            exhibit.figures.extend(figures(&region, ours));
        }
        let paper = |version: &str| {
            versions::two(references::value(&format!(
                "pals.regional.{name}.{version}"
            )))
        };
        let mut row = vec![name.clone()];
        row.extend(["tcp", "quic", "mptcp", "mpquic"].map(paper));
        row.extend(
            ran.iter()
                .map(|ran| format!("{:.2}", ran.mean(versions::time))),
        );
        row.push(format!("{:.2}", region.ideal_s()));
        times.row(row);
        cells.push((name, ran));
    }
    for (region, chart, title) in CHARTS {
        let speed = |column: &str| {
            versions::two(references::value(&format!("pals.speeds.{region}.{column}")))
        };
        let mut row = vec![title.to_owned()];
        row.extend(["best_fixed", "best_mobile", "worst_fixed", "worst_mobile"].map(speed));
        speeds.row(row);
        let axis = Axis::new("time of 20 MB", "s").log();
        let boxes = Boxes::new(&format!("{title}: best and worst case"), axis);
        let boxes = ["best", "worst"].into_iter().fold(boxes, |boxes, case| {
            let wanted = format!("{region}.{case}");
            let ran = cells
                .iter()
                .find(|cell| cell.0 == wanted)
                .map(|cell| cell.1.as_slice());
            let samples: Vec<(&str, Vec<f64>)> = ran
                .unwrap_or_default()
                .iter()
                .map(|ran| (ran.version.name, ran.of(versions::time)))
                .collect();
            let samples: Vec<(&str, &[f64])> = samples
                .iter()
                .map(|(name, values)| (*name, values.as_slice()))
                .collect();
            boxes.group(case, &samples)
        });
        exhibit.plot(chart, boxes);
    }
    exhibit.plot("pals.fig11", ratios(&cells));
    exhibit.tables = vec![speeds, times];
    Ok(exhibit)
}

fn columns() -> Vec<&'static str> {
    let paper = [
        "scenario",
        "paper: TCP",
        "paper: QUIC",
        "paper: MPTCP",
        "paper: MPQUIC",
    ];
    let ours = VERSIONS.iter().map(|version| version.name);
    paper.into_iter().chain(ours).chain(["limit"]).collect()
}

fn figures(region: &of_pals::Region, ours: &Ran) -> [Figure; 2] {
    let time = mean(&ours.of(versions::time));
    let id = |what: &str| format!("regional.{}.{}.{what}", region.region, region.case);
    let paper = references::figure(&id("time"));
    let ideal_s = region.ideal_s();
    [
        Figure::at_most(
            id("ratio"),
            "x",
            paper.map(|s| s / ideal_s),
            1.15,
            time / ideal_s,
        ),
        Figure::shown(id("time"), "s", paper, time),
    ]
}

/// Figure 11: the coupled control's time by Braid's, in the global scenarios and in all.
fn ratios(cells: &[(String, Vec<Ran>)]) -> Lines {
    let of = |prefix: &str, version: Version| -> Vec<f64> {
        let own = cells.iter().filter(|cell| cell.0.starts_with(prefix));
        let pairs = own.filter_map(|(_, ran)| {
            let other = ran.iter().find(|ran| ran.version.name == version.name)?;
            Some(versions::ratios(other, ran.last()?))
        });
        pairs.flatten().collect()
    };
    Lines::cdf(
        "Time of other versions divided by Braid's",
        Axis::new("ratio of times", "").log(),
    )
    .sample("MPQUIC olia / Braid, global", &of("global", OLIA))
    .sample("MPQUIC olia / Braid, all regions", &of("", OLIA))
    .sample("MPQUIC bbr / Braid, all regions", &of("", BBR))
    .moment("equal", 1.0)
}
