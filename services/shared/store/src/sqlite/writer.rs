//! The one thread of the process that writes.
//!
//! Callers hand over closures. The thread takes the waiting ones, up to [`GROUP_MAX`], runs each in
//! a savepoint of one common transaction, syncs once and answers all. A failing closure is undone
//! by itself and does not disturb the others.

use std::{
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{keys::Keys, retention::Retention, transaction::in_transaction};
use crate::WriteError;

/// Writes in one transaction; what is beyond waits for the next.
const GROUP_MAX: usize = 64;
/// How often old rows are looked for when nothing is left from the last look.
const RETENTION_EVERY: Duration = Duration::from_secs(60);
/// Pause between steps of removing a backlog, so that writes come first.
const RETENTION_PAUSE: Duration = Duration::from_millis(50);

/// The means of a write: the connection inside the transaction, and the keys of texts.
pub struct Writing<'a> {
    pub connection: &'a Connection,
    pub keys: &'a mut Keys,
}

pub type Work<T> = Box<dyn FnOnce(&mut Writing<'_>) -> Result<T, WriteError> + Send>;

/// A write with its answer; the two are apart because the answer waits for the common commit.
pub trait Job: Send {
    /// False when the write failed and must be undone.
    fn run(&mut self, writing: &mut Writing<'_>) -> bool;
    /// `failed`: the common commit failed.
    fn answer(self: Box<Self>, failed: Option<&rusqlite::Error>);
}

pub struct Typed<T> {
    pub work: Option<Work<T>>,
    pub result: Option<Result<T, WriteError>>,
    pub reply: oneshot::Sender<Result<T, WriteError>>,
    /// The job's place in the queue.
    pub permit: OwnedSemaphorePermit,
}

impl<T: Send> Job for Typed<T> {
    fn run(&mut self, writing: &mut Writing<'_>) -> bool {
        if let Some(work) = self.work.take() {
            self.result = Some(work(writing));
        }
        matches!(self.result, Some(Ok(_)))
    }

    fn answer(self: Box<Self>, failed: Option<&rusqlite::Error>) {
        drop(self.permit);
        let result = match (self.result, failed) {
            // A refusal stays what it is, whatever became of the others.
            (Some(Err(e)), _) => Err(e),
            (_, Some(e)) => Err(WriteError::Unavailable(e.to_string())),
            (Some(Ok(value)), None) => Ok(value),
            (None, None) => Err(WriteError::Unavailable("it did not run".into())),
        };
        // A caller that gave up does not take its answer.
        let _ = self.reply.send(result);
    }
}

pub fn run(
    connection: &Connection,
    jobs: &Receiver<Box<dyn Job>>,
    mut retention: Option<Retention>,
) {
    let mut keys = Keys::default();
    let mut retain_at = Instant::now() + RETENTION_PAUSE;
    loop {
        let wait = retain_at.saturating_duration_since(Instant::now());
        match jobs.recv_timeout(wait) {
            Ok(first) => {
                let mut group = vec![first];
                while group.len() < GROUP_MAX
                    && let Ok(job) = jobs.try_recv()
                {
                    group.push(job);
                }
                write(connection, &mut keys, group);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if Instant::now() >= retain_at {
            let more = retention
                .as_mut()
                .is_some_and(|retention| retention.step(connection));
            retain_at = Instant::now()
                + if more {
                    RETENTION_PAUSE
                } else {
                    RETENTION_EVERY
                };
        }
    }
}

fn write(connection: &Connection, keys: &mut Keys, mut group: Vec<Box<dyn Job>>) {
    let started = Instant::now();
    let outcome = in_transaction(connection, || {
        for job in &mut group {
            connection.execute_batch("SAVEPOINT job")?;
            let done = job.run(&mut Writing { connection, keys });
            if !done {
                // Keys given by the undone write are not in the tables.
                keys.clear();
                connection.execute_batch("ROLLBACK TO job")?;
            }
            connection.execute_batch("RELEASE job")?;
        }
        Ok(())
    });
    if let Err(e) = &outcome {
        keys.clear();
        metrics::counter!("braid_store_commit_errors_total").increment(1);
        tracing::warn!(error = %e, "rows were not written");
    } else {
        metrics::histogram!("braid_store_commit_seconds").record(started.elapsed());
    }
    for job in group {
        job.answer(outcome.as_ref().err());
    }
}
