//! The bus between Braid's services: ordered partitions, durable publishing, consumer groups.
//!
//! Two engines implement [`Bus`]: [`embedded`] (SQLite in a data directory, also from several
//! processes at once) and [`kafka`]. Both keep these promises, which `conformance` checks:
//!
//! - Records of one key go to one partition and keep the order in which one caller published them.
//! - `publish` returns `Ok` once the records survive a power cut (embedded: fsync; Kafka: all
//!   in-sync replicas).
//! - A partition belongs to at most one live member of a group. Membership is a lease, so a paused
//!   member may continue for a moment after its partition has moved. A write that must not happen
//!   twice carries an epoch (see `store::Claims`).
//! - Delivery is at least once. A member that stores its own offsets gives the beginning through
//!   [`StartAt`]. Together with idempotent rows this makes the effect exactly once.

mod beginning;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod embedded;
#[cfg(feature = "conformance")]
mod interposed;
pub mod kafka;
mod keys;
pub mod slow_clock;

pub use embedded::{EmbeddedBus, EmbeddedOptions};
#[cfg(feature = "conformance")]
pub use interposed::Interposed;
pub use kafka::{KafkaBus, KafkaOptions};
pub use keys::{keys_of_partitions, partition_of};

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use thiserror::Error;

/// Largest record: value, key and headers. A larger record is refused with
/// [`PublishError::TooLarge`].
pub const RECORD_BYTES_MAX: usize = 1 << 20;
/// Records in one `publish` call; more are refused with [`PublishError::TooMany`].
pub const PUBLISH_RECORDS_MAX: usize = 10_000;

/// Bytes that the publishers of a process may have in flight on its bus; `publish` waits beyond.
pub const IN_FLIGHT_BYTES_MAX: usize = 64 << 20;

/// A stream of records. Each service owns its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Topic {
    /// `contracts::vitals::VitalsRecord`, keyed by patient; written by ingest.
    Vitals,
    /// `contracts::alerts::Alert`, keyed by patient; written by alerting.
    Alerts,
    /// `contracts::paths::PathsRecord`, keyed by gateway; written by path-telemetry.
    Paths,
    /// Records that a consumer could not process, unchanged, with the reason in headers
    /// ([`dead_letter`]).
    DeadLetters,
}

impl Topic {
    pub const ALL: [Topic; 4] = [
        Topic::Vitals,
        Topic::Alerts,
        Topic::Paths,
        Topic::DeadLetters,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Topic::Vitals => "vitals",
            Topic::Alerts => "alerts",
            Topic::Paths => "paths",
            Topic::DeadLetters => "dead-letters",
        }
    }

    pub fn from_name(name: &str) -> Option<Topic> {
        Topic::ALL.into_iter().find(|topic| topic.name() == name)
    }

    /// Partitions of a topic that is created without further configuration. No more members of a
    /// group can share the topic.
    pub const fn default_partitions(self) -> u32 {
        match self {
            Topic::Vitals => 8,
            Topic::Alerts | Topic::Paths => 4,
            Topic::DeadLetters => 1,
        }
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The content of a partition: the records from `oldest` up to the one before `next`. The two are
/// equal when the partition is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub oldest: u64,
    pub next: u64,
}

/// The log behind one partition, for a position that is kept outside the bus. A position counts for
/// the log that it names, and not for another one in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// Another one when the log was lost and made anew. Never empty.
    pub identity: String,
    /// The end of the partition. `None`: it is not known at present. A position behind it is of
    /// records that the log has lost.
    pub next: Option<u64>,
}

/// A record as a publisher gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Decides the partition: records of one key stay in order.
    pub key: String,
    pub value: Bytes,
    pub headers: Vec<(String, Bytes)>,
}

impl Record {
    pub fn new(key: impl Into<String>, value: impl Into<Bytes>) -> Record {
        Record {
            key: key.into(),
            value: value.into(),
            headers: Vec::new(),
        }
    }

    pub fn header(mut self, name: impl Into<String>, value: impl Into<Bytes>) -> Record {
        self.headers.push((name.into(), value.into()));
        self
    }
}

/// A record as a consumer gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub topic: Topic,
    pub partition: u32,
    /// Rises with every record of the partition, sometimes by more than 1.
    pub offset: u64,
    pub key: String,
    pub value: Bytes,
    pub headers: Vec<(String, Bytes)>,
    /// Microseconds since the Unix epoch, by the bus's clock.
    pub published_us: i64,
}

impl Delivery {
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.as_ref())
    }
}

/// An event of a member of a group, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The member got these partitions; [`StartAt`] has been asked for each of them.
    Assigned(Vec<u32>),
    /// The member lost these partitions. Records of them that are not stored belong to another
    /// member.
    Revoked(Vec<u32>),
    /// At least one record. Records of a partition come in offset order, without those that were
    /// delivered since the last `Assigned`.
    Batch(Vec<Delivery>),
}

/// The beginning for a member that was just assigned a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// After what the group committed, or at the oldest record when it never did.
    Committed,
    /// The oldest record, whatever the group committed: the group's own account is empty.
    Oldest,
    /// At the record of this offset.
    At(u64),
}

#[async_trait]
pub trait StartAt: Send + Sync {
    async fn start(&self, topic: Topic, partition: u32) -> Result<Start, StartAtError>;
}

/// Begin after what the group committed on the bus; at the oldest record when it never did.
#[derive(Debug, Clone, Copy, Default)]
pub struct Committed;

#[async_trait]
impl StartAt for Committed {
    async fn start(&self, _: Topic, _: u32) -> Result<Start, StartAtError> {
        Ok(Start::Committed)
    }
}

#[async_trait]
pub trait Bus: Send + Sync {
    /// Returns once the records are durable: all of them, or after an error perhaps none. After
    /// [`PublishError::Unavailable`] the caller cannot know whether they are stored. It sends all
    /// of them again, so that their order holds; consumers are idempotent. Waits when too much is
    /// in flight; an engine that waited long enough returns [`PublishError::Full`].
    async fn publish(&self, topic: Topic, records: Vec<Record>) -> Result<(), PublishError>;

    /// Joins a consumer group. Members share the topic's partitions.
    async fn subscribe(
        &self,
        topic: Topic,
        group: &str,
        start: Arc<dyn StartAt>,
    ) -> Result<Box<dyn Consumer>, SubscribeError>;

    /// Follows all partitions from their present end, without a group and without commits: for live
    /// views. Its only event is `Batch`. The end is fixed when this returns: a record that is
    /// published later is delivered.
    async fn tail(&self, topic: Topic) -> Result<Box<dyn Consumer>, SubscribeError>;

    /// The same from the oldest record that is kept: for people who look into a topic. `lag`
    /// returns the number of records that are left.
    async fn read_back(&self, topic: Topic) -> Result<Box<dyn Consumer>, SubscribeError>;

    async fn partitions(&self, topic: Topic) -> Result<u32, NotReady>;

    /// The extent of each partition, read from the engine and not from this process's memory. All
    /// partitions or none.
    async fn extents(&self, topic: Topic) -> Result<BTreeMap<u32, Extent>, NotReady>;

    /// The log that this partition is now, asked of the engine. An end that is not known is no
    /// error: positions of other partitions do not wait for it.
    async fn log(&self, topic: Topic, partition: u32) -> Result<Log, NotReady>;

    /// The next offset of each partition whose progress the group committed. The caller joins no
    /// group.
    async fn committed(&self, topic: Topic, group: &str) -> Result<BTreeMap<u32, u64>, NotReady>;

    /// Proves that the bus takes a write, not only that it is connected.
    async fn ready(&self) -> Result<(), NotReady>;
}

/// One member of a group, or a tail. Dropping it leaves the group.
#[async_trait]
pub trait Consumer: Send {
    /// Waits for the next event; a batch has 1 to `max_records` records. Safe to cancel: an event
    /// that was not returned comes again.
    async fn next(&mut self, max_records: usize) -> Result<Event, ConsumeError>;

    /// Records, for each `(partition, next_offset)`, that every record before the offset is done. A
    /// tail ignores it.
    async fn commit(&mut self, offsets: &[(u32, u64)]) -> Result<(), CommitError>;

    /// Begins these partitions anew if the group still gives them to this member: they are revoked,
    /// then assigned with [`StartAt`] asked again. It is for a member whose claim in the store was
    /// taken by another member in passing. The group moved the partition there and back, or never
    /// moved it, so no event reports the loss.
    fn renew(&mut self, partitions: &[u32]);

    /// Records between this member's position and the end, over its partitions.
    async fn lag(&mut self) -> Result<u64, ConsumeError>;
}

#[derive(Debug, Clone, Error)]
pub enum PublishError {
    /// The engine's fault, or this process's; publishing again is safe.
    #[error("the bus does not answer: {0}")]
    Unavailable(String),
    /// Nothing was sent: the bytes in flight already fill the queue. Publishing again later is
    /// safe.
    #[error("the bus has taken nothing for {0:?}: {IN_FLIGHT_BYTES_MAX} bytes wait for it already")]
    Full(Duration),
    /// The bus understood the record and will never accept it.
    #[error("the bus refuses the record: {0}")]
    Refused(String),
    /// The caller's fault; the same call would fail again.
    #[error("a record of {bytes} bytes is more than the {RECORD_BYTES_MAX} that the bus takes")]
    TooLarge { bytes: usize },
    #[error("{records} records in one call are more than {PUBLISH_RECORDS_MAX}")]
    TooMany { records: usize },
}

impl PublishError {
    pub fn is_retryable(&self) -> bool {
        matches!(self, PublishError::Unavailable(_) | PublishError::Full(_))
    }
}

#[derive(Debug, Clone, Error)]
pub enum SubscribeError {
    #[error("the bus does not answer: {0}")]
    Unavailable(String),
    #[error(
        "group `{0}`: a name has 1 to 100 letters, digits, `-`, `_` or `.`, for example `ingest-store`"
    )]
    GroupName(String),
}

#[derive(Debug, Clone, Error)]
pub enum ConsumeError {
    /// Calling `next` again is safe and continues at the same record.
    #[error("the bus does not answer: {0}")]
    Unavailable(String),
    #[error(transparent)]
    StartAt(#[from] StartAtError),
}

#[derive(Debug, Clone, Error)]
pub enum CommitError {
    #[error("the bus does not answer: {0}")]
    Unavailable(String),
    /// These partitions belong to another member; the others were committed. A `Revoked` event
    /// follows or has been delivered.
    #[error("partitions {} belong to another member of the group", listed(.0))]
    NotOwner(Vec<u32>),
}

/// Items that an error or a log line names; the rest is counted.
const LISTED_MAX: usize = 8;

/// For people: `3, 4, 7 and 12 others`.
pub fn listed(items: impl IntoIterator<Item = impl fmt::Display>) -> String {
    let mut items = items.into_iter();
    let named: Vec<String> = items
        .by_ref()
        .take(LISTED_MAX)
        .map(|item| item.to_string())
        .collect();
    match items.count() {
        0 => named.join(", "),
        others => format!("{} and {others} others", named.join(", ")),
    }
}

#[derive(Debug, Clone, Error)]
#[error("cannot tell where to start: {0}")]
pub struct StartAtError(pub String);

#[derive(Debug, Clone, Error)]
#[error("the bus is not ready: {0}")]
pub struct NotReady(pub String);

/// Names of the headers of a dead letter.
pub mod dead_letter {
    use std::{future::Future, pin::pin, time::Duration};

    use super::{Bus, Delivery, Record, Topic};

    /// Pause between attempts while the bus is away.
    const RETRY_PAUSE: Duration = Duration::from_millis(500);

    pub const REASON: &str = "reason";
    pub const CONSUMER: &str = "consumer";
    pub const TOPIC: &str = "topic";
    pub const PARTITION: &str = "partition";
    pub const OFFSET: &str = "offset";

    /// The record for [`super::Topic::DeadLetters`] that keeps `delivery` unchanged.
    pub fn record(delivery: &Delivery, consumer: &str, reason: &str) -> Record {
        let mut record = Record::new(delivery.key.clone(), delivery.value.clone());
        record.headers = delivery.headers.clone();
        record
            .header(REASON, reason.to_owned())
            .header(CONSUMER, consumer.to_owned())
            .header(TOPIC, delivery.topic.name())
            .header(PARTITION, delivery.partition.to_string())
            .header(OFFSET, delivery.offset.to_string())
    }

    /// Keeps a record that `consumer` cannot process, for people to look at. Tries until the bus
    /// has it. Returns false when `ending` comes first: then the record is not kept, and the
    /// consumer must not pass it.
    pub async fn bury(
        bus: &dyn Bus,
        delivery: &Delivery,
        consumer: &str,
        reason: &str,
        ending: impl Future<Output = ()>,
    ) -> bool {
        let (partition, offset) = (delivery.partition, delivery.offset);
        tracing::error!(
            partition,
            offset,
            reason,
            "a record goes to the dead letters"
        );
        metrics::counter!("braid_bus_dead_letters_total", "consumer" => consumer.to_owned())
            .increment(1);
        let mut ending = pin!(ending);
        loop {
            let record = record(delivery, consumer, reason);
            match bus.publish(Topic::DeadLetters, vec![record]).await {
                Ok(()) => return true,
                Err(error) if error.is_retryable() => tokio::select! {
                    () = ending.as_mut() => return false,
                    () = tokio::time::sleep(RETRY_PAUSE) => {}
                },
                Err(error) => {
                    // Waiting without end would hold up every record behind it, and the record is
                    // still in the topic that it came from.
                    tracing::error!(%error, partition, offset, "the dead letter is refused too");
                    return true;
                }
            }
        }
    }
}
