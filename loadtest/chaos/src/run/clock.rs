//! Wall clocks of their own for some processes, which can be stepped.
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

pub(super) struct Clocks {
    library: PathBuf,
    folder: PathBuf,
}

impl Clocks {
    /// Builds the library in the folder. `Err`: why this machine cannot.
    pub fn build(folder: &Path) -> Result<Clocks, String> {
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
            Ok(output) if output.status.success() => Ok(clock),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => Err(format!("cc: {error}")),
        }
    }

    /// The process that the command starts lives by the clock of this name.
    pub fn apply(&self, name: &str, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library);
        command.env(VARIABLE, self.shift_of(name));
    }

    /// The clock is off by so many seconds from now on. A reader sees the old or the new number.
    pub fn step(&self, name: &str, seconds: i64) -> std::io::Result<()> {
        let shift = self.shift_of(name);
        let new = shift.with_extension("new");
        fs::write(&new, seconds.to_string())?;
        fs::rename(new, shift)
    }

    /// Without this file the clock is right.
    fn shift_of(&self, name: &str) -> PathBuf {
        self.folder.join(format!("clock-of-{name}"))
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
        let clock = Clocks::build(&folder).unwrap();
        let seconds = || -> i64 {
            let mut command = Command::new("date");
            clock.apply("gw-3", &mut command);
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
        fs::remove_dir_all(&folder).unwrap();
    }
}
