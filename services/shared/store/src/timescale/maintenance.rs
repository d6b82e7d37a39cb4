use async_trait::async_trait;

use super::{TimescaleStore, fault::Fault, retention, rollups, transaction};
use crate::{Expire, Maintenance, NotReady, QueryError, Restore, WriteError};

impl TimescaleStore {
    /// Brings the roll-ups up to date with all rows older than some seconds, as the background task
    /// does every few seconds. Returns the number of devices with changes. It does nothing where
    /// TimescaleDB keeps the roll-ups.
    pub async fn roll_up(&self) -> Result<u64, WriteError> {
        let mut total = 0;
        if self.applied.continuous {
            return Ok(total);
        }
        let now_us = contracts::now_us();
        loop {
            let done = transaction!(self, tx => rollups::step(tx, now_us, &self.ages));
            match done? {
                0 => return Ok(total),
                devices => total += devices,
            }
        }
    }
}

#[async_trait]
impl Maintenance for TimescaleStore {
    async fn ready(&self) -> Result<(), NotReady> {
        let written = transaction!(self, tx => async {
            tx.execute("UPDATE probe SET count = count + 1", &[]).await?;
            Ok::<_, Fault>(())
        });
        written.map_err(|e| NotReady(e.to_string()))
    }

    async fn expire(&self, what: Expire, before_us: i64) -> Result<u64, WriteError> {
        transaction!(self, tx => retention::expire(tx, what, before_us))
    }

    async fn note_restore(&self, restore: Restore) -> Result<(), WriteError> {
        transaction!(self, tx => async {
            tx.execute(
                "INSERT INTO restores VALUES ($1, $2) ON CONFLICT (restored_us) DO UPDATE SET made_us = excluded.made_us",
                &[&restore.restored_us, &restore.made_us],
            )
            .await?;
            tx.execute("DELETE FROM sessions", &[]).await?;
            Ok::<_, Fault>(())
        })
    }

    async fn last_restore(&self) -> Result<Option<Restore>, QueryError> {
        let newest = "SELECT restored_us, made_us FROM restores ORDER BY restored_us DESC LIMIT 1";
        let row = self.reader().await?.query_opt(newest, &[]).await?;
        Ok(row.map(|row| Restore {
            restored_us: row.get(0),
            made_us: row.get(1),
        }))
    }
}
