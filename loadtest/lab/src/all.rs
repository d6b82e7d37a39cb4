//! `braid lab all`: every experiment of the papers, as one HTML report with its data beside it.
//!
//! An experiment that is done is kept in the output folder, by seed, program and parameters. So a
//! run that was interrupted goes on where it stopped; long ones are kept by parts. Inside an
//! experiment runs share all cores.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::command::LabError;
use crate::exhibit::{Exhibit, Section};
use crate::identity::Identity;
use crate::runner::Runner;
use crate::scenario::ScenarioError;
use crate::{page, studies};

/// Files of finished experiments below the output folder.
const KEPT: &str = "finished";
/// Weight of the listed costs against those that were measured, in seconds.
const LISTED_WEIGHT_S: f64 = 20.0;

/// Flags of `all`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ReportOptions {
    /// Seed of everything random.
    #[arg(long, env = "BRAID_LAB_SEED", default_value_t = 1)]
    pub seed: u64,
    /// Few runs of each experiment: the whole report in about two minutes.
    #[arg(long, env = "BRAID_LAB_QUICK", default_value_t = false)]
    pub quick: bool,
    /// Folder of the report, its charts and its data.
    #[arg(long, env = "BRAID_LAB_OUT", default_value = "target/lab")]
    pub out: PathBuf,
    /// Only experiments whose id begins with this: a section (pals, lte, keepalive, fluid,
    /// applications, yardstick, steering) or one experiment, such as pals.loss.
    #[arg(long, env = "BRAID_LAB_ONLY")]
    pub only: Option<String>,
    /// Mahimahi traces of recorded drives: files, or folders of files named *.down. May be
    /// repeated.
    #[arg(long, env = "BRAID_LAB_TRACES", value_delimiter = ',')]
    pub traces: Vec<PathBuf>,
    /// Run everything again, also what is finished.
    #[arg(long, env = "BRAID_LAB_AGAIN", default_value_t = false)]
    pub again: bool,
    /// List the experiments and run nothing.
    #[arg(long, default_value_t = false)]
    pub list: bool,
}

const EXAMPLES: &str = "\
Examples:
  braid lab all --quick                     every experiment with few runs
  braid lab all --only pals --seed 77       one section
  braid lab all --traces drives/            with recorded drives
  braid lab all --out report --again        nothing taken from an earlier run";

/// Parameters of an experiment.
pub struct Task<'a> {
    pub runner: &'a Runner,
    pub seed: u64,
    pub quick: bool,
    /// Files of recorded drives.
    pub traces: &'a [PathBuf],
    /// Where parts of a long experiment are kept; none where nothing is.
    pub keeps: Option<Keeps>,
}

/// Files of finished experiments and of their parts.
#[derive(Debug, Clone)]
pub struct Keeps {
    folder: PathBuf,
    /// All that results depend on besides the id.
    parameters: String,
    again: bool,
}

impl Keeps {
    fn file(&self, id: &str) -> PathBuf {
        let own = fingerprint(&format!("{id} {}", self.parameters));
        self.folder.join(format!("{id}-{own:016x}.json"))
    }
}

impl Task<'_> {
    /// The number for a quick report, or for the whole one.
    pub fn pick(&self, quick: u32, whole: u32) -> u32 {
        if self.quick { quick } else { whole }
    }

    /// A part of an experiment, from an earlier run that was interrupted or made now.
    pub fn part<T: Serialize + DeserializeOwned>(
        &self,
        id: &str,
        make: impl FnOnce() -> Result<T, LabError>,
    ) -> Result<T, LabError> {
        let Some(keeps) = &self.keeps else {
            return make();
        };
        let file = keeps.file(id);
        if let Some(part) = read_kept(&file).filter(|_| !keeps.again) {
            return Ok(part);
        }
        let part = make()?;
        page::write(&file, &serde_json::to_vec(&part)?)?;
        Ok(part)
    }

    /// The command that repeats the experiment with this id.
    pub fn command(&self, id: &str) -> String {
        let quick = if self.quick { " --quick" } else { "" };
        format!("braid lab all --only {id} --seed {}{quick}", self.seed)
    }
}

/// An experiment of the report.
pub struct Experiment {
    /// Begins with the name of its section; for example `fluid.head_alone`.
    pub id: &'static str,
    pub section: Section,
    /// Seconds on two cores, quick and whole, roughly; for the time that is left.
    pub cost_s: (u32, u32),
    pub run: fn(&Task<'_>) -> Result<Exhibit, LabError>,
}

/// A finished experiment in the report.
pub struct Finished {
    pub id: &'static str,
    pub section: Section,
    pub exhibit: Exhibit,
}

impl ReportOptions {
    /// For the report of one scenario.
    pub(crate) fn for_file(seed: u64, out: PathBuf) -> Self {
        let (quick, again, list) = (false, false, false);
        Self {
            seed,
            quick,
            out,
            only: None,
            traces: Vec::new(),
            again,
            list,
        }
    }

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
                        page::write(&file, text.as_bytes())?;
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

/// FNV-1a.
fn fingerprint(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn read_kept<T: DeserializeOwned>(file: &Path) -> Option<T> {
    let text = std::fs::read_to_string(file).ok()?;
    serde_json::from_str(&text).ok()
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

/// The files themselves; of a folder those named `*.down`, in order.
pub fn trace_files(given: &[PathBuf]) -> Result<Vec<PathBuf>, ScenarioError> {
    let mut files = Vec::new();
    for path in given {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let read = |source| ScenarioError::Read {
            file: path.clone(),
            source,
        };
        let mut own = Vec::new();
        for entry in std::fs::read_dir(path).map_err(read)? {
            let file = entry.map_err(read)?.path();
            if file
                .extension()
                .is_some_and(|extension| extension == "down")
            {
                own.push(file);
            }
        }
        own.sort();
        files.extend(own);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_part_is_made_once_for_the_same_parameters() {
        let folder = tempfile::tempdir().unwrap();
        let runner = Runner::new(Identity::new().unwrap(), false);
        let made = std::cell::Cell::new(0);
        let make = |seed: u64, again: bool| {
            let task = Task {
                runner: &runner,
                seed,
                quick: true,
                traces: &[],
                keeps: Some(Keeps {
                    folder: folder.path().to_owned(),
                    parameters: format!("{seed}"),
                    again,
                }),
            };
            task.part("some.part", || {
                made.set(made.get() + 1);
                Ok(made.get())
            })
            .unwrap()
        };
        assert_eq!((make(1, false), make(1, false)), (1, 1));
        assert_eq!(make(2, false), 2);
        assert_eq!(make(1, true), 3);
        assert_eq!(make(1, false), 3);
    }

    #[test]
    fn the_time_left_follows_what_was_measured() {
        let after = |elapsed_s, run| left(Duration::from_secs(elapsed_s), run, 600.0);
        assert_eq!(after(0, 0.0), ", about 10 min left");
        // Ten times slower than listed, after a while.
        assert_eq!(after(10_000, 1000.0), ", about 98 min left");
    }
}
