//! A small disk of its own for a gateway's journal, which can be filled to the last byte.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// A run of an hour needs some megabytes.
const SIZE: &str = "size=64m";
const FILLER: &str = "filler";
const CHUNK_BYTES: usize = 64 << 10;
/// A gateway that began to start on the full disk may end so much later.
const STARTS_WITHIN: Duration = Duration::from_secs(5);

pub(super) struct Disk {
    at: PathBuf,
    is_full: bool,
    room_since: Option<Instant>,
}

impl Disk {
    /// Mounts it at `at`. `Err`: why this machine cannot.
    pub fn mount(at: &Path) -> Result<Disk, String> {
        fs::create_dir_all(at).map_err(|error| error.to_string())?;
        let mut command = Command::new("mount");
        command
            .args(["-t", "tmpfs", "-o", SIZE, "braid-chaos"])
            .arg(at);
        let output = command.stdin(Stdio::null()).output();
        match output {
            Ok(output) if output.status.success() => Ok(Disk {
                at: at.to_owned(),
                is_full: false,
                room_since: None,
            }),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => Err(format!("mount: {error}")),
        }
    }

    /// Fills the disk, or makes room again.
    pub fn fill(&mut self, is_full: bool) {
        self.is_full = is_full;
        self.room_since = (!is_full).then(Instant::now);
        let filler = self.at.join(FILLER);
        if !is_full {
            // A filler that was never made needs no removal.
            let _ = fs::remove_file(filler);
            return;
        }
        let Ok(mut file) = File::create(filler) else {
            return;
        };
        let chunk = [1_u8; CHUNK_BYTES];
        // Half a chunk may fit after a whole one did not.
        let mut bytes = CHUNK_BYTES;
        while bytes > 0 {
            if file.write_all(&chunk[..bytes]).is_err() {
                bytes /= 2;
            }
        }
    }
}

impl Disk {
    /// Whether a gateway may have found no room for its journal at its start. It then ends with an
    /// error, and is started again until there is room.
    pub fn hinders_start(&self) -> bool {
        let is_recent = |since: Instant| since.elapsed() < STARTS_WITHIN;
        self.is_full || self.room_since.is_some_and(is_recent)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let mut command = Command::new("umount");
        // Lazily: a log may still be open. The mount ends with this process in any case.
        let _ = command.arg("--lazy").arg(&self.at).status();
    }
}
