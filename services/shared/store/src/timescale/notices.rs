use std::collections::HashSet;

use async_trait::async_trait;
use bytes::Bytes;
use contracts::alerts::{Notice, NoticeOutcome, NoticeRecord};
use deadpool_postgres::Transaction;
use prost::Message;
use tokio_postgres::Row;

use super::{COMMIT_WITHOUT_DISK, TimescaleStore, alerts::IN_SCOPE, fault::Fault, transaction};
use crate::{
    EscalationTimer, NoticesBatch, NoticesStore, QueryError, QueuedNotice, Scope, Take,
    TimerChange, WriteError,
    error::readable,
    notices::{
        Head, LANE_MAX, WAIT_US_MAX, alert_of, choose, is_due, lane, records, share, unreadable,
        urgencies, urgency,
    },
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
    let urgencies: Vec<i32> = notices.iter().map(|n| urgency(n)).collect();
    let waits: Vec<bool> = ids.iter().map(|id| !settled.contains(id)).collect();
    let statement = transaction
        .prepare_cached(
            // A share takes its turns behind its own notices. A share without any begins at the
            // turn that is next. Notices of one lane keep their order, so those before are as
            // urgent as a new one.
            "WITH w AS (SELECT *, row_number() OVER (PARTITION BY channel, urgency, share ORDER BY n) AS nth
                     FROM unnest($1::text[], $2::text[], $3::bytea[], $4::text[],
                     $5::text[], $6::bigint[], $7::bool[], $8::text[], $9::int[])
                     WITH ORDINALITY AS w (id, alert, payload, channel, lane, due_us, waits, share, urgency, n)),
                 new AS (INSERT INTO notices SELECT id, alert, payload FROM w ON CONFLICT (id) DO NOTHING RETURNING id),
                 queued AS (INSERT INTO notice_queue (id, channel, lane, due_us, attempts, share, urgency, turn)
                     SELECT id, channel, lane, due_us, 0, share, urgency, nth - 1 + greatest(
                         coalesce((SELECT min(q.turn) FROM notice_queue q
                             WHERE q.channel = w.channel AND q.urgency = w.urgency AND q.attempts = 0), 0),
                         coalesce((SELECT max(q.turn) + 1 FROM notice_queue q
                             WHERE q.channel = w.channel AND q.urgency = w.urgency AND q.attempts = 0
                                 AND q.share = w.share), 0))
                     FROM w JOIN new USING (id) WHERE waits ORDER BY n),
                 raised AS (UPDATE notice_queue q SET urgency = w.urgency FROM w
                     WHERE q.channel = w.channel AND q.lane = w.lane AND q.urgency < w.urgency)
             SELECT count(*) FROM new",
        )
        .await?;
    let row = transaction
        .query_one(
            &statement,
            &[
                &ids, &alerts, &payloads, &channels, &lanes, &due, &waits, &shares, &urgencies,
            ],
        )
        .await?;
    Ok(row.get::<_, i64>(0).cast_unsigned())
}

async fn write(transaction: &Transaction<'_>, batch: &NoticesBatch) -> Result<u64, Fault> {
    let new = add(transaction, batch).await?;
    settle(transaction, &batch.outcomes).await?;
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

async fn settle(transaction: &Transaction<'_>, outcomes: &[NoticeOutcome]) -> Result<(), Fault> {
    if outcomes.is_empty() {
        return Ok(());
    }
    let ids: Vec<&str> = outcomes.iter().map(|it| it.notice.as_str()).collect();
    let payloads: Vec<Vec<u8>> = outcomes.iter().map(|it| it.encode_to_vec()).collect();
    let statement = transaction
        .prepare_cached(
            "INSERT INTO notice_outcomes SELECT * FROM unnest($1::text[], $2::bytea[])
             ON CONFLICT (id) DO NOTHING",
        )
        .await?;
    transaction.execute(&statement, &[&ids, &payloads]).await?;
    let statement = transaction
        .prepare_cached("DELETE FROM notice_queue WHERE id = ANY($1)")
        .await?;
    transaction.execute(&statement, &[&ids]).await?;
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

/// A plan that was made while the queue was short must not read all of a long queue.
const BY_INDEX: &str = "SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off";

/// Lanes whose first notice was never tried and is due. The subqueries run by their indexes, so the
/// cost follows the limit and not the queue.
const FRESH: &str = "SELECT u.urgency, h.lane FROM unnest($5::int[]) AS u (urgency)
     CROSS JOIN LATERAL (SELECT q.lane, q.turn, q.seq FROM notice_queue q
         WHERE q.channel = $1 AND q.urgency = u.urgency AND q.attempts = 0
             AND (q.due_us <= $2 OR q.due_us > $3)
             AND q.seq = (SELECT min(e.seq) FROM notice_queue e
                 WHERE e.channel = q.channel AND e.lane = q.lane)
         ORDER BY q.turn, q.seq LIMIT $4) AS h
     ORDER BY u.urgency DESC, h.turn, h.seq LIMIT $4";

/// Lanes whose first notice has failed, or whose lease has run out.
const TRIED: &str = "SELECT u.urgency, h.lane FROM unnest($5::int[]) AS u (urgency)
     CROSS JOIN LATERAL (SELECT q.lane, q.due_us, q.seq FROM notice_queue q
         WHERE q.channel = $1 AND q.urgency = u.urgency AND q.attempts > 0
             AND (q.due_us <= $2 OR q.due_us > $3)
             AND q.seq = (SELECT min(e.seq) FROM notice_queue e
                 WHERE e.channel = q.channel AND e.lane = q.lane)
         ORDER BY q.due_us, q.seq LIMIT $4) AS h
     ORDER BY u.urgency DESC, h.due_us, h.seq LIMIT $4";

async fn heads(
    transaction: &Transaction<'_>,
    given: &Take<'_>,
    sql: &str,
    is_tried: bool,
) -> Result<Vec<Head>, Fault> {
    let latest_us = given.now_us + WAIT_US_MAX;
    let limit = i64::try_from(given.limit).unwrap_or(i64::MAX);
    let urgencies: Vec<i32> = urgencies(given.least).collect();
    let statement = transaction.prepare_cached(sql).await?;
    let rows = transaction
        .query(
            &statement,
            &[
                &given.channel,
                &given.now_us,
                &latest_us,
                &limit,
                &urgencies,
            ],
        )
        .await?;
    let head = |row: &Row| Head {
        urgency: row.get(0),
        lane: row.get(1),
        is_tried,
    };
    Ok(rows.iter().map(head).collect())
}

async fn take(transaction: &Transaction<'_>, given: &Take<'_>) -> Result<Vec<QueuedNotice>, Fault> {
    let (fresh, tried) = tokio::try_join!(
        heads(transaction, given, FRESH, false),
        heads(transaction, given, TRIED, true)
    )?;
    let lanes: Vec<String> = choose(fresh, tried, given.limit)
        .into_iter()
        .map(|head| head.lane)
        .collect();
    if lanes.is_empty() {
        return Ok(Vec::new());
    }
    let statement = transaction
        .prepare_cached(
            "SELECT l.n, f.seq, f.due_us, f.attempts, f.id, n.payload
             FROM unnest($2::text[]) WITH ORDINALITY AS l (lane, n)
             CROSS JOIN LATERAL (SELECT * FROM notice_queue q
                 WHERE q.channel = $1 AND q.lane = l.lane ORDER BY q.seq LIMIT $3) AS f
             JOIN notices n ON n.id = f.id ORDER BY l.n, f.seq",
        )
        .await?;
    let lane_max = LANE_MAX as i64;
    let rows = transaction
        .query(&statement, &[&given.channel, &lanes, &lane_max])
        .await?;
    let mut taken = Vec::with_capacity(given.limit.min(rows.len()));
    let mut leased: Vec<i64> = Vec::with_capacity(given.limit.min(rows.len()));
    let mut ended = None;
    for row in &rows {
        let lane: i64 = row.get(0);
        if ended == Some(lane) || leased.len() >= given.limit {
            continue;
        }
        if !is_due(row.get(2), given.now_us) {
            // Notices behind it in its lane wait with it.
            ended = Some(lane);
            continue;
        }
        leased.push(row.get(1));
        let attempts = row.get::<_, i32>(3).cast_unsigned() + 1;
        match readable("notice", row.get(5)) {
            Some(notice) => taken.push(QueuedNotice { notice, attempts }),
            None => settle(transaction, &[unreadable(row.get(4), attempts)]).await?,
        }
    }
    let statement = transaction
        .prepare_cached(
            "UPDATE notice_queue SET due_us = $2, attempts = attempts + 1, in_hand = true
             WHERE seq = ANY($1)",
        )
        .await?;
    transaction
        .execute(&statement, &[&leased, &given.until_us])
        .await?;
    Ok(taken)
}

#[async_trait]
impl NoticesStore for TimescaleStore {
    async fn write_notices(&self, batch: NoticesBatch) -> Result<u64, WriteError> {
        transaction!(self, tx => write(tx, &batch))
    }

    async fn take_notices(&self, given: Take<'_>) -> Result<Vec<QueuedNotice>, WriteError> {
        transaction!(self, tx => async {
            // A lease that a crash undoes is taken anew: the same notice with the same key.
            tx.batch_execute(COMMIT_WITHOUT_DISK).await?;
            tx.batch_execute(BY_INDEX).await?;
            // One member at a time, so that none takes the notices behind one that another member
            // is just taking.
            let lock = tx
                .prepare_cached("SELECT pg_advisory_xact_lock($1, hashtext($2))")
                .await?;
            tx.execute(&lock, &[&TAKING, &given.channel]).await?;
            take(tx, &given).await
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
            tx.execute(
                "UPDATE notice_queue SET due_us = $2, in_hand = false WHERE id = ANY($1)",
                &[&ids, &due_us],
            )
            .await?;
            Ok::<_, Fault>(())
        })
    }

    async fn hasten_notices(&self, channel: &str, now_us: i64) -> Result<u64, WriteError> {
        transaction!(self, tx => async {
            let hastened = tx
                .execute(
                    "UPDATE notice_queue SET due_us = $2
                     WHERE channel = $1 AND attempts > 0 AND NOT in_hand AND due_us > $2",
                    &[&channel, &now_us],
                )
                .await?;
            Ok::<_, Fault>(hastened)
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
