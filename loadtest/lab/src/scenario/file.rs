//! A scenario from a TOML file, with the traces that it names.

use std::path::{Path, PathBuf};

use multipath::steering_rules::Document;

use super::Scenario;
use super::error::ScenarioError;
use super::examples;
use super::half::RateSpec;
use super::text::{FILE_BYTES_MAX, read_bounded};
use crate::bounds;

impl Scenario {
    /// From the text of a TOML file.
    pub fn from_toml(text: &str) -> Result<Self, ScenarioError> {
        let mut scenario: Self =
            toml::from_str(text).map_err(|error| examples::refusal(text, &error))?;
        if let Some(document) = scenario.steering.take() {
            let checked = Document::from_toml(&document.to_toml(), "steering")
                .map_err(|error| ScenarioError::Toml(error.to_string()))?;
            scenario.steer(checked);
        }
        scenario.check().map_err(|error| match error {
            ScenarioError::Invalid { field, reason } => match bounds::line_of(text, &field) {
                Some(line) => ScenarioError::InvalidLine {
                    line,
                    field,
                    reason,
                },
                None => ScenarioError::Invalid { field, reason },
            },
            error => error,
        })?;
        Ok(scenario)
    }

    /// From a TOML file.
    pub fn from_file(file: &Path) -> Result<Self, ScenarioError> {
        let text = read_bounded(file, FILE_BYTES_MAX)?;
        let mut scenario = Self::from_toml(&text).map_err(|source| ScenarioError::InFile {
            file: file.to_owned(),
            source: Box::new(source),
        })?;
        scenario.read_traces(file.parent().unwrap_or(Path::new(".")))?;
        Ok(scenario)
    }

    /// Reads CSV traces, and looks for trace files beside the scenario's file.
    fn read_traces(&mut self, folder: &Path) -> Result<(), ScenarioError> {
        for interface in &mut self.interfaces {
            for half in [&mut interface.to_server, &mut interface.to_client] {
                match &mut half.rate {
                    RateSpec::Trace { file, .. } => *file = beside(folder, file),
                    RateSpec::Csv(file) => {
                        let file = beside(folder, file);
                        half.read_csv(&file)?;
                    }
                    RateSpec::Mbit(_) | RateSpec::Steps(_) | RateSpec::Loaded(_) => {}
                }
            }
        }
        Ok(())
    }
}

/// A file named relative to the scenario's folder, or else to the working directory.
fn beside(folder: &Path, file: &Path) -> PathBuf {
    let near = folder.join(file);
    if near.exists() { near } else { file.to_owned() }
}
