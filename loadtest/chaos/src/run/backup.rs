//! Copies and restores the database of a run by the tool that operators use.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use testkit::sources;

const SERVER: &str = "infra/airgap/timescaledb.sh";
const TOOL: &str = "infra/backup/backup.py";

pub(super) struct Backup {
    database: String,
    /// The folder of the database's server.
    server: PathBuf,
    folder: PathBuf,
}

impl Backup {
    /// `url` ends with the database; `server` is the folder of its server.
    pub fn new(url: &str, server: &Path, folder: &Path) -> Backup {
        let path = url.split('?').next().unwrap_or(url);
        Backup {
            database: path.rsplit('/').next().unwrap_or_default().to_owned(),
            server: server.to_owned(),
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
        let path = |file: &str| sources::file(file).map_err(|error| error.to_string());
        // The prefix runs the programs of the server.
        let server = format!("{} tool {}", path(SERVER)?.display(), self.server.display());
        let output = Command::new(path(TOOL)?)
            .arg(what)
            .arg(&self.folder)
            .args(["--server", &server, "--database", &self.database])
            .stdin(Stdio::null())
            .output();
        match output {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => Err(format!("backup.py: {error}")),
        }
    }
}
