//! By which clock what an SQLite file holds is too old: the machine's, followed at most [`RATE_MAX`] times as fast as time passes, so that one
//! that is months ahead, until somebody tells it the time, removes nothing but hours. How far it was followed is kept in the file, since a
//! clock is wrong at a start more often than later.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};

/// Who was switched off for a month removes what fell due meanwhile within a day and a half.
const RATE_MAX: u32 = 24;
/// Where it is kept how far the clock was followed: beside the row by which it is asked whether the file can be written.
const FOLLOWED: i64 = 2;

/// The time by which rows are too old; `passed` since it was last asked.
pub fn follow(connection: &Connection, now_us: i64, passed: Duration) -> rusqlite::Result<i64> {
    let known: Option<i64> = connection
        .prepare_cached("SELECT count FROM probe WHERE id = ?1")?
        .query_row([FOLLOWED], |row| row.get(0))
        .optional()?;
    let step_us = i64::try_from((passed * RATE_MAX).as_micros()).unwrap_or(i64::MAX);
    // Backward, too: a start in 1970 must not make it decades, nor a first start that was ahead the rule.
    let followed_us = known.map_or(now_us, |known| {
        now_us.clamp(known.saturating_sub(step_us), known.saturating_add(step_us))
    });
    connection
        .prepare_cached("INSERT OR REPLACE INTO probe VALUES (?1, ?2)")?
        .execute([FOLLOWED, followed_us])?;
    Ok(followed_us.min(now_us))
}
