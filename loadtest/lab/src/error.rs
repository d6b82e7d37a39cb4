//! Why the lab could not finish.

use std::path::PathBuf;

use crate::compare::CompareError;
use crate::identity::IdentityError;
use crate::kernel::KernelError;
use crate::scenario::ScenarioError;

/// Why the lab could not finish; scenarios and output files are the caller's.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error(transparent)]
    Compare(#[from] CompareError),
    #[error("cannot write {}", file.display())]
    Write {
        file: PathBuf,
        source: std::io::Error,
    },
    #[error("no figure of this experiment begins with {0:?}: without --only all are shown")]
    NoFigure(String),
    #[error(
        "there is no experiment {name:?} (there are: {known}); \
         a file ends with .toml, for example my-network.toml"
    )]
    NoExperiment { name: String, known: String },
    #[error("{}: {source}", file.display())]
    Fluid {
        file: PathBuf,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("{0} has no entry in loadtest/lab/references.toml: give its value, or why it has none")]
    NoReference(String),
    #[error("no experiment begins with {0:?}: braid-lab all --list names them")]
    NoSection(String),
    #[error("cannot print")]
    Print(#[from] std::io::Error),
    #[error("cannot encode the figures")]
    Encode(#[from] serde_json::Error),
}
