//! The Kafka bus passes the suite on a real broker, and what is its own: the start, and death by
//! `kill -9`.

#![allow(clippy::unwrap_used)]

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bus::{
    Bus, KafkaBus, KafkaOptions, Topic,
    conformance::{Harness, Process, numbered},
    kafka::OpenError,
};
use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions},
};
use testkit::kafka::Cluster;
use tokio::sync::mpsc;

/// A process that dies is replaced after this.
const SESSION: Duration = Duration::from_secs(3);
/// A member that the suite kills goes on in this process as one that does not call `next`, so this
/// is what frees its partitions. No shorter, since the suite also leaves members alone while it
/// waits for others.
const POLL_WITHIN: Duration = Duration::from_secs(6);

/// One broker for all tests of this file; it ends with the process.
fn brokers() -> Option<Vec<String>> {
    static BROKER: OnceLock<Option<Cluster>> = OnceLock::new();
    let broker = BROKER.get_or_init(|| Cluster::start(1, "group.min.session.timeout.ms=1000"));
    broker.as_ref().map(Cluster::brokers)
}

fn options(brokers: Vec<String>, prefix: &str) -> KafkaOptions {
    KafkaOptions {
        prefix: prefix.to_owned(),
        replication: 1,
        in_sync_min: 1,
        session: SESSION,
        poll_within: POLL_WITHIN,
        ..KafkaOptions::new(brokers)
    }
}

/// Topics of its own on the one broker.
struct Kafka {
    options: KafkaOptions,
}

impl Kafka {
    fn new() -> Option<Kafka> {
        static HARNESSES: AtomicU32 = AtomicU32::new(0);
        let number = HARNESSES.fetch_add(1, Ordering::Relaxed);
        Some(Kafka {
            options: options(brokers()?, &format!("t{number}-")),
        })
    }
}

async fn open(options: &KafkaOptions) -> Arc<KafkaBus> {
    let bus = KafkaBus::open(options.clone(), |reason| println!("{reason}"));
    Arc::new(bus.await.unwrap_or_else(|e| panic!("{e}")))
}

#[async_trait]
impl Harness for Kafka {
    async fn start(&self) -> Process {
        let bus = open(&self.options).await;
        Process {
            bus: bus.clone(),
            kill: Box::new(move || bus.abandon()),
        }
    }

    fn notices_death_within(&self) -> Duration {
        POLL_WITHIN
    }
}

bus::conformance_suite!(match Kafka::new() {
    Some(kafka) => kafka,
    None => return,
});

async fn refused(options: &KafkaOptions) -> OpenError {
    match KafkaBus::open(options.clone(), |reason| println!("{reason}")).await {
        Ok(_) => panic!("it was accepted"),
        Err(error) => error,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_copies_than_brokers_are_refused_with_what_to_do() {
    let Some(brokers) = brokers() else { return };
    let mut options = options(brokers, "copies-");
    options.replication = 3;
    let error = refused(&options).await;
    assert!(
        matches!(
            error,
            OpenError::Replication {
                wanted: 3,
                brokers: 1,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("--bus-replication 1"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_topics_are_not_created_against_the_operator_s_will() {
    let Some(brokers) = brokers() else { return };
    let mut options = options(brokers, "missing-");
    options.create_topics = false;
    let error = refused(&options).await.to_string();
    for part in [
        "topic missing-vitals is missing",
        "--create --topic missing-vitals --partitions 8 --replication-factor 1",
        "--config min.insync.replicas=1",
    ] {
        assert!(error.contains(part), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_settings_are_all_named_with_their_fix() {
    let Some(brokers) = brokers() else { return };
    let mut options = options(brokers, "wrong-");
    drop(open(&options).await);
    // The topics were made for one copy and a week.
    options.in_sync_min = 2;
    options.replication = 2;
    options.retention *= 2;
    let OpenError::Settings(wrong) = refused(&options).await else {
        panic!("another error")
    };
    let of_vitals: Vec<(&str, &str)> = wrong
        .iter()
        .filter(|wrong| wrong.topic == "wrong-vitals")
        .map(|wrong| (wrong.setting.as_str(), wrong.is.as_str()))
        .collect();
    assert_eq!(
        of_vitals,
        [
            ("replication", "1"),
            ("min.insync.replicas", "1"),
            ("retention.ms", "604800000")
        ]
    );
    assert_eq!(wrong.len(), 5 * 2 + 3, "{wrong:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_absent_broker_is_waited_for_and_named() {
    let Some(mut cluster) = Cluster::prepared(1, "") else {
        return;
    };
    let options = options(cluster.brokers(), "");
    let broker = cluster.brokers().remove(0);
    let (say, mut heard) = mpsc::channel(16);
    let opening = tokio::spawn(async move {
        // More than the test listens to is dropped.
        KafkaBus::open(options, move |reason| drop(say.try_send(reason.to_owned()))).await
    });
    for _ in 0..2 {
        let reason = heard.recv().await.unwrap();
        assert!(
            reason.starts_with(&format!("waiting for Kafka at {broker}")),
            "{reason}"
        );
    }
    let cluster = tokio::task::spawn_blocking(move || {
        cluster.start_all();
        cluster
    });
    let cluster = cluster.await.unwrap();
    let bus = opening.await.unwrap().unwrap_or_else(|e| panic!("{e}"));
    bus.publish(Topic::Alerts, vec![numbered("a", 1)])
        .await
        .unwrap();
    assert!(bus.ready().await.is_ok());
    drop(cluster);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_was_made_anew_is_another_log() {
    let Some(brokers) = brokers() else { return };
    let options = options(brokers.clone(), "anew-");
    let bus = open(&options).await;
    let before = [Topic::Paths, Topic::Alerts].map(|topic| bus.log(topic, 0));
    let before = futures::future::try_join_all(before).await.unwrap();
    let named = |log: &bus::Log| log.identity.matches(':').count() == 2;
    assert!(before.iter().all(named), "cluster and topic: {before:?}");
    assert_ne!(before[0].identity, before[1].identity);
    bus.publish(Topic::Paths, vec![numbered("g", 1); 4])
        .await
        .unwrap();
    drop(bus);
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers.join(","));
    let admin: AdminClient<_> = config.create().unwrap();
    let deleted = admin.delete_topics(&["anew-paths"], &AdminOptions::new());
    deleted.await.unwrap().remove(0).unwrap();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    // The cluster goes on naming a deleted topic for a moment.
    let after = loop {
        let bus = open(&options).await;
        match bus.log(Topic::Paths, 0).await {
            Ok(log) if log.identity != before[0].identity => {
                assert_eq!(bus.log(Topic::Alerts, 0).await.unwrap(), before[1]);
                break log;
            }
            seen => println!("not yet: {seen:?}"),
        }
        assert!(tokio::time::Instant::now() < deadline, "the same log still");
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    assert!(named(&after), "{after:?}");
}
