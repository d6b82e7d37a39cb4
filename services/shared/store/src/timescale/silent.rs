use std::collections::HashSet;

use async_trait::async_trait;
use contracts::alerts::AlertState;
use deadpool_postgres::Transaction;

use super::{
    TimescaleStore,
    alerts::{present, transitions},
    fault::Fault,
    transaction,
};
use crate::{
    QueryError, Silent, SilentBatch, SilentPage, SilentStore, WriteError, Written, alerts::ALERT,
    error::readable,
};

const RESOLVED: i32 = AlertState::Resolved as i32;

/// Key of the advisory lock: the letters "silen".
const LOCK: i64 = 0x73_696c_656e;

/// One writer at a time. A statement that waits for the row of another writer gets the new row. It
/// still looks for that row's alert in its older snapshot, and finds none. It would replace an open
/// silence, whose alert then never ends. Nothing else is locked before, so writers cannot deadlock.
async fn lock(transaction: &Transaction<'_>) -> Result<(), Fault> {
    let statement = transaction
        .prepare_cached("SELECT pg_advisory_xact_lock($1)")
        .await?;
    transaction.execute(&statement, &[&LOCK]).await?;
    Ok(())
}

async fn end(transaction: &Transaction<'_>, batch: &SilentBatch) -> Result<(), Fault> {
    let ended: Vec<&str> = batch.ended.iter().map(|alert| alert.id.as_str()).collect();
    if ended.is_empty() {
        return Ok(());
    }
    let statement = transaction
        .prepare_cached("DELETE FROM silent WHERE alert = ANY($1)")
        .await?;
    transaction.execute(&statement, &[&ended]).await?;
    Ok(())
}

/// A subject whose open alert is another one is a conflict.
async fn begin(transaction: &Transaction<'_>, batch: &SilentBatch) -> Result<(), Fault> {
    if batch.begun.is_empty() {
        return Ok(());
    }
    // In order of the key, as everybody locks.
    let mut begun: Vec<&Silent> = batch.begun.iter().collect();
    begun.sort_by(|a, b| a.subject.cmp(&b.subject));
    let subjects: Vec<&str> = begun.iter().map(|it| it.subject.as_str()).collect();
    let alerts: Vec<&str> = begun.iter().map(|it| it.alert.id.as_str()).collect();
    let readings: Vec<i64> = begun.iter().map(|it| it.reading_us).collect();
    let reports: Vec<i64> = begun.iter().map(|it| it.report_us).collect();
    let statement = transaction
        .prepare_cached(&format!(
            "INSERT INTO silent SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[])
             ON CONFLICT (subject) DO UPDATE SET alert = excluded.alert, reading_us = excluded.reading_us,
                 report_us = excluded.report_us
             WHERE NOT EXISTS (SELECT 1 FROM alerts a WHERE a.id = silent.alert AND a.state <> {RESOLVED})
             RETURNING alert"
        ))
        .await?;
    let rows = transaction
        .query(&statement, &[&subjects, &alerts, &readings, &reports])
        .await?;
    let kept: HashSet<&str> = rows.iter().map(|row| row.get(0)).collect();
    let left: Vec<&str> = alerts.into_iter().filter(|id| !kept.contains(id)).collect();
    if left.is_empty() {
        return Ok(());
    }
    let there = transaction
        .query("SELECT alert FROM silent WHERE alert = ANY($1)", &[&left])
        .await?;
    let there: HashSet<&str> = there.iter().map(|row| row.get(0)).collect();
    let conflicts: Vec<String> = left
        .into_iter()
        .filter(|id| !there.contains(id))
        .map(str::to_owned)
        .collect();
    if conflicts.is_empty() {
        Ok(())
    } else {
        Err(Fault::Conflict(conflicts))
    }
}

#[async_trait]
impl SilentStore for TimescaleStore {
    async fn write_silent(&self, batch: SilentBatch) -> Result<Written, WriteError> {
        let all = batch.transitions();
        let new = transaction!(self, tx => async {
            lock(tx).await?;
            let new = transitions(tx, &all).await?;
            present(tx, &new).await?;
            end(tx, &batch).await?;
            begin(tx, &batch).await?;
            Ok::<_, Fault>(new.len() as u64)
        })?;
        Ok(Written {
            new,
            duplicate: all.len() as u64 - new,
        })
    }

    async fn silent_page(&self, after: &str, limit: usize) -> Result<SilentPage, QueryError> {
        let connection = self.reader().await?;
        let statement = connection
            .prepare_cached(&format!(
                "SELECT a.payload, s.subject, s.reading_us, s.report_us
                 FROM silent s JOIN alerts a ON a.id = s.alert
                 WHERE s.subject > $1 AND a.state <> {RESOLVED} ORDER BY s.subject LIMIT $2"
            ))
            .await?;
        let count = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = connection.query(&statement, &[&after, &count]).await?;
        let last = rows.last().map(|row| row.get(1));
        let silent = |row: &tokio_postgres::Row| {
            Some(Silent {
                alert: readable(ALERT, row.get(0))?,
                subject: row.get(1),
                reading_us: row.get(2),
                report_us: row.get(3),
            })
        };
        let is_full = rows.len() >= limit;
        Ok((
            rows.iter().filter_map(silent).collect(),
            last.filter(|_| is_full),
        ))
    }

    async fn silent_look_us(&self) -> Result<Option<i64>, QueryError> {
        let connection = self.reader().await?;
        let row = connection
            .query_opt("SELECT at_us FROM silent_look", &[])
            .await?;
        Ok(row.map(|row| row.get(0)))
    }

    async fn note_silent_look(&self, at_us: i64) -> Result<(), WriteError> {
        transaction!(self, tx => async {
            let statement = tx
                .prepare_cached(
                    "INSERT INTO silent_look VALUES (1, $1) ON CONFLICT (id) DO UPDATE SET at_us = excluded.at_us",
                )
                .await?;
            tx.execute(&statement, &[&at_us]).await?;
            Ok::<_, Fault>(())
        })
    }
}
