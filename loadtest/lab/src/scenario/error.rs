//! Why a scenario cannot be run.

use std::path::PathBuf;

use emulated_link::link::TraceError;

use crate::csv_trace::CsvError;

/// A scenario that cannot be run; the writer of the file is at fault.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// With line and example.
    #[error("{0}")]
    Toml(String),
    #[error("{field}: {reason}")]
    Invalid { field: String, reason: String },
    #[error("line {line}: {field}: {reason}")]
    InvalidLine {
        line: usize,
        field: String,
        reason: String,
    },
    #[error("{}: {source}", file.display())]
    InFile {
        file: PathBuf,
        source: Box<ScenarioError>,
    },
    #[error("cannot read {}: {source}", file.display())]
    Read {
        file: PathBuf,
        source: std::io::Error,
    },
    #[error("{}: {source}", file.display())]
    Csv { file: PathBuf, source: CsvError },
    #[error("{}: a CSV trace is read with its scenario file only", .0.display())]
    CsvUnread(PathBuf),
    #[error("{} is not a Mahimahi trace: {source}", file.display())]
    Trace { file: PathBuf, source: TraceError },
}
