//! The store on TimescaleDB, for any number of processes and machines.
//!
//! A write is one transaction on one of a bounded number of connections. It locks its claims
//! ([`progress`]), then the heads of the devices in its rows ([`ledger`]), which tell exactly which
//! rows are new. New rows go by binary COPY into the hypertables ([`copy`]), which therefore need
//! no unique index. Heads and offsets are rewritten in the same transaction. So rows are unique by
//! (device, stream, sequence) whatever their time is, which no unique index of a hypertable could
//! promise. Roll-ups follow in the background ([`rollups`]). Tables are described in `migrations/`.

mod accounts;
mod alerts;
mod background;
mod copy;
mod documents;
mod edition;
mod erasure;
mod fault;
mod keys;
mod ledger;
mod ledgers;
mod lookup;
mod maintenance;
pub mod measure;
mod migrate;
mod notices;
mod open;
mod open_error;
mod options;
mod path_steering;
mod paths;
mod patients;
mod progress;
mod proofs;
mod quarantine;
mod register;
mod retention;
mod rollups;
mod runs;
mod series;
mod sessions;
mod silent;
mod time;
mod tls;
mod vitals;

use std::{future::Future, sync::Arc, time::Duration};

use deadpool_postgres::{Object, Pool};
use parking_lot::Mutex;
use tokio::task::JoinHandle;

pub use edition::Edition;
pub use migrate::Applied;
pub use open::Examined;
pub use open_error::OpenError;
pub use options::{Ages, TimescaleOptions};

use self::{fault::Fault, keys::Keys, open::Server};
use crate::{QueryError, WriteError};

/// Attempts at a transaction that another transaction made fail (serialization, deadlock). Past it
/// the caller gets `Unavailable`, and tries again by its own rules.
const ATTEMPTS_MAX: u32 = 5;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(5);
/// A transaction that has not ended by then counts as lost: the server gives up its statements
/// earlier.
const TRANSACTION_LIMIT: Duration = Duration::from_secs(60);

pub struct TimescaleStore {
    writers: Pool,
    readers: Pool,
    keys: Arc<Mutex<Keys>>,
    edition: Edition,
    applied: Applied,
    ages: Ages,
    background: JoinHandle<()>,
}

impl TimescaleStore {
    /// Connects once, migrates when the options say so. [`OpenError::may_pass`] returns whether
    /// waiting helps.
    pub async fn open(options: &TimescaleOptions) -> Result<TimescaleStore, OpenError> {
        let server = Server::new(options)?;
        let (edition, applied) = server.prepare(options.migrate).await?;
        let writers = server.pool(options.writers_max)?;
        let readers = server.pool(options.readers_max)?;
        let background = tokio::spawn(background::run(
            server,
            writers.clone(),
            options.ages.clone(),
            edition,
            applied.continuous,
        ));
        tracing::info!(
            community = edition.community,
            schema = applied.to,
            "TimescaleDB is ready"
        );
        Ok(TimescaleStore {
            writers,
            readers,
            keys: Arc::default(),
            edition,
            applied,
            ages: options.ages.clone(),
            background,
        })
    }

    /// `HOST:PORT` of the options, for messages; refuses what [`TimescaleStore::open`] would refuse
    /// without asking the server.
    pub fn address(options: &TimescaleOptions) -> Result<String, OpenError> {
        Server::new(options).map(|server| server.address)
    }

    /// Opens a store that is up to date, to ask questions only: nothing is migrated, rolled up or
    /// removed.
    pub async fn open_to_look(options: &TimescaleOptions) -> Result<TimescaleStore, OpenError> {
        let server = Server::new(options)?;
        let (edition, applied) = server.prepare(false).await?;
        Ok(TimescaleStore {
            writers: server.pool(options.writers_max)?,
            readers: server.pool(options.readers_max)?,
            keys: Arc::default(),
            edition,
            applied,
            ages: options.ages.clone(),
            background: tokio::spawn(async {}),
        })
    }

    /// Brings the schema up to date and ends. Needs the right to create tables; the services then
    /// need none.
    pub async fn migrate(options: &TimescaleOptions) -> Result<Applied, OpenError> {
        let server = Server::new(options)?;
        server.prepare(true).await.map(|(_, applied)| applied)
    }

    /// Properties of the server behind the options; changes nothing. For `braid doctor`.
    pub async fn examine(options: &TimescaleOptions) -> Result<Examined, OpenError> {
        Server::new(options)?.examine().await
    }

    pub fn edition(&self) -> Edition {
        self.edition
    }

    pub fn applied(&self) -> Applied {
        self.applied
    }

    async fn writer(&self) -> Result<Object, Fault> {
        Ok(self.writers.get().await?)
    }

    async fn reader(&self) -> Result<Object, QueryError> {
        Ok(self.readers.get().await?)
    }
}

impl Drop for TimescaleStore {
    fn drop(&mut self) {
        self.background.abort();
    }
}

/// For writes that are repeated with the same effect if a crash of the database undoes them. The
/// commit does not wait for the disk.
const COMMIT_WITHOUT_DISK: &str = "SET LOCAL synchronous_commit TO off";

/// Runs one transaction until it is committed or refused; `$work` is an async block that gives
/// `Result<_, Fault>`.
macro_rules! transaction {
    ($store:expr, $transaction:ident => $work:expr) => {{
        let mut attempts = $crate::timescale::Attempts::default();
        loop {
            let attempt = async {
                let mut connection = $store.writer().await?;
                let transaction = connection.transaction().await?;
                let value = {
                    let $transaction = &transaction;
                    $work.await?
                };
                transaction.commit().await?;
                Ok(value)
            };
            if let Some(outcome) = attempts.judge(attempt).await {
                break outcome;
            }
        }
    }};
}
use transaction;

#[derive(Default)]
struct Attempts {
    made: u32,
}

impl Attempts {
    /// `None`: try again.
    async fn judge<T>(
        &mut self,
        attempt: impl Future<Output = Result<T, Fault>>,
    ) -> Option<Result<T, WriteError>> {
        let started = std::time::Instant::now();
        let outcome = tokio::time::timeout(TRANSACTION_LIMIT, attempt)
            .await
            .unwrap_or_else(|_| {
                Err(Fault::Unavailable(format!(
                    "a transaction took longer than {TRANSACTION_LIMIT:?}"
                )))
            });
        self.made += 1;
        match outcome {
            Ok(value) => {
                metrics::histogram!("braid_store_commit_seconds").record(started.elapsed());
                Some(Ok(value))
            }
            Err(Fault::Again(reason)) if self.made < ATTEMPTS_MAX => {
                metrics::counter!("braid_store_retries_total").increment(1);
                tracing::debug!(reason, "a transaction is tried again");
                // The attempts of two transactions that collided move apart.
                let spread = started.elapsed().subsec_nanos() % 1000;
                tokio::time::sleep(
                    ATTEMPT_PAUSE * self.made + Duration::from_micros(u64::from(spread) * 5),
                )
                .await;
                None
            }
            Err(fault) => {
                if let Fault::Unavailable(_) | Fault::Again(_) = fault {
                    metrics::counter!("braid_store_commit_errors_total").increment(1);
                }
                Some(Err(fault.into_write()))
            }
        }
    }
}
