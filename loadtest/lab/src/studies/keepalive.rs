//! Keepalive and selection of the access: figures 7 to 11, 16 to 18 and 21 to 24.

use crate::exhibit::Section;
use crate::keepalives;
use crate::task::{Experiment, Time};

pub(super) fn experiments() -> Vec<Experiment> {
    vec![Experiment {
        id: "keepalive.measurement",
        section: Section::Keepalive,
        time: Time::Virtual,
        cost_s: (10, 60),
        run: |task| Ok(keepalives::study(task.seed, task.quick)),
    }]
}
