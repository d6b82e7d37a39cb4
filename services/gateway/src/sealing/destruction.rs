//! Destroys the gateway's key and what it sealed.
//!
//! A record is on disk before anything is destroyed, so a destruction that a crash cuts short is
//! completed at the next start. The key goes first: from then on the rest cannot be read.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::KeyFile;
use crate::{journal::LOCK, reserve::RESERVE};

/// Folders below the journal with data of people.
const FOLDERS: [&str; 5] = ["vitals", "alerts", "rules", "rule-states", "open-alerts"];
/// Files of refused samples, the older one first.
pub(crate) const REFUSED: [&str; 2] = ["rejected.jsonl.1", "rejected.jsonl"];
const RECORD: &str = "destroyed.json";

/// Why and when a gateway's data were destroyed. It has no data of people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) at_us: i64,
    /// Digest of the certificate that the core revoked; empty for a person's command.
    pub(crate) certificate: String,
    /// Entries that had not been sent; `None`: they could not be counted.
    pub(crate) unsent: Option<u64>,
}

/// Where a gateway keeps data of people, and their key.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    pub(crate) data_dir: PathBuf,
    pub(crate) key: KeyFile,
}

impl Places {
    fn record(&self) -> PathBuf {
        self.data_dir.join(RECORD)
    }

    /// The record of a destruction, which may not be complete.
    pub(crate) fn read_record(&self) -> Option<Record> {
        let bytes = fs::read(self.record()).ok()?;
        // A damaged record stands for a destruction all the same.
        Some(serde_json::from_slice(&bytes).unwrap_or_default())
    }

    pub(crate) fn remove_record(&self) -> io::Result<()> {
        remove(&self.record())?;
        sync(&self.data_dir)
    }

    /// Durable when it returns, and may be repeated. Blocks on the disk.
    pub(crate) fn destroy(&self, record: &Record) -> io::Result<()> {
        let noted = self.note(record);
        // A full disk saves no key.
        self.key.destroy()?;
        let journal = self.data_dir.join("journal");
        for folder in FOLDERS.map(|folder| journal.join(folder)) {
            empty(&folder)?;
        }
        for file in REFUSED {
            remove(&self.data_dir.join(file))?;
        }
        sync(&self.data_dir)?;
        // There is room now.
        noted.or_else(|_| self.note(record))
    }

    fn note(&self, record: &Record) -> io::Result<()> {
        private_files::replace(&self.record(), &serde_json::to_vec(record)?)
    }
}

/// Removes what is in the folder, except the lock of a gateway that runs, and its reserve.
fn empty(folder: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name() == LOCK || entry.file_name() == RESERVE {
            continue;
        }
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false => remove(&entry.path())?,
        }
    }
    sync(folder)
}

fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
