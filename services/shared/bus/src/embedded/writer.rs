//! The one thread of the process that writes records.
//!
//! Publishers hand over jobs. The thread takes all waiting jobs, up to [`GROUP_BYTES_MAX`], writes
//! them in one transaction, syncs once and answers all. So concurrent publishers share the cost of
//! the sync. Each waits for at most the commit in progress, one step of [`Retention`], and its own
//! commit.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{
    headers,
    heads::Heads,
    options::EmbeddedOptions,
    retention::{RETENTION_STEP, Retention},
    schema,
};
use crate::{
    NotReady, PublishError, Record, Topic,
    keys::{bytes_of, partition_of},
    slow_clock,
};

/// Bytes in one transaction: jobs beyond it wait for the next. At least one job is taken whatever
/// its size.
const GROUP_BYTES_MAX: usize = 8 << 20;
pub enum Command {
    Publish(Job),
    Probe(oneshot::Sender<Result<(), NotReady>>),
    /// Removes records beyond age or size now; answers when nothing is left to remove.
    Retain(oneshot::Sender<()>),
    /// Ends the thread without finishing the queue.
    Abandon,
}

pub struct Job {
    pub topic: Topic,
    pub records: Vec<Record>,
    pub bytes: usize,
    pub reply: oneshot::Sender<Result<(), PublishError>>,
    /// The job's part of the bytes that may be in flight; returned when it is dropped.
    pub permit: OwnedSemaphorePermit,
}

pub struct Writer {
    connection: Connection,
    heads: Arc<Heads>,
    options: EmbeddedOptions,
    insert: BTreeMap<(Topic, u32), String>,
    retention: Retention,
}

impl Writer {
    pub fn new(connection: Connection, heads: Arc<Heads>, options: EmbeddedOptions) -> Writer {
        let mut insert = BTreeMap::new();
        for topic in Topic::ALL {
            for partition in 0..heads.partitions(topic) {
                let table = schema::table(topic, partition);
                insert.insert(
                    (topic, partition),
                    format!("INSERT INTO {table} VALUES (?1, ?2, ?3, ?4, ?5, ?6)"),
                );
            }
        }
        Writer {
            connection,
            heads,
            options,
            insert,
            retention: Retention::default(),
        }
    }

    /// Runs until every sender is gone and its jobs are written.
    pub fn run(mut self, commands: &Receiver<Command>) {
        loop {
            let due = self.retention.due();
            let wait = due.map_or(Duration::ZERO, |at| {
                at.saturating_duration_since(Instant::now())
            });
            let first = match commands.recv_timeout(wait) {
                Ok(command) => Some(command),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let mut jobs = Vec::new();
            let mut bytes = 0;
            let mut next = first;
            while let Some(command) = next {
                match command {
                    Command::Publish(job) => {
                        bytes += job.bytes;
                        jobs.push(job);
                    }
                    Command::Probe(reply) => {
                        let _ = reply.send(self.probe().map_err(|e| NotReady(e.to_string())));
                    }
                    Command::Retain(reply) => self.retention.ask(reply),
                    Command::Abandon => return,
                }
                next = if bytes < GROUP_BYTES_MAX {
                    commands.try_recv().ok()
                } else {
                    None
                };
            }
            if !jobs.is_empty() {
                self.publish(jobs);
            }
            self.retain();
        }
    }

    fn publish(&mut self, jobs: Vec<Job>) {
        let started = Instant::now();
        let result = self.in_transaction(|this| this.insert(&jobs));
        match result {
            Ok(heads) => {
                self.heads.advance(&heads);
                metrics::histogram!("braid_bus_commit_seconds").record(started.elapsed());
                for job in jobs {
                    metrics::counter!("braid_bus_published_records_total", "topic" => job.topic.name())
                        .increment(job.records.len() as u64);
                    drop(job.permit);
                    let _ = job.reply.send(Ok(()));
                }
            }
            Err(e) => {
                metrics::counter!("braid_bus_commit_errors_total").increment(1);
                tracing::warn!(error = %e, "records were not written");
                for job in jobs {
                    let _ = job
                        .reply
                        .send(Err(PublishError::Unavailable(e.to_string())));
                }
            }
        }
    }

    fn in_transaction<T>(
        &mut self,
        work: impl FnOnce(&Writer) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        let result = work(self).and_then(|value| {
            self.connection.execute_batch("COMMIT")?;
            Ok(value)
        });
        if result.is_err() && !self.connection.is_autocommit() {
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        result
    }

    /// Returns the new heads. Offsets come from the table, because other processes write to it too.
    fn insert(&self, jobs: &[Job]) -> rusqlite::Result<Vec<(Topic, u32, u64)>> {
        let now = now_us();
        // (next offset, bytes so far) of the partitions in this transaction.
        let mut ends: BTreeMap<(Topic, u32), (u64, u64)> = BTreeMap::new();
        for job in jobs {
            let partitions = self.heads.partitions(job.topic);
            for record in &job.records {
                let partition = partition_of(&record.key, partitions);
                let end = match ends.entry((job.topic, partition)) {
                    std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                    std::collections::btree_map::Entry::Vacant(entry) => {
                        entry.insert(self.end(job.topic, partition)?)
                    }
                };
                end.1 += bytes_of(record) as u64;
                self.connection
                    .prepare_cached(&self.insert[&(job.topic, partition)])?
                    .execute((
                        end.0,
                        now,
                        end.1,
                        record.key.as_str(),
                        headers::encode(&record.headers),
                        record.value.as_ref(),
                    ))?;
                end.0 += 1;
            }
        }
        let mut update = self.connection.prepare_cached(
            "UPDATE partitions SET next_offset = ?3, end_bytes = ?4 WHERE topic = ?1 AND part = ?2",
        )?;
        let mut heads = Vec::with_capacity(ends.len());
        for ((topic, partition), (next, bytes)) in ends {
            update.execute((topic.name(), partition, next, bytes))?;
            heads.push((topic, partition, next));
        }
        Ok(heads)
    }

    fn end(&self, topic: Topic, partition: u32) -> rusqlite::Result<(u64, u64)> {
        self.connection
            .prepare_cached(
                "SELECT next_offset, end_bytes FROM partitions WHERE topic = ?1 AND part = ?2",
            )?
            .query_row((topic.name(), partition), |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
    }

    fn probe(&mut self) -> rusqlite::Result<()> {
        self.in_transaction(|this| {
            this.connection
                .execute("UPDATE probe SET count = count + 1 WHERE id = 1", [])
                .map(drop)
        })
    }

    /// One step: at most one transaction.
    fn retain(&mut self) {
        let now = Instant::now();
        if self.retention.is_to_begin(now) {
            let passed = self.retention.passed(now);
            let followed = slow_clock::follow(&self.connection, now_us(), passed);
            match followed {
                Ok(now_us) => {
                    let partitions = self.insert.keys().copied();
                    self.retention.begin(now, now_us, partitions);
                }
                Err(error) => {
                    tracing::warn!(%error, "old records were not removed");
                    self.retention.put_off(now);
                }
            }
            return;
        }
        let Some((topic, partition, now_us)) = self.retention.next() else {
            return;
        };
        match self.retain_partition(topic, partition, now_us) {
            Ok(removed) => {
                let removed = removed as u64;
                self.retention.on_removed((topic, partition), removed);
                metrics::counter!("braid_bus_expired_records_total", "topic" => topic.name())
                    .increment(removed);
            }
            Err(error) => {
                tracing::warn!(%topic, partition, %error, "old records were not removed");
                self.retention.on_removed((topic, partition), 0);
            }
        }
    }

    fn retain_partition(
        &mut self,
        topic: Topic,
        partition: u32,
        now_us: i64,
    ) -> rusqlite::Result<usize> {
        let table = schema::table(topic, partition);
        let oldest_us = now_us.saturating_sub(
            i64::try_from(self.options.retention_age.as_micros()).unwrap_or(i64::MAX),
        );
        let (_, end_bytes) = self.end(topic, partition)?;
        let least_bytes = end_bytes.saturating_sub(self.options.retention_bytes);
        // Times and sizes rise with the offset, so the records to remove are a prefix; the newest
        // of it within one step decides.
        let last: Option<u64> = self
            .connection
            .prepare_cached(&format!(
                "SELECT max(offset) FROM (SELECT offset, published_us, end_bytes FROM {table} ORDER BY offset LIMIT {RETENTION_STEP})
                 WHERE published_us < ?1 OR end_bytes <= ?2"
            ))?
            .query_row((oldest_us, least_bytes), |row| row.get(0))?;
        let Some(last) = last else { return Ok(0) };
        self.in_transaction(|this| {
            this.connection
                .prepare_cached(&format!("DELETE FROM {table} WHERE offset <= ?1"))?
                .execute([last])
        })
    }
}

/// Time at which records are published and until which they are kept, in microseconds since the
/// Unix epoch.
fn now_us() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|d| i64::try_from(d.as_micros()).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests;
