//! The clock by which rows of an SQLite file are too old. It follows the machine's clock at most
//! [`RATE_MAX`] times as fast as time passes. A clock that is months ahead until somebody corrects
//! it therefore removes hours of data only. The position of this clock is kept in the file, since a
//! clock is wrong at a start more often than later.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};

/// A machine that was switched off for a month removes the rows that fell due within a day and a
/// half.
const RATE_MAX: u32 = 24;
/// The row with the position of this clock, beside the row that proves that the file can be
/// written.
const FOLLOWED: i64 = 2;

/// The time by which rows are too old; `passed` is the time since the last call.
pub fn follow(connection: &Connection, now_us: i64, passed: Duration) -> rusqlite::Result<i64> {
    let known: Option<i64> = connection
        .prepare_cached("SELECT count FROM probe WHERE id = ?1")?
        .query_row([FOLLOWED], |row| row.get(0))
        .optional()?;
    let step_us = i64::try_from((passed * RATE_MAX).as_micros()).unwrap_or(i64::MAX);
    // It moves backward as well: neither a start in 1970 nor a first start with a clock ahead may
    // last.
    let followed_us = known.map_or(now_us, |known| {
        now_us.clamp(known.saturating_sub(step_us), known.saturating_add(step_us))
    });
    connection
        .prepare_cached("INSERT OR REPLACE INTO probe VALUES (?1, ?2)")?
        .execute([FOLLOWED, followed_us])?;
    Ok(followed_us.min(now_us))
}
