use std::collections::HashSet;

use async_trait::async_trait;
use bytes::Bytes;
use contracts::alerts::{NoticeOutcome, NoticeRecord};
use prost::Message;
use rusqlite::{Connection, OptionalExtension, Row};

use super::{SqliteStore, alerts::IN_SCOPE};
use crate::{
    EscalationTimer, NoticesBatch, NoticesStore, QueryError, QueuedNotice, Scope, Take,
    TimerChange, WriteError,
    error::readable,
    notices::{
        Head, LANE_MAX, WAIT_US_MAX, alert_of, choose, is_due, lane, records, share, unreadable,
        urgencies, urgency,
    },
};

/// A share takes its turns behind its own notices. A share without any begins at the turn that is
/// next.
const ENQUEUE: &str =
    "INSERT INTO notice_queue (id, channel, lane, due_us, attempts, share, urgency, turn)
     VALUES (?1, ?2, ?3, ?4, 0, ?5, ?6, max(
         ifnull((SELECT min(turn) FROM notice_queue
             WHERE channel = ?2 AND urgency = ?6 AND attempts = 0), 0),
         ifnull((SELECT max(turn) + 1 FROM notice_queue
             WHERE channel = ?2 AND urgency = ?6 AND attempts = 0 AND share = ?5), 0)))";

/// Lanes whose first notice was never tried and is due. The subquery runs for each row by its
/// index, so the cost follows the limit and not the queue.
const FRESH: &str = "SELECT q.lane FROM notice_queue q
     WHERE q.channel = ?1 AND q.urgency = ?2 AND q.attempts = 0 AND (q.due_us <= ?3 OR q.due_us > ?4)
         AND q.seq = (SELECT min(e.seq) FROM notice_queue e
             WHERE e.channel = q.channel AND e.lane = q.lane)
     ORDER BY q.turn, q.seq LIMIT ?5";

/// Lanes whose first notice has failed, or whose lease has run out.
const TRIED: &str = "SELECT q.lane FROM notice_queue q
     WHERE q.channel = ?1 AND q.urgency = ?2 AND q.attempts > 0 AND (q.due_us <= ?3 OR q.due_us > ?4)
         AND q.seq = (SELECT min(e.seq) FROM notice_queue e
             WHERE e.channel = q.channel AND e.lane = q.lane)
     ORDER BY q.due_us, q.seq LIMIT ?5";

/// A row of the queue with its notice as encoded.
struct Waiting {
    seq: i64,
    attempts: u32,
    due_us: i64,
    id: String,
    payload: Vec<u8>,
}

fn heads(connection: &Connection, take: &Take<'_>) -> rusqlite::Result<Vec<Head>> {
    let of = |sql: &str, is_tried: bool| -> rusqlite::Result<Vec<Head>> {
        let mut heads = Vec::new();
        for urgency in urgencies(take.least) {
            let room = take.limit.saturating_sub(heads.len());
            if room == 0 {
                break;
            }
            let latest_us = take.now_us + WAIT_US_MAX;
            let mut statement = connection.prepare_cached(sql)?;
            let lanes = statement.query_map(
                (take.channel, urgency, take.now_us, latest_us, room),
                |row| row.get(0),
            )?;
            for lane in lanes {
                heads.push(Head {
                    lane: lane?,
                    urgency,
                    is_tried,
                });
            }
        }
        Ok(heads)
    };
    Ok(choose(of(FRESH, false)?, of(TRIED, true)?, take.limit))
}

/// The due notices at the front of a lane, in order.
fn front(
    connection: &Connection,
    take: &Take<'_>,
    lane: &str,
    room: usize,
) -> rusqlite::Result<Vec<Waiting>> {
    let mut statement = connection.prepare_cached(
        "SELECT q.seq, q.attempts, q.due_us, q.id, n.payload
         FROM notice_queue q JOIN notices n ON n.id = q.id
         WHERE q.channel = ?1 AND q.lane = ?2 ORDER BY q.seq LIMIT ?3",
    )?;
    let rows = statement.query_map((take.channel, lane, room.min(LANE_MAX)), |row| {
        Ok(Waiting {
            seq: row.get(0)?,
            attempts: row.get(1)?,
            due_us: row.get(2)?,
            id: row.get(3)?,
            payload: row.get(4)?,
        })
    })?;
    let mut front = Vec::new();
    for row in rows {
        let row = row?;
        if !is_due(row.due_us, take.now_us) {
            break;
        }
        front.push(row);
    }
    Ok(front)
}

fn take(connection: &Connection, take: &Take<'_>) -> rusqlite::Result<Vec<QueuedNotice>> {
    let mut taken = Vec::new();
    let mut lease = connection.prepare_cached(
        "UPDATE notice_queue SET due_us = ?2, attempts = attempts + 1, in_hand = 1 WHERE seq = ?1",
    )?;
    for head in heads(connection, take)? {
        let room = take.limit.saturating_sub(taken.len());
        for row in front(connection, take, &head.lane, room)? {
            lease.execute((row.seq, take.until_us))?;
            let attempts = row.attempts + 1;
            match readable("notice", &row.payload) {
                Some(notice) => taken.push(QueuedNotice { notice, attempts }),
                None => settle(connection, &unreadable(&row.id, attempts))?,
            }
        }
    }
    Ok(taken)
}

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
            connection.prepare_cached(ENQUEUE)?.execute((
                &notice.id,
                &notice.channel,
                lane(notice),
                notice.due_us,
                share(notice),
                urgency(notice),
            ))?;
            // Notices of one lane keep their order, so those before are as urgent as this one.
            connection
                .prepare_cached(
                    "UPDATE notice_queue SET urgency = ?3
                     WHERE channel = ?1 AND lane = ?2 AND urgency < ?3",
                )?
                .execute((&notice.channel, lane(notice), urgency(notice)))?;
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

pub(super) fn settle(connection: &Connection, outcome: &NoticeOutcome) -> rusqlite::Result<()> {
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

    async fn take_notices(&self, given: Take<'_>) -> Result<Vec<QueuedNotice>, WriteError> {
        let channel = given.channel.to_owned();
        let (now_us, until_us, limit, least) =
            (given.now_us, given.until_us, given.limit, given.least);
        self.write(move |writing| {
            let given = Take {
                channel: &channel,
                now_us,
                until_us,
                limit,
                least,
            };
            Ok(take(writing.connection, &given)?)
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
                .prepare_cached("UPDATE notice_queue SET due_us = ?2, in_hand = 0 WHERE id = ?1")?;
            for id in ids {
                delay.execute((id, due_us))?;
            }
            Ok(())
        })
        .await
    }

    async fn hasten_notices(&self, channel: &str, now_us: i64) -> Result<u64, WriteError> {
        let channel = channel.to_owned();
        self.write(move |writing| {
            let hastened = writing
                .connection
                .prepare_cached(
                    "UPDATE notice_queue SET due_us = ?2
                     WHERE channel = ?1 AND attempts > 0 AND in_hand = 0 AND due_us > ?2",
                )?
                .execute((channel, now_us))?;
            Ok(hastened as u64)
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
