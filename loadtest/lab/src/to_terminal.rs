//! Prints figures for people or as JSON, and says by the exit code whether all targets are met.

use std::io::Write;
use std::process::ExitCode;

use crate::error::LabError;
use crate::figures::{Figure, table};

/// The notes are printed for people only.
pub(crate) fn print(
    figures: &[Figure],
    notes: &[String],
    json: bool,
) -> Result<ExitCode, LabError> {
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(figures)?)?;
    } else {
        write!(out, "{}", table(figures))?;
        for note in notes {
            writeln!(out, "{note}")?;
        }
    }
    Ok(verdict(figures))
}

pub(crate) fn verdict(figures: &[Figure]) -> ExitCode {
    if figures.iter().all(|figure| figure.met) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
