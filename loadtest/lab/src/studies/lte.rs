//! Multipath QUIC over LTE drives: figures 1 to 7, tables 2 to 5.

mod data;
mod drives;
mod recorded;
mod visits;

use crate::drive::Environment;
use crate::exhibit::Section;
use crate::task::{Experiment, Task, Time};

pub(super) fn experiments() -> Vec<Experiment> {
    let experiment = |id, cost_s, run| Experiment {
        id,
        section: Section::Lte,
        time: Time::Virtual,
        cost_s,
        run,
    };
    vec![
        experiment("lte.dataset", (3, 3), data::run as fn(&Task<'_>) -> _),
        experiment("lte.figure6", (1, 2), visits::figure6),
        experiment("lte.residential", (16, 400), |task| {
            drives::run(task, Environment::Residential)
        }),
        experiment("lte.road", (16, 400), |task| {
            drives::run(task, Environment::Road)
        }),
        experiment("lte.figure7", (1, 2), visits::figure7),
        experiment("lte.trunk", (4, 40), visits::trunk),
        experiment("lte.recorded", (10, 100), recorded::run),
    ]
}
