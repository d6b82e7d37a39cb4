//! A program that is run with an alert on its standard input.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use service_kit::ConfigError;
use tokio::{io::AsyncWriteExt, process, time::timeout};

/// Time for the program; then it is killed, and counts as failed.
const RUN_MAX: Duration = Duration::from_secs(10);

pub struct Command {
    program: PathBuf,
}

impl Command {
    pub fn new(program: &Path) -> Result<Self, ConfigError> {
        let refused = |reason: String| {
            ConfigError::new(
                "alarm_command",
                format!("{}: {reason}", program.display()),
                "--alarm-command /usr/local/bin/lamp",
            )
        };
        let found = std::fs::metadata(program).map_err(|error| refused(error.to_string()))?;
        if !found.is_file() {
            return Err(refused("is no file".to_owned()));
        }
        let program = program.to_path_buf();
        Ok(Self { program })
    }

    /// Without a shell and without arguments, so nothing of an alert is ever a command.
    pub async fn run(&self, body: Vec<u8>) -> Result<(), String> {
        let mut child = process::Command::new(&self.program)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| error.to_string())?;
        let running = async {
            if let Some(mut input) = child.stdin.take() {
                // A program may end without reading its input.
                let _ = input.write_all(&body).await;
            }
            child.wait().await
        };
        match timeout(RUN_MAX, running).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(status.to_string()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("not finished within {} s", RUN_MAX.as_secs())),
        }
    }
}
