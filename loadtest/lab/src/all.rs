//! `braid-lab all`: every experiment of the papers, as one HTML report with its data beside it.
//!
//! An experiment that is done is kept in the output folder, by seed, program and parameters. So a
//! run that was interrupted goes on where it stopped; long ones are kept by parts.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::error::LabError;
use crate::identity::Identity;
use crate::lanes::{self, Made};
use crate::options::ReportOptions;
use crate::runner::Runner;
use crate::task::{Experiment, Keeps, Task, read_kept};
use crate::traces::trace_files;
use crate::{output, page, studies};

/// Files of finished experiments below the output folder.
const KEPT: &str = "finished";

impl ReportOptions {
    /// Runs what is missing and writes the report; failure when a target is missed.
    pub fn run(&self) -> Result<ExitCode, LabError> {
        let chosen = self.chosen()?;
        if self.list {
            for experiment in &chosen {
                println!("{}", experiment.id);
            }
            return Ok(ExitCode::SUCCESS);
        }
        let traces = trace_files(&self.traces)?;
        let runner = Runner::new(Identity::new()?, true);
        let task = Task {
            runner: &runner,
            seed: self.seed,
            quick: self.quick,
            traces: &traces,
            keeps: self.keeps(&traces),
        };
        let finished = lanes::run(&chosen, self.quick, &runner, &|experiment| {
            self.make(experiment, &task)
        })?;
        let summary = page::report(self, &finished)?;
        println!("{summary}");
        Ok(if page::is_met(&finished) {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    /// The experiment, from an earlier run if it is kept.
    fn make(&self, experiment: &Experiment, task: &Task<'_>) -> Result<Made, LabError> {
        let keeps = task.keeps.as_ref();
        let kept = keeps.map(|keeps| keeps.file(experiment.id));
        if let Some(exhibit) = kept.as_deref().and_then(read_kept).filter(|_| !self.again) {
            let is_new = false;
            return Ok(Made { exhibit, is_new });
        }
        let exhibit = (experiment.run)(task)?;
        // A skipped part may be possible next time.
        if let Some(file) = kept.filter(|_| exhibit.skipped.is_empty()) {
            let text = serde_json::to_string(&exhibit)?;
            output::write(&file, text.as_bytes())?;
        }
        let is_new = true;
        Ok(Made { exhibit, is_new })
    }

    fn chosen(&self) -> Result<Vec<Experiment>, LabError> {
        let only = self.only.as_deref().unwrap_or_default();
        let mut chosen = studies::experiments();
        chosen.retain(|experiment| experiment.id.starts_with(only));
        chosen.sort_by_key(|experiment| experiment.section);
        if chosen.is_empty() {
            return Err(LabError::NoSection(only.to_owned()));
        }
        Ok(chosen)
    }

    /// None where the program is not known.
    fn keeps(&self, traces: &[PathBuf]) -> Option<Keeps> {
        let program = program()?;
        let version = env!("CARGO_PKG_VERSION");
        Some(Keeps {
            folder: self.out.join(KEPT),
            parameters: format!(
                "{} {} {version} {traces:?} {program}",
                self.seed, self.quick
            ),
            again: self.again,
        })
    }
}

/// Size and time of this program's file: another build is another version.
fn program() -> Option<String> {
    let file = std::env::current_exe().ok()?.metadata().ok()?;
    let changed = file
        .modified()
        .ok()?
        .duration_since(std::time::UNIX_EPOCH)
        .ok()?;
    Some(format!("{} {}", file.len(), changed.as_nanos()))
}
