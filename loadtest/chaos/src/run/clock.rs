//! A wall clock of its own for one gateway, which can be stepped.
//!
//! A small library answers for the C library's clock in that process. Uptime and monotonic time are
//! those of the machine, as when somebody sets a machine's clock.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The library of the tests of single services.
const SOURCE: &str = include_str!("../../../../services/braid/tests/support/wrong_clock.c");
/// Names the file with the seconds.
const VARIABLE: &str = "WRONG_CLOCK_FILE";

pub(super) struct Clock {
    library: PathBuf,
    shift: PathBuf,
}

impl Clock {
    /// Builds the library in the folder. `Err`: why this machine cannot.
    pub fn build(folder: &Path) -> Result<Clock, String> {
        let clock = Clock {
            library: folder.join("clock.so"),
            shift: folder.join("clock"),
        };
        let source = folder.join("clock.c");
        fs::write(&source, SOURCE).map_err(|error| error.to_string())?;
        clock.step(0).map_err(|error| error.to_string())?;
        let mut command = Command::new("cc");
        command
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&clock.library);
        let output = command.arg(&source).stdin(Stdio::null()).output();
        match output {
            Ok(output) if output.status.success() => Ok(clock),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => Err(format!("cc: {error}")),
        }
    }

    /// The process that the command starts lives by this clock.
    pub fn apply(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library);
        command.env(VARIABLE, &self.shift);
    }

    /// The clock is off by so many seconds from now on.
    pub fn step(&self, seconds: i64) -> std::io::Result<()> {
        fs::write(&self.shift, seconds.to_string())
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
        let clock = Clock::build(&folder).unwrap();
        let seconds = || -> i64 {
            let mut command = Command::new("date");
            clock.apply(&mut command);
            let output = command.arg("+%s").output().unwrap();
            String::from_utf8(output.stdout)
                .unwrap()
                .trim()
                .parse()
                .unwrap()
        };
        let now_s = || contracts::now_us() / 1_000_000;
        assert!((seconds() - now_s()).abs() < 30);
        clock.step(-90).unwrap();
        assert!((now_s() - seconds() - 90).abs() < 30);
        fs::remove_dir_all(&folder).unwrap();
    }
}
