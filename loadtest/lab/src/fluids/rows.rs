//! Rows paper, target, measured of the fluid model.

use ::fluid::{Experiment, Run, settling_s};
use rustix::time::{ClockId, clock_gettime};

use super::experiments::{EXPERIMENTS, read, solve};
use crate::error::LabError;
use crate::figures::Figure;
use crate::references::published;

/// Duration of the run that is timed; the paper's way takes just under nine minutes.
const TIMED_S: f64 = 540.0;
const TIMED_MS_MAX: f64 = 50.0;
/// The best of some runs counts: what else the machine does is not the solver's.
const TIMED_RUNS: u32 = 5;
/// A band around the last value, within which a rate counts as settled.
const SETTLED: f64 = 0.05;

/// The rows of one experiment.
pub(super) fn of(experiment: &Experiment, run: &Run) -> Vec<Figure> {
    let name = &experiment.name;
    let mut rows = match name.as_str() {
        "one-station" => vec![moving(experiment)],
        "three-stations" => three_stations(run),
        "convoy" => convoy(experiment, run),
        "static" => static_convoy(run),
        "competitor" => competitor(run),
        "responsive" => responsive(run),
        "threshold" => Vec::new(),
        _ => {
            let last = |rates: &Vec<f64>| rates.last().copied().unwrap_or(0.0);
            let routes = experiment.network.routes.iter().zip(&run.rates);
            routes
                .map(|(route, rates)| {
                    let id = format!("fluid.{name}.{}.last_rate", route.name);
                    Figure::shown(id, "-", None, last(rates))
                })
                .collect()
        }
    };
    rows.push(Figure::at_most(
        format!("fluid.{name}.condition_6"),
        "-",
        None,
        std::f64::consts::FRAC_PI_2,
        experiment.network.stability(),
    ));
    rows
}

/// "The entire trajectory is completed in just under 9 minutes."
fn moving(experiment: &Experiment) -> Figure {
    let seconds = experiment.settings.duration_s;
    Figure::at_most("fluid.one-station.way", "s", None, 540.0, seconds)
}

/// The highest and the lowest sum, and the end: nothing remains beyond the stations.
fn three_stations(run: &Run) -> Vec<Figure> {
    let sum = run.sum(&[0, 1, 2]);
    let last = sum.last().copied().unwrap_or(0.0);
    let highest = sum.iter().copied().fold(0.0, f64::max);
    vec![
        Figure::shown("fluid.three-stations.highest_sum", "-", None, highest),
        Figure::at_most("fluid.three-stations.at_the_end", "-", None, 0.5, last),
    ]
}

fn convoy(experiment: &Experiment, run: &Run) -> Vec<Figure> {
    let satellite = &run.rates[3];
    let last = satellite.last().copied().unwrap_or(0.0);
    let nominal = experiment.network.resources[3].nominal;
    let first = run.times_s.iter().position(|it| *it >= 15.0).unwrap_or(0);
    vec![
        published("fluid.convoy.satellite.rate", "-", 0.05, last),
        published(
            "fluid.convoy.satellite.share",
            "%",
            0.5,
            100.0 * last / nominal,
        ),
        published(
            "fluid.convoy.satellite.near_stations",
            "-",
            0.2,
            satellite[first],
        ),
    ]
}

fn static_convoy(run: &Run) -> Vec<Figure> {
    let mut rows: Vec<Figure> = run
        .capacities
        .iter()
        .zip(1..)
        .map(|(values, number)| {
            let id = format!("fluid.static.capacity.{number}");
            published(&id, "-", 0.01, values[0])
        })
        .collect();
    let settled = run
        .rates
        .iter()
        .filter_map(|rates| settling_s(&run.times_s, rates, SETTLED))
        .fold(0.0, f64::max);
    rows.push(published("fluid.static.settling", "s", 2.5, settled));
    rows
}

/// Beyond the stations, what the convoy has of the shared satellite by what the competitor has.
fn competitor(run: &Run) -> Vec<Figure> {
    let last = |route: usize| run.rates[route].last().copied().unwrap_or(0.0);
    let share = 100.0 * last(3) / last(7).max(1e-9);
    vec![
        Figure::within("fluid.competitor.equal_shares", "%", 100.0, 2.0, share),
        Figure::at_least("fluid.competitor.satellite.rate", "-", None, 20.0, last(3)),
    ]
}

fn responsive(run: &Run) -> Vec<Figure> {
    let highest = run.rates[3].iter().copied().fold(0.0, f64::max);
    vec![published(
        "fluid.responsive.satellite.share",
        "%",
        0.2,
        100.0 * highest / 20.0,
    )]
}

/// Processor time of the convoy's nine minutes, in a build for speed.
pub(super) fn speed() -> Result<Vec<Figure>, LabError> {
    let (name, text) = EXPERIMENTS[2];
    let mut experiment = read(name, text)?;
    experiment.settings.duration_s = TIMED_S;
    let mut best = f64::INFINITY;
    for _ in 0..TIMED_RUNS {
        let began = thread_ms();
        let run = solve(&experiment)?;
        best = best.min(thread_ms() - began);
        std::hint::black_box(run);
    }
    Ok(vec![
        Figure::at_most("fluid.speed.nine_minutes", "ms", None, TIMED_MS_MAX, best),
        Figure::shown(
            "fluid.speed.target_by_measured",
            "x",
            None,
            TIMED_MS_MAX / best,
        ),
    ])
}

/// Processor time of this thread: other programs of the machine do not count.
fn thread_ms() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}
