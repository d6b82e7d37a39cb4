use std::collections::HashSet;

use async_trait::async_trait;
use bytes::Bytes;
use contracts::alerts::{NoticeOutcome, NoticeRecord};
use prost::Message;
use rusqlite::{Connection, OptionalExtension, Row};

use super::{SqliteStore, alerts::IN_SCOPE};
use crate::{
    EscalationTimer, NoticesBatch, NoticesStore, QueryError, QueuedNotice, Scope, TimerChange,
    WriteError,
    error::readable,
    notices::{WAIT_US_MAX, alert_of, lane, records, share, unreadable},
};

fn write(connection: &Connection, batch: &NoticesBatch) -> Result<u64, WriteError> {
    let settled: HashSet<&str> = batch.outcomes.iter().map(|o| o.notice.as_str()).collect();
    let mut new = 0;
    for notice in &batch.notices {
        let inserted = connection
            .prepare_cached("INSERT OR IGNORE INTO notices VALUES (?1, ?2, ?3)")?
            .execute((&notice.id, alert_of(notice), notice.encode_to_vec()))?;
        if inserted == 0 {
            continue;
        }
        new += 1;
        if !settled.contains(notice.id.as_str()) {
            connection
                .prepare_cached(
                    "INSERT INTO notice_queue (id, channel, lane, due_us, attempts, share)
                     VALUES (?1, ?2, ?3, ?4, 0, ?5)",
                )?
                .execute((
                    &notice.id,
                    &notice.channel,
                    lane(notice),
                    notice.due_us,
                    share(notice),
                ))?;
        }
    }
    for outcome in &batch.outcomes {
        settle(connection, outcome)?;
    }
    let mut conflicts = Vec::new();
    for change in &batch.timers {
        if !change_timer(connection, change)?
            && let TimerChange::Set(timer) = change
        {
            conflicts.push(timer.alert.clone());
        }
    }
    if conflicts.is_empty() {
        Ok(new)
    } else {
        Err(WriteError::Conflict(conflicts))
    }
}

fn settle(connection: &Connection, outcome: &NoticeOutcome) -> rusqlite::Result<()> {
    connection
        .prepare_cached("INSERT OR IGNORE INTO notice_outcomes VALUES (?1, ?2)")?
        .execute((&outcome.notice, outcome.encode_to_vec()))?;
    connection
        .prepare_cached("DELETE FROM notice_queue WHERE id = ?1")?
        .execute([&outcome.notice])?;
    Ok(())
}

/// False: another member was first.
fn change_timer(connection: &Connection, change: &TimerChange) -> rusqlite::Result<bool> {
    let changed = match change {
        TimerChange::Set(timer) if timer.version == 1 => connection
            .prepare_cached("INSERT OR IGNORE INTO watches VALUES (?1, 1, ?2, ?3)")?
            .execute((&timer.alert, timer.due_us, timer.state.as_ref()))?,
        TimerChange::Set(timer) => connection
            .prepare_cached(
                "UPDATE watches SET version = ?2, due_us = ?3, state = ?4 WHERE alert = ?1 AND version = ?2 - 1",
            )?
            .execute((&timer.alert, timer.version, timer.due_us, timer.state.as_ref()))?,
        TimerChange::End(alert) => {
            connection
                .prepare_cached("DELETE FROM watches WHERE alert = ?1")?
                .execute([alert])?;
            return Ok(true);
        }
        TimerChange::Hasten { timer, at_us } => {
            connection
                .prepare_cached(
                    "UPDATE watches SET version = version + 1, due_us = ?2 WHERE alert = ?1 AND due_us > ?2",
                )?
                .execute((timer, at_us))?;
            return Ok(true);
        }
    };
    Ok(changed > 0)
}

fn timer(row: &Row<'_>) -> rusqlite::Result<EscalationTimer> {
    Ok(EscalationTimer {
        alert: row.get(0)?,
        version: row.get(1)?,
        due_us: row.get(2)?,
        state: Bytes::from(row.get::<_, Vec<u8>>(3)?),
    })
}

#[async_trait]
impl NoticesStore for SqliteStore {
    async fn write_notices(&self, batch: NoticesBatch) -> Result<u64, WriteError> {
        self.write(move |writing| write(writing.connection, &batch))
            .await
    }

    async fn take_notices(
        &self,
        channel: &str,
        now_us: i64,
        until_us: i64,
        limit: usize,
    ) -> Result<Vec<QueuedNotice>, WriteError> {
        let channel = channel.to_owned();
        self.write(move |writing| {
            let rows: Vec<(i64, u32, Vec<u8>, String)> = writing
                .connection
                .prepare_cached(
                    "WITH due AS (SELECT q.seq, q.attempts, q.id,
                             CASE WHEN q.attempts > 0 THEN q.due_us END AS failed_us,
                             row_number() OVER (PARTITION BY q.attempts > 0, q.share ORDER BY q.seq)
                                 AS turn
                         FROM notice_queue q WHERE q.channel = ?1
                             AND (q.due_us <= ?2 OR q.due_us > ?4)
                             AND NOT EXISTS (SELECT 1 FROM notice_queue e
                                 WHERE e.channel = q.channel AND e.lane = q.lane AND e.seq < q.seq
                                     AND (e.due_us BETWEEN ?2 + 1 AND ?4 OR e.attempts > 0)))
                     SELECT d.seq, d.attempts + 1, n.payload, d.id
                     FROM due d JOIN notices n ON n.id = d.id
                     ORDER BY d.attempts > 0, d.failed_us, d.turn, d.seq LIMIT ?3",
                )?
                .query_map((channel, now_us, limit, now_us + WAIT_US_MAX), |row| {
                    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
                })?
                .collect::<rusqlite::Result<_>>()?;
            let mut take = writing.connection.prepare_cached(
                "UPDATE notice_queue SET due_us = ?2, attempts = attempts + 1 WHERE seq = ?1",
            )?;
            let mut taken = Vec::with_capacity(rows.len());
            for (seq, attempts, payload, id) in rows {
                take.execute((seq, until_us))?;
                match readable("notice", &payload) {
                    Some(notice) => taken.push(QueuedNotice { notice, attempts }),
                    None => settle(writing.connection, &unreadable(&id, attempts))?,
                }
            }
            Ok(taken)
        })
        .await
    }

    async fn untried_notices(
        &self,
        due_us: i64,
        now_us: i64,
        limit: usize,
    ) -> Result<u64, QueryError> {
        self.read(move |connection| {
            Ok(connection
                .prepare_cached(
                    "SELECT count(*) FROM (SELECT 1 FROM notice_queue q
                     WHERE q.attempts = 0 AND (q.due_us < ?1 OR q.due_us > ?2) AND NOT EXISTS (
                         SELECT 1 FROM notice_queue e WHERE e.channel = q.channel
                             AND e.lane = q.lane AND e.seq < q.seq AND e.attempts > 0)
                     LIMIT ?3)",
                )?
                .query_row((due_us, now_us + WAIT_US_MAX, limit), |row| row.get(0))?)
        })
        .await
    }

    async fn delay_notices(&self, ids: &[String], due_us: i64) -> Result<(), WriteError> {
        let ids = ids.to_vec();
        self.write(move |writing| {
            let mut delay = writing
                .connection
                .prepare_cached("UPDATE notice_queue SET due_us = ?2 WHERE id = ?1")?;
            for id in ids {
                delay.execute((id, due_us))?;
            }
            Ok(())
        })
        .await
    }

    async fn timer(&self, alert: &str) -> Result<Option<EscalationTimer>, QueryError> {
        let alert = alert.to_owned();
        self.read(move |connection| {
            Ok(connection
                .prepare_cached(
                    "SELECT alert, version, due_us, state FROM watches WHERE alert = ?1",
                )?
                .query_row([alert], timer)
                .optional()?)
        })
        .await
    }

    async fn due_timers(
        &self,
        now_us: i64,
        limit: usize,
    ) -> Result<Vec<EscalationTimer>, QueryError> {
        self.read(move |connection| {
            Ok(connection
                .prepare_cached(
                    "SELECT alert, version, due_us, state FROM watches WHERE due_us <= ?1 ORDER BY due_us, alert LIMIT ?2",
                )?
                .query_map((now_us, limit), timer)?
                .collect::<rusqlite::Result<_>>()?)
        })
        .await
    }

    async fn notices(&self, scope: &Scope, alert: &str) -> Result<Vec<NoticeRecord>, QueryError> {
        let (tenant, alert) = (scope.as_tenant().map(str::to_owned), alert.to_owned());
        self.read(move |connection| {
            let rows: Vec<(Vec<u8>, Option<Vec<u8>>)> = connection
                .prepare_cached(&format!(
                    "SELECT n.payload, o.payload FROM alerts a JOIN notices n ON n.alert = a.id
                     LEFT JOIN notice_outcomes o ON o.id = n.id WHERE a.id = ?2 AND {IN_SCOPE}"
                ))?
                .query_map((tenant, alert), |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect::<rusqlite::Result<_>>()?;
            records(rows)
        })
        .await
    }
}
