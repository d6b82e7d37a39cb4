//! The identity of the log in `bus.db`: a random name, made once with the file.
//!
//! `bus-groups.db` names the log of its commits. Commits of another log are removed at the start,
//! so that groups begin at the oldest record of this one. A commit behind the end of its own log
//! shows that an older copy of `bus.db` has come back; that copy gets a new name.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use super::schema::{self, GROUPS_FILE, OpenError, RECORDS_FILE};
use crate::{Log, Topic};

/// Beside the tables of version 1, which older programs go on reading.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS log_identity (id INTEGER PRIMARY KEY CHECK (id = 1), name TEXT NOT NULL)";

pub fn settle(records: &mut Connection, groups: &mut Connection) -> Result<(), OpenError> {
    let (in_records, in_groups) = (OpenError::of(RECORDS_FILE), OpenError::of(GROUPS_FILE));
    let mut name = named_or_new(records).map_err(&in_records)?;
    let immediate = TransactionBehavior::Immediate;
    let of_groups = groups
        .transaction_with_behavior(immediate)
        .map_err(&in_groups)?;
    of_groups.execute_batch(TABLE).map_err(&in_groups)?;
    let known = named(&of_groups).map_err(&in_groups)?;
    let commits = furthest_commits(&of_groups).map_err(&in_groups)?;
    // Read after the commits: other processes publish and commit meanwhile.
    let heads = schema::heads(records).map_err(&in_records)?;
    let is_behind = |(topic, partition, next): &(Topic, u32, u64)| {
        let commit = commits.get(&(topic.name().to_owned(), *partition));
        commit.is_some_and(|commit| commit > next)
    };
    let is_another = known.as_ref().is_some_and(|known| *known != name);
    let is_younger = heads.iter().any(is_behind);
    if is_another || is_younger {
        tracing::error!(
            "{RECORDS_FILE} is not the log that the groups have read: they begin at its oldest record, and records of the former one may be missing"
        );
        of_groups
            .execute("DELETE FROM commits", [])
            .map_err(&in_groups)?;
    }
    if is_younger && !is_another {
        name = renamed(records).map_err(&in_records)?;
    }
    of_groups
        .execute("INSERT OR REPLACE INTO log_identity VALUES (1, ?1)", [name])
        .map_err(&in_groups)?;
    of_groups.commit().map_err(&in_groups)
}

/// The log as the file has it now. Memory would not do: another process may have published and
/// stored a position since.
pub fn log(records: &Connection, topic: Topic, partition: u32) -> rusqlite::Result<Log> {
    let identity = records.query_row("SELECT name FROM log_identity", [], |row| row.get(0))?;
    let next = records
        .prepare_cached("SELECT next_offset FROM partitions WHERE topic = ?1 AND part = ?2")?
        .query_row((topic.name(), partition), |row| row.get(0))
        .optional()?;
    Ok(Log { identity, next })
}

fn named(connection: &Connection) -> rusqlite::Result<Option<String>> {
    connection
        .query_row("SELECT name FROM log_identity", [], |row| row.get(0))
        .optional()
}

fn named_or_new(records: &mut Connection) -> rusqlite::Result<String> {
    let transaction = records.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(TABLE)?;
    transaction.execute(
        "INSERT OR IGNORE INTO log_identity VALUES (1, ?1)",
        [random()],
    )?;
    let name = transaction.query_row("SELECT name FROM log_identity", [], |row| row.get(0))?;
    transaction.commit()?;
    Ok(name)
}

fn renamed(records: &Connection) -> rusqlite::Result<String> {
    let name = random();
    records.execute("UPDATE log_identity SET name = ?1", [&name])?;
    Ok(name)
}

fn random() -> String {
    format!("embedded:{:032x}", rand::random::<u128>())
}

/// The furthest commit of any group, by topic and partition. Bounded by the partitions.
fn furthest_commits(groups: &Connection) -> rusqlite::Result<BTreeMap<(String, u32), u64>> {
    groups
        .prepare("SELECT topic, part, max(next_offset) FROM commits GROUP BY topic, part")?
        .query_map([], |row| Ok(((row.get(0)?, row.get(1)?), row.get(2)?)))?
        .collect()
}
