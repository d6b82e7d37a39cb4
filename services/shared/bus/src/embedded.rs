//! The bus on SQLite in a data directory, for any number of processes on one machine.
//!
//! Each process that opens it runs three threads: the writer (group commit, retention), the groups
//! thread (membership and commits) and a watcher. The watcher asks SQLite every [`WATCH_EVERY`]
//! whether another process wrote. Consumers read on connections of their own.

mod assignment;
mod consumer;
mod damage;
mod groups;
mod headers;
mod heads;
mod identity;
mod instance;
mod membership;
mod options;
mod retention;
mod schema;
mod threads;
mod writer;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};

pub use options::EmbeddedOptions;
pub use schema::OpenError;

use self::{
    assignment::Assignment,
    consumer::{EmbeddedConsumer, Membership},
    groups::Groups,
    heads::Heads,
    instance::Instance,
    threads::{Inner, Threads},
    writer::{Job, Writer},
};
use crate::{
    Bus, Consumer, Extent, IN_FLIGHT_BYTES_MAX, Log, NotReady, PublishError, Record, StartAt,
    SubscribeError, Topic,
    beginning::Beginning,
    keys::{check_group_name, check_limits},
};

/// Delay until a consumer learns of a record that another process published.
const WATCH_EVERY: Duration = Duration::from_millis(15);
/// [`IN_FLIGHT_BYTES_MAX`] is counted in units, at least one for each call, so calls are bounded
/// too.
const UNIT: usize = 1 << 10;

pub struct EmbeddedBus {
    inner: Arc<Inner>,
}

impl EmbeddedBus {
    /// Blocks for some milliseconds, on first use for some tens.
    pub fn open(dir: &Path, options: EmbeddedOptions) -> Result<EmbeddedBus, OpenError> {
        let directory = |e: std::io::Error| OpenError::Directory {
            path: dir.display().to_string(),
            reason: e.to_string(),
        };
        private_files::folder(dir).map_err(directory)?;
        for file in [schema::RECORDS_FILE, schema::GROUPS_FILE] {
            for suffix in ["-wal", "-shm"] {
                let beside = dir.join(format!("{file}{suffix}"));
                private_files::mend_file(&beside).map_err(directory)?;
            }
            private_files::file(&dir.join(file)).map_err(directory)?;
        }
        let mut records = schema::open_records(dir)?;
        let mut group_tables = schema::open_groups(dir)?;
        identity::settle(&mut records, &mut group_tables)?;
        let instance = Instance::register(dir).map_err(directory)?;
        let watch = schema::open_reader(dir, schema::RECORDS_FILE)?;
        let known = schema::heads(&records).map_err(OpenError::of(schema::RECORDS_FILE))?;
        let heads = Arc::new(Heads::new(&known));

        let (writer, writer_commands) = mpsc::channel();
        let (groups, group_commands) = mpsc::channel();
        let (watcher, stopped) = mpsc::channel();
        let record_writer = Writer::new(records, heads.clone(), options);
        let keeper = Groups::new(group_tables, instance);
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new()
                .name(name.into())
                .spawn(work)
                .map_err(directory)
        };
        let handles = vec![
            spawn(
                "bus-writer",
                Box::new(move || record_writer.run(&writer_commands)),
            )?,
            spawn("bus-groups", Box::new(move || keeper.run(&group_commands)))?,
            spawn("bus-watcher", {
                let heads = heads.clone();
                Box::new(move || watch_others(&watch, &heads, &stopped))
            })?,
        ];
        Ok(EmbeddedBus {
            inner: Arc::new(Inner {
                dir: dir.to_owned(),
                heads,
                in_flight: Arc::new(Semaphore::new(IN_FLIGHT_BYTES_MAX / UNIT)),
                next_id: AtomicU64::new(0),
                threads: Mutex::new(Threads {
                    writer: Some(writer),
                    groups: Some(groups),
                    watcher: Some(watcher),
                    handles,
                }),
            }),
        })
    }

    /// Whether a process has the bus of this directory open. Every service of the embedded shape
    /// does.
    pub fn is_open(dir: &Path) -> bool {
        Instance::any_lives(dir)
    }

    /// Ends as if the process were killed: members stay in their groups' tables, queued records are
    /// not written. For tests of failures.
    pub fn abandon(&self) {
        self.inner.end(false);
    }

    /// Applies retention now instead of within half a minute.
    pub async fn retain(&self) {
        let (reply, done) = oneshot::channel();
        if self.inner.write(writer::Command::Retain(reply)) {
            let _ = done.await;
        }
    }
}

/// Runs a query to SQLite on a thread where blocking is allowed.
async fn aside<T: Send + 'static>(
    ask: impl FnOnce() -> Result<T, OpenError> + Send + 'static,
) -> Result<T, NotReady> {
    match tokio::task::spawn_blocking(ask).await {
        Ok(answer) => answer.map_err(|error| NotReady(error.to_string())),
        Err(error) => Err(NotReady(error.to_string())),
    }
}

fn watch_others(connection: &rusqlite::Connection, heads: &Heads, stopped: &mpsc::Receiver<()>) {
    let mut seen = 0_i64;
    while stopped.recv_timeout(WATCH_EVERY) == Err(RecvTimeoutError::Timeout) {
        let version = connection
            .pragma_query_value(None, "data_version", |row| row.get(0))
            .unwrap_or(seen);
        if version != seen {
            seen = version;
            match schema::heads(connection) {
                Ok(known) => heads.advance(&known),
                Err(e) => {
                    tracing::warn!(error = %e, "cannot see what other processes published");
                    seen = 0;
                }
            }
        }
    }
}

#[async_trait]
impl Bus for EmbeddedBus {
    async fn publish(&self, topic: Topic, records: Vec<Record>) -> Result<(), PublishError> {
        if records.is_empty() {
            return Ok(());
        }
        let bytes = check_limits(&records)?;
        let closed = || PublishError::Unavailable("it was closed".into());
        // A call with more than all permits takes all of them and runs alone.
        let units = (bytes / UNIT + 1).min(IN_FLIGHT_BYTES_MAX / UNIT);
        let permit = self
            .inner
            .in_flight
            .clone()
            .acquire_many_owned(u32::try_from(units).unwrap_or(u32::MAX))
            .await
            .map_err(|_| closed())?;
        let (reply, done) = oneshot::channel();
        self.inner.write(writer::Command::Publish(Job {
            topic,
            records,
            bytes,
            reply,
            permit,
        }));
        done.await.unwrap_or_else(|_| Err(closed()))
    }

    async fn subscribe(
        &self,
        topic: Topic,
        group: &str,
        start: Arc<dyn StartAt>,
    ) -> Result<Box<dyn Consumer>, SubscribeError> {
        check_group_name(group)?;
        let reader = schema::open_reader(&self.inner.dir, schema::RECORDS_FILE)
            .map_err(|e| SubscribeError::Unavailable(e.to_string()))?;
        let id = self.inner.next_id.fetch_add(1, Ordering::Relaxed);
        let assignment = Arc::new(Assignment::new());
        let membership = Membership {
            id,
            group: group.to_owned(),
            assignment: assignment.clone(),
            beginning: Beginning::new(topic, start),
        };
        self.inner.groups(groups::Command::Join {
            id,
            group: group.to_owned(),
            topic,
            partitions: self.inner.heads.partitions(topic),
            assignment,
        });
        Ok(Box::new(EmbeddedConsumer::new(
            self.inner.clone(),
            topic,
            reader,
            BTreeMap::new(),
            Some(membership),
        )))
    }

    async fn tail(&self, topic: Topic) -> Result<Box<dyn Consumer>, SubscribeError> {
        let unavailable = |e: String| SubscribeError::Unavailable(e);
        let reader = schema::open_reader(&self.inner.dir, schema::RECORDS_FILE)
            .map_err(|e| unavailable(e.to_string()))?;
        let known = schema::heads(&reader).map_err(|e| unavailable(e.to_string()))?;
        let positions = known
            .into_iter()
            .filter(|(t, _, _)| *t == topic)
            .map(|(_, partition, next)| (partition, next))
            .collect();
        Ok(Box::new(EmbeddedConsumer::new(
            self.inner.clone(),
            topic,
            reader,
            positions,
            None,
        )))
    }

    async fn read_back(&self, topic: Topic) -> Result<Box<dyn Consumer>, SubscribeError> {
        let reader = schema::open_reader(&self.inner.dir, schema::RECORDS_FILE)
            .map_err(|e| SubscribeError::Unavailable(e.to_string()))?;
        let positions = (0..self.inner.heads.partitions(topic))
            .map(|partition| {
                // Where the oldest record cannot be read, reading passes it over.
                let oldest = schema::oldest(&reader, topic, partition).unwrap_or(0);
                (partition, oldest)
            })
            .collect();
        Ok(Box::new(EmbeddedConsumer::new(
            self.inner.clone(),
            topic,
            reader,
            positions,
            None,
        )))
    }

    async fn partitions(&self, topic: Topic) -> Result<u32, NotReady> {
        Ok(self.inner.heads.partitions(topic))
    }

    async fn extents(&self, topic: Topic) -> Result<BTreeMap<u32, Extent>, NotReady> {
        let dir = self.inner.dir.clone();
        aside(move || {
            let reader = schema::open_reader(&dir, schema::RECORDS_FILE)?;
            schema::extents(&reader, topic).map_err(OpenError::of(schema::RECORDS_FILE))
        })
        .await
    }

    async fn log(&self, topic: Topic, partition: u32) -> Result<Log, NotReady> {
        let dir = self.inner.dir.clone();
        aside(move || {
            let reader = schema::open_reader(&dir, schema::RECORDS_FILE)?;
            identity::log(&reader, topic, partition).map_err(OpenError::of(schema::RECORDS_FILE))
        })
        .await
    }

    async fn committed(&self, topic: Topic, group: &str) -> Result<BTreeMap<u32, u64>, NotReady> {
        let (dir, group) = (self.inner.dir.clone(), group.to_owned());
        aside(move || {
            let reader = schema::open_reader(&dir, schema::GROUPS_FILE)?;
            schema::all_committed(&reader, &group, topic)
                .map_err(OpenError::of(schema::GROUPS_FILE))
        })
        .await
    }

    async fn ready(&self) -> Result<(), NotReady> {
        let (reply, done) = oneshot::channel();
        self.inner.write(writer::Command::Probe(reply));
        done.await
            .unwrap_or_else(|_| Err(NotReady("it was closed".into())))
    }
}
