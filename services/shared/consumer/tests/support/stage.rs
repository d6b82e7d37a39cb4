//! A toy sink on the embedded engines, and the faults that happen to it.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bus::{
    Bus, CommitError, ConsumeError, Delivery, EmbeddedBus, EmbeddedOptions, Event, Interposed,
    PublishError, Record, StartAt, SubscribeError, Topic, dead_letter,
};
use consumer::{Answer, Away, Consumer, Decoded, Setup, Sink};
use consumer_health::{
    Duty, Level,
    duty::{self, Kept},
};
use contracts::paths::{End, PathReport, PathsRecord};
use parking_lot::Mutex;
use prost::Message;
use service_kit::Context;
use store::{PathsQuery, PathsStore, Progress, ProgressStore, Scope, SqliteStore, Store};
use tokio::{sync::Notify, task::JoinHandle};

/// Reached only by a failing test.
pub const LIMIT: Duration = Duration::from_secs(60);
pub const GROUP: &str = duty::STORING_PATHS.group;
/// Name of the loop.
pub const TURNS: &str = "toy";

/// A fault of one member. The default is nothing.
#[derive(Default)]
pub struct Faults {
    /// The group keeps its positions on the bus, and its rows have no fence.
    pub is_on_bus: bool,
    /// Step at which the member stops; 0: none.
    pub stops_at: usize,
    pub steps: AtomicUsize,
    pub has_stopped: Notify,
    /// Ends the stop.
    pub resumes: Notify,
    /// Path names whose rows the store never takes.
    pub never: Vec<&'static str>,
    /// Path names whose rows the store contradicts, whatever the sink does.
    pub contradicts: Vec<&'static str>,
    /// Next writes at which the store is away.
    pub store_away: AtomicUsize,
    /// Next calls at which the bus gives nothing.
    pub bus_away: AtomicUsize,
    pub writes: AtomicUsize,
    /// Rows that the store had not had.
    pub new: AtomicU64,
    pub duplicate: AtomicU64,
    pub subscribed: AtomicUsize,
    /// Calls that said the bus was replaced.
    pub replaced: AtomicUsize,
    pub away: Mutex<Vec<String>>,
}

impl Faults {
    pub fn stopping_at(step: usize) -> Arc<Faults> {
        Arc::new(Faults {
            stops_at: step,
            ..Faults::default()
        })
    }

    /// Passes a place between two effects.
    async fn step(&self) {
        let step = self.steps.fetch_add(1, Ordering::Relaxed) + 1;
        if step == self.stops_at {
            self.has_stopped.notify_one();
            self.resumes.notified().await;
        }
    }
}

fn take_one(left: &AtomicUsize) -> bool {
    let one_less = |left: usize| left.checked_sub(1);
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less)
        .is_ok()
}

struct Toy {
    store: Arc<SqliteStore>,
    faults: Arc<Faults>,
}

#[async_trait]
impl Sink for Toy {
    type Batch = Vec<PathReport>;

    fn decode(&self, delivery: &Delivery, batch: &mut Vec<PathReport>) -> Decoded {
        match PathsRecord::decode(delivery.value.clone()) {
            Ok(record) => {
                batch.extend(record.reports);
                Decoded::Whole
            }
            Err(error) => Decoded::Refused(format!("no PathsRecord: {error}")),
        }
    }

    async fn write(&self, batch: Arc<Vec<PathReport>>, progress: &[Progress]) -> Answer {
        let faults = &self.faults;
        faults.step().await;
        faults.writes.fetch_add(1, Ordering::Relaxed);
        if take_one(&faults.store_away) {
            return Answer::Transient("the test has stopped it".into());
        }
        let is_in = |names: &[&str]| batch.iter().any(|row| names.contains(&row.path.as_str()));
        if is_in(&faults.never) {
            return Answer::Refused("never".into());
        }
        if is_in(&faults.contradicts) {
            return Answer::Contradicts("other rows".into());
        }
        let written = self.store.write_paths(batch.to_vec(), progress.to_vec());
        let answer = match written.await {
            Ok(written) => {
                faults.new.fetch_add(written.new, Ordering::Relaxed);
                let duplicate = written.duplicate;
                faults.duplicate.fetch_add(duplicate, Ordering::Relaxed);
                Answer::Stored
            }
            Err(error) => error.into(),
        };
        // The rows are durable, and the member does not know it yet.
        faults.step().await;
        answer
    }

    async fn on_another_log(&self) {
        self.faults.replaced.fetch_add(1, Ordering::Relaxed);
    }

    fn on_away(&self, away: Away<'_>) {
        self.faults.away.lock().push(format!("{away:?}"));
    }
}

/// The embedded bus of one member.
struct Gate {
    inner: Arc<EmbeddedBus>,
    faults: Arc<Faults>,
}

#[async_trait]
impl Interposed for Gate {
    fn inner(&self) -> &dyn Bus {
        &*self.inner
    }

    async fn publish(&self, topic: Topic, records: Vec<Record>) -> Result<(), PublishError> {
        self.faults.step().await;
        self.inner.publish(topic, records).await?;
        self.faults.step().await;
        Ok(())
    }

    async fn subscribe(
        &self,
        topic: Topic,
        group: &str,
        start: Arc<dyn StartAt>,
    ) -> Result<Box<dyn bus::Consumer>, SubscribeError> {
        self.faults.step().await;
        if take_one(&self.faults.bus_away) {
            return Err(SubscribeError::Unavailable(
                "the test has stopped it".into(),
            ));
        }
        let inner = self.inner.subscribe(topic, group, start).await?;
        self.faults.subscribed.fetch_add(1, Ordering::Relaxed);
        let faults = Arc::clone(&self.faults);
        Ok(Box::new(Member { inner, faults }))
    }
}

struct Member {
    inner: Box<dyn bus::Consumer>,
    faults: Arc<Faults>,
}

#[async_trait]
impl bus::Consumer for Member {
    async fn next(&mut self, max_records: usize) -> Result<Event, ConsumeError> {
        if take_one(&self.faults.bus_away) {
            return Err(ConsumeError::Unavailable("the test has stopped it".into()));
        }
        let event = self.inner.next(max_records).await?;
        // The event would be lost by a stop here, unless the group gives it to another member.
        self.faults.step().await;
        Ok(event)
    }

    async fn commit(&mut self, offsets: &[(u32, u64)]) -> Result<(), CommitError> {
        if offsets.is_empty() {
            return Ok(());
        }
        self.faults.step().await;
        self.inner.commit(offsets).await?;
        self.faults.step().await;
        Ok(())
    }

    fn renew(&mut self, partitions: &[u32]) {
        self.inner.renew(partitions);
    }

    async fn lag(&mut self) -> Result<u64, ConsumeError> {
        self.inner.lag().await
    }
}

pub struct Running {
    pub context: Context,
    pub faults: Arc<Faults>,
    pub bus: Arc<EmbeddedBus>,
    task: JoinHandle<()>,
}

impl Running {
    pub async fn stop(self) {
        self.context.shutdown().request();
        tokio::time::timeout(LIMIT, self.task)
            .await
            .expect("it ends")
            .unwrap();
    }

    /// Ends it where it stands; its group learns of it at once.
    pub async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    /// Waits until the sink was told so often, and for the round of the loop that shows it.
    pub async fn until_replaced(&self, times: usize) {
        let deadline = Instant::now() + LIMIT;
        let told = || self.faults.replaced.load(Ordering::Relaxed);
        while told() < times || self.context.health().warnings().is_empty() == (times > 0) {
            assert!(Instant::now() < deadline, "{} of {times}", told());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(told(), times);
    }

    pub fn counted(&self, of: impl Fn(&Faults) -> &AtomicU64) -> u64 {
        of(&self.faults).load(Ordering::Relaxed)
    }
}

pub struct Stage {
    pub dir: tempfile::TempDir,
    bus: Arc<EmbeddedBus>,
}

impl Stage {
    pub fn new() -> Stage {
        let dir = tempfile::tempdir().unwrap();
        let bus = Arc::new(open_bus(dir.path()));
        Stage { dir, bus }
    }

    pub fn start(&self, faults: Arc<Faults>) -> Running {
        self.start_on(self.dir.path(), faults)
    }

    /// One member with connections of its own, on the store of this folder.
    pub fn start_on(&self, store: &Path, faults: Arc<Faults>) -> Running {
        let store = Arc::new(SqliteStore::open(store).unwrap());
        let bus = Arc::new(open_bus(self.dir.path()));
        let context = Context::new("toy");
        let toy = Toy {
            store: Arc::clone(&store),
            faults: Arc::clone(&faults),
        };
        let gate = Arc::new(Gate {
            inner: Arc::clone(&bus),
            faults: Arc::clone(&faults),
        });
        let kept = match faults.is_on_bus {
            true => Kept::OnBus,
            false => Kept::InStore,
        };
        let duty = Duty {
            kept,
            ..duty::STORING_PATHS
        };
        let setup = Setup {
            tick: Duration::from_millis(20),
            silence_max: Duration::from_millis(300),
            // The steps of one transaction have an order.
            two_transactions_from: (faults.stops_at == 0).then_some(6),
            ..Setup::new(duty, Level::Warning, TURNS, 64)
        };
        let member = Consumer::new(gate, store as Arc<dyn Store>, setup, context.clone());
        let task = tokio::spawn(member.run(toy));
        Running {
            context,
            faults,
            bus,
            task,
        }
    }

    pub async fn log(&self, partition: u32) -> bus::Log {
        self.bus.log(Topic::Paths, partition).await.unwrap()
    }

    /// While no member runs: another bus is in the place of this one.
    pub fn lose_bus(&mut self) {
        self.bus.abandon();
        for file in ["bus.db", "bus.db-wal", "bus.db-shm"] {
            let _ = std::fs::remove_file(self.dir.path().join(file));
        }
        self.bus = Arc::new(open_bus(self.dir.path()));
    }

    pub async fn publish(&self, records: Vec<Record>) {
        self.bus.publish(Topic::Paths, records).await.unwrap();
    }

    /// Waits until the progress that this folder's store has is at the end of the topic.
    pub async fn done_on(&self, store: &Path) {
        let store = SqliteStore::open(store).unwrap();
        let deadline = Instant::now() + LIMIT;
        loop {
            let extents = self.bus.extents(Topic::Paths).await.unwrap();
            let extents = extents.into_iter().filter(|(_, it)| it.next > 0);
            let ends: BTreeMap<u32, u64> = extents.map(|(p, it)| (p, it.next)).collect();
            let stored = store.progress(GROUP, Topic::Paths).await.unwrap();
            let stored: BTreeMap<u32, u64> = stored.into_iter().filter(|it| it.1 > 0).collect();
            if stored == ends {
                return;
            }
            assert!(Instant::now() < deadline, "{stored:?} of {ends:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub async fn done(&self) {
        self.done_on(self.dir.path()).await;
    }

    /// The same of a group whose positions are on the bus.
    pub async fn committed(&self) {
        let deadline = Instant::now() + LIMIT;
        loop {
            let extents = self.bus.extents(Topic::Paths).await.unwrap();
            let extents = extents.into_iter().filter(|(_, it)| it.next > 0);
            let ends: BTreeMap<u32, u64> = extents.map(|(p, it)| (p, it.next)).collect();
            let committed = self.bus.committed(Topic::Paths, GROUP).await.unwrap();
            if committed == ends {
                return;
            }
            assert!(Instant::now() < deadline, "{committed:?} of {ends:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Names of the paths of all rows, sorted.
    pub async fn rows_on(&self, store: &Path) -> Vec<String> {
        let store = SqliteStore::open(store).unwrap();
        let query = PathsQuery {
            gateway: None,
            from_us: 0,
            to_us: i64::MAX,
            limit: 0,
        };
        let rows = store.paths(&Scope::Service, &query).await.unwrap();
        let mut names: Vec<String> = rows.into_iter().map(|row| row.path).collect();
        names.sort();
        names
    }

    pub async fn rows(&self) -> Vec<String> {
        self.rows_on(self.dir.path()).await
    }

    /// Reasons of the dead letters by key.
    pub async fn letters(&self) -> Vec<(String, String)> {
        let mut kept = self.bus.read_back(Topic::DeadLetters).await.unwrap();
        // Asked of the engine: this process learns of others' records a moment later.
        let extents = self.bus.extents(Topic::DeadLetters).await.unwrap();
        let count: u64 = extents.values().map(|it| it.next).sum();
        let mut letters = Vec::new();
        while (letters.len() as u64) < count {
            let Event::Batch(batch) = kept.next(100).await.unwrap() else {
                continue;
            };
            letters.extend(batch.into_iter().map(|letter| {
                let reason = letter.header(dead_letter::REASON).unwrap_or_default();
                let reason = String::from_utf8(reason.to_vec()).unwrap();
                (letter.key, reason)
            }));
        }
        letters.sort();
        letters
    }
}

fn open_bus(dir: &Path) -> EmbeddedBus {
    EmbeddedBus::open(dir, EmbeddedOptions::default()).unwrap()
}

/// The same report has the same time whenever it is published.
static BEGUN_US: LazyLock<i64> = LazyLock::new(contracts::now_us);

/// One report of the path `name`, whose gateway has the same name: names spread over partitions.
pub fn record(name: &str) -> Record {
    let report = PathReport {
        gateway: name.into(),
        path: name.into(),
        end: End::Gateway.into(),
        session: 1,
        time_us: *BEGUN_US,
        sequence: 1,
        ..PathReport::default()
    };
    let reports = vec![report];
    Record::new(name, PathsRecord { reports }.encode_to_vec())
}

pub fn unreadable(name: &str) -> Record {
    Record::new(name, &b"\xff\xff no protobuf"[..])
}

pub fn names(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|number| format!("path-{number:02}")).collect()
}

pub fn records(range: std::ops::Range<u32>) -> Vec<Record> {
    names(range).iter().map(|name| record(name)).collect()
}
