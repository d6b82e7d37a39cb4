//! PALS: tables II to IV and figures 3 to 11.

mod regional;

use crate::error::LabError;
use crate::exhibit::{Exhibit, Section, Table};
use crate::figures::Figure;
use crate::pals::{self as of_pals, Case, Reading, Setting};
use crate::plot::{Axis, Boxes, Lines};
use crate::references;
use crate::report::{BIN, mean, percentile, sorted};
use crate::scenario::{Controller, Direction, Scenario};
use crate::seed::derive_seed;
use crate::studies::versions::{
    self, BBR, BRAID, BRAID_ONE, CUBIC, NEWRENO, OLIA, QUIC_BBR, QUIC_CUBIC, Ran, Version,
};
use crate::task::{Experiment, Task, Time};

/// More than any of the compared flows carries in its time.
const BULK_BYTES: u64 = 100_000_000_000;
/// The paper's columns of table II.
const PAPER: [&str; 4] = ["tcp", "quic", "mptcp", "mpquic"];

pub(super) fn experiments() -> Vec<Experiment> {
    let experiment = |id, cost_s, run| Experiment {
        id,
        section: Section::Pals,
        time: Time::Virtual,
        cost_s,
        run,
    };
    vec![
        experiment("pals.noloss", (12, 900), noloss as fn(&Task<'_>) -> _),
        experiment("pals.loss", (12, 900), loss),
        experiment("pals.handover", (12, 600), handover),
        experiment("pals.vitals", (4, 60), vitals),
        experiment("pals.regional", (20, 900), regional::run),
        experiment("pals.competing", (6, 120), competing),
    ]
}

fn setting(task: &Task<'_>, scenarios: u32) -> Setting {
    Setting {
        seed: task.seed,
        scenarios,
        controller: Controller::Ours,
        direction: Direction::Upload,
        reading: Reading::RoundTrip,
    }
}

/// The paper's 50 scenarios, each repeated with other losses on the same links.
fn scenarios(task: &Task<'_>, case: Case) -> Vec<Scenario> {
    let repetitions = u64::from(task.pick(1, 10));
    let each = of_pals::scenarios(case, setting(task, task.pick(8, 50)));
    let repeated = each.into_iter().flat_map(|scenario| {
        (0..repetitions).map(move |repetition| {
            let mut own = scenario.clone();
            if repetition > 0 {
                own.seed = derive_seed(scenario.seed, 700 + repetition);
            }
            own
        })
    });
    repeated.collect()
}

const ASSUMED: &str = "\
     Two disjoint paths of 0.1 to 5 Mbit/s; the paper's end-to-end latency of 0 to \
     250 ms is read as round trip. 20 MB from client to server. Queues hold one bandwidth-delay \
     product, at least 20 packets; random loss is behind the bottleneck. A single-path version \
     uses the first path, and its efficiency is that path's.";

const MULTI: [Version; 5] = [OLIA, CUBIC, NEWRENO, BBR, BRAID];

fn noloss(task: &Task<'_>) -> Result<Exhibit, LabError> {
    let title = "PALS without loss: table II, figure 3";
    static_case(
        task,
        Case::NoLoss,
        "pals.noloss",
        title,
        ["pals.fig3a", "pals.fig3b"],
    )
}

fn loss(task: &Task<'_>) -> Result<Exhibit, LabError> {
    let title = "PALS with 1 to 5 % random loss: table II, figure 4";
    static_case(
        task,
        Case::Loss,
        "pals.loss",
        title,
        ["pals.fig4a", "pals.fig4b"],
    )
}

fn static_case(
    task: &Task<'_>,
    case: Case,
    id: &str,
    title: &str,
    charts: [&str; 2],
) -> Result<Exhibit, LabError> {
    let scenarios = scenarios(task, case);
    let all = [&[QUIC_CUBIC, QUIC_BBR, BRAID_ONE][..], &MULTI[..]].concat();
    let ran = versions::run(task, id, &all, &scenarios)?;
    let mut exhibit = Exhibit::new(title, &task.command(id)).note(ASSUMED);
    exhibit
        .notes
        .push(format!("{} runs of each version.", scenarios.len()));
    let [.., ours] = &ran[..] else {
        return Ok(exhibit);
    };
    exhibit.figures = of_pals::figures(case, "pals", &ours.reports);
    exhibit.tables.push(table_two(of_pals::name_of(case), &ran));
    let find = |version: Version| ran.iter().find(|ran| ran.version.name == version.name);
    let mut cdf = Lines::cdf(
        &format!("Time of other versions divided by Braid's, {}", words(case)),
        Axis::new("ratio of times", "").log(),
    );
    if let (Some(quic), Some(one)) = (find(QUIC_CUBIC), find(BRAID_ONE)) {
        let ratios = versions::ratios(quic, one);
        cdf = cdf.sample("QUIC cubic / Braid, both on one path", &ratios);
    }
    for other in [OLIA, CUBIC, BBR] {
        if let Some(other) = find(other) {
            let name = format!("{} / Braid", other.version.name);
            cdf = cdf.sample(&name, &versions::ratios(other, ours));
        }
    }
    exhibit.plot(charts[0], cdf.moment("equal", 1.0));
    exhibit.plot(
        charts[1],
        times(&format!("Time of 20 MB, {}", words(case)), &ran),
    );
    Ok(exhibit)
}

fn words(case: Case) -> &'static str {
    match case {
        Case::NoLoss => "no loss",
        Case::Loss => "1 to 5 % loss",
        Case::Handover => "handover with loss",
        Case::Vitals => "handover with vitals",
    }
}

/// Box plots of the times of completed runs, one box for each version.
fn times(title: &str, ran: &[Ran]) -> Boxes {
    let samples: Vec<(&str, Vec<f64>)> = ran
        .iter()
        .map(|ran| (ran.version.name, completed_times(ran)))
        .collect();
    let samples: Vec<(&str, &[f64])> = samples
        .iter()
        .map(|(name, values)| (*name, values.as_slice()))
        .collect();
    Boxes::new(title, Axis::new("time", "s").log()).group("", &samples)
}

fn completed_times(ran: &Ran) -> Vec<f64> {
    let completed = ran.reports.iter().filter(|report| report.completed);
    completed.map(versions::time).collect()
}

/// Table II: the paper's columns as rows, then the versions that were run.
fn table_two(row: &str, ran: &[Ran]) -> Table {
    let columns = [
        "version",
        "goodput [Mbit/s]",
        "bandwidth [Mbit/s]",
        "efficiency [%]",
        "mean of runs [%]",
        "worst run [%]",
        "sent again [% of packets]",
        "completed [%]",
    ];
    let mut table = Table::new("Table II: bandwidth efficiency", &columns);
    for version in PAPER {
        let value = |what: &str| references::value(&format!("pals.{what}.{row}.{version}"));
        if value("goodput").is_none() {
            continue;
        }
        table.row(vec![
            format!("paper: {}", version.to_uppercase()),
            versions::two(value("goodput")),
            versions::two(value("bandwidth")),
            versions::two(value("efficiency")),
            String::new(),
            String::new(),
            String::new(),
            String::new(),
        ]);
    }
    for ran in ran {
        let (goodput, capacity) = (ran.mean(versions::goodput), ran.mean(versions::capacity));
        let runs = sorted(ran.of(versions::efficiency));
        table.row(vec![
            ran.version.name.to_owned(),
            format!("{goodput:.2}"),
            format!("{capacity:.2}"),
            format!("{:.2}", 100.0 * goodput / capacity.max(1e-9)),
            format!("{:.2}", mean(&runs)),
            versions::two(runs.first().copied()),
            format!("{:.2}", ran.mean(versions::resent_percent)),
            format!("{:.1}", ran.completed_percent()),
        ]);
    }
    table
}

fn handover(task: &Task<'_>) -> Result<Exhibit, LabError> {
    let id = "pals.handover";
    let scenarios = scenarios(task, Case::Handover);
    let ran = versions::run(task, id, &MULTI, &scenarios)?;
    let title = "PALS handover: one path is cut at 15 s without notice; table II, figures 5 and 6";
    let mut exhibit = Exhibit::new(title, &task.command(id)).note(ASSUMED).note(
        "The first and the second path are cut in turn, and stay down. Efficiency is by the \
         capacity that was up. A version of the library alone closes no silent path, and loses the \
         connection with it. A run that did not complete has no time: its curve of ratios ends \
         below one, and its box is empty.",
    );
    let [olia, .., ours] = &ran[..] else {
        return Ok(exhibit);
    };
    exhibit.figures = of_pals::figures(Case::Handover, "pals", &ours.reports);
    exhibit.tables.push(table_two("handover", &ran));
    if let Some(example) = ours.reports.get(1) {
        let mut chart = Lines::new(
            "Example of a handover: what each path carries",
            Axis::new("time", "s").range(10.0, 22.0),
            Axis::new("rate", "Mbit/s").from_zero(),
        );
        for link in &example.links {
            let per_bin = link.bins.iter().zip(0u32..).map(|(bytes, bin)| {
                let at = f64::from(bin) * BIN.as_secs_f64();
                (at, *bytes as f64 * 8e-6 / BIN.as_secs_f64())
            });
            let points: Vec<(f64, f64)> = per_bin
                .filter(|point| (10.0..22.0).contains(&point.0))
                .collect();
            chart = chart.steps(&link.name, &points);
        }
        exhibit.plot("pals.fig5", chart.moment("cut", 15.0));
    }
    let ratios = Lines::cdf(
        "Handover: time of other versions divided by Braid's",
        Axis::new("ratio of times", "").log(),
    );
    let ratios = ran[..4].iter().fold(ratios, |chart, other| {
        let name = format!("{} / Braid", other.version.name);
        chart.sample(&name, &versions::ratios(other, ours))
    });
    exhibit.plot("pals.fig6a", ratios.moment("equal", 1.0));
    exhibit.plot("pals.fig6_times", times("Handover: time of 20 MB", &ran));
    let resent: Vec<(&str, Vec<f64>)> = ran
        .iter()
        .map(|ran| (ran.version.name, ran.of(versions::resent_percent)))
        .collect();
    let resent: Vec<(&str, &[f64])> = resent
        .iter()
        .map(|(name, values)| (*name, values.as_slice()))
        .collect();
    let axis = Axis::new("packets sent again", "%").from_zero();
    let chart = Boxes::new("Handover: retransmissions", axis).group("", &resent);
    exhibit.plot("pals.fig6b", chart);
    let share = |faster: &Ran, slower: &Ran| {
        let ratios = versions::ratios(slower, faster);
        100.0 * ratios.iter().filter(|ratio| **ratio > 1.0).count() as f64
            / ratios.len().max(1) as f64
    };
    exhibit.figures.push(Figure::shown(
        "pals.handover.faster_than_coupled",
        "% of runs",
        references::figure("pals.handover.faster_than_coupled"),
        share(ours, olia),
    ));
    Ok(exhibit)
}

fn vitals(task: &Task<'_>) -> Result<Exhibit, LabError> {
    let id = "pals.vitals";
    let scenarios = of_pals::scenarios(Case::Vitals, setting(task, task.pick(20, 100)));
    let ran = versions::run(task, id, &[BRAID], &scenarios)?;
    let title = "Alerts and vitals at the handover, beside the bulk transfer";
    let mut exhibit = Exhibit::new(title, &task.command(id)).note(
        "200 bytes every 100 ms on an urgent stream beside the bulk. The gap is the longest delay \
         of a message made around the cut; the bulk's gap is its longest silence.",
    );
    let [ours] = &ran[..] else { return Ok(exhibit) };
    exhibit.figures = of_pals::figures(Case::Vitals, "pals", &ours.reports);
    let of = |get: fn(&crate::report::RunReport) -> Option<f64>| {
        ours.reports.iter().filter_map(get).collect::<Vec<f64>>()
    };
    let gaps = of(|report| report.vitals_gap_ms);
    let usual = of(|report| report.vitals_ms_p50);
    let chart = Lines::cdf("Delay of vitals", Axis::new("delay", "ms").log())
        .sample("longest at the handover", &gaps)
        .sample("median of the run", &usual)
        .sample("bulk: longest silence", &of(|report| report.bulk_gap_ms))
        .moment("target of the median", 250.0);
    exhibit.plot("pals.vitals_gap", chart);
    Ok(exhibit)
}

/// One Cubic bulk flow on each path beside the measured transfer.
fn competing(task: &Task<'_>) -> Result<Exhibit, LabError> {
    let id = "pals.competing";
    let count = task.pick(3, 20);
    let mut scenarios = of_pals::scenarios(Case::NoLoss, setting(task, count));
    for scenario in &mut scenarios {
        scenario.competitors = vec![Controller::Cubic; scenario.interfaces.len()];
        // The same time for everybody, so that shares can be compared.
        scenario.bytes = BULK_BYTES;
        scenario.limit_s = 60.0;
    }
    let ran = versions::run(task, id, &[OLIA, CUBIC, BBR, BRAID], &scenarios)?;
    let title = "PALS with competing bulk traffic";
    let mut exhibit = Exhibit::new(title, &task.command(id)).note(
        "One single-path Cubic flow on each of the two paths beside the measured connection, for \
         60 s. Jain's index is over the three flows, each by what a fair division of its links \
         would give: half of each link for each.",
    );
    let columns = [
        "version",
        "own goodput [Mbit/s]",
        "competitors [Mbit/s]",
        "Jain's index",
    ];
    let mut table = Table::new("Shares beside Cubic flows", &columns);
    let mut samples = Vec::new();
    for ran in &ran {
        let jains: Vec<f64> = ran
            .reports
            .iter()
            .zip(&scenarios)
            .map(|(report, scenario)| jain(report, scenario))
            .collect();
        let others: Vec<f64> = ran.reports.iter().map(others_mbit).collect();
        table.row(vec![
            ran.version.name.to_owned(),
            format!("{:.2}", ran.mean(versions::goodput)),
            format!("{:.2}", mean(&others)),
            format!("{:.3}", mean(&jains)),
        ]);
        samples.push((ran.version.name, jains));
    }
    if let Some((_, jains)) = samples.last() {
        let id = "pals.competing.jain";
        let worst = percentile(&sorted(jains.iter().copied()), 0.0).unwrap_or_default();
        exhibit
            .figures
            .push(Figure::shown(id, "index", None, mean(jains)));
        exhibit.figures.push(Figure::shown(
            "pals.competing.jain_worst",
            "index",
            None,
            worst,
        ));
    }
    exhibit.tables.push(table);
    let samples: Vec<(&str, &[f64])> = samples
        .iter()
        .map(|(name, values)| (*name, values.as_slice()))
        .collect();
    let axis = Axis::new("Jain's index", "").range(0.3, 1.0);
    exhibit.plot(
        "pals.competing",
        Boxes::new("Fairness beside Cubic", axis).group("", &samples),
    );
    Ok(exhibit)
}

fn others_mbit(report: &crate::report::RunReport) -> f64 {
    let bytes: u64 = report
        .competitors
        .iter()
        .map(|other| other.delivered_bytes)
        .sum();
    bytes as f64 * 8e-6 / report.from_connect_s.max(1e-3)
}

/// Jain's index of the measured flow and each competitor, by their fair shares.
fn jain(report: &crate::report::RunReport, scenario: &Scenario) -> f64 {
    let seconds = report.from_connect_s.max(1e-3);
    let rates: Vec<f64> = scenario
        .interfaces
        .iter()
        .map(|interface| interface.half(scenario.direction).rate.mbit_max())
        .collect();
    let fair_own = rates.iter().sum::<f64>() / 2.0;
    let mut shares = vec![versions::goodput(report) / fair_own.max(1e-9)];
    for (other, rate) in report.competitors.iter().zip(&rates) {
        shares.push(other.delivered_bytes as f64 * 8e-6 / seconds / (rate / 2.0).max(1e-9));
    }
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares.max(1e-9))
}
