//! The store on SQLite in a data directory, for any number of processes on one machine.
//!
//! One thread of each process writes, in groups ([`writer`]); questions run on connections of their
//! own, beside it, and see the last committed state. Tables are described in `schema.rs`.

mod accounts;
mod alerts;
pub mod backup;
mod documents;
pub(crate) mod erasure;
mod keys;
mod ledger_rows;
mod ledgers;
mod maintenance;
mod notices;
mod paths;
mod patients;
mod progress;
mod proofs;
mod quarantine;
mod register;
mod retention;
mod schema;
mod series;
mod sessions;
mod silent;
mod transaction;
mod vitals;
mod writer;

use std::{
    path::Path,
    sync::{Arc, mpsc},
    thread::JoinHandle,
};

use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::sync::{Semaphore, oneshot};

pub use retention::SqliteOptions;
pub use schema::OpenError;

use self::{
    retention::Retention,
    writer::{Job, Typed, Writing},
};
use crate::{QueryError, WriteError, error::passed_over};

/// Writes that may wait; a caller waits for a place beyond. The group of one transaction is taken
/// from these.
const WRITES_MAX: usize = 256;
/// Questions that run at once; others wait. More would only compete for the disk.
const READERS_MAX: usize = 4;

pub struct SqliteStore {
    jobs: Option<mpsc::Sender<Box<dyn Job>>>,
    places: Arc<Semaphore>,
    /// As many connections as permits are free.
    readers: Arc<Mutex<Vec<Connection>>>,
    reading: Arc<Semaphore>,
    thread: Option<JoinHandle<()>>,
}

impl SqliteStore {
    /// Blocks for some milliseconds; longer when it has to migrate.
    pub fn open(dir: &Path) -> Result<SqliteStore, OpenError> {
        SqliteStore::open_with(dir, SqliteOptions::default())
    }

    pub fn open_with(dir: &Path, options: SqliteOptions) -> Result<SqliteStore, OpenError> {
        let directory = |e: std::io::Error| OpenError::Directory {
            path: dir.display().to_string(),
            reason: e.to_string(),
        };
        private_files::folder(dir).map_err(directory)?;
        for file in schema::files(dir) {
            private_files::mend_file(&file).map_err(directory)?;
        }
        private_files::file(&dir.join(schema::FILE)).map_err(directory)?;
        let connection = schema::open_writer(dir)?;
        let readers = (0..READERS_MAX)
            .map(|_| schema::open_reader(dir))
            .collect::<Result<_, _>>()?;
        let (jobs, queue) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("store-writer".into())
            .spawn(move || writer::run(&connection, &queue, Some(Retention::new(options))))
            .map_err(directory)?;
        Ok(SqliteStore {
            jobs: Some(jobs),
            places: Arc::new(Semaphore::new(WRITES_MAX)),
            readers: Arc::new(Mutex::new(readers)),
            reading: Arc::new(Semaphore::new(READERS_MAX)),
            thread: Some(thread),
        })
    }

    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Writing<'_>) -> Result<T, WriteError> + Send + 'static,
    ) -> Result<T, WriteError> {
        let closed = || WriteError::Unavailable("it was closed".into());
        let permit = self
            .places
            .clone()
            .acquire_owned()
            .await
            .map_err(|_| closed())?;
        let (reply, answer) = oneshot::channel();
        let job = Box::new(Typed {
            work: Some(Box::new(work)),
            result: None,
            reply,
            permit,
        });
        if let Some(jobs) = &self.jobs {
            // A thread that has ended drops the job, and the answer says so.
            let _ = jobs.send(job);
        }
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, QueryError> + Send + 'static,
    ) -> Result<T, QueryError> {
        let permit = self
            .reading
            .clone()
            .acquire_owned()
            .await
            .map_err(|_| QueryError::Unavailable("it was closed".into()))?;
        let readers = self.readers.clone();
        tokio::task::spawn_blocking(move || {
            let connection = readers
                .lock()
                .pop()
                .ok_or_else(|| QueryError::Unavailable("no connection is left".into()))?;
            let result = work(&connection);
            readers.lock().push(connection);
            drop(permit);
            result
        })
        .await
        .map_err(|e| QueryError::Unavailable(e.to_string()))?
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl From<rusqlite::Error> for WriteError {
    fn from(e: rusqlite::Error) -> WriteError {
        let of_the_data = matches!(e, rusqlite::Error::ToSqlConversionFailure(_))
            || e.sqlite_error_code() == Some(rusqlite::ErrorCode::ConstraintViolation);
        if of_the_data {
            WriteError::Unfit(e.to_string())
        } else {
            WriteError::Unavailable(e.to_string())
        }
    }
}

impl From<rusqlite::Error> for QueryError {
    fn from(e: rusqlite::Error) -> QueryError {
        QueryError::Unavailable(e.to_string())
    }
}

/// The readable rows: a row with a damaged column is passed over.
fn readable_rows<T>(
    kind: &'static str,
    rows: impl Iterator<Item = rusqlite::Result<T>>,
) -> Result<Vec<T>, QueryError> {
    let mut read = Vec::new();
    for row in rows {
        match row {
            Ok(row) => read.push(row),
            Err(
                error @ (rusqlite::Error::FromSqlConversionFailure(..)
                | rusqlite::Error::InvalidColumnType(..)
                | rusqlite::Error::IntegralValueOutOfRange(..)
                | rusqlite::Error::Utf8Error(..)),
            ) => passed_over(kind, &error),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(read)
}

impl From<prost::DecodeError> for QueryError {
    fn from(e: prost::DecodeError) -> QueryError {
        QueryError::Unreadable(e.to_string())
    }
}
