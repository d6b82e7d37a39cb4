//! The experiments of the report, by paper.

mod applications;
mod fluid;
mod keepalive;
mod lte;
mod pals;
mod steering;
pub(crate) mod versions;
pub(crate) mod yardstick;

use crate::task::Experiment;

/// All of them, in the order of the report.
pub fn experiments() -> Vec<Experiment> {
    let mut all = Vec::new();
    all.extend(pals::experiments());
    all.extend(lte::experiments());
    all.extend(keepalive::experiments());
    all.extend(fluid::experiments());
    all.extend(applications::experiments());
    all.extend(yardstick::experiments());
    all.extend(steering::experiments());
    all.extend(crate::kernel::exhibit::experiments());
    all
}
