use async_trait::async_trait;
use bus::Topic;
use rusqlite::Connection;

use super::SqliteStore;
use crate::{Claim, ClaimError, Progress, ProgressStore, QueryError, WriteError};

/// Part of every write that has progress: the newest epoch wins, everybody else is fenced.
pub fn advance(connection: &Connection, progress: &[Progress]) -> Result<(), WriteError> {
    let mut fenced = Vec::new();
    let mut update = connection.prepare_cached(
        "UPDATE progress SET next_offset = max(ifnull(next_offset, 0), ?5)
         WHERE grp = ?1 AND topic = ?2 AND part = ?3 AND epoch = ?4",
    )?;
    for p in progress {
        let owned = update.execute((
            &p.group,
            p.topic.name(),
            p.partition,
            p.epoch,
            p.next_offset,
        ))?;
        if owned == 0 {
            fenced.push((p.topic, p.partition));
        }
    }
    if fenced.is_empty() {
        Ok(())
    } else {
        Err(WriteError::Fenced(fenced))
    }
}

#[async_trait]
impl ProgressStore for SqliteStore {
    async fn claim(&self, group: &str, topic: Topic, partition: u32) -> Result<Claim, ClaimError> {
        let group = group.to_owned();
        self.write(move |writing| {
            let (epoch, next_offset) = writing
                .connection
                .prepare_cached(
                    "INSERT INTO progress VALUES (?1, ?2, ?3, 1, NULL)
                     ON CONFLICT DO UPDATE SET epoch = epoch + 1 RETURNING epoch, next_offset",
                )?
                .query_row((&group, topic.name(), partition), |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })?;
            Ok(Claim {
                group,
                topic,
                partition,
                epoch,
                next_offset,
            })
        })
        .await
        .map_err(|e| ClaimError::Unavailable(e.to_string()))
    }

    async fn progress(&self, group: &str, topic: Topic) -> Result<Vec<(u32, u64)>, QueryError> {
        let group = group.to_owned();
        self.read(move |connection| {
            connection
                .prepare_cached(
                    "SELECT part, next_offset FROM progress
                     WHERE grp = ?1 AND topic = ?2 AND next_offset IS NOT NULL ORDER BY part",
                )?
                .query_map((&group, topic.name()), |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect::<rusqlite::Result<_>>()
                .map_err(QueryError::from)
        })
        .await
    }
}
