//! An application's traffic of one scenario file in both times, by the product's tunnel.

use super::application::{self, Carrier};
use super::bed::{KernelError, KernelReport};
use super::compare::believed;
use super::identities::Identities;
use crate::figures::Figure;
use crate::identity::Identity;
use crate::mechanisms::Mechanisms;
use crate::mix::Mix;
use crate::report::{RunReport, percentile, sorted};
use crate::scenario::Scenario;
use crate::world;

/// One scenario in both times.
pub(super) struct Both {
    virtual_time: RunReport,
    pub(super) real_time: KernelReport,
    pub(super) attempts: u32,
}

pub(super) fn run(
    scenario: &Scenario,
    mix: &Mix,
    identity: &Identity,
    identities: &Identities,
    attempts_max: u32,
) -> Result<Both, KernelError> {
    let virtual_time = world::run(scenario, identity, Mechanisms::default())?;
    let once = || application::run(scenario, mix, Carrier::Tunnel(identities));
    let (real_time, attempts) = believed(attempts_max, once)?;
    Ok(Both {
        virtual_time,
        real_time,
        attempts,
    })
}

impl Both {
    /// Times that a user waits; the reference is virtual time.
    pub(super) fn figures(&self, name: &str) -> Vec<Figure> {
        let reports = [&self.virtual_time, &self.real_time.report];
        let delays = reports.map(|report| sorted(report.messages_ms.iter().copied()));
        let of = |what: &str, unit: &'static str, values: [Option<f64>; 2]| {
            let id = format!("kernel.vs_virtual.{name}.{what}");
            // Traffic that never arrived takes for ever.
            let real = values[1].unwrap_or(f64::INFINITY);
            let is_part = values.iter().any(Option::is_some);
            is_part.then(|| Figure::shown(id, unit, values[0], real))
        };
        let delay = |share| [0, 1].map(|time: usize| percentile(&delays[time], share));
        let page = reports.map(|report| report.page_s);
        let all = [
            of("delay_p50", "ms", delay(0.5)),
            of("delay_p99", "ms", delay(0.99)),
            of("page", "s", page),
        ];
        all.into_iter().flatten().collect()
    }
}
