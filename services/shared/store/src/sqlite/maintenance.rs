use async_trait::async_trait;
use rusqlite::OptionalExtension;

use super::{SqliteStore, retention};
use crate::{Expire, Maintenance, NotReady, QueryError, Restore, WriteError};

#[async_trait]
impl Maintenance for SqliteStore {
    async fn ready(&self) -> Result<(), NotReady> {
        self.write(|writing| {
            writing
                .connection
                .execute("UPDATE probe SET count = count + 1 WHERE id = 1", [])?;
            Ok(())
        })
        .await
        .map_err(|e| NotReady(e.to_string()))
    }

    async fn expire(&self, what: Expire, before_us: i64) -> Result<u64, WriteError> {
        let mut total = 0;
        loop {
            let removed = self
                .write(move |writing| Ok(retention::expire(writing.connection, what, before_us)?))
                .await?;
            total += removed as u64;
            if removed < retention::STEP {
                return Ok(total);
            }
        }
    }

    async fn note_restore(&self, restore: Restore) -> Result<(), WriteError> {
        self.write(move |writing| {
            writing.connection.execute(
                "INSERT OR REPLACE INTO restores VALUES (?1, ?2)",
                (restore.restored_us, restore.made_us),
            )?;
            writing.connection.execute("DELETE FROM sessions", [])?;
            Ok(())
        })
        .await
    }

    async fn last_restore(&self) -> Result<Option<Restore>, QueryError> {
        self.read(|connection| {
            let newest =
                "SELECT restored_us, made_us FROM restores ORDER BY restored_us DESC LIMIT 1";
            let restore = connection.query_row(newest, [], |row| {
                Ok(Restore {
                    restored_us: row.get(0)?,
                    made_us: row.get(1)?,
                })
            });
            Ok(restore.optional()?)
        })
        .await
    }
}
