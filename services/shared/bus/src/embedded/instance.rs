//! Distinguishes the processes of one data directory, and whether they live. Each process holds a
//! lock of the operating system on a file of its own, which the kernel releases however the process
//! ends. So a process that restarts after `kill -9` takes its partitions back at once.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

const FOLDER: &str = "bus-instances";
/// An unlocked file younger than this may be between its creation and its lock.
const STALE_AFTER: Duration = Duration::from_secs(60);

pub struct Instance {
    pub name: String,
    folder: PathBuf,
    /// Keeps the lock.
    file: Option<File>,
}

impl Instance {
    pub fn register(dir: &Path) -> io::Result<Instance> {
        let folder = dir.join(FOLDER);
        private_files::folder_of_files(&folder)?;
        remove_stale(&folder)?;
        let name = format!("{:016x}", rand::random::<u64>());
        let file = private_files::options()
            .create_new(true)
            .read(true)
            .write(true)
            .open(folder.join(&name))?;
        file.lock()?;
        Ok(Instance {
            name,
            folder,
            file: Some(file),
        })
    }

    /// Whether a process has the bus of this directory open.
    pub fn any_lives(dir: &Path) -> bool {
        let Ok(entries) = fs::read_dir(dir.join(FOLDER)) else {
            return false;
        };
        let mut files = entries.filter_map(|entry| File::open(entry.ok()?.path()).ok());
        files.any(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// True only when the process of that instance has surely ended.
    pub fn gone(&self, other: &str) -> bool {
        if other == self.name {
            return false;
        }
        match File::open(self.folder.join(other)) {
            Err(e) => e.kind() == io::ErrorKind::NotFound,
            // Shared, so that two concurrent checks do not take each other for the owner.
            Ok(file) => file.try_lock_shared().is_ok(),
        }
    }

    /// Ends as a killed process would: the lock is released, nothing is tidied.
    pub fn abandon(&mut self) {
        self.file = None;
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if self.file.is_some() {
            let _ = fs::remove_file(self.folder.join(&self.name));
        }
    }
}

fn remove_stale(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        // Another process may remove it first.
        let Ok(file) = File::open(&path) else {
            continue;
        };
        let age = file
            .metadata()
            .and_then(|m| m.modified())
            .ok()
            .and_then(|modified| modified.elapsed().ok());
        if age.is_some_and(|age| age > STALE_AFTER)
            && !matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
        {
            let _ = fs::remove_file(&path);
        }
    }
    Ok(())
}
