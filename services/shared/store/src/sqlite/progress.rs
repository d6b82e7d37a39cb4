use async_trait::async_trait;
use bus::{Log, Topic};
use rusqlite::{Connection, OptionalExtension};

use super::SqliteStore;
use crate::{
    Claim, ClaimError, LOG_GAPS_MAX, LogGap, Progress, ProgressStore, QueryError, WriteError,
    progress::is_of_another_log,
};

/// Part of every write that has progress: the newest epoch wins, everybody else is fenced.
pub fn advance(connection: &Connection, progress: &[Progress]) -> Result<(), WriteError> {
    let mut fenced = Vec::new();
    let mut update = connection.prepare_cached(
        "UPDATE progress SET next_offset = max(ifnull(next_offset, 0), ?5), read_us = ifnull(?6, read_us)
         WHERE grp = ?1 AND topic = ?2 AND part = ?3 AND epoch = ?4",
    )?;
    for p in progress {
        let owned = update.execute((
            &p.group,
            p.topic.name(),
            p.partition,
            p.epoch,
            p.next_offset,
            p.read_us,
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
    async fn claim(
        &self,
        group: &str,
        topic: Topic,
        partition: u32,
        log: &Log,
    ) -> Result<Claim, ClaimError> {
        let (group, log) = (group.to_owned(), log.clone());
        self.write(move |writing| claim(writing.connection, group, topic, partition, &log))
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

    async fn log_gaps(&self, since_us: i64) -> Result<Vec<LogGap>, QueryError> {
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT grp, topic, part, from_us, to_us FROM log_gaps WHERE to_us >= ?1
                 ORDER BY to_us, grp, topic, part",
            )?;
            let mut rows = statement.query([since_us])?;
            let mut gaps = Vec::new();
            while let Some(row) = rows.next()? {
                // A topic of a newer program is left out.
                let Some(topic) = Topic::from_name(&row.get::<_, String>(1)?) else {
                    continue;
                };
                gaps.push(LogGap {
                    group: row.get(0)?,
                    topic,
                    partition: row.get(2)?,
                    from_us: row.get(3)?,
                    to_us: row.get(4)?,
                });
            }
            Ok(gaps)
        })
        .await
    }
}

/// The position, its log, and the time of its last record, as stored.
type Kept = (Option<u64>, String, Option<i64>);

fn claim(
    connection: &Connection,
    group: String,
    topic: Topic,
    partition: u32,
    log: &Log,
) -> Result<Claim, WriteError> {
    let kept: Option<Kept> = connection
        .prepare_cached(
            "SELECT next_offset, log, read_us FROM progress WHERE grp = ?1 AND topic = ?2 AND part = ?3",
        )?
        .query_row((&group, topic.name(), partition), |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .optional()?;
    let (next_offset, named, read_us) = kept.unwrap_or_default();
    let mut claim = Claim {
        group,
        topic,
        partition,
        epoch: 0,
        next_offset,
        gap: None,
    };
    if is_of_another_log(&named, next_offset, log) {
        let gap = LogGap {
            group: claim.group.clone(),
            topic,
            partition,
            from_us: read_us,
            to_us: contracts::now_us(),
        };
        keep_gap(connection, &gap, &log.identity)?;
        (claim.next_offset, claim.gap) = (None, Some(gap));
    }
    claim.epoch = connection
        .prepare_cached(
            "INSERT INTO progress (grp, topic, part, epoch, next_offset, log) VALUES (?1, ?2, ?3, 1, NULL, ?4)
             ON CONFLICT DO UPDATE SET epoch = epoch + 1, next_offset = ?5, log = ?4 RETURNING epoch",
        )?
        .query_row(
            (
                &claim.group,
                topic.name(),
                partition,
                &log.identity,
                claim.next_offset,
            ),
            |row| row.get(0),
        )?;
    Ok(claim)
}

fn keep_gap(connection: &Connection, gap: &LogGap, log: &str) -> Result<(), WriteError> {
    let key = (&gap.group, gap.topic.name(), gap.partition);
    connection
        .prepare_cached("INSERT OR REPLACE INTO log_gaps VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?
        .execute((key.0, key.1, key.2, gap.from_us, gap.to_us, log))?;
    connection
        .prepare_cached(
            "DELETE FROM log_gaps WHERE grp = ?1 AND topic = ?2 AND part = ?3 AND to_us <=
                 (SELECT to_us FROM log_gaps WHERE grp = ?1 AND topic = ?2 AND part = ?3
                  ORDER BY to_us DESC LIMIT 1 OFFSET ?4)",
        )?
        .execute((key.0, key.1, key.2, LOG_GAPS_MAX))?;
    Ok(())
}
