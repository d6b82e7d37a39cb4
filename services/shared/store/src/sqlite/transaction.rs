//! A transaction of the thread that writes.

use rusqlite::Connection;

pub fn in_transaction<T>(
    connection: &Connection,
    work: impl FnOnce() -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let result = work().and_then(|value| {
        connection.execute_batch("COMMIT")?;
        Ok(value)
    });
    if result.is_err() && !connection.is_autocommit() {
        let _ = connection.execute_batch("ROLLBACK");
    }
    result
}
