use async_trait::async_trait;

use super::{SqliteStore, retention};
use crate::{Expire, Maintenance, NotReady, WriteError};

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
}
