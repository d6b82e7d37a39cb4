//! `braid lab all`: every experiment of the papers, as one HTML report with its data beside it.
//!
//! An experiment that is done is kept in the output folder, by seed, program and parameters. So a
//! run that was interrupted goes on where it stopped; long ones are kept by parts. Inside an
//! experiment runs share all cores.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::error::LabError;
use crate::exhibit::Finished;
use crate::identity::Identity;
use crate::options::ReportOptions;
use crate::runner::Runner;
use crate::task::{Experiment, Keeps, Task, read_kept};
use crate::traces::trace_files;
use crate::{output, page, studies};

/// Files of finished experiments below the output folder.
const KEPT: &str = "finished";
/// Weight of the listed costs against those that were measured, in seconds.
const LISTED_WEIGHT_S: f64 = 20.0;

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
        let started = Instant::now();
        let cost = |experiment: &Experiment| {
            let (quick, whole) = experiment.cost_s;
            f64::from(if self.quick { quick } else { whole }.max(1))
        };
        let whole: f64 = chosen.iter().map(cost).sum();
        let (mut done, mut run) = (0.0, 0.0);
        let mut finished = Vec::new();
        for (number, experiment) in chosen.iter().enumerate() {
            let left = left(started.elapsed(), run, whole - done);
            eprintln!("[{}/{}] {}{left}", number + 1, chosen.len(), experiment.id);
            let keeps = task.keeps.as_ref();
            let kept = keeps.map(|keeps| keeps.file(experiment.id));
            let exhibit = match kept.as_deref().and_then(read_kept).filter(|_| !self.again) {
                Some(exhibit) => exhibit,
                None => {
                    let exhibit = (experiment.run)(&task)?;
                    run += cost(experiment);
                    // A skipped part may be possible next time.
                    if let Some(file) = kept.filter(|_| exhibit.skipped.is_empty()) {
                        let text = serde_json::to_string(&exhibit)?;
                        output::write(&file, text.as_bytes())?;
                    }
                    exhibit
                }
            };
            done += cost(experiment);
            finished.push(Finished {
                id: experiment.id,
                section: experiment.section,
                exhibit,
            });
        }
        let summary = page::report(self, &finished)?;
        println!("{summary}");
        Ok(if page::is_met(&finished) {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
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

/// The time left, by how long the experiments took so far. At first the listed cost counts too, so
/// that one cheap experiment does not stand for all.
fn left(elapsed: Duration, run: f64, rest: f64) -> String {
    let slowness = (elapsed.as_secs_f64() + LISTED_WEIGHT_S) / (run + LISTED_WEIGHT_S);
    let seconds = slowness * rest;
    if seconds >= 90.0 {
        format!(", about {:.0} min left", seconds / 60.0)
    } else {
        format!(", about {seconds:.0} s left")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_time_left_follows_what_was_measured() {
        let after = |elapsed_s, run| left(Duration::from_secs(elapsed_s), run, 600.0);
        assert_eq!(after(0, 0.0), ", about 10 min left");
        // Ten times slower than listed, after a while.
        assert_eq!(after(10_000, 1000.0), ", about 98 min left");
    }
}
