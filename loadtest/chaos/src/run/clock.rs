//! A wall clock of its own for one gateway, which can be stepped.
//!
//! A small library answers for the C library's clock in that process. Uptime and monotonic time are
//! those of the machine, as when somebody sets a machine's clock.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const SOURCE: &str = include_str!("clock.c");

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
        command.env("CHAOS_CLOCK", &self.shift);
    }

    /// The clock is off by so many seconds from now on. The file keeps its place in memory.
    pub fn step(&self, seconds: i64) -> std::io::Result<()> {
        use std::{io::Write, os::unix::fs::OpenOptionsExt};
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        options.open(&self.shift)?.write_all(&seconds.to_ne_bytes())
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
