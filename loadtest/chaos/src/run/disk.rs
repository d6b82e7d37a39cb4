//! A small disk of its own for a gateway's journal, which can be filled to the last byte.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A run of an hour needs some megabytes.
const SIZE: &str = "size=64m";
const FILLER: &str = "filler";
const CHUNK_BYTES: usize = 64 << 10;

pub(super) struct Disk {
    at: PathBuf,
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
            Ok(output) if output.status.success() => Ok(Disk { at: at.to_owned() }),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => Err(format!("mount: {error}")),
        }
    }

    /// Fills the disk, or makes room again.
    pub fn fill(&self, is_full: bool) {
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

impl Drop for Disk {
    fn drop(&mut self) {
        let mut command = Command::new("umount");
        // Lazily: a log may still be open. The mount ends with this process in any case.
        let _ = command.arg("--lazy").arg(&self.at).status();
    }
}
