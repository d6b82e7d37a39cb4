//! The bus on a Kafka cluster, by librdkafka.
//!
//! - Publishing: [`publisher`], idempotent and acknowledged by all in-sync copies, with a bounded
//!   queue.
//! - Consuming: [`consumer`], one client for each member. Rebalancing is cooperative, so that only
//!   partitions that move are interrupted. Offsets committed here serve the cluster's own lag
//!   figures and groups without a store.
//! - Starting: [`connect`] waits for the cluster, creates missing topics and refuses unsuitable
//!   ones.
//!
//! The partition of a key is the embedded bus's (`keys`), computed here and not by the library. It
//! depends on the number of partitions, which is read once at the start: after partitions were
//! added, all services must be restarted.

mod assignment;
mod connect;
mod consumer;
mod ended;
mod offsets;
mod open_error;
mod options;
mod publisher;
mod topic_id;
mod topics;
mod trouble;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use parking_lot::Mutex;
use rdkafka::{
    Offset,
    config::FromClientConfigAndContext,
    consumer::{BaseConsumer, Consumer as _},
    error::KafkaError,
};
use tokio::sync::watch;

pub use open_error::OpenError;
pub use options::{DEAD_LETTERS_KEPT, KafkaOptions, Password, Sasl, SaslMechanism, Tls};
pub use topics::WrongSetting;

use self::{
    assignment::{Assignment, Member, list},
    consumer::{Group, KafkaConsumer},
    ended::Ended,
    offsets::known_offsets,
    publisher::Publisher,
    trouble::{Listener, Trouble},
};
use crate::{
    Bus, ConsumeError, Consumer, Extent, Log, NotReady, PublishError, Record, StartAt,
    SubscribeError, Topic,
    beginning::Beginning,
    keys::{check_group_name, check_limits},
};

pub struct KafkaBus {
    options: KafkaOptions,
    trouble: Arc<Trouble>,
    publisher: Publisher,
    /// Partitions by the topic's name on the cluster.
    partitions: BTreeMap<String, u32>,
    probes: AtomicU32,
    /// Clients that ask for the commits of a group without joining it. At most [`ASKERS_MAX`];
    /// beyond it all are made anew.
    askers: Mutex<BTreeMap<String, Arc<Asker>>>,
    ended: watch::Sender<bool>,
}

type Asker = BaseConsumer<Listener>;

/// Groups whose clients for questions are kept.
const ASKERS_MAX: usize = 8;
/// A question about offsets, over all partitions of a topic.
const OFFSETS_WITHIN: Duration = Duration::from_secs(5);

impl KafkaBus {
    /// Returns once the cluster answers and its topics are suitable. Until it answers, possibly
    /// without end, `waiting` is called with the reason. A condition that waiting cannot heal is an
    /// error.
    pub async fn open(
        options: KafkaOptions,
        waiting: impl Fn(&str) + Send + Sync,
    ) -> Result<KafkaBus, OpenError> {
        let trouble = Arc::new(Trouble::default());
        let publisher = Publisher::new(&options, trouble.clone())?;
        let partitions = connect::prepare(&options, &publisher, &trouble, &waiting).await?;
        Ok(KafkaBus {
            options,
            trouble,
            publisher,
            partitions,
            probes: AtomicU32::new(0),
            askers: Mutex::default(),
            ended: watch::Sender::new(false),
        })
    }

    /// Ends as if the process were killed: queued records are not sent, and groups learn of it by
    /// themselves. For tests of failures.
    pub fn abandon(&self) {
        self.ended.send_replace(true);
        self.publisher.abandon();
    }

    fn partitions_of(&self, name: &str) -> u32 {
        // `open` has seen every topic.
        self.partitions.get(name).copied().unwrap_or(1)
    }

    fn asker(&self, group: &str) -> Result<Arc<Asker>, KafkaError> {
        let mut askers = self.askers.lock();
        if let Some(asker) = askers.get(group) {
            return Ok(asker.clone());
        }
        let listener = Listener(self.trouble.clone());
        let config = self.options.member(group);
        let asker = Arc::new(BaseConsumer::from_config_and_context(&config, listener)?);
        if askers.len() >= ASKERS_MAX {
            askers.clear();
        }
        askers.insert(group.to_owned(), asker.clone());
        Ok(asker)
    }

    /// A client of one topic, for a group or without one.
    fn consumer(
        &self,
        topic: Topic,
        group: Option<Group>,
    ) -> Result<KafkaConsumer, SubscribeError> {
        let name = self.options.topic(topic);
        let assignment = Arc::new(Assignment::default());
        let member = Member {
            topic: name.clone(),
            assignment: assignment.clone(),
            trouble: self.trouble.clone(),
        };
        let config = match &group {
            Some(group) => self.options.member(&group.name),
            None => self.options.reader(),
        };
        let unavailable =
            |e: rdkafka::error::KafkaError| SubscribeError::Unavailable(e.to_string());
        let client = rdkafka::consumer::StreamConsumer::from_config_and_context(&config, member)
            .map_err(unavailable)?;
        if group.is_some() {
            client.subscribe(&[&name]).map_err(unavailable)?;
        }
        let ended = Ended(self.ended.subscribe());
        let trouble = self.trouble.clone();
        Ok(KafkaConsumer::new(
            client, topic, name, assignment, group, ended, trouble,
        ))
    }

    async fn reader(
        &self,
        topic: Topic,
        from: Offset,
    ) -> Result<Box<dyn Consumer>, SubscribeError> {
        let mut reader = self.consumer(topic, None)?;
        let partitions = self.partitions_of(&self.options.topic(topic));
        match reader.read_all(partitions, from).await {
            Ok(()) => Ok(Box::new(reader)),
            Err(ConsumeError::Unavailable(reason)) => Err(SubscribeError::Unavailable(reason)),
            Err(error) => Err(SubscribeError::Unavailable(error.to_string())),
        }
    }

    async fn publish_to(&self, name: &str, records: &[Record]) -> Result<(), PublishError> {
        self.publisher
            .publish(name, self.partitions_of(name), records)
            .await
    }
}

#[async_trait]
impl Bus for KafkaBus {
    async fn publish(&self, topic: Topic, records: Vec<Record>) -> Result<(), PublishError> {
        check_limits(&records)?;
        if records.is_empty() {
            return Ok(());
        }
        let started = Instant::now();
        let published = self.publish_to(&self.options.topic(topic), &records).await;
        let topic = topic.name();
        metrics::gauge!("braid_bus_publish_queue_bytes").set(self.publisher.depth_bytes() as f64);
        match &published {
            Ok(()) => {
                metrics::histogram!("braid_bus_publish_seconds", "topic" => topic)
                    .record(started.elapsed());
                metrics::counter!("braid_bus_published_records_total", "topic" => topic)
                    .increment(records.len() as u64);
            }
            Err(error) => {
                let reason = match error {
                    PublishError::Unavailable(_) => "unavailable",
                    PublishError::Full(_) => "full",
                    PublishError::Refused(_) => "refused",
                    PublishError::TooLarge { .. } | PublishError::TooMany { .. } => "limit",
                };
                metrics::counter!("braid_bus_publish_errors_total", "topic" => topic, "reason" => reason)
                    .increment(1);
            }
        }
        published
    }

    async fn subscribe(
        &self,
        topic: Topic,
        group: &str,
        start: Arc<dyn StartAt>,
    ) -> Result<Box<dyn Consumer>, SubscribeError> {
        check_group_name(group)?;
        let group = Group {
            name: group.to_owned(),
            beginning: Beginning::new(topic, start),
        };
        Ok(Box::new(self.consumer(topic, Some(group))?))
    }

    async fn tail(&self, topic: Topic) -> Result<Box<dyn Consumer>, SubscribeError> {
        self.reader(topic, Offset::End).await
    }

    async fn read_back(&self, topic: Topic) -> Result<Box<dyn Consumer>, SubscribeError> {
        self.reader(topic, Offset::Beginning).await
    }

    async fn partitions(&self, topic: Topic) -> Result<u32, NotReady> {
        Ok(self.partitions_of(&self.options.topic(topic)))
    }

    async fn extents(&self, topic: Topic) -> Result<BTreeMap<u32, Extent>, NotReady> {
        if *self.ended.borrow() {
            return Err(NotReady("it was closed".into()));
        }
        let name = self.options.topic(topic);
        let partitions = self.partitions_of(&name);
        let asked = self.publisher.watermarks(&name, partitions, OFFSETS_WITHIN);
        let answer = asked.await;
        answer.map_err(|error| NotReady(self.trouble.explain(&error.to_string())))
    }

    async fn log(&self, topic: Topic, partition: u32) -> Result<Log, NotReady> {
        if *self.ended.borrow() {
            return Err(NotReady("it was closed".into()));
        }
        let name = self.options.topic(topic);
        let answer = self.publisher.log(&name, partition, OFFSETS_WITHIN).await;
        answer.map_err(|error| NotReady(self.trouble.explain(&error.to_string())))
    }

    async fn committed(&self, topic: Topic, group: &str) -> Result<BTreeMap<u32, u64>, NotReady> {
        if *self.ended.borrow() {
            return Err(NotReady("it was closed".into()));
        }
        let unknown = |error: KafkaError| NotReady(self.trouble.explain(&error.to_string()));
        let asker = self.asker(group).map_err(unknown)?;
        let name = self.options.topic(topic);
        let all: Vec<u32> = (0..self.partitions_of(&name)).collect();
        let question = list(&name, &all);
        let asked = tokio::task::spawn_blocking(move || {
            // Receives the library's reports of brokers; there are no records.
            let _ = asker.poll(Duration::ZERO);
            let answer = asker.committed_offsets(question, OFFSETS_WITHIN);
            answer.and_then(|answer| known_offsets(&answer))
        });
        match asked.await {
            Ok(answer) => answer.map_err(unknown),
            Err(error) => Err(NotReady(error.to_string())),
        }
    }

    /// Writes to a topic of its own, another partition each time, so that every broker is tried in
    /// turn.
    async fn ready(&self) -> Result<(), NotReady> {
        let probe = self.probes.fetch_add(1, Ordering::Relaxed);
        let record = Record::new(format!("probe-{}", probe % 64), Vec::new());
        self.publish_to(&self.options.readiness_topic(), &[record])
            .await
            .map_err(|error| NotReady(error.to_string()))
    }
}
