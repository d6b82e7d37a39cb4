//! An experiment of the report, and the parameters that it runs with.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::LabError;
use crate::exhibit::{Exhibit, Section};
use crate::output;
use crate::runner::Runner;

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
    pub(crate) folder: PathBuf,
    /// All that results depend on besides the id.
    pub(crate) parameters: String,
    pub(crate) again: bool,
}

impl Keeps {
    pub(crate) fn file(&self, id: &str) -> PathBuf {
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
        output::write(&file, &serde_json::to_vec(&part)?)?;
        Ok(part)
    }

    /// The command that repeats the experiment with this id.
    pub fn command(&self, id: &str) -> String {
        let quick = if self.quick { " --quick" } else { "" };
        format!("braid-lab all --only {id} --seed {}{quick}", self.seed)
    }
}

/// The clock that an experiment runs by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Time {
    /// Takes the processors that it gets.
    Virtual,
    /// Sockets and timers of this machine; most of it is waiting.
    Kernel,
}

/// An experiment of the report.
pub struct Experiment {
    /// Begins with the name of its section; for example `fluid.head_alone`.
    pub id: &'static str,
    pub section: Section,
    pub time: Time,
    /// Seconds on two cores, quick and whole, roughly; for the time that is left.
    pub cost_s: (u32, u32),
    pub run: fn(&Task<'_>) -> Result<Exhibit, LabError>,
}

/// FNV-1a.
fn fingerprint(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// A finished experiment or part; none where the file is missing or of another form.
pub(crate) fn read_kept<T: DeserializeOwned>(file: &Path) -> Option<T> {
    let text = std::fs::read_to_string(file).ok()?;
    serde_json::from_str(&text).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::identity::Identity;

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
}
