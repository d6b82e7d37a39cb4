//! Wall clocks of their own for some processes, which can be stepped.
//!
//! A small library answers for the C library's clock in that process. Uptime and monotonic time are
//! those of the machine, as when somebody sets a machine's clock.
//!
//! A run with a day away begins behind the machine's clock, with its sensors and receivers. The day
//! passes while every process is stopped. The engines always live by the machine's clock, since a
//! broker refuses records of the future.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicI64, Ordering},
};

/// The library of the tests of single services.
const SOURCE: &str = include_str!("../../../../services/braid/tests/support/wrong_clock.c");
/// Names the file with the seconds.
const VARIABLE: &str = "WRONG_CLOCK_FILE";

/// The beginning of the names of the files with the seconds.
const PREFIX: &str = "clock-of-";

/// Seconds by which the run is behind the machine's clock. One run has one process.
static BEHIND_S: AtomicI64 = AtomicI64::new(0);

/// The time of the run.
pub(super) fn now_us() -> i64 {
    contracts::now_us() - BEHIND_S.load(Ordering::Relaxed) * 1_000_000
}

pub(super) struct Clocks {
    library: PathBuf,
    folder: PathBuf,
}

impl Clocks {
    /// Builds the library in the folder, and puts the run behind the machine's clock. `Err`: why
    /// this machine cannot.
    pub fn build(folder: &Path, behind_s: i64) -> Result<Clocks, String> {
        let clock = Clocks {
            library: folder.join("clock.so"),
            folder: folder.to_owned(),
        };
        let source = folder.join("clock.c");
        fs::write(&source, SOURCE).map_err(|error| error.to_string())?;
        let mut command = Command::new("cc");
        command
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&clock.library);
        let output = command.arg(&source).stdin(Stdio::null()).output();
        match output {
            Ok(output) if output.status.success() => {
                BEHIND_S.store(behind_s, Ordering::Relaxed);
                Ok(clock)
            }
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => Err(format!("cc: {error}")),
        }
    }

    /// The process that the command starts lives by the clock of this name.
    pub fn apply(&self, name: &str, command: &mut Command) -> io::Result<()> {
        let shift = self.shift_of(name);
        if !shift.exists() {
            self.step(name, 0)?;
        }
        command.env("LD_PRELOAD", &self.library);
        command.env(VARIABLE, shift);
        Ok(())
    }

    /// The clock is off the time of the run by so many seconds from now on. A reader sees the old
    /// or the new number.
    pub fn step(&self, name: &str, seconds: i64) -> io::Result<()> {
        let shift = self.shift_of(name);
        let new = shift.with_extension("new");
        let off_s = seconds - BEHIND_S.load(Ordering::Relaxed);
        fs::write(&new, off_s.to_string())?;
        fs::rename(new, shift)
    }

    /// Whether every process must live by a clock of its own.
    pub fn is_behind(&self) -> bool {
        BEHIND_S.load(Ordering::Relaxed) != 0
    }

    /// The run is at the machine's time from now on, and no clock is off.
    pub fn catch_up(&self) -> io::Result<()> {
        BEHIND_S.store(0, Ordering::Relaxed);
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            if let Some(of) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) {
                self.step(of, 0)?;
            }
        }
        Ok(())
    }

    fn shift_of(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{PREFIX}{name}"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_step_moves_the_wall_clock_of_the_process_alone() {
        let folder = std::env::temp_dir().join(format!("chaos-clock-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let clock = Clocks::build(&folder, 0).unwrap();
        let seconds = || -> i64 {
            let mut command = Command::new("date");
            clock.apply("gw-3", &mut command).unwrap();
            let output = command.arg("+%s").output().unwrap();
            String::from_utf8(output.stdout)
                .unwrap()
                .trim()
                .parse()
                .unwrap()
        };
        let now_s = || contracts::now_us() / 1_000_000;
        assert!((seconds() - now_s()).abs() < 30);
        clock.step("gw-3", -90).unwrap();
        assert!((now_s() - seconds() - 90).abs() < 30);
        clock.catch_up().unwrap();
        assert!((seconds() - now_s()).abs() < 30);
        fs::remove_dir_all(&folder).unwrap();
    }
}
