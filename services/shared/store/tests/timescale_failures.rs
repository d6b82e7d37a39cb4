//! Failures of a real database: a kill during a write, cut connections, a full disk. Also two
//! writers of one partition, and several processes that migrate at once. Nothing is lost, and
//! nothing is stored twice.

#![allow(clippy::unwrap_used)]

#[path = "support/timescale.rs"]
mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bus::Topic;
use contracts::vitals::Metric;
use store::{
    Maintenance, ProgressStore, TimescaleStore, VitalsStore, WriteError,
    conformance::{batch, ok, sample},
};
use testkit::timescale_server::{PASSWORD, ServerOptions, TimescaleServer};

const GROUP: &str = "writers";
/// Sequences of one write.
const ROWS: u64 = 200;
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// For the writer to get on: a server that does not come back fails the test instead of holding it
/// up for ever.
const PATIENCE: Duration = Duration::from_secs(300);

async fn open(url: &str) -> TimescaleStore {
    // Retention would take the samples, whose times are fixed, as soon as a writer that was cut off
    // is there again.
    let options = support::options(url);
    loop {
        match TimescaleStore::open(&options).await {
            Ok(store) => return store,
            Err(e) if e.may_pass() => tokio::time::sleep(RETRY_PAUSE).await,
            Err(e) => panic!("{e}"),
        }
    }
}

/// Writes sequences 1, 2, 3... of one stream as a consumer does: each batch with its progress,
/// again until it is stored.
struct Writer {
    store: Arc<TimescaleStore>,
    stop: Arc<AtomicBool>,
    stored: Arc<AtomicU64>,
    retries: Arc<AtomicU64>,
}

impl Writer {
    fn new(store: Arc<TimescaleStore>) -> Writer {
        Writer {
            store,
            stop: Arc::default(),
            stored: Arc::default(),
            retries: Arc::default(),
        }
    }

    fn start(&self) -> tokio::task::JoinHandle<()> {
        let (store, stop) = (self.store.clone(), self.stop.clone());
        let (stored, retries) = (self.stored.clone(), self.retries.clone());
        tokio::spawn(async move {
            let claim = ok(store
                .claim(GROUP, Topic::Vitals, 0, &store::conformance::log())
                .await);
            let mut next = claim.next_offset.unwrap_or(1);
            while !stop.load(Ordering::Relaxed) {
                let rows = batch(
                    (next..next + ROWS)
                        .map(|n| sample("belt", "ann", Metric::HeartRate, n))
                        .collect(),
                );
                let progress = vec![claim.progress(next + ROWS)];
                match store.write_vitals(rows, progress).await {
                    Ok(_) => {
                        next += ROWS;
                        stored.store(next - 1, Ordering::Relaxed);
                    }
                    Err(WriteError::Unavailable(_)) => {
                        retries.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(RETRY_PAUSE).await;
                    }
                    Err(e) => panic!("{e}"),
                }
            }
        })
    }

    async fn until(&self, stored: u64) {
        reaches(&self.stored, stored).await;
    }

    async fn until_retries(&self, retries: u64) {
        reaches(&self.retries, retries).await;
    }
}

async fn reaches(count: &AtomicU64, wanted: u64) {
    let since = std::time::Instant::now();
    while count.load(Ordering::Relaxed) < wanted {
        assert!(
            since.elapsed() < PATIENCE,
            "{count:?} does not reach {wanted}"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Every row that was acknowledged is there once, and progress is where the rows are.
async fn check(store: &TimescaleStore, acknowledged: u64) {
    let (rows, highest) = ok(store.stream_count("belt", "heart-rate").await);
    assert_eq!(
        rows, highest,
        "nothing is missing and nothing is there twice"
    );
    assert!(highest >= acknowledged, "what was acknowledged is there");
    let progress = ok(store.progress(GROUP, Topic::Vitals).await);
    assert_eq!(
        progress,
        [(0, highest + 1)],
        "progress is where the rows are"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_in_the_middle_of_writes_loses_and_doubles_nothing() {
    let server = TimescaleServer::start(ServerOptions {
        durable: true,
        ..ServerOptions::default()
    });
    let url = server.database().await;
    let writer = Writer::new(Arc::new(open(&url).await));
    let task = writer.start();
    for round in 1..=4 {
        writer.until(round * 20 * ROWS).await;
        let retries = writer.retries.load(Ordering::Relaxed);
        server.kill();
        writer.until_retries(retries + 1).await;
        server.run();
    }
    let killed_at = writer.stored.load(Ordering::Relaxed);
    writer.until(killed_at + 20 * ROWS).await;
    writer.stop.store(true, Ordering::Relaxed);
    task.await.unwrap();
    check(&writer.store, writer.stored.load(Ordering::Relaxed)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_connections_lose_and_double_nothing() {
    let server = TimescaleServer::shared();
    let url = server.database().await;
    let name = url.rsplit('/').next().unwrap().to_owned();
    let writer = Writer::new(Arc::new(open(&url).await));
    let task = writer.start();
    let superuser = server.superuser().await;
    let mut cut = 0;
    for round in 1..=25 {
        writer.until(round * 3 * ROWS).await;
        // Between two connections there is none to cut; a round waits for the next.
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        loop {
            assert!(std::time::Instant::now() < deadline, "round {round}");
            let rows = superuser
                .query(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1",
                    &[&name],
                )
                .await
                .unwrap();
            cut += rows.len();
            if !rows.is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    assert!(cut >= 25, "each round met a connection");
    writer.until(25 * 3 * ROWS + 5 * ROWS).await;
    writer.stop.store(true, Ordering::Relaxed);
    task.await.unwrap();
    assert!(
        writer.retries.load(Ordering::Relaxed) > 0,
        "writes were hit"
    );
    check(&writer.store, writer.stored.load(Ordering::Relaxed)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_holds_rows_up_until_there_is_room() {
    let server = TimescaleServer::start(ServerOptions {
        small_disk: Some(96 << 20),
        ..ServerOptions::default()
    });
    let superuser = server.superuser().await;
    superuser
        .batch_execute("CREATE TABLESPACE small LOCATION '/small'")
        .await
        .unwrap();
    let url = server.database_with("TABLESPACE small").await;
    let writer = Writer::new(Arc::new(open(&url).await));
    let task = writer.start();
    writer.until(5 * ROWS).await;
    // Something else takes all the room that is left.
    superuser
        .batch_execute(
            "COPY (SELECT 1) TO PROGRAM 'dd if=/dev/zero of=/small/ballast bs=64k || true'",
        )
        .await
        .unwrap();
    writer.until_retries(3).await;
    let full_at = writer.stored.load(Ordering::Relaxed);
    let refused = writer.store.ready().await;
    let other = open_full(&url, full_at).await;
    assert!(
        other.to_string().contains("disk is full"),
        "an operator is told why: {other} / {refused:?}"
    );
    superuser
        .batch_execute("COPY (SELECT 1) TO PROGRAM 'rm /small/ballast'")
        .await
        .unwrap();
    writer.until(full_at + 20 * ROWS).await;
    writer.stop.store(true, Ordering::Relaxed);
    task.await.unwrap();
    check(&writer.store, writer.stored.load(Ordering::Relaxed)).await;
}

/// Writes more than can fit until the server says why not.
async fn open_full(url: &str, _: u64) -> WriteError {
    let store = open(url).await;
    for n in 0.. {
        let rows = batch(
            (1..=20_000)
                .map(|i| sample("other", "bob", Metric::Spo2, n * 20_000 + i))
                .collect(),
        );
        if let Err(e) = store.write_vitals(rows, Vec::new()).await {
            assert!(e.is_retryable(), "{e:?}");
            return e;
        }
    }
    unreachable!()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_writers_of_a_partition_only_the_newer_stores() {
    let url = TimescaleServer::shared().database().await;
    let (old, new) = (Arc::new(open(&url).await), open(&url).await);
    let writer = Writer::new(old.clone());
    // The older one writes as fast as it can while the newer one takes over.
    let stop = writer.stop.clone();
    let fenced = tokio::spawn({
        let old = old.clone();
        async move {
            let claim = ok(old
                .claim(GROUP, Topic::Vitals, 0, &store::conformance::log())
                .await);
            for next in 1.. {
                let rows = batch(vec![sample("belt", "ann", Metric::HeartRate, next)]);
                match old.write_vitals(rows, vec![claim.progress(next + 1)]).await {
                    Ok(_) => {}
                    Err(WriteError::Fenced(partitions)) => {
                        assert_eq!(partitions, [(Topic::Vitals, 0)]);
                        return next;
                    }
                    Err(e) => panic!("{e}"),
                }
                assert!(!stop.load(Ordering::Relaxed), "a fenced writer goes on");
            }
            unreachable!()
        }
    });
    while ok(new.stream_count("belt", "heart-rate").await).0 < 20 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let claim = ok(new
        .claim(GROUP, Topic::Vitals, 0, &store::conformance::log())
        .await);
    let next = claim.next_offset.unwrap();
    let refused = fenced.await.unwrap();
    assert_eq!(
        refused, next,
        "nothing came between the claim and the fence"
    );
    let rows = batch(vec![sample("belt", "ann", Metric::HeartRate, next)]);
    ok(new.write_vitals(rows, vec![claim.progress(next + 1)]).await);
    check(&new, next).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_transaction_of_another_program_is_waited_for_and_then_reported() {
    let url = TimescaleServer::shared().database().await;
    let mut options = support::options(&url);
    options.statement_limit = Duration::from_millis(300);
    let store = TimescaleStore::open(&options).await.unwrap();
    let rows = || batch(vec![sample("belt", "ann", Metric::HeartRate, 1)]);
    ok(store.write_vitals(rows(), Vec::new()).await);
    let (blocker, connection) = tokio_postgres::connect(
        &format!("{url}?user=postgres&password={PASSWORD}"),
        tokio_postgres::NoTls,
    )
    .await
    .unwrap();
    tokio::spawn(connection);
    blocker
        .batch_execute("BEGIN; LOCK TABLE device_heads IN EXCLUSIVE MODE")
        .await
        .unwrap();
    let more = batch(vec![sample("belt", "ann", Metric::HeartRate, 2)]);
    let refused = store.write_vitals(more.clone(), Vec::new()).await;
    assert!(
        matches!(&refused, Err(WriteError::Unavailable(reason)) if reason.contains("longer than its limit")),
        "{refused:?}"
    );
    blocker.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(ok(store.write_vitals(more, Vec::new()).await).new, 1);
    assert_eq!(
        ok(store.write_vitals(rows(), Vec::new()).await).duplicate,
        1
    );
}
