//! Copies and restores the database of a run by the tool that operators use.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const INFRA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../infra");

pub(super) struct Backup {
    database: String,
    /// Prefix that runs the programs of the database's server.
    server: String,
    folder: PathBuf,
}

impl Backup {
    /// `url` ends with the database; `server` is the folder of its server.
    pub fn new(url: &str, server: &Path, folder: &Path) -> Backup {
        let path = url.split('?').next().unwrap_or(url);
        Backup {
            database: path.rsplit('/').next().unwrap_or_default().to_owned(),
            server: format!("{INFRA}/airgap/timescaledb.sh tool {}", server.display()),
            folder: folder.join("backup"),
        }
    }

    /// `Err`: the last words of the tool.
    pub fn make(&self) -> Result<(), String> {
        self.run("make")
    }

    pub fn restore(&self) -> Result<(), String> {
        self.run("restore")
    }

    fn run(&self, what: &str) -> Result<(), String> {
        let output = Command::new(format!("{INFRA}/backup/backup.py"))
            .arg(what)
            .arg(&self.folder)
            .args(["--server", &self.server, "--database", &self.database])
            .stdin(Stdio::null())
            .output();
        match output {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => Err(format!("backup.py: {error}")),
        }
    }
}
