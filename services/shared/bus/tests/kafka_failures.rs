//! Brokers die and come back under load: nothing is lost, the order of a key holds, and what is
//! doubled a consumer can tell.

#![allow(clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use bus::{
    Bus, Committed, Event, KafkaBus, KafkaOptions, Topic,
    conformance::{Ledger, PATIENCE, number, numbered, work},
};
use parking_lot::Mutex;
use testkit::kafka::Cluster;
use tokio::task::JoinHandle;

/// Set for the outage of a minute that an operator would remember; otherwise it lasts
/// [`SHORT_OUTAGE`].
const LONG: &str = "BRAID_TEST_LONG";
const SHORT_OUTAGE: Duration = Duration::from_secs(10);
const LONG_OUTAGE: Duration = Duration::from_secs(60);
const PUBLISHERS: u32 = 6;
const RECORDS_PER_CALL: u32 = 5;
/// Pause of one publisher between two calls. All together they stay below the rate of a consumer
/// that commits every batch. So the consumer catches up after an outage where publishing is quick.
const PACE: Duration = Duration::from_millis(40);
/// Numbers of one publisher lie below those of the next.
const NUMBERS: u32 = 1_000_000;

fn options(cluster: &Cluster, copies: u16) -> KafkaOptions {
    KafkaOptions {
        replication: copies,
        in_sync_min: copies.min(2),
        ..KafkaOptions::new(cluster.brokers())
    }
}

async fn open(options: &KafkaOptions) -> Arc<KafkaBus> {
    let bus = KafkaBus::open(options.clone(), |reason| println!("{reason}"));
    Arc::new(bus.await.unwrap_or_else(|e| panic!("{e}")))
}

/// Publishers that never give up, each with a key of its own.
struct Load {
    sent: Arc<AtomicU32>,
    failed_calls: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
    publishers: Vec<JoinHandle<u32>>,
}

impl Load {
    fn start(bus: &Arc<KafkaBus>) -> Load {
        let mut load = Load {
            sent: Arc::default(),
            failed_calls: Arc::default(),
            stop: Arc::default(),
            publishers: Vec::new(),
        };
        for publisher in 0..PUBLISHERS {
            let (bus, sent) = (bus.clone(), load.sent.clone());
            let (failed_calls, stop) = (load.failed_calls.clone(), load.stop.clone());
            load.publishers.push(tokio::spawn(async move {
                let mut next = 0;
                while !stop.load(Ordering::Relaxed) {
                    let numbers = next..next + RECORDS_PER_CALL;
                    let key = format!("patient-{publisher}");
                    let records: Vec<_> = numbers
                        .map(|n| numbered(&key, publisher * NUMBERS + n))
                        .collect();
                    while let Err(error) = bus.publish(Topic::Vitals, records.clone()).await {
                        assert!(error.is_retryable(), "{error}");
                        failed_calls.fetch_add(1, Ordering::Relaxed);
                        // As ingest does, between two attempts.
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                    next += RECORDS_PER_CALL;
                    sent.fetch_add(RECORDS_PER_CALL, Ordering::Relaxed);
                    tokio::time::sleep(PACE).await;
                }
                next
            }));
        }
        load
    }

    /// Waits until this many more records were acknowledged.
    async fn progress(&self, records: u32) {
        let wanted = self.sent.load(Ordering::Relaxed) + records;
        let what = format!("{records} more records acknowledged");
        eventually(&what, || self.sent.load(Ordering::Relaxed) >= wanted).await;
    }

    /// Acknowledged numbers of each publisher.
    async fn stop(self) -> Vec<u32> {
        self.stop.store(true, Ordering::Relaxed);
        let mut counts = Vec::new();
        for publisher in self.publishers {
            counts.push(publisher.await.unwrap());
        }
        counts
    }
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE + LONG_OUTAGE;
    while !holds() {
        assert!(
            tokio::time::Instant::now() < deadline,
            "not in time: {what}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Reads the topic back: every acknowledged number is there, in the order of its publisher when
/// repetitions are left out.
async fn check(bus: &KafkaBus, acknowledged: &[u32], what: &str, failed_calls: u32) {
    let mut reader = bus.read_back(Topic::Vitals).await.unwrap();
    let mut next: BTreeMap<u32, u32> = BTreeMap::new();
    let (mut records, mut doubled) = (0, 0);
    while reader.lag().await.unwrap() > 0 {
        let Event::Batch(batch) = reader.next(1000).await.unwrap() else {
            continue;
        };
        for delivery in &batch {
            let (publisher, n) = (number(delivery) / NUMBERS, number(delivery) % NUMBERS);
            assert_eq!(delivery.key, format!("patient-{publisher}"));
            records += 1;
            let next = next.entry(publisher).or_default();
            match n.cmp(next) {
                std::cmp::Ordering::Less => doubled += 1,
                std::cmp::Ordering::Equal => *next += 1,
                std::cmp::Ordering::Greater => {
                    panic!("{what}: {} has {n} before {next}", delivery.key)
                }
            }
        }
    }
    let sent: u32 = acknowledged.iter().sum();
    println!(
        "{what}: sent {sent}, on the bus {records}, of these doubled {doubled}, calls tried again {failed_calls}"
    );
    for (publisher, count) in (0..).zip(acknowledged) {
        assert_eq!(
            next.get(&publisher),
            Some(count),
            "{what}: patient-{publisher}"
        );
    }
}

/// Killing and starting processes blocks.
async fn with<T: Send + 'static>(
    mut cluster: Cluster,
    act: impl FnOnce(&mut Cluster) -> T + Send + 'static,
) -> Cluster {
    tokio::task::spawn_blocking(move || {
        act(&mut cluster);
        cluster
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_killed_in_mid_publish_loses_nothing_and_keeps_the_order() {
    let Some(mut cluster) = Cluster::start(1, "") else {
        return;
    };
    let mut options = options(&cluster, 1);
    // Shorter than the broker is away, so that producers are replaced as well.
    options.deliver_within = Duration::from_secs(3);
    let bus = open(&options).await;
    let load = Load::start(&bus);
    for _ in 0..2 {
        load.progress(500).await;
        cluster = with(cluster, |cluster| cluster.kill(0)).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        cluster = with(cluster, |cluster| cluster.restart(0)).await;
    }
    load.progress(500).await;
    let failed_calls = load.failed_calls.clone();
    let acknowledged = load.stop().await;
    let failed_calls = failed_calls.load(Ordering::Relaxed);
    assert!(
        failed_calls > 0,
        "the outage was longer than a publish waits"
    );
    check(&bus, &acknowledged, "broker killed twice", failed_calls).await;
    drop(cluster);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_and_then_all_brokers_may_go() {
    let Some(mut cluster) = Cluster::start(3, "") else {
        return;
    };
    let outage = match std::env::var_os(LONG) {
        Some(_) => LONG_OUTAGE,
        None => SHORT_OUTAGE,
    };
    let bus = open(&options(&cluster, 3)).await;
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let member = tokio::spawn(work(bus.clone(), ledger.clone(), "one", Duration::ZERO));
    let load = Load::start(&bus);
    load.progress(500).await;
    eventually("consuming has begun", || ledger.lock().applied.len() > 100).await;

    // Publishing and consuming go on with two of three.
    cluster = with(cluster, |cluster| cluster.kill(0)).await;
    load.progress(1000).await;
    let seen = ledger.lock().applied.len();
    eventually("consuming goes on with two of three", || {
        ledger.lock().applied.len() > seen + 500
    })
    .await;
    cluster = with(cluster, |cluster| cluster.restart(0)).await;
    load.progress(500).await;

    cluster = with(cluster, Cluster::kill_all).await;
    tokio::time::sleep(outage).await;
    cluster = with(cluster, Cluster::start_all).await;
    load.progress(1000).await;
    let failed_calls = load.failed_calls.clone();
    let acknowledged = load.stop().await;
    let what = format!("1 of 3 killed, then all down for {outage:?}");
    check(
        &bus,
        &acknowledged,
        &what,
        failed_calls.load(Ordering::Relaxed),
    )
    .await;

    let sent: u32 = acknowledged.iter().sum();
    eventually("all records took effect", || {
        ledger.lock().applied.len() >= sent as usize
    })
    .await;
    // A member leaves its group while there are brokers: without any its leaving waits for them.
    member.abort();
    let _ = member.await;
    drop(cluster);
}

/// The brokers that are left say where their own partitions begin and nothing about the others,
/// until those have new leaders.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_begins_while_leaders_are_missing_reads_every_partition() {
    const RECORDS: u32 = 400;
    let Some(mut cluster) = Cluster::start(3, "") else {
        return;
    };
    let bus = open(&options(&cluster, 3)).await;
    let records = (0..RECORDS).map(|n| numbered(&format!("patient-{}", n % 40), n));
    bus.publish(Topic::Vitals, records.collect()).await.unwrap();
    // Where groups keep their offsets is there before a broker goes.
    assert_eq!(read(&bus, "early", RECORDS).await, RECORDS);

    cluster = with(cluster, |cluster| cluster.kill(0)).await;
    assert_eq!(read(&bus, "late", RECORDS).await, RECORDS);
    drop(cluster);
}

/// How many different records a new group gets before it is given up.
async fn read(bus: &KafkaBus, group: &str, wanted: u32) -> u32 {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let mut numbers = BTreeSet::new();
    let reading = async {
        let subscribed = bus.subscribe(Topic::Vitals, group, Arc::new(Committed));
        let mut consumer = subscribed.await.unwrap();
        while numbers.len() < wanted as usize {
            match consumer.next(100).await {
                Ok(Event::Batch(batch)) => numbers.extend(batch.iter().map(number)),
                Ok(_) => {}
                Err(error) => {
                    println!("{group}: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    };
    let _ = tokio::time::timeout_at(deadline, reading).await;
    numbers.len() as u32
}

/// Neither a commit that the cluster cannot answer nor the group that cannot be left holds the
/// process.
#[test]
fn a_member_ends_although_its_cluster_has_gone() {
    let Some(cluster) = Cluster::start(1, "") else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ended = runtime.block_on(async {
        let bus = open(&options(&cluster, 1)).await;
        let records = (0..100).map(|n| numbered("patient-1", n));
        bus.publish(Topic::Vitals, records.collect()).await.unwrap();
        let subscribed = bus.subscribe(Topic::Vitals, "gone", Arc::new(Committed));
        let mut consumer = subscribed.await.unwrap();
        let (partition, next) = loop {
            if let Event::Batch(batch) = consumer.next(10).await.unwrap() {
                break (batch[0].partition, batch[batch.len() - 1].offset + 1);
            }
        };
        consumer.commit(&[(partition, next)]).await.unwrap();
        // The last one is under way when the cluster goes.
        let member = tokio::spawn(async move {
            let mut answered = 0;
            loop {
                match consumer.commit(&[(partition, next)]).await {
                    Ok(()) => answered += 1,
                    Err(refused) => return (answered, refused),
                }
            }
        });
        with(cluster, Cluster::kill_all).await;
        let (answered, refused) = member.await.unwrap();
        println!("{answered} commits, then: {refused}");
        std::time::Instant::now()
    });
    drop(runtime);
    let took = ended.elapsed();
    println!("ended within {took:?}");
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_come_and_go_under_load_and_every_record_takes_effect_once() {
    let Some(cluster) = Cluster::start(1, "") else {
        return;
    };
    let options = options(&cluster, 1);
    let publisher = open(&options).await;
    let load = Load::start(&publisher);
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let mut members = Vec::new();
    for name in ["one", "two", "three"] {
        let bus = open(&options).await;
        members.push(tokio::spawn(work(
            bus,
            ledger.clone(),
            name,
            Duration::from_millis(2),
        )));
        eventually(&format!("member {name} works too"), || {
            ledger.lock().by_member.get(name).is_some_and(|n| *n > 100)
        })
        .await;
    }
    // The first leaves in order, the others take over what it had.
    members.remove(0).abort();
    load.progress(1000).await;
    let acknowledged = load.stop().await;
    let sent: u32 = acknowledged.iter().sum();
    eventually("all records took effect", || {
        ledger.lock().applied.len() >= sent as usize
    })
    .await;
    let ledger = ledger.lock();
    println!(
        "group of one, two, three, then two: sent {sent}, took effect {}, by member {:?}",
        ledger.applied.len(),
        ledger.by_member
    );
    assert_eq!(ledger.applied.len(), sent as usize);
    assert!(ledger.doubled().is_empty(), "{:?}", ledger.doubled());
    for member in members {
        member.abort();
    }
}
