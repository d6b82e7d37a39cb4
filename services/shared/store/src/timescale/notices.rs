use std::collections::HashSet;

use async_trait::async_trait;
use bytes::Bytes;
use contracts::alerts::{Notice, NoticeOutcome, NoticeRecord};
use deadpool_postgres::Transaction;
use prost::Message;
use tokio_postgres::Row;

use super::{COMMIT_WITHOUT_DISK, TimescaleStore, alerts::IN_SCOPE, fault::Fault, transaction};
use crate::{
    EscalationTimer, NoticesBatch, NoticesStore, QueryError, QueuedNotice, Scope, TimerChange,
    WriteError,
    error::readable,
    notices::{WAIT_US_MAX, alert_of, lane, records, share, unreadable},
};

/// First key of the advisory lock of a channel: the letters "note".
const TAKING: i32 = 0x6e6f_7465;

/// Stores notices and queues those without an outcome. Returns how many are new.
async fn add(transaction: &Transaction<'_>, batch: &NoticesBatch) -> Result<u64, Fault> {
    let settled: HashSet<&str> = batch.outcomes.iter().map(|o| o.notice.as_str()).collect();
    let mut seen = HashSet::new();
    let given = batch.notices.iter();
    let notices: Vec<&Notice> = given.filter(|n| seen.insert(n.id.as_str())).collect();
    if notices.is_empty() {
        return Ok(0);
    }
    let ids: Vec<&str> = notices.iter().map(|n| n.id.as_str()).collect();
    let alerts: Vec<&str> = notices.iter().map(|n| alert_of(n)).collect();
    let payloads: Vec<Vec<u8>> = notices.iter().map(|n| n.encode_to_vec()).collect();
    let channels: Vec<&str> = notices.iter().map(|n| n.channel.as_str()).collect();
    let lanes: Vec<String> = notices.iter().map(|n| lane(n)).collect();
    let due: Vec<i64> = notices.iter().map(|n| n.due_us).collect();
    let shares: Vec<&str> = notices.iter().map(|n| share(n)).collect();
    let waits: Vec<bool> = ids.iter().map(|id| !settled.contains(id)).collect();
    let statement = transaction
        .prepare_cached(
            "WITH w AS (SELECT * FROM unnest($1::text[], $2::text[], $3::bytea[], $4::text[],
                     $5::text[], $6::bigint[], $7::bool[], $8::text[])
                     WITH ORDINALITY AS w (id, alert, payload, channel, lane, due_us, waits, share, n)),
                 new AS (INSERT INTO notices SELECT id, alert, payload FROM w ON CONFLICT (id) DO NOTHING RETURNING id),
                 queued AS (INSERT INTO notice_queue (id, channel, lane, due_us, attempts, share)
                     SELECT id, channel, lane, due_us, 0, share FROM w JOIN new USING (id) WHERE waits ORDER BY n)
             SELECT count(*) FROM new",
        )
        .await?;
    let row = transaction
        .query_one(
            &statement,
            &[
                &ids, &alerts, &payloads, &channels, &lanes, &due, &waits, &shares,
            ],
        )
        .await?;
    Ok(row.get::<_, i64>(0).cast_unsigned())
}

async fn write(transaction: &Transaction<'_>, batch: &NoticesBatch) -> Result<u64, Fault> {
    let new = add(transaction, batch).await?;
    for outcome in &batch.outcomes {
        settle(transaction, outcome).await?;
    }
    let mut conflicts = Vec::new();
    for change in &batch.timers {
        if !change_timer(transaction, change).await?
            && let TimerChange::Set(timer) = change
        {
            conflicts.push(timer.alert.clone());
        }
    }
    if conflicts.is_empty() {
        Ok(new)
    } else {
        Err(Fault::Conflict(conflicts))
    }
}

async fn settle(transaction: &Transaction<'_>, outcome: &NoticeOutcome) -> Result<(), Fault> {
    let statement = transaction
        .prepare_cached("INSERT INTO notice_outcomes VALUES ($1, $2) ON CONFLICT (id) DO NOTHING")
        .await?;
    let payload = outcome.encode_to_vec();
    transaction
        .execute(&statement, &[&outcome.notice, &payload])
        .await?;
    let statement = transaction
        .prepare_cached("DELETE FROM notice_queue WHERE id = $1")
        .await?;
    transaction.execute(&statement, &[&outcome.notice]).await?;
    Ok(())
}

/// False: another member was first.
async fn change_timer(transaction: &Transaction<'_>, change: &TimerChange) -> Result<bool, Fault> {
    let changed = match change {
        TimerChange::Set(timer) if timer.version == 1 => {
            let statement = transaction
                .prepare_cached(
                    "INSERT INTO watches VALUES ($1, 1, $2, $3) ON CONFLICT (alert) DO NOTHING",
                )
                .await?;
            transaction
                .execute(
                    &statement,
                    &[&timer.alert, &timer.due_us, &timer.state.as_ref()],
                )
                .await?
        }
        TimerChange::Set(timer) => {
            let statement = transaction
                .prepare_cached(
                    "UPDATE watches SET version = $2::bigint, due_us = $3, state = $4 WHERE alert = $1 AND version = $2::bigint - 1",
                )
                .await?;
            transaction
                .execute(
                    &statement,
                    &[
                        &timer.alert,
                        &i64::from(timer.version),
                        &timer.due_us,
                        &timer.state.as_ref(),
                    ],
                )
                .await?
        }
        TimerChange::End(alert) => {
            let statement = transaction
                .prepare_cached("DELETE FROM watches WHERE alert = $1")
                .await?;
            transaction.execute(&statement, &[alert]).await?;
            return Ok(true);
        }
        TimerChange::Hasten { timer, at_us } => {
            let statement = transaction
                .prepare_cached(
                    "UPDATE watches SET version = version + 1, due_us = $2 WHERE alert = $1 AND due_us > $2",
                )
                .await?;
            transaction.execute(&statement, &[timer, at_us]).await?;
            return Ok(true);
        }
    };
    Ok(changed > 0)
}

fn timer(row: &Row) -> EscalationTimer {
    EscalationTimer {
        alert: row.get(0),
        version: u32::try_from(row.get::<_, i64>(1)).unwrap_or(u32::MAX),
        due_us: row.get(2),
        state: Bytes::from(row.get::<_, Vec<u8>>(3)),
    }
}

#[async_trait]
impl NoticesStore for TimescaleStore {
    async fn write_notices(&self, batch: NoticesBatch) -> Result<u64, WriteError> {
        transaction!(self, tx => write(tx, &batch))
    }

    async fn take_notices(
        &self,
        channel: &str,
        now_us: i64,
        until_us: i64,
        limit: usize,
    ) -> Result<Vec<QueuedNotice>, WriteError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        transaction!(self, tx => async {
            // A lease that a crash undoes is taken anew: the same notice with the same key.
            tx.batch_execute(COMMIT_WITHOUT_DISK).await?;
            // One member at a time, so that none takes the notices behind one that another member
            // is just taking.
            let lock = tx
                .prepare_cached("SELECT pg_advisory_xact_lock($1, hashtext($2))")
                .await?;
            tx.execute(&lock, &[&TAKING, &channel]).await?;
            let statement = tx
                .prepare_cached(
                    "WITH waiting AS (SELECT q.seq, q.attempts > 0 AS failed,
                             CASE WHEN q.attempts > 0 THEN q.due_us END AS failed_us,
                             row_number() OVER (PARTITION BY q.attempts > 0, q.share ORDER BY q.seq)
                                 AS turn
                         FROM notice_queue q WHERE q.channel = $1
                             AND (q.due_us <= $2 OR q.due_us > $5)
                             AND NOT EXISTS (SELECT 1 FROM notice_queue e
                                 WHERE e.channel = q.channel AND e.lane = q.lane AND e.seq < q.seq
                                     AND (e.due_us BETWEEN $2 + 1 AND $5 OR e.attempts > 0))),
                     due AS (SELECT seq FROM waiting ORDER BY failed, failed_us, turn, seq LIMIT $4),
                     taken AS (UPDATE notice_queue q SET due_us = $3, attempts = q.attempts + 1 FROM due
                         WHERE q.seq = due.seq RETURNING q.seq, q.id, q.attempts)
                     SELECT t.attempts, n.payload, t.id FROM taken t JOIN notices n ON n.id = t.id ORDER BY t.seq",
                )
                .await?;
            let latest_us = now_us + WAIT_US_MAX;
            let rows = tx
                .query(&statement, &[&channel, &now_us, &until_us, &limit, &latest_us])
                .await?;
            let mut taken = Vec::with_capacity(rows.len());
            for row in rows {
                let attempts = row.get::<_, i32>(0).cast_unsigned();
                match readable("notice", row.get(1)) {
                    Some(notice) => taken.push(QueuedNotice { notice, attempts }),
                    None => settle(tx, &unreadable(row.get(2), attempts)).await?,
                }
            }
            Ok::<_, Fault>(taken)
        })
    }

    async fn untried_notices(
        &self,
        due_us: i64,
        now_us: i64,
        limit: usize,
    ) -> Result<u64, QueryError> {
        let connection = self.reader().await?;
        let statement = connection
            .prepare_cached(
                "SELECT count(*) FROM (SELECT 1 FROM notice_queue q
                 WHERE q.attempts = 0 AND (q.due_us < $1 OR q.due_us > $2) AND NOT EXISTS (
                     SELECT 1 FROM notice_queue e WHERE e.channel = q.channel
                         AND e.lane = q.lane AND e.seq < q.seq AND e.attempts > 0)
                 LIMIT $3) AS untried",
            )
            .await?;
        let latest_us = now_us + WAIT_US_MAX;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let row = connection
            .query_one(&statement, &[&due_us, &latest_us, &limit])
            .await?;
        Ok(row.get::<_, i64>(0).cast_unsigned())
    }

    async fn delay_notices(&self, ids: &[String], due_us: i64) -> Result<(), WriteError> {
        transaction!(self, tx => async {
            tx.execute("UPDATE notice_queue SET due_us = $2 WHERE id = ANY($1)", &[&ids, &due_us])
                .await?;
            Ok::<_, Fault>(())
        })
    }

    async fn timer(&self, alert: &str) -> Result<Option<EscalationTimer>, QueryError> {
        let connection = self.reader().await?;
        let statement = connection
            .prepare_cached("SELECT alert, version, due_us, state FROM watches WHERE alert = $1")
            .await?;
        let row = connection.query_opt(&statement, &[&alert]).await?;
        Ok(row.as_ref().map(timer))
    }

    async fn due_timers(
        &self,
        now_us: i64,
        limit: usize,
    ) -> Result<Vec<EscalationTimer>, QueryError> {
        let connection = self.reader().await?;
        let statement = connection
            .prepare_cached(
                "SELECT alert, version, due_us, state FROM watches WHERE due_us <= $1 ORDER BY due_us, alert COLLATE \"C\" LIMIT $2",
            )
            .await?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = connection.query(&statement, &[&now_us, &limit]).await?;
        Ok(rows.iter().map(timer).collect())
    }

    async fn notices(&self, scope: &Scope, alert: &str) -> Result<Vec<NoticeRecord>, QueryError> {
        let rows = self
            .reader()
            .await?
            .query(
                &format!(
                    "SELECT n.payload, o.payload FROM alerts a JOIN notices n ON n.alert = a.id
                     LEFT JOIN notice_outcomes o ON o.id = n.id WHERE a.id = $2 AND {IN_SCOPE}"
                ),
                &[&scope.as_tenant(), &alert],
            )
            .await?;
        records(rows.iter().map(|row| (row.get(0), row.get(1))))
    }
}
