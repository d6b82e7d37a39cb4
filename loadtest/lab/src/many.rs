//! Two to eight paths, very unequal ones included: many are never slower than the best of them
//! alone, and one more never hurts.
//!
//! Each scenario draws eight links: rates 50:1 and round trips 10:1 apart, log-uniform, and loss on
//! one of them. The same transfer is made over each link alone and over the first two, three, ...
//! eight together.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::figures::Figure;
use crate::mechanisms::Mechanisms;
use crate::report::RunReport;
use crate::runner::Runner;
use crate::scenario::{Controller, Direction, Interface, Scenario, ScenarioError};
use crate::seed::derive_seed;

const PATHS_MAX: usize = 8;
/// Several seconds over all eight: a packet that a slow path still holds at the end may cost what
/// the others deliver in 512 kB.
const BYTES: u64 = 60_000_000;
const RATE_MBIT: (f64, f64) = (1.0, 50.0);
const RTT_MS: (f64, f64) = (20.0, 200.0);
const LOSS: (f64, f64) = (0.01, 0.05);
const LIMIT_S: f64 = 1000.0;
/// Many may be this much slower than the best one alone, and one more path may cost this much.
const VS_BEST_SINGLE: f64 = 0.98;
const MORE_LINKS: f64 = 0.99;

fn links(seed: u64) -> Vec<Interface> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut log_uniform = |(from, to): (f64, f64)| {
        let exponent: f64 = random.random_range(0.0..1.0);
        from * (to / from).powf(exponent)
    };
    let each: Vec<(f64, f64)> = (0..PATHS_MAX)
        .map(|_| (log_uniform(RATE_MBIT), log_uniform(RTT_MS)))
        .collect();
    let lossy = random.random_range(0..PATHS_MAX);
    let loss = random.random_range(LOSS.0..LOSS.1);
    let link = |(index, (rate, rtt_ms)): (usize, (f64, f64))| {
        let loss = if index == lossy { loss } else { 0.0 };
        Interface::symmetric(&format!("link{index}"), rate, rtt_ms, loss)
    };
    each.into_iter().enumerate().map(link).collect()
}

fn name_of(index: u32, what: &str) -> String {
    format!("unequal.{index}.{what}")
}

/// Times that one drawing's runs over the first `count` links took: the best of them alone, all,
/// and all but one. Nothing where one of the runs was left out by name.
fn times(reports: &[RunReport], index: u32, count: usize) -> Option<(f64, f64, f64)> {
    let time = |what: String| {
        let name = name_of(index, &what);
        let report = reports.iter().find(|report| report.name == name)?;
        Some(if report.completed {
            report.from_connect_s
        } else {
            f64::INFINITY
        })
    };
    let over = |count: usize| match count {
        1 => time("alone0".to_owned()),
        _ => time(format!("first{count}")),
    };
    let alone: Option<Vec<f64>> = (0..count)
        .map(|link| time(format!("alone{link}")))
        .collect();
    let best = alone?.into_iter().fold(f64::INFINITY, f64::min);
    Some((best, over(count)?, over(count - 1)?))
}

/// The transfers of one drawing: over each link alone, then over the first two, three, ...
fn transfers(index: u32, seed: u64, controller: Controller, direction: Direction) -> Vec<Scenario> {
    let links = links(seed);
    let alone = (0..PATHS_MAX).map(|link| (format!("alone{link}"), vec![links[link].clone()]));
    let together = (2..=PATHS_MAX).map(|count| (format!("first{count}"), links[..count].to_vec()));
    alone
        .chain(together)
        .map(|(what, interfaces)| {
            Scenario::transfer(
                name_of(index, &what),
                seed,
                direction,
                BYTES,
                controller,
                LIMIT_S,
                interfaces,
            )
        })
        .collect()
}

/// `unequal.vs_best_single.N`: the worst scenario's time over the best of the first N links alone,
/// by its time over all N. `unequal.more_links.N`: in how many of them the Nth link did not make it
/// slower.
pub fn run(
    runner: &Runner,
    prefix: &str,
    seed: u64,
    drawings: u32,
    controller: Controller,
    direction: Direction,
) -> Result<(Vec<Figure>, Vec<RunReport>), ScenarioError> {
    let scenarios: Vec<Scenario> = (0..drawings)
        .flat_map(|index| {
            let seed = derive_seed(seed, 6000 + u64::from(index));
            transfers(index, seed, controller, direction)
        })
        .collect();
    let reports = runner.run(prefix, &scenarios, Mechanisms::default())?;
    let mut figures = Vec::new();
    for count in 2..=PATHS_MAX {
        let judged: Vec<(f64, f64, f64)> = (0..drawings)
            .filter_map(|index| times(&reports, index, count))
            .collect();
        if judged.is_empty() {
            continue;
        }
        let worst = judged.iter().map(|(best, over, _)| best / over);
        let worst = worst.fold(f64::INFINITY, f64::min);
        let no_worse = judged
            .iter()
            .filter(|(_, over, lesser)| over * MORE_LINKS <= *lesser)
            .count();
        figures.push(Figure::at_least(
            format!("{prefix}.vs_best_single.{count}"),
            "x",
            None,
            VS_BEST_SINGLE,
            worst,
        ));
        figures.push(Figure::at_least(
            format!("{prefix}.more_links.{count}"),
            "%",
            None,
            100.0,
            100.0 * no_worse as f64 / judged.len() as f64,
        ));
    }
    Ok((figures, reports))
}
