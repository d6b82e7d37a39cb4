//! The public yardstick as its authors measure it: an inner QUIC flow in kernel time. One run has
//! both paths and each alone.

use super::bed::{KernelError, KernelReport};
use super::compare::believed;
use super::identities::Identities;
use super::inner;
use crate::figures::Figure;
use crate::references;
use crate::scenario::{Scenario, ScenarioError};
use crate::studies::versions::goodput;
use crate::studies::yardstick::{self, ratio_min};

/// A run ends by then: the time suffices to measure the rate of a slow leg alone as well.
const LIMIT_S: f64 = 12.0;

/// The goodput of an inner flow over the first path, over the second, and over both.
pub(super) struct Legs {
    pub(super) runs: [(KernelReport, u32); 3],
}

pub(super) const NAMES: [&str; 3] = ["path_a", "path_b", "both"];

pub(super) fn scenario(profile: &str, seed: u64) -> Result<Option<Scenario>, ScenarioError> {
    let Some(text) = yardstick::file_of(profile) else {
        return Ok(None);
    };
    let mut scenario = Scenario::from_toml(text)?;
    scenario.seed = seed;
    scenario.limit_s = LIMIT_S;
    Ok(Some(scenario))
}

pub(super) fn run(
    scenario: &Scenario,
    identities: &Identities,
    attempts: u32,
) -> Result<Legs, KernelError> {
    let alone = |path: usize| {
        let mut alone = scenario.clone();
        alone.interfaces = scenario
            .interfaces
            .iter()
            .skip(path)
            .take(1)
            .cloned()
            .collect();
        alone
    };
    let run = |scenario: &Scenario| believed(attempts, || inner::run(scenario, identities));
    Ok(Legs {
        runs: [run(&alone(0))?, run(&alone(1))?, run(scenario)?],
    })
}

pub(super) fn mbit(run: &KernelReport) -> f64 {
    goodput(&run.report)
}

impl Legs {
    /// Both paths beside the best leg, with the ratio of mqvpn's best setting.
    pub(super) fn figure(&self, profile: &str) -> Figure {
        let id = format!("kernel.yardstick.{profile}.ratio");
        let theirs = references::figure(&id);
        Figure::at_least(id, "x", theirs, ratio_min(profile), self.ratio())
    }

    pub(super) fn best_leg_mbit(&self) -> f64 {
        mbit(&self.runs[0].0).max(mbit(&self.runs[1].0))
    }

    /// Over both by the best leg.
    pub(super) fn ratio(&self) -> f64 {
        mbit(&self.runs[2].0) / self.best_leg_mbit().max(1e-3)
    }
}
