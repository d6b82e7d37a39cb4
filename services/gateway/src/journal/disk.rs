//! The journal's interface to storage, and its implementation on the file system.
//!
//! The trait is as small as the journal's protocol. Every method is one boundary at which a crash
//! may happen, so a test can stop at each. The journal relies on three promises. Appended bytes
//! survive a crash after `sync`, directory entries survive after `sync_directory`, and `rename`
//! replaces its target atomically.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::sealing::Keys;

/// One flat directory of append-only files.
pub trait Disk: Clone + Send + Sync + 'static {
    type File: DiskFile;

    /// The keys that seal what is written here.
    fn keys(&self) -> &Keys;

    fn list(&self) -> io::Result<Vec<String>>;
    /// Up to `length` bytes from `offset`; fewer only at the end of the file.
    fn read_at(&self, name: &str, offset: u64, length: usize) -> io::Result<Vec<u8>>;
    /// A new empty file; it replaces an old file of that name.
    fn create(&self, name: &str) -> io::Result<Self::File>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes a file's content durable without opening it for writing.
    fn sync_file(&self, name: &str) -> io::Result<()>;
    /// Makes creations, renames and removals durable.
    fn sync_directory(&self) -> io::Result<()>;
    /// Bytes that may still be written.
    fn free_bytes(&self) -> io::Result<u64>;
}

pub trait DiskFile: Send + 'static {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    fn sync(&mut self) -> io::Result<()>;
}

/// A directory of the file system, locked against a second gateway.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
    keys: Keys,
    _lock: Arc<File>,
}

pub const LOCK: &str = "lock";
/// A folder with the name of a segment. A version that cannot read sealed segments refuses to start
/// at it. Without the folder it would set those segments aside as damaged.
const BARRIER: &str = "18446744073709551615.segment";

impl Directory {
    pub fn open(path: &Path, keys: Keys) -> io::Result<Self> {
        private_files::folder_of_files(path)?;
        let lock = private_files::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path.join(LOCK))?;
        lock.try_lock().map_err(|error| {
            io::Error::new(
                io::ErrorKind::ResourceBusy,
                format!("{} is in use by another gateway: {error}", path.display()),
            )
        })?;
        Ok(Self {
            path: path.to_path_buf(),
            keys,
            _lock: Arc::new(lock),
        })
    }

    /// Whether sealed segments may be in this folder.
    pub fn has_barrier(path: &Path) -> bool {
        path.join(BARRIER).is_dir()
    }

    /// Sets the barrier, or removes it when nothing is sealed any more. Durable when it returns.
    pub fn set_barrier(&self, is_wanted: bool) -> io::Result<()> {
        let barrier = self.path.join(BARRIER);
        match (is_wanted, barrier.is_dir()) {
            (true, false) => fs::create_dir(barrier)?,
            (false, true) => fs::remove_dir(barrier)?,
            (true, true) | (false, false) => return Ok(()),
        }
        self.sync_directory()
    }
}

impl Disk for Directory {
    type File = File;

    fn keys(&self) -> &Keys {
        &self.keys
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            if let Ok(name) = entry?.file_name().into_string()
                && name != LOCK
                && name != BARRIER
            {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn read_at(&self, name: &str, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut file = File::open(self.path.join(name))?;
        file.seek(SeekFrom::Start(offset))?;
        let mut bytes = Vec::new();
        file.take(length as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn create(&self, name: &str) -> io::Result<File> {
        private_files::options()
            .create(true)
            .truncate(true)
            .write(true)
            .open(self.path.join(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn sync_file(&self, name: &str) -> io::Result<()> {
        File::open(self.path.join(name))?.sync_all()
    }

    fn sync_directory(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let found = rustix::fs::statvfs(&self.path)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }
}

impl DiskFile for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn other_users_of_the_machine_cannot_read_the_journal() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("journal").join("vitals");
        let is_private = |path: &Path| {
            let mode = fs::metadata(path).unwrap().permissions().mode();
            mode & 0o077 == 0
        };
        let disk = Directory::open(&path, Keys::none()).unwrap();
        disk.create("00001.log").unwrap();
        drop(disk);
        let segment = path.join("00001.log");
        for path in [&path, &segment, &path.join(LOCK)] {
            assert!(is_private(path), "{}", path.display());
        }
        // The mode that an older version set.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&segment, fs::Permissions::from_mode(0o644)).unwrap();
        Directory::open(&path, Keys::none()).unwrap();
        assert!(is_private(&path) && is_private(&segment));
    }
}
