//! A copy of the store's file, and its way back. Blocks on the disk.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use rusqlite::{Connection, OpenFlags, Transaction};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{
    erasure,
    schema::{self, FILE, OpenError},
};
use crate::{REVOCATION, Removal, Restore};

const MANIFEST: &str = "manifest.json";
const FORMAT: u32 = 1;
/// Folders in the data directory.
const RESTORING: &str = "store-restoring";
const BEFORE: &str = "store-before-restore";
/// A service that still holds a partition is refused, and asks for its starting position.
const EPOCHS_AHEAD: i64 = 1_000_000;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    format: u32,
    pub made_us: i64,
    /// Rows of each table.
    pub tables: BTreeMap<String, u64>,
}

impl Manifest {
    pub fn rows(&self) -> u64 {
        self.tables.values().sum()
    }
}

#[derive(Debug, Error)]
pub enum BackupError {
    #[error("{0} is there already; each backup takes a folder of its own")]
    Exists(String),
    #[error("{0} has no store: there is nothing to copy")]
    NoStore(String),
    #[error("{folder} is no backup: {reason}")]
    NoBackup { folder: String, reason: String },
    #[error("{folder} is not what was written: {reason}")]
    Damaged { folder: String, reason: String },
    #[error("{0} is still there from an earlier restore: look at it, then remove it")]
    Before(String),
    #[error("{path}: {source}")]
    Io { path: String, source: io::Error },
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("{FILE}: {0}")]
    Sqlite(#[from] rusqlite::Error),
}

fn at(path: &Path) -> impl Fn(io::Error) -> BackupError {
    let path = path.display().to_string();
    move |source| BackupError::Io {
        path: path.clone(),
        source,
    }
}

/// Copies the store as it is at one moment, while services write. The folder appears when it is
/// whole.
pub fn make(dir: &Path, folder: &Path, made_us: i64) -> Result<Manifest, BackupError> {
    if folder.exists() {
        return Err(BackupError::Exists(folder.display().to_string()));
    }
    let present = open_present(dir)?;
    let part = with_suffix(folder, ".part");
    remove(&part)?;
    private_files::folder(&part).map_err(at(&part))?;
    let made = copy(&present, &part, made_us);
    if made.is_err() {
        // An incomplete copy is useless, and would fill the disk.
        remove(&part)?;
    }
    let manifest = made?;
    fs::rename(&part, folder).map_err(at(folder))?;
    sync_folder(folder.parent().unwrap_or(Path::new(".")))?;
    Ok(manifest)
}

fn copy(present: &Connection, part: &Path, made_us: i64) -> Result<Manifest, BackupError> {
    let file = part.join(FILE);
    present.execute("VACUUM INTO ?1", [file.display().to_string()])?;
    private_files::mend_file(&file).map_err(at(&file))?;
    let synced = fs::File::open(&file).and_then(|file| file.sync_all());
    synced.map_err(at(&file))?;
    let manifest = Manifest {
        format: FORMAT,
        made_us,
        tables: rows(&Connection::open(&file)?)?,
    };
    let text = serde_json::to_vec_pretty(&manifest);
    let path = part.join(MANIFEST);
    let text = text.map_err(|error| at(&path)(error.into()))?;
    private_files::replace(&path, &text).map_err(at(&path))?;
    Ok(manifest)
}

/// Reads the copy and compares it with its manifest.
pub fn check(folder: &Path) -> Result<Manifest, BackupError> {
    let no_backup = |reason: String| BackupError::NoBackup {
        folder: folder.display().to_string(),
        reason,
    };
    let damaged = |reason: String| BackupError::Damaged {
        folder: folder.display().to_string(),
        reason,
    };
    let text = fs::read(folder.join(MANIFEST)).map_err(|e| no_backup(e.to_string()))?;
    let manifest: Manifest = serde_json::from_slice(&text).map_err(|e| no_backup(e.to_string()))?;
    if manifest.format != FORMAT {
        let format = manifest.format;
        return Err(no_backup(format!(
            "it has format {format}, and this program reads {FORMAT}"
        )));
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let copy = Connection::open_with_flags(folder.join(FILE), flags)?;
    let found: String = copy
        .query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))
        .map_err(|e| damaged(e.to_string()))?;
    if found != "ok" {
        return Err(damaged(found));
    }
    let tables = rows(&copy).map_err(|e| damaged(e.to_string()))?;
    if tables != manifest.tables {
        let differ = tables
            .iter()
            .filter(|it| manifest.tables.get(it.0) != Some(it.1));
        let differ = bus::listed(differ.map(|(table, rows)| format!("{table} has {rows} rows")));
        return Err(damaged(format!("it differs from its manifest: {differ}")));
    }
    Ok(manifest)
}

/// Puts the copy in the place of the present store, which stays in `store-before-restore`. Acts of
/// the list are done again in the copy first. No service may have the directory open.
pub fn restore<'a>(
    dir: &Path,
    folder: &Path,
    removals: impl IntoIterator<Item = &'a Removal>,
    restored_us: i64,
) -> Result<Manifest, BackupError> {
    let manifest = check(folder)?;
    let (fresh, before) = (dir.join(RESTORING), dir.join(BEFORE));
    if before.exists() {
        return Err(BackupError::Before(before.display().to_string()));
    }
    remove(&fresh)?;
    private_files::folder(&fresh).map_err(at(&fresh))?;
    let file = fresh.join(FILE);
    fs::copy(folder.join(FILE), &file).map_err(at(&file))?;
    let mut connection = schema::open_writer(&fresh)?;
    let transaction = connection.transaction()?;
    for removal in removals {
        remove_again(&transaction, removal)?;
    }
    let restore = Restore {
        restored_us,
        made_us: manifest.made_us,
    };
    transaction.execute(
        "INSERT OR REPLACE INTO restores VALUES (?1, ?2)",
        (restore.restored_us, restore.made_us),
    )?;
    // The copy may hold a session that was revoked since.
    transaction.execute("DELETE FROM sessions", [])?;
    transaction.execute("UPDATE progress SET epoch = epoch + ?1", [EPOCHS_AHEAD])?;
    transaction.commit()?;
    // The last connection writes its log into the file.
    connection.close().map_err(|(_, error)| error)?;
    put_aside(dir, &before)?;
    fs::rename(&file, dir.join(FILE)).map_err(at(dir))?;
    sync_folder(dir)?;
    remove(&fresh)?;
    Ok(manifest)
}

/// The present file keeps its name until the new one takes it: a crash in between leaves one of
/// them.
fn put_aside(dir: &Path, before: &Path) -> Result<(), BackupError> {
    if !dir.join(FILE).exists() {
        return Ok(());
    }
    // Writes what is in the log into the file. A damaged file keeps its log beside it.
    if let Ok(present) = open_present(dir) {
        let _ = present.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    }
    private_files::folder(before).map_err(at(before))?;
    for file in schema::files(dir) {
        let Some(name) = file.file_name().filter(|_| file.exists()) else {
            continue;
        };
        let kept = before.join(name);
        if name == FILE {
            fs::hard_link(&file, &kept).map_err(at(&kept))?;
        } else {
            fs::rename(&file, &kept).map_err(at(&kept))?;
        }
    }
    sync_folder(before)
}

/// The final acts that the store of this directory knows.
pub fn removals(dir: &Path) -> Result<Vec<Removal>, BackupError> {
    let present = open_present(dir)?;
    let mut found = Vec::new();
    let mut revocations = present.prepare(
        "SELECT tenant, subject, version, until_us, hex(payload) FROM documents WHERE kind = ?1 ORDER BY key",
    )?;
    let mut rows = revocations.query([REVOCATION])?;
    while let Some(row) = rows.next()? {
        found.push(Removal::Revocation {
            tenant: row.get(0)?,
            subject: row.get(1)?,
            version: row.get(2)?,
            until_us: row.get(3)?,
            payload: row.get::<_, String>(4)?.to_lowercase(),
        });
    }
    let mut ended = present.prepare(
        "SELECT device, from_us, until_us FROM assignments WHERE until_us < ?1 ORDER BY device, from_us",
    )?;
    let mut rows = ended.query([i64::MAX])?;
    while let Some(row) = rows.next()? {
        found.push(Removal::Ended {
            subject: row.get(0)?,
            from_us: row.get(1)?,
            until_us: row.get(2)?,
        });
    }
    // A store of before has no such table.
    let has_removals = "SELECT count(*) FROM sqlite_schema WHERE name = 'removals'";
    if present.query_row(has_removals, [], |row| row.get::<_, u32>(0))? == 0 {
        return Ok(found);
    }
    let mut removed = present.prepare(
        "SELECT kind, subject, from_us, removed_us FROM removals ORDER BY removed_us, kind, subject",
    )?;
    let mut rows = removed.query([])?;
    while let Some(row) = rows.next()? {
        let (subject, at_us) = (row.get(1)?, row.get(3)?);
        let kind: String = row.get(0)?;
        found.push(match kind.as_str() {
            "account" => Removal::Account { subject, at_us },
            erasure::KIND => Removal::Patient { subject, at_us },
            _ => Removal::Assignment {
                subject,
                from_us: row.get(2)?,
                at_us,
            },
        });
    }
    Ok(found)
}

fn remove_again(transaction: &Transaction<'_>, removal: &Removal) -> rusqlite::Result<()> {
    match removal {
        Removal::Account { subject, at_us } => {
            transaction.execute(
                "DELETE FROM accounts WHERE name = ?1 AND created_us <= ?2",
                (subject, at_us),
            )?;
            transaction.execute(
                "INSERT OR IGNORE INTO removals VALUES ('account', ?1, 0, ?2)",
                (subject, at_us),
            )?;
        }
        Removal::Assignment {
            subject,
            from_us,
            at_us,
        } => {
            transaction.execute(
                "DELETE FROM assignments WHERE device = ?1 AND from_us = ?2 AND entered_us <= ?3",
                (subject, from_us, at_us),
            )?;
            transaction.execute(
                "INSERT OR IGNORE INTO removals VALUES ('assignment', ?1, ?2, ?3)",
                (subject, from_us, at_us),
            )?;
        }
        Removal::Patient { subject, at_us } => {
            erasure::erase(transaction, subject, *at_us)?;
            while erasure::step(transaction, *at_us)? > 0 {}
        }
        Removal::Ended {
            subject,
            from_us,
            until_us,
        } => {
            transaction.execute(
                "UPDATE assignments SET until_us = ?3 WHERE device = ?1 AND from_us = ?2 AND until_us > ?3",
                (subject, from_us, until_us),
            )?;
        }
        Removal::Revocation {
            tenant,
            subject,
            version,
            until_us,
            payload,
        } => {
            transaction.execute(
                "INSERT OR IGNORE INTO documents (kind, tenant, subject, version, until_us, payload)
                 VALUES (?1, ?2, ?3, ?4, ?5, unhex(?6))",
                (REVOCATION, tenant, subject, version, until_us, payload),
            )?;
        }
    }
    Ok(())
}

fn open_present(dir: &Path) -> Result<Connection, BackupError> {
    // A missing file must not be created anew, empty.
    let existing = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let file = dir.join(FILE);
    if !file.exists() {
        return Err(BackupError::NoStore(dir.display().to_string()));
    }
    let connection = Connection::open_with_flags(file, existing)?;
    connection.busy_timeout(schema::BUSY_TIMEOUT)?;
    Ok(connection)
}

fn rows(connection: &Connection) -> rusqlite::Result<BTreeMap<String, u64>> {
    let mut tables = connection.prepare(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name",
    )?;
    let names: Vec<String> = tables
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let count = |name: String| {
        let rows = connection.query_row(&format!("SELECT count(*) FROM {name}"), [], |row| {
            row.get(0)
        })?;
        Ok((name, rows))
    };
    names.into_iter().map(count).collect()
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn remove(folder: &Path) -> Result<(), BackupError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(folder)(error)),
        _ => Ok(()),
    }
}

fn sync_folder(folder: &Path) -> Result<(), BackupError> {
    let folder = match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    };
    let synced = fs::File::open(folder).and_then(|it| it.sync_all());
    synced.map_err(at(folder))
}
