//! The two database files of the embedded bus and their versions.
//!
//! `bus.db` holds the records, one append-only table for each partition with the offset as its
//! rowid, and is synced on every commit. `bus-groups.db` holds members, leases and commits. It is a
//! file of its own, so that heartbeats neither wait for a publish nor delay it. It is not synced on
//! commit: losing its last moments in a power cut only repeats deliveries.

use std::{collections::BTreeMap, path::Path, time::Duration};

use bytes::Bytes;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, TransactionBehavior};
use thiserror::Error;

use super::headers;
use crate::{Delivery, Extent, Topic};

pub const RECORDS_FILE: &str = "bus.db";
pub const GROUPS_FILE: &str = "bus-groups.db";

/// A writer of another process holds the lock for one commit. A longer wait means that it hangs,
/// and is reported as an error.
pub const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// Pages in the write-ahead log before the writer copies them into the database: 16 MiB.
const CHECKPOINT_PAGES: u32 = 4096;
/// Page cache of a connection, in KiB; beyond it the least recently used page is read again from
/// the file. Records are written and read at the end of their tables, so a cache holds few pages
/// that are read again. It fills as the log grows, so this is the memory that each connection grows
/// by.
const CACHE_KIB: i32 = 512;

const RECORDS_VERSION: i64 = 1;
const GROUPS_VERSION: i64 = 1;

#[derive(Debug, Error)]
pub enum OpenError {
    #[error("cannot use the data directory {path}: {reason}")]
    Directory { path: String, reason: String },
    #[error(
        "{file} has schema version {found}; this program knows up to {known}: use a newer program"
    )]
    Newer {
        file: &'static str,
        found: i64,
        known: i64,
    },
    #[error(
        "{file} is damaged: {source}\n  to fix: move {file} and {file}-wal away; a new bus begins, and the time in which records may be missing is reported"
    )]
    Damaged {
        file: &'static str,
        source: rusqlite::Error,
    },
    #[error("{file}: {source}")]
    Sqlite {
        file: &'static str,
        source: rusqlite::Error,
    },
}

impl OpenError {
    pub(super) fn of(file: &'static str) -> impl Fn(rusqlite::Error) -> OpenError {
        use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
        move |source| match source.sqlite_error_code() {
            Some(DatabaseCorrupt | NotADatabase) => OpenError::Damaged { file, source },
            _ => OpenError::Sqlite { file, source },
        }
    }
}

pub fn table(topic: Topic, partition: u32) -> String {
    format!("records_{}_{partition}", topic.name().replace('-', "_"))
}

pub fn open_records(dir: &Path) -> Result<Connection, OpenError> {
    open(dir, RECORDS_FILE, "FULL", RECORDS_VERSION, create_records)
}

pub fn open_groups(dir: &Path) -> Result<Connection, OpenError> {
    open(dir, GROUPS_FILE, "NORMAL", GROUPS_VERSION, |connection| {
        connection.execute_batch(
            "CREATE TABLE members (grp TEXT NOT NULL, topic TEXT NOT NULL, member TEXT NOT NULL, instance TEXT NOT NULL,
                 beat INTEGER NOT NULL, PRIMARY KEY (grp, topic, member)) WITHOUT ROWID;
             CREATE TABLE leases (grp TEXT NOT NULL, topic TEXT NOT NULL, part INTEGER NOT NULL, member TEXT NOT NULL,
                 PRIMARY KEY (grp, topic, part)) WITHOUT ROWID;
             CREATE TABLE commits (grp TEXT NOT NULL, topic TEXT NOT NULL, part INTEGER NOT NULL, next_offset INTEGER NOT NULL,
                 PRIMARY KEY (grp, topic, part)) WITHOUT ROWID;",
        )
    })
}

fn create_records(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(
        "CREATE TABLE partitions (topic TEXT NOT NULL, part INTEGER NOT NULL, next_offset INTEGER NOT NULL,
             end_bytes INTEGER NOT NULL, PRIMARY KEY (topic, part)) WITHOUT ROWID;
         CREATE TABLE probe (id INTEGER PRIMARY KEY, count INTEGER NOT NULL);
         INSERT INTO probe VALUES (1, 0);",
    )?;
    for topic in Topic::ALL {
        for partition in 0..topic.default_partitions() {
            let table = table(topic, partition);
            // end_bytes: bytes of the partition since its beginning up to and with this record, so
            // that retention by size needs no sum.
            connection.execute_batch(&format!(
                "CREATE TABLE {table} (offset INTEGER PRIMARY KEY, published_us INTEGER NOT NULL, end_bytes INTEGER NOT NULL,
                     key TEXT NOT NULL, headers BLOB, value BLOB NOT NULL);"
            ))?;
            connection.execute(
                "INSERT INTO partitions VALUES (?1, ?2, 0, 0)",
                (topic.name(), partition),
            )?;
        }
    }
    Ok(())
}

fn open(
    dir: &Path,
    file: &'static str,
    synchronous: &str,
    known: i64,
    create: impl FnOnce(&Connection) -> rusqlite::Result<()>,
) -> Result<Connection, OpenError> {
    let sqlite = OpenError::of(file);
    let mut connection = Connection::open(dir.join(file)).map_err(&sqlite)?;
    configure(&connection, synchronous).map_err(&sqlite)?;
    let transaction = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(&sqlite)?;
    let found: i64 = transaction
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(&sqlite)?;
    if found > known {
        return Err(OpenError::Newer { file, found, known });
    }
    if found == 0 {
        create(&transaction).map_err(&sqlite)?;
        transaction
            .pragma_update(None, "user_version", known)
            .map_err(&sqlite)?;
    }
    transaction.commit().map_err(&sqlite)?;
    Ok(connection)
}

#[expect(
    clippy::disallowed_methods,
    reason = "opening is documented as blocking, and SQLite offers nothing to wait on here"
)]
fn configure(connection: &Connection, synchronous: &str) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // Two processes that open a new file at once both switch it to WAL, and SQLite does not apply
    // the busy timeout there.
    let mut tries = 0;
    loop {
        let mode: rusqlite::Result<String> =
            connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0));
        match mode {
            Ok(_) => break,
            Err(e) if tries < 100 && is_busy(&e) => {
                tries += 1;
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(e) => return Err(e),
        }
    }
    connection.pragma_update(None, "synchronous", synchronous)?;
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    // The log file is cut back to this after a checkpoint.
    connection.pragma_update(None, "journal_size_limit", 64 << 20)?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    connection.set_prepared_statement_cache_capacity(128);
    Ok(())
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked)
    )
}

/// A connection that only reads one of the two files.
pub fn open_reader(dir: &Path, file: &'static str) -> Result<Connection, OpenError> {
    let sqlite = OpenError::of(file);
    // A missing file must not be created anew, empty.
    let existing = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(dir.join(file), existing).map_err(&sqlite)?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(&sqlite)?;
    connection
        .pragma_update(None, "query_only", true)
        .map_err(&sqlite)?;
    connection
        .pragma_update(None, "cache_size", -CACHE_KIB)
        .map_err(&sqlite)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

/// `(topic, partition, next_offset)` of every partition.
pub fn heads(connection: &Connection) -> rusqlite::Result<Vec<(Topic, u32, u64)>> {
    let mut statement =
        connection.prepare_cached("SELECT topic, part, next_offset FROM partitions")?;
    let rows = statement.query_map([], |row| {
        Ok((row.get::<_, String>(0)?, row.get(1)?, row.get(2)?))
    })?;
    let mut heads = Vec::new();
    for row in rows {
        let (name, partition, next) = row?;
        // A topic of a newer program is ignored.
        if let Some(topic) = Topic::from_name(&name) {
            heads.push((topic, partition, next));
        }
    }
    Ok(heads)
}

/// The offset of the oldest record that is kept, or of the next one when there is none.
pub fn oldest(connection: &Connection, topic: Topic, partition: u32) -> rusqlite::Result<u64> {
    let table = table(topic, partition);
    connection
        .prepare_cached(&format!(
            "SELECT coalesce((SELECT min(offset) FROM {table}), next_offset) FROM partitions WHERE topic = ?1 AND part = ?2"
        ))?
        .query_row((topic.name(), partition), |row| row.get(0))
}

/// All partitions of a topic in one transaction, so that retention between two queries shows no
/// partition that ends before it begins.
pub fn extents(connection: &Connection, topic: Topic) -> rusqlite::Result<BTreeMap<u32, Extent>> {
    let transaction = connection.unchecked_transaction()?;
    let mut extents = BTreeMap::new();
    for (of, partition, next) in heads(&transaction)? {
        if of == topic {
            // Where the oldest record cannot be read, reading passes it over.
            let oldest = oldest(&transaction, topic, partition).unwrap_or(0);
            extents.insert(partition, Extent { oldest, next });
        }
    }
    Ok(extents)
}

pub fn all_committed(
    connection: &Connection,
    group: &str,
    topic: Topic,
) -> rusqlite::Result<BTreeMap<u32, u64>> {
    connection
        .prepare_cached("SELECT part, next_offset FROM commits WHERE grp = ?1 AND topic = ?2")?
        .query_map((group, topic.name()), |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

pub fn committed(
    connection: &Connection,
    group: &str,
    topic: Topic,
    partition: u32,
) -> rusqlite::Result<Option<u64>> {
    connection
        .prepare_cached(
            "SELECT next_offset FROM commits WHERE grp = ?1 AND topic = ?2 AND part = ?3",
        )?
        .query_row((group, topic.name(), partition), |row| row.get(0))
        .optional()
}

/// The columns are `offset, published_us, key, headers, value`.
pub fn delivery(row: &Row<'_>, topic: Topic, partition: u32) -> rusqlite::Result<Delivery> {
    let headers = match row.get_ref(3)?.as_blob_or_null()? {
        None => Vec::new(),
        Some(blob) => headers::decode(blob).unwrap_or_default(),
    };
    Ok(Delivery {
        topic,
        partition,
        offset: row.get(0)?,
        published_us: row.get(1)?,
        key: row.get(2)?,
        value: Bytes::copy_from_slice(row.get_ref(4)?.as_blob()?),
        headers,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_grows_by_its_named_cache_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let records = open_records(dir.path()).unwrap();
        let groups = open_groups(dir.path()).unwrap();
        let reader = open_reader(dir.path(), RECORDS_FILE).unwrap();
        for connection in [records, groups, reader] {
            // Below zero means KiB, above it pages.
            let cache: i32 = connection
                .pragma_query_value(None, "cache_size", |row| row.get(0))
                .unwrap();
            assert_eq!(cache, -CACHE_KIB);
        }
    }
}
