//! Many small runs in which everything happens at once, over one to eight paths. Links are cut and
//! return, reorder, duplicate and corrupt packets, lose their rate, and change their address. A
//! client's own changes of address are announced; those of a translator are silent. Three of four
//! runs are chaotic too: both ends open streams of both kinds at any time. They write and read them
//! in pieces of any length, reset and stop some, and open and close paths without asking the
//! steering.
//!
//! A run is good when all bytes arrive as they were sent, or the connection ends with a typed
//! error. It is bad when the bytes differ, when nothing moves although every link has long been up
//! again, or when the library panics. Memory is bounded by the windows; the most that was under way
//! at once is reported.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use crate::address::INTERFACES_MAX;
use crate::chaos::{Chaos, STREAMS_MAX};
use crate::figures::Figure;
use crate::identity::Identity;
use crate::mechanisms::Mechanisms;
use crate::report::RunReport;
use crate::runner::Runner;
use crate::scenario::{
    AddressChange, Controller, Direction, Half, Interface, LossSpec, RateSpec, Scenario,
    ScenarioError,
};
use crate::seed::derive_seed;
use crate::world;

/// All links are up and undisturbed from here on.
const CALM_FROM_S: f64 = 12.0;
/// A transfer that is not over by then is stuck.
const LIMIT_S: f64 = 400.0;
/// Changes of state of one link.
const CHANGES_MAX: u32 = 8;
/// Changes of one interface's address.
const ADDRESS_CHANGES_MAX: u32 = 4;
/// Paths opened and closed without asking the steering.
const PATH_CHANGES_MAX: u32 = 12;

/// The end of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    Delivered,
    /// The connection gave up and said why.
    CleanError(String),
    Bad(String),
}

/// The scenario of a seed.
pub fn scenario(seed: u64) -> Scenario {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let paths = random.random_range(1..=INTERFACES_MAX);
    let interfaces = (0..paths)
        .map(|index| {
            let changes = changes(&mut random);
            let address_changes = address_changes(&mut random);
            let mut half = || {
                let mut half = Half::constant(
                    random.random_range(0.2..20.0),
                    random.random_range(0.0..150.0),
                );
                half.jitter_ms = random.random_range(0.0..30.0);
                half.reorder = random.random_bool(0.3);
                half.duplicate = if random.random_bool(0.3) {
                    random.random_range(0.0..0.1)
                } else {
                    0.0
                };
                half.corrupt = if random.random_bool(0.3) {
                    random.random_range(0.0..0.03)
                } else {
                    0.0
                };
                half.loss = if random.random_bool(0.5) {
                    LossSpec::Random(random.random_range(0.0..0.08))
                } else {
                    LossSpec::Bursts {
                        mean: random.random_range(0.0..0.05),
                        packets: random.random_range(1.0..8.0),
                    }
                };
                if random.random_bool(0.2) {
                    let steady = random.random_range(0.5..10.0);
                    let stall_s = random.random_range(1.0..CALM_FROM_S - 3.0);
                    half.rate = RateSpec::Steps(vec![
                        (0.0, steady),
                        (stall_s, 0.0),
                        (stall_s + random.random_range(0.1..3.0), steady),
                    ]);
                }
                half.changes = changes.clone();
                half
            };
            Interface {
                name: format!("link{index}"),
                to_server: half(),
                to_client: half(),
                announced: random.random_bool(0.5),
                shares: None,
                address_changes,
            }
        })
        .collect();
    let direction = if random.random_bool(0.5) {
        Direction::Upload
    } else {
        Direction::Download
    };
    let bytes = random.random_range(1..2_000_000);
    let mut scenario = Scenario::transfer(
        format!("robust.{seed}"),
        seed,
        direction,
        bytes,
        Controller::Ours,
        LIMIT_S,
        interfaces,
    );
    scenario.streams = random.random_range(1..6);
    scenario.chaos = random.random_bool(0.75).then(|| Chaos {
        streams: random.random_range(1..=STREAMS_MAX),
        until_s: CALM_FROM_S,
        pause_ms: random.random_range(0.0..400.0),
        path_changes: random.random_range(0..=PATH_CHANGES_MAX),
    });
    scenario
}

fn changes(random: &mut ChaCha8Rng) -> Vec<(f64, bool)> {
    let count = random.random_range(0..=CHANGES_MAX);
    let mut times: Vec<f64> = (0..count)
        .map(|_| random.random_range(0.0..CALM_FROM_S))
        .collect();
    times.sort_by(f64::total_cmp);
    let mut changes: Vec<(f64, bool)> = times
        .into_iter()
        .enumerate()
        .map(|(index, at_s)| (at_s, index % 2 == 1))
        .collect();
    changes.push((CALM_FROM_S, true));
    changes
}

fn address_changes(random: &mut ChaCha8Rng) -> Vec<(f64, AddressChange)> {
    if random.random_bool(0.6) {
        return Vec::new();
    }
    (0..random.random_range(1..=ADDRESS_CHANGES_MAX))
        .map(|_| {
            let change = if random.random_bool(0.5) {
                AddressChange::Own
            } else {
                AddressChange::Translated
            };
            (random.random_range(0.0..CALM_FROM_S), change)
        })
        .collect()
}

/// Runs one seed.
pub fn run(seed: u64, identity: &Identity) -> Result<(Ending, Option<RunReport>), ScenarioError> {
    let scenario = scenario(seed);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        world::run(&scenario, identity, Mechanisms::default())
    }));
    let Ok(report) = outcome else {
        return Ok((Ending::Bad("panic".to_owned()), None));
    };
    let report = report?;
    let ending = match (&report.error, report.connection_lost) {
        // The flows themselves check the bytes of a chaotic run.
        (None, _)
            if report.completed
                && (scenario.chaos.is_some() || report.delivered_bytes == report.bytes) =>
        {
            Ending::Delivered
        }
        (Some(error), true) => Ending::CleanError(error.clone()),
        (error, _) => Ending::Bad(
            error
                .clone()
                .unwrap_or_else(|| "bytes are missing".to_owned()),
        ),
    };
    Ok((ending, Some(report)))
}

/// Many seeds; bad ones are named on standard error, so that they can be committed.
pub fn figures(
    prefix: &str,
    runner: &Runner,
    seed: u64,
    runs: u32,
) -> Result<Vec<Figure>, ScenarioError> {
    // `--run robust.SEED` repeats one run.
    let only = runner
        .only()
        .and_then(|name| name.strip_prefix("robust.")?.parse().ok());
    let seeds: Vec<u64> = match only {
        Some(seed) => vec![seed],
        None => (0..u64::from(runs))
            .map(|index| derive_seed(seed, 6000 + index))
            .collect(),
    };
    let bar = runner.bar(prefix, seeds.len() as u64);
    let outcomes: Result<Vec<_>, ScenarioError> = seeds
        .into_par_iter()
        .map(|seed| {
            let outcome = run(seed, runner.identity());
            bar.inc(1);
            outcome.map(|(ending, report)| {
                (
                    seed,
                    ending,
                    report.map_or(0, |report| report.under_way_max),
                )
            })
        })
        .collect();
    bar.finish_and_clear();
    let outcomes = outcomes?;
    if let Some(peak) = memory_peak_kib() {
        eprintln!("{prefix}: at most {} MiB resident", peak / 1024);
    }
    for (seed, ending, _) in &outcomes {
        if let Ending::Bad(reason) = ending {
            eprintln!("seed {seed}: {reason}");
        }
    }
    let share = |wanted: fn(&Ending) -> bool| {
        100.0 * outcomes.iter().filter(|outcome| wanted(&outcome.1)).count() as f64
            / outcomes.len().max(1) as f64
    };
    let under_way = outcomes.iter().map(|outcome| outcome.2).max().unwrap_or(0);
    Ok(vec![
        Figure::at_least(
            format!("{prefix}.delivered_or_clean_error"),
            "%",
            None,
            100.0,
            share(|ending| !matches!(ending, Ending::Bad(_))),
        ),
        Figure::shown(
            format!("{prefix}.delivered"),
            "%",
            None,
            share(|ending| *ending == Ending::Delivered),
        ),
        Figure::shown(
            format!("{prefix}.datagrams_under_way_max"),
            "datagrams",
            None,
            under_way as f64,
        ),
    ])
}

/// The most memory that this process ever held, where the system reports it.
fn memory_peak_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
