//! Damaged records are lost; the records behind them are not.
//!
//! A damaged page of a partition's table hides its records, or all records below it in the tree.
//! SQLite finds later records by their offset, so the end of the damage is searched by trying.
//! Where no later record can be read either, the disk is away, and nothing is passed over.

use rusqlite::{Connection, Error, ErrorCode};

use super::schema::{self, delivery};
use crate::Topic;

/// Whether the same bytes would be unreadable the next time as well.
pub fn is_damage(error: &Error) -> bool {
    match error {
        Error::SqliteFailure(failure, _) => {
            failure.code == ErrorCode::DatabaseCorrupt
                || failure.extended_code == rusqlite::ffi::SQLITE_IOERR_READ
        }
        Error::FromSqlConversionFailure(..)
        | Error::InvalidColumnType(..)
        | Error::IntegralValueOutOfRange(..) => true,
        _ => false,
    }
}

/// The first offset after `position` from which the partition can be read. The loss is logged.
pub fn end(connection: &Connection, topic: Topic, partition: u32, position: u64) -> Option<u64> {
    let head = head(connection, topic, partition).filter(|head| *head > position)?;
    // Growing steps come first: halving alone could pass over readable records between two damages.
    let (mut damaged, mut readable) = (position, position.saturating_add(1).min(head));
    while !is_readable(connection, topic, partition, readable) {
        if readable == head {
            return None;
        }
        damaged = readable;
        readable = position.saturating_add(2 * (readable - position)).min(head);
    }
    while readable - damaged > 1 {
        let middle = damaged + (readable - damaged) / 2;
        if is_readable(connection, topic, partition, middle) {
            readable = middle;
        } else {
            damaged = middle;
        }
    }
    let records = readable - position;
    tracing::error!(%topic, partition, offset = position, records, "records are damaged on the disk and lost");
    metrics::counter!("braid_bus_damaged_records_total", "topic" => topic.name())
        .increment(records);
    Some(readable)
}

fn head(connection: &Connection, topic: Topic, partition: u32) -> Option<u64> {
    let heads = schema::heads(connection).ok()?;
    let head = heads.into_iter().find(|h| (h.0, h.1) == (topic, partition));
    head.map(|(_, _, next)| next)
}

/// Whether the record at the offset, or the next one, can be read. True when there is none.
fn is_readable(connection: &Connection, topic: Topic, partition: u32, offset: u64) -> bool {
    let table = schema::table(topic, partition);
    let read = || -> rusqlite::Result<()> {
        let mut statement = connection.prepare_cached(&format!(
            "SELECT offset, published_us, key, headers, value FROM {table} WHERE offset >= ?1 ORDER BY offset LIMIT 1"
        ))?;
        let mut rows = statement.query([offset])?;
        match rows.next()? {
            Some(row) => delivery(row, topic, partition).map(drop),
            None => Ok(()),
        }
    };
    read().is_ok()
}
