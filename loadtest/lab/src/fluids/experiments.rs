//! The paper's experiments, and how an experiment is read and solved.

use std::path::PathBuf;

use ::fluid::{Experiment, Run};
use toml_errors::FileError;

use crate::error::LabError;

/// The paper's experiments, as files that ship.
pub const EXPERIMENTS: [(&str, &str); 7] = [
    (
        "one-station",
        include_str!("../../scenarios/fluid/one-station.toml"),
    ),
    (
        "three-stations",
        include_str!("../../scenarios/fluid/three-stations.toml"),
    ),
    ("convoy", include_str!("../../scenarios/fluid/convoy.toml")),
    ("static", include_str!("../../scenarios/fluid/static.toml")),
    (
        "competitor",
        include_str!("../../scenarios/fluid/competitor.toml"),
    ),
    (
        "responsive",
        include_str!("../../scenarios/fluid/responsive.toml"),
    ),
    (
        "threshold",
        include_str!("../../scenarios/fluid/threshold.toml"),
    ),
];

/// An experiment from its text.
pub(super) fn read(name: &str, text: &str) -> Result<Experiment, LabError> {
    Experiment::from_toml(text).map_err(|source: FileError| LabError::Fluid {
        file: PathBuf::from(name),
        source: Box::new(source),
    })
}

pub(super) fn solve(experiment: &Experiment) -> Result<Run, LabError> {
    experiment.solve().map_err(|error| LabError::Fluid {
        file: PathBuf::from(&experiment.name),
        source: Box::new(error),
    })
}
