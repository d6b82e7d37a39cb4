//! Steering modes, each over the same two links: an experiment of this project.

use crate::error::LabError;
use crate::exhibit::{Exhibit, Section};
use crate::scenario::Direction;
use crate::steering;
use crate::task::{Experiment, Task, Time};

pub(super) fn experiments() -> Vec<Experiment> {
    vec![Experiment {
        id: "steering.modes",
        section: Section::Steering,
        time: Time::Virtual,
        cost_s: (29, 29),
        run,
    }]
}

fn run(task: &Task<'_>) -> Result<Exhibit, LabError> {
    let title = "Steering modes over Wi-Fi and LTE";
    let command = format!("braid-lab steering --seed {}", task.seed);
    let mut exhibit = Exhibit::new(title, &command).note(steering::NOTE);
    for (direction, prefix) in [
        (Direction::Upload, "steering"),
        (Direction::Download, "steering.download"),
    ] {
        let outcome = steering::run(task.runner, prefix, task.seed, direction)?;
        exhibit.figures.extend(outcome.figures);
        exhibit.plots.extend(outcome.charts);
    }
    Ok(exhibit)
}
