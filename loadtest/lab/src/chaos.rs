//! The plan of a chaotic run, which the seed draws. It has streams of both kinds at any time, flows
//! that break off midway, and paths that come and go. Both ends, and the owner of the paths, act on
//! it.
//!
//! A stream's direction is a flow.

mod application;

use std::collections::VecDeque;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::seed::derive_seed;

pub use application::ChaosApplication;

/// Streams of one plan; well within what the library grants, so that all can be opened.
pub const STREAMS_MAX: u32 = 32;

/// The bounds of a chaotic run.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chaos {
    /// Streams opened by both ends together.
    pub streams: u32,
    /// Streams are opened, and paths opened and closed, before this time.
    pub until_s: f64,
    /// Longest pause between two pieces.
    pub pause_ms: f64,
    /// Paths closed or opened by their owner's whim.
    pub path_changes: u32,
}

/// Where a flow ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Whole,
    /// Its sender gives up after so many bytes.
    Reset(u64),
    /// Its receiver wants no more after so many bytes.
    Stop(u64),
}

#[derive(Debug, Clone, Copy)]
struct Flow {
    total: u64,
    ending: Ending,
}

#[derive(Debug, Clone, Copy)]
struct PlannedStream {
    by_client: bool,
    open_at: Duration,
    priority: i32,
    forward: Flow,
    /// None for a stream of one direction.
    backward: Option<Flow>,
}

/// A change that an end makes to one of its paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathWhim {
    /// The open path of this rank is closed.
    Close(usize),
    /// Another path is opened over this interface (client only).
    Open(usize),
}

#[derive(Debug, Clone)]
pub struct Plan {
    streams: Vec<PlannedStream>,
    seed: u64,
    pause: f64,
    /// By time: whether the client acts, and the change.
    pub paths: VecDeque<(Duration, bool, PathWhim)>,
}

impl Plan {
    pub fn draw(seed: u64, chaos: Chaos, bytes: u64, interfaces: usize) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(derive_seed(seed, 300));
        let streams = u64::from(chaos.streams.clamp(1, STREAMS_MAX));
        let share = (bytes / streams).max(1);
        let flow = |random: &mut ChaCha8Rng| {
            let total = random.random_range(0..=share);
            let ending = match random.random_range(0..10) {
                0 => Ending::Reset(random.random_range(0..=total)),
                1 => Ending::Stop(random.random_range(0..=total)),
                _ => Ending::Whole,
            };
            Flow { total, ending }
        };
        let streams = (0..streams)
            .map(|_| PlannedStream {
                by_client: random.random_bool(0.5),
                open_at: Duration::from_secs_f64(random.random_range(0.0..chaos.until_s)),
                priority: random.random_range(-2..3),
                forward: flow(&mut random),
                backward: random.random_bool(0.7).then(|| flow(&mut random)),
            })
            .collect();
        let mut paths: Vec<_> = (0..chaos.path_changes)
            .map(|_| {
                let at = Duration::from_secs_f64(random.random_range(0.0..chaos.until_s));
                let client = random.random_bool(0.6);
                let whim = if client && random.random_bool(0.4) {
                    PathWhim::Open(random.random_range(0..interfaces.max(1)))
                } else {
                    PathWhim::Close(random.random_range(0..interfaces.max(1)))
                };
                (at, client, whim)
            })
            .collect();
        paths.sort_by_key(|change| change.0);
        Self {
            streams,
            seed,
            pause: chaos.pause_ms / 1e3,
            paths: paths.into(),
        }
    }
}
