//! Real time beside virtual time: the same scenario, links and seeds; and the tables of kernel
//! time.

use rayon::prelude::*;
use serde::Serialize;

use super::bed::{KernelError, KernelReport};
use super::identities::Identities;
use super::transfer;
use crate::identity::Identity;
use crate::mechanisms::Mechanisms;
use crate::pals::{self, Case, Reading, Setting};
use crate::report::{RunReport, mean};
use crate::scenario::{Controller, Direction, Half, LossSpec, RateSpec, Scenario};
use crate::seed::derive_seed;
use crate::{figure6, rival, world};

/// Length of a transfer at full capacity: real time is dear.
const TRANSFER_S: f64 = 10.0;
/// Time of a cut in the shortened handover.
const CUT_S: f64 = 4.0;
/// Longest duration, in multiples of the transfer's length.
const PATIENCE: f64 = 3.0;

/// Virtual runs of a scenario with random loss, the one with its own seed included. Which packets a
/// seed loses depends on their order. So the run in real time is a draw of its own. The spread
/// of the draws shows how far apart two of them may be.
const DRAWS: u64 = 8;

/// One scenario in both times.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    pub id: String,
    pub virtual_time: RunReport,
    /// Mean and standard deviation of the efficiency from connect() over the draws of virtual time.
    pub virtual_mean: f64,
    pub virtual_deviation: f64,
    pub real_time: KernelReport,
    /// How often the run was made until the machine kept up; if it never did, the last one is shown
    /// and not believed.
    pub attempts: u32,
}

impl Comparison {
    /// Percentage points of efficiency, from connect(), that real time is above virtual time.
    pub fn points(&self) -> f64 {
        self.real_time.report.efficiency_connect - self.virtual_time.efficiency_connect
    }
}

/// Runs `once` until the machine kept up.
pub fn believed(
    attempts_max: u32,
    mut once: impl FnMut() -> Result<KernelReport, KernelError>,
) -> Result<(KernelReport, u32), KernelError> {
    let mut attempt = 1;
    loop {
        let report = once()?;
        if report.kept.up || attempt >= attempts_max {
            return Ok((report, attempt));
        }
        attempt += 1;
    }
}

/// Runs one scenario in both times.
pub fn compare(
    id: &str,
    scenario: &Scenario,
    identity: &Identity,
    identities: &Identities,
    attempts_max: u32,
) -> Result<Comparison, KernelError> {
    let lossy = scenario.interfaces.iter().any(|interface| {
        let half = interface.half(scenario.direction);
        !matches!(half.loss, LossSpec::Random(share) if share <= 0.0)
    });
    let draws = (0..if lossy { DRAWS } else { 1 })
        .into_par_iter()
        .map(|draw| {
            let mut scenario = scenario.clone();
            if draw > 0 {
                scenario.seed = derive_seed(scenario.seed, draw);
            }
            world::run(&scenario, identity, Mechanisms::default())
        });
    let draws = draws.collect::<Result<Vec<_>, _>>()?;
    let all: Vec<f64> = draws.iter().map(|run| run.efficiency_connect).collect();
    let virtual_mean = mean(&all);
    let squares: Vec<f64> = all.iter().map(|one| (one - virtual_mean).powi(2)).collect();
    let Some(virtual_time) = draws.into_iter().next() else {
        return Err(KernelError::Endpoint("no run in virtual time".to_owned()));
    };
    let (real_time, attempts) = believed(attempts_max, || transfer::run(scenario, identities))?;
    Ok(Comparison {
        id: id.to_owned(),
        virtual_time,
        virtual_mean,
        virtual_deviation: mean(&squares).sqrt(),
        real_time,
        attempts,
    })
}

/// The scenarios of kernel time with their ids: those of the experiments, shortened to some ten
/// seconds each.
pub fn scenarios(seed: u64, per_case: u32, direction: Direction) -> Vec<(String, Scenario)> {
    let mut all = Vec::new();
    for case in [Case::NoLoss, Case::Loss, Case::Handover] {
        let setting = Setting {
            seed,
            scenarios: per_case,
            controller: Controller::Ours,
            direction,
            reading: Reading::RoundTrip,
        };
        for (index, scenario) in pals::scenarios(case, setting).into_iter().enumerate() {
            let id = format!("pals.{}.{index}", pals::name_of(case));
            all.push((id, shortened(scenario)));
        }
    }
    all.push((
        "figure6".to_owned(),
        figure6::scenario(seed, Controller::Ours, direction),
    ));
    for (id, scenario) in rival::scenarios(seed, Controller::Ours, direction) {
        all.push((format!("rival.{id}"), shortened(scenario)));
    }
    all
}

fn capacity_mbit(scenario: &Scenario, include: impl Fn(&Half) -> bool) -> f64 {
    let halves = scenario.interfaces.iter();
    let halves = halves.map(|interface| interface.half(scenario.direction));
    let rates = halves
        .filter(|half| include(half))
        .map(|half| match half.rate {
            RateSpec::Mbit(mbit) => mbit,
            _ => 0.0,
        });
    rates.sum()
}

/// The same links for a transfer of about ten seconds; a cut comes sooner, a return keeps its
/// distance from it.
pub fn shortened(mut scenario: Scenario) -> Scenario {
    let mut cut = false;
    for interface in &mut scenario.interfaces {
        for half in [&mut interface.to_server, &mut interface.to_client] {
            if let Some(first) = half.changes.first().map(|change| change.0) {
                cut = true;
                for change in &mut half.changes {
                    change.0 += CUT_S - first;
                }
            }
        }
    }
    let all = capacity_mbit(&scenario, |_| true);
    let staying = capacity_mbit(&scenario, |half| half.changes.is_empty());
    let returns = scenario
        .interfaces
        .iter()
        .any(|interface| interface.to_server.changes.len() > 1);
    let megabits = match (cut, returns) {
        // Until after the return.
        (true, true) => return scenario,
        (true, false) => all * CUT_S + staying * (TRANSFER_S - CUT_S),
        (false, _) => all * TRANSFER_S,
    };
    scenario.bytes = ((megabits * 1e6 / 8.0) as u64).min(scenario.bytes);
    scenario.limit_s = scenario.limit_s.min(TRANSFER_S * PATIENCE);
    scenario
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn runs_are_short_and_cover_the_experiments() {
        let all = scenarios(1, 2, Direction::Download);
        assert_eq!(all.len(), 3 * 2 + 1 + 4);
        for (id, scenario) in &all {
            scenario.check().unwrap();
            assert!(scenario.limit_s <= 30.0, "{id}");
            let cuts = scenario
                .interfaces
                .iter()
                .flat_map(|one| &one.to_client.changes);
            assert_eq!(
                cuts.count() > 0,
                id.contains("handover") || id.contains("cut") || id == "figure6",
                "{id}"
            );
        }
    }
}
