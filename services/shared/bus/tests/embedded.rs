//! The embedded bus passes the suite, and what is its own: retention, death by `kill -9`, a newer
//! schema.

#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeSet,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bus::{
    Bus, EmbeddedBus, EmbeddedOptions, Event, Record, Topic,
    conformance::{Harness, Process, join, next, number, numbered, publish, read},
    embedded::OpenError,
};
use tempfile::TempDir;

struct Embedded {
    dir: TempDir,
}

impl Embedded {
    fn new() -> Embedded {
        Embedded {
            dir: tempfile::tempdir().unwrap(),
        }
    }
}

#[async_trait]
impl Harness for Embedded {
    async fn start(&self) -> Process {
        let bus = Arc::new(EmbeddedBus::open(self.dir.path(), EmbeddedOptions::default()).unwrap());
        Process {
            bus: bus.clone(),
            kill: Box::new(move || bus.abandon()),
        }
    }
}

bus::conformance_suite!(Embedded::new());

#[tokio::test]
async fn retention_by_size_keeps_the_newest() {
    let dir = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions {
        retention_bytes: 100_000,
        ..EmbeddedOptions::default()
    };
    let embedded = Arc::new(EmbeddedBus::open(dir.path(), options).unwrap());
    let bus: Arc<dyn Bus> = embedded.clone();
    let payload = vec![1_u8; 1000];
    for _ in 0..20 {
        publish(
            &bus,
            Topic::DeadLetters,
            vec![Record::new("k", payload.clone()); 100],
        )
        .await;
    }
    embedded.retain().await;
    let mut consumer = join(&bus, Topic::DeadLetters, "late").await;
    // 1001 bytes a record with its key; the one across the limit stays.
    let left = read(&mut consumer, 100).await;
    assert_eq!(left.last().unwrap().offset, 1999, "the newest stays");
    assert_eq!(left.first().unwrap().offset, 1900);
    publish(&bus, Topic::DeadLetters, vec![numbered("k", 1)]).await;
    let Event::Batch(batch) = next(&mut consumer).await else {
        panic!()
    };
    assert_eq!(batch[0].offset, 2000, "an offset is never given twice");
}

#[tokio::test]
async fn retention_by_age_empties_a_topic_and_readers_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions {
        retention_age: Duration::ZERO,
        ..EmbeddedOptions::default()
    };
    let embedded = Arc::new(EmbeddedBus::open(dir.path(), options).unwrap());
    let bus: Arc<dyn Bus> = embedded.clone();
    publish(
        &bus,
        Topic::Paths,
        (0..50).map(|n| numbered("g", n)).collect(),
    )
    .await;
    embedded.retain().await;
    embedded.retain().await;
    let mut consumer = join(&bus, Topic::Paths, "late").await;
    let waiting = tokio::spawn(async move {
        loop {
            if let Event::Batch(batch) = next(&mut consumer).await {
                return number(&batch[0]);
            }
        }
    });
    publish(&bus, Topic::Paths, vec![numbered("g", 50)]).await;
    // The record may have expired before it was read: then the next one is seen.
    let mut n = 50;
    while !waiting.is_finished() {
        n += 1;
        publish(&bus, Topic::Paths, vec![numbered("g", n)]).await;
    }
    assert!((50..=n).contains(&waiting.await.unwrap()));
}

/// `braid dead-letters list` reads until nothing is left, and `braid doctor` says how many there
/// are.
#[tokio::test]
async fn what_has_expired_is_not_left_to_be_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let options = EmbeddedOptions {
        retention_age: Duration::ZERO,
        ..EmbeddedOptions::default()
    };
    let embedded = Arc::new(EmbeddedBus::open(dir.path(), options).unwrap());
    let bus: Arc<dyn Bus> = embedded.clone();
    publish(&bus, Topic::DeadLetters, vec![numbered("k", 1)]).await;
    // By the clock, which may say the same microsecond twice.
    tokio::time::sleep(Duration::from_millis(2)).await;
    embedded.retain().await;
    let mut reader = bus.read_back(Topic::DeadLetters).await.unwrap();
    assert_eq!(reader.lag().await.unwrap(), 0);
}

/// The medium damages two pages in the middle of one partition: their records are lost, and nothing
/// else.
#[tokio::test]
async fn damaged_pages_stop_neither_their_partition_nor_the_others() {
    const RECORDS: u64 = 400;
    let dir = tempfile::tempdir().unwrap();
    let bus: Arc<dyn Bus> =
        Arc::new(EmbeddedBus::open(dir.path(), EmbeddedOptions::default()).unwrap());
    let value = |n: u64| format!("<{n:06}>").repeat(50);
    for key in ["a", "b", "c", "d", "e", "f"] {
        let records = (0..RECORDS).map(|n| Record::new(key, value(n)));
        publish(&bus, Topic::Vitals, records.collect()).await;
    }
    drop(bus);
    let file = dir.path().join("bus.db");
    // Connections that are closed at the same moment leave their log behind, and with it what is
    // not yet in the file.
    let all_in_the_file = || {
        let connection = rusqlite::Connection::open(&file).unwrap();
        let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)";
        let busy: i64 = connection
            .query_row(checkpoint, [], |row| row.get(0))
            .unwrap();
        busy == 0
    };
    while !all_in_the_file() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut bytes = std::fs::read(&file).unwrap();
    for damaged in [100, 300] {
        let marker = value(damaged);
        let at = bytes
            .windows(marker.len())
            .position(|window| window == marker.as_bytes())
            .unwrap();
        bytes[at / 4096 * 4096..][..8].fill(0x5a);
    }
    std::fs::write(&file, bytes).unwrap();

    let bus: Arc<dyn Bus> =
        Arc::new(EmbeddedBus::open(dir.path(), EmbeddedOptions::default()).unwrap());
    let mut consumer = join(&bus, Topic::Vitals, "g").await;
    let (mut seen, mut is_assigned) = (BTreeSet::new(), false);
    while !is_assigned || consumer.lag().await.unwrap() > 0 {
        match next(&mut consumer).await {
            Event::Batch(batch) => seen.extend(batch.into_iter().map(|d| (d.partition, d.offset))),
            Event::Assigned(_) => is_assigned = true,
            Event::Revoked(partitions) => panic!("{partitions:?} went"),
        }
    }
    // Some eight records a page.
    let missing = 6 * RECORDS - seen.len() as u64;
    assert!((2..=40).contains(&missing), "{missing} records are missing");
}

#[test]
fn a_newer_schema_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(EmbeddedBus::open(dir.path(), EmbeddedOptions::default()).unwrap());
    let connection = rusqlite::Connection::open(dir.path().join("bus.db")).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    let refused = EmbeddedBus::open(dir.path(), EmbeddedOptions::default()).err();
    assert!(matches!(refused, Some(OpenError::Newer { found: 99, .. })));
}

const CHILD: &str = "BUS_TEST_CHILD_DIR";

/// Not a test by itself: the process that `kill_9_*` starts and kills. It publishes numbers and
/// prints each when it is acknowledged.
#[tokio::test]
async fn child() {
    let Some(dir) = std::env::var_os(CHILD) else {
        return;
    };
    let bus: Arc<dyn Bus> =
        Arc::new(EmbeddedBus::open(dir.as_ref(), EmbeddedOptions::default()).unwrap());
    let mut consumer = join(&bus, Topic::Vitals, "group").await;
    tokio::spawn(async move { while consumer.next(10).await.is_ok() {} });
    for n in 0.. {
        publish(
            &bus,
            Topic::Vitals,
            vec![numbered(&format!("k{}", n % 7), n)],
        )
        .await;
        println!("acknowledged {n}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_loses_nothing_acknowledged_and_frees_the_partitions_at_once() {
    use std::io::{BufRead, BufReader};
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut acknowledged = BTreeSet::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        if let Some((_, n)) = line.split_once("acknowledged ") {
            acknowledged.insert(n.trim().parse::<u32>().unwrap());
        }
        if acknowledged.len() == 100 {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    assert!(acknowledged.len() >= 100);

    let bus: Arc<dyn Bus> =
        Arc::new(EmbeddedBus::open(dir.path(), EmbeddedOptions::default()).unwrap());
    let mut consumer = join(&bus, Topic::Vitals, "group").await;
    let first = next(&mut consumer).await;
    let Event::Assigned(partitions) = first else {
        panic!("{first:?} instead of the dead process's partitions")
    };
    assert_eq!(
        partitions.len(),
        8,
        "all of them, without waiting for its beat"
    );
    let mut got = BTreeSet::new();
    while !got.is_superset(&acknowledged) {
        if let Event::Batch(batch) = next(&mut consumer).await {
            got.extend(batch.iter().map(number));
        }
    }
}

#[tokio::test]
async fn a_clock_that_is_ahead_removes_no_records() {
    const EIGHT_DAYS_US: i64 = 8 * 86_400_000_000;
    let dir = tempfile::tempdir().unwrap();
    let open = || EmbeddedBus::open(dir.path(), EmbeddedOptions::default()).unwrap();
    let bus = open();
    let letter = vec![Record::new("k", b"letter".to_vec())];
    bus.publish(Topic::DeadLetters, letter).await.unwrap();
    bus.retain().await;
    drop(bus);
    // As if the machine's clock had gone eight days ahead since.
    let file = rusqlite::Connection::open(dir.path().join("bus.db")).unwrap();
    let before = "UPDATE records_dead_letters_0 SET published_us = published_us - ?1";
    file.execute(before, [EIGHT_DAYS_US]).unwrap();
    let followed = "UPDATE probe SET count = count - ?1 WHERE id > 1";
    file.execute(followed, [EIGHT_DAYS_US]).unwrap();
    let bus = open();
    bus.retain().await;
    let mut kept = bus.read_back(Topic::DeadLetters).await.unwrap();
    let next = tokio::time::timeout(Duration::from_secs(10), kept.next(1)).await;
    assert!(matches!(next, Ok(Ok(Event::Batch(batch))) if batch.len() == 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_else_on_the_machine_reads_its_files() {
    use std::{fs, os::unix::fs::PermissionsExt};
    let above = tempfile::tempdir().unwrap();
    let dir = above.path().join("data");
    let is_private = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o077 == 0;
    for _ in 0..2 {
        let bus = EmbeddedBus::open(&dir, EmbeddedOptions::default()).unwrap();
        let record = Record::new("ann", vec![7]);
        bus.publish(Topic::Paths, vec![record]).await.unwrap();
        let mut files = vec![dir.clone()];
        let mut seen = 0;
        while let Some(path) = files.pop() {
            assert!(is_private(&path), "{}", path.display());
            seen += 1;
            if path.is_dir() {
                files.extend(fs::read_dir(&path).unwrap().map(|it| it.unwrap().path()));
            }
        }
        assert!(seen >= 4, "{seen}");
        // As an older version left them.
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let mode = if path.is_dir() { 0o755 } else { 0o644 };
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
    }
}

/// Publishes, reads and commits as one process, and returns the identity of its log.
async fn read_and_commit(dir: &Path, numbers: std::ops::Range<u32>) -> String {
    let bus: Arc<dyn Bus> = Arc::new(EmbeddedBus::open(dir, EmbeddedOptions::default()).unwrap());
    let records = numbers.clone().map(|n| numbered("k", n)).collect();
    publish(&bus, Topic::DeadLetters, records).await;
    let mut consumer = join(&bus, Topic::DeadLetters, "g").await;
    let got = read(&mut consumer, numbers.len()).await;
    let got: Vec<u32> = got.iter().map(number).collect();
    assert_eq!(got, numbers.collect::<Vec<_>>(), "after the commits");
    let log = bus.log(Topic::DeadLetters, 0).await.unwrap();
    let next = log.next.unwrap();
    consumer.commit(&[(0, next)]).await.unwrap();
    drop((bus, consumer));
    // The last connection removes the write-ahead log, and a thread of the bus may hold that one.
    while dir.join("bus.db-wal").exists() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    log.identity
}

/// Neither the commits of the former log nor its positions count for the one in its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bus_file_that_was_lost_is_another_log() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bus.db");
    let first = read_and_commit(dir.path(), 0..5).await;
    assert_eq!(
        read_and_commit(dir.path(), 5..7).await,
        first,
        "opened again"
    );
    let copy = std::fs::read(&file).unwrap();

    std::fs::remove_file(&file).unwrap();
    let second = read_and_commit(dir.path(), 20..23).await;
    assert_ne!(second, first, "a new file");

    std::fs::File::create(&file).unwrap();
    let third = read_and_commit(dir.path(), 30..31).await;
    assert!(third != first && third != second, "an empty file");

    // A copy of this log that is younger than what its groups have read: 0 to 7 came from before.
    std::fs::write(&file, &copy).unwrap();
    let bus: Arc<dyn Bus> =
        Arc::new(EmbeddedBus::open(dir.path(), EmbeddedOptions::default()).unwrap());
    let log = bus.log(Topic::DeadLetters, 0).await.unwrap();
    assert_eq!(
        (&log.identity, log.next),
        (&first, Some(7)),
        "the log came back"
    );
    let committed = bus.committed(Topic::DeadLetters, "g").await.unwrap();
    assert!(committed.is_empty(), "{committed:?} of the third log");
    let mut consumer = join(&bus, Topic::DeadLetters, "g").await;
    assert_eq!(read(&mut consumer, 7).await.len(), 7);
    publish(&bus, Topic::DeadLetters, vec![numbered("k", 7)]).await;
    assert_eq!(read(&mut consumer, 1).await.len(), 1);
    consumer.commit(&[(0, 8)]).await.unwrap();
    drop((bus, consumer));
    std::fs::write(&file, &copy).unwrap();
    let bus = EmbeddedBus::open(dir.path(), EmbeddedOptions::default()).unwrap();
    let younger = bus.log(Topic::DeadLetters, 0).await.unwrap();
    assert_ne!(
        younger.identity, first,
        "it has lost a record that was read"
    );
    let committed = bus.committed(Topic::DeadLetters, "g").await.unwrap();
    assert!(committed.is_empty(), "{committed:?}");
}

/// A file that was cut short is refused with what to do, or its readable records are read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bus_file_that_was_cut_short_is_refused_or_read() {
    let dir = tempfile::tempdir().unwrap();
    read_and_commit(dir.path(), 0..200).await;
    let file = dir.path().join("bus.db");
    let whole = std::fs::read(&file).unwrap();
    let mut refused = 0;
    for parts in 1..8 {
        std::fs::write(&file, &whole[..whole.len() * parts / 8]).unwrap();
        match EmbeddedBus::open(dir.path(), EmbeddedOptions::default()) {
            Err(error @ OpenError::Damaged { .. }) => {
                let says = error.to_string();
                assert!(
                    says.contains("to fix: move bus.db and bus.db-wal away"),
                    "{says}"
                );
                refused += 1;
            }
            Err(error) => panic!("{parts}/8: {error}"),
            Ok(bus) => drop(bus),
        }
    }
    assert!(refused > 0, "the first part has no end of the tables");
}
