//! Fluid model of a convoy, figures 4 to 17, and the plan of an operator that uses the same model.

use crate::error::LabError;
use crate::exhibit::{Exhibit, Section};
use crate::task::{Experiment, Task, Time};
use crate::{fluids, plans};

pub(super) fn experiments() -> Vec<Experiment> {
    let experiment = |id, cost_s, run| Experiment {
        id,
        section: Section::Fluid,
        time: Time::Virtual,
        cost_s,
        run,
    };
    vec![
        experiment("fluid.one-station", (1, 1), |_| {
            fluids::study("one-station")
        }),
        experiment("fluid.three-stations", (1, 1), |_| {
            fluids::study("three-stations")
        }),
        experiment("fluid.convoy", (1, 1), |_| fluids::study("convoy")),
        experiment("fluid.static", (1, 1), |_| fluids::study("static")),
        experiment("fluid.competitor", (1, 1), |_| fluids::study("competitor")),
        experiment("fluid.responsive", (1, 1), |_| fluids::study("responsive")),
        experiment("fluid.threshold", (1, 1), |_| fluids::study("threshold")),
        experiment("fluid.plan", (5, 5), plan),
    ]
}

fn plan(task: &Task<'_>) -> Result<Exhibit, LabError> {
    plans::study(task.runner, task.seed)
}
