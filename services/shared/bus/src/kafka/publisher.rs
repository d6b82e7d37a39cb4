//! Records on their way to the brokers.
//!
//! Every record of a call is handed to librdkafka at once, for the partition that [`partition_of`]
//! names. The call returns when each record has its delivery report. Bytes in flight are counted in
//! [`IN_FLIGHT_BYTES_MAX`]. A call waits for room, at most `room_within`, and holds it until the
//! last report, also when its caller has gone. So memory is bounded in every case.
//!
//! Order. The idempotent producer keeps the order of a partition over its own retries, but a record
//! that timed out leaves a gap. Later records may still be sent, and the caller's second attempt
//! would come after them. So a producer never lets a single record time out. When a call has waited
//! `deliver_within`, or the producer has failed for good, the whole producer is replaced. Its queue
//! is discarded, every waiting call fails with `Unavailable`, and each caller sends its whole call
//! again through the new producer. Records that the brokers had taken before are doubled, never
//! overtaken.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rdkafka::{
    ClientContext, Message,
    config::{FromClientConfigAndContext, RDKafkaLogLevel},
    error::KafkaError,
    message::{Header, OwnedHeaders},
    metadata::Metadata,
    producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer},
    types::RDKafkaErrorCode,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::{
    open_error::OpenError,
    options::KafkaOptions,
    topic_id,
    trouble::{self, Trouble},
};
use crate::{
    Extent, IN_FLIGHT_BYTES_MAX, Log, PublishError, RECORD_BYTES_MAX, Record,
    keys::{bytes_of, partition_of},
};

/// [`IN_FLIGHT_BYTES_MAX`] is counted in units of this.
const UNIT: usize = 1 << 10;
/// Memory of a record beside its bytes, in librdkafka and here. It bounds the number of records
/// too, at a quarter of a million.
const RECORD_OVERHEAD_BYTES: usize = 256;
/// A leader that is away must not hold up the positions of other partitions.
const END_WITHIN: Duration = Duration::from_secs(1);

pub struct Publisher {
    options: KafkaOptions,
    trouble: Arc<Trouble>,
    room: Arc<Semaphore>,
    /// `None`: the bus has ended.
    current: Mutex<Option<Arc<Sender>>>,
    /// One replacement at a time; a caller that waited finds it done.
    replacing: tokio::sync::Mutex<()>,
    /// Identity of the cluster; empty until it was asked for.
    cluster: Arc<Mutex<String>>,
}

type Sender = ThreadedProducer<Reports>;

struct Reports {
    trouble: Arc<Trouble>,
}

/// One `publish` call in flight.
struct Call {
    missing: AtomicUsize,
    failure: Mutex<Option<RDKafkaErrorCode>>,
    done: Mutex<Option<oneshot::Sender<Option<RDKafkaErrorCode>>>>,
    /// Returned with the last report.
    _room: OwnedSemaphorePermit,
}

impl Call {
    fn report(&self, failure: Option<RDKafkaErrorCode>) {
        if let Some(code) = failure {
            self.failure.lock().get_or_insert(code);
        }
        if self.missing.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(done) = self.done.lock().take()
        {
            // A caller that has gone does not wait any more.
            let _ = done.send(*self.failure.lock());
        }
    }
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        trouble::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        trouble::note(&self.trouble, &error, reason);
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = Arc<Call>;

    fn delivery(&self, result: &DeliveryResult<'_>, call: Arc<Call>) {
        match result {
            Ok(_) => {
                self.trouble.over();
                call.report(None);
            }
            Err((error, message)) => {
                let code = error.rdkafka_error_code();
                tracing::debug!(topic = message.topic(), %error, "a record was not delivered");
                call.report(Some(code.unwrap_or(RDKafkaErrorCode::Fail)));
            }
        }
    }
}

impl Publisher {
    pub fn new(options: &KafkaOptions, trouble: Arc<Trouble>) -> Result<Publisher, OpenError> {
        let sender = sender(options, &trouble).map_err(|e| OpenError::Options(e.to_string()))?;
        Ok(Publisher {
            options: options.clone(),
            trouble,
            room: Arc::new(Semaphore::new(IN_FLIGHT_BYTES_MAX / UNIT)),
            current: Mutex::new(Some(Arc::new(sender))),
            cluster: Arc::default(),
            replacing: tokio::sync::Mutex::new(()),
        })
    }

    pub async fn metadata(&self, within: Duration) -> Result<Metadata, KafkaError> {
        let Some(sender) = self.current.lock().clone() else {
            return Err(KafkaError::Canceled);
        };
        tokio::task::spawn_blocking(move || sender.client().fetch_metadata(None, within))
            .await
            .unwrap_or(Err(KafkaError::Canceled))
    }

    /// The oldest and the next offset of every partition of a topic, by the partitions' leaders;
    /// all within `within`, or an error.
    pub async fn watermarks(
        &self,
        topic: &str,
        partitions: u32,
        within: Duration,
    ) -> Result<BTreeMap<u32, Extent>, KafkaError> {
        let Some(sender) = self.current.lock().clone() else {
            return Err(KafkaError::Canceled);
        };
        let topic = topic.to_owned();
        tokio::task::spawn_blocking(move || {
            let given_up = Instant::now() + within;
            let mut extents = BTreeMap::new();
            for partition in 0..partitions {
                let left = given_up.saturating_duration_since(Instant::now());
                let number = i32::try_from(partition).unwrap_or(i32::MAX);
                let (oldest, next) = sender.client().fetch_watermarks(&topic, number, left)?;
                let offset = |offset: i64| u64::try_from(offset).unwrap_or(0);
                let (oldest, next) = (offset(oldest), offset(next));
                extents.insert(partition, Extent { oldest, next });
            }
            Ok(extents)
        })
        .await
        .unwrap_or(Err(KafkaError::Canceled))
    }

    /// The identity of the topic on its cluster, and the end of one partition where its leader
    /// answers.
    pub async fn log(
        &self,
        topic: &str,
        partition: u32,
        within: Duration,
    ) -> Result<Log, KafkaError> {
        let Some(sender) = self.current.lock().clone() else {
            return Err(KafkaError::Canceled);
        };
        let (topic, cluster) = (topic.to_owned(), Arc::clone(&self.cluster));
        tokio::task::spawn_blocking(move || {
            let client = sender.client();
            let id = topic_id::of(client, &topic, within)?;
            // The cluster of a client stays, and the library leaks the text at each question.
            let mut cluster = cluster.lock();
            if cluster.is_empty() {
                *cluster = client.fetch_cluster_id(within).unwrap_or_default();
            }
            let identity = format!("kafka:{cluster}:{id}");
            drop(cluster);
            let number = i32::try_from(partition).unwrap_or(i32::MAX);
            let ends = client.fetch_watermarks(&topic, number, END_WITHIN);
            let next = ends.ok().and_then(|(_, next)| u64::try_from(next).ok());
            Ok(Log { identity, next })
        })
        .await
        .unwrap_or(Err(KafkaError::Canceled))
    }

    /// Bytes that are in flight.
    pub fn depth_bytes(&self) -> usize {
        IN_FLIGHT_BYTES_MAX - self.room.available_permits() * UNIT
    }

    /// Ends without delivering the queue.
    pub fn abandon(&self) {
        // Dropping a producer discards its queue and joins its thread.
        drop(self.current.lock().take());
    }

    pub async fn publish(
        &self,
        topic: &str,
        partitions: u32,
        records: &[Record],
    ) -> Result<(), PublishError> {
        let cost: usize = records
            .iter()
            .map(|record| bytes_of(record) + RECORD_OVERHEAD_BYTES)
            .sum();
        // A call with more than all permits takes all of them and runs alone.
        let units = (cost / UNIT + 1).min(IN_FLIGHT_BYTES_MAX / UNIT);
        let room = self
            .room
            .clone()
            .acquire_many_owned(u32::try_from(units).unwrap_or(u32::MAX));
        let room = match tokio::time::timeout(self.options.room_within, room).await {
            Ok(room) => room.map_err(|_| closed())?,
            Err(_) => return Err(PublishError::Full(self.options.room_within)),
        };
        let sender = self.current.lock().clone().ok_or_else(closed)?;
        let (done, report) = oneshot::channel();
        let call = Arc::new(Call {
            missing: AtomicUsize::new(records.len()),
            failure: Mutex::new(None),
            done: Mutex::new(Some(done)),
            _room: room,
        });
        hand_over(&sender, &call, topic, partitions, records);
        drop(call);
        let failure = match tokio::time::timeout(self.options.deliver_within, report).await {
            Ok(Ok(None)) => return Ok(()),
            Ok(Ok(Some(code))) => code,
            Ok(Err(_)) => RDKafkaErrorCode::PurgeQueue,
            Err(_) => RDKafkaErrorCode::MessageTimedOut,
        };
        match failure {
            RDKafkaErrorCode::MessageSizeTooLarge | RDKafkaErrorCode::InvalidMessageSize => {
                let bytes = records
                    .iter()
                    .map(bytes_of)
                    .max()
                    .unwrap_or(RECORD_BYTES_MAX);
                Err(PublishError::TooLarge { bytes })
            }
            RDKafkaErrorCode::InvalidRecord
            | RDKafkaErrorCode::InvalidMessage
            | RDKafkaErrorCode::InvalidTimestamp => Err(PublishError::Refused(failure.to_string())),
            code => {
                self.replace(&sender).await;
                let what = match code {
                    RDKafkaErrorCode::MessageTimedOut => {
                        format!(
                            "not on all in-sync brokers within {:?}",
                            self.options.deliver_within
                        )
                    }
                    RDKafkaErrorCode::PurgeQueue | RDKafkaErrorCode::PurgeInflight => {
                        "the connection was given up".to_owned()
                    }
                    code => code.to_string(),
                };
                Err(PublishError::Unavailable(self.trouble.explain(&what)))
            }
        }
    }

    /// Discards `failed` with its queue, unless another caller has done so.
    async fn replace(&self, failed: &Arc<Sender>) {
        let _one_at_a_time = self.replacing.lock().await;
        let old = {
            let mut current = self.current.lock();
            match current.as_ref() {
                Some(sender) if Arc::ptr_eq(sender, failed) => {}
                _ => return,
            }
            match sender(&self.options, &self.trouble) {
                Ok(new) => current.replace(Arc::new(new)),
                Err(error) => {
                    tracing::error!(%error, "no new producer");
                    return;
                }
            }
        };
        metrics::counter!("braid_bus_producers_replaced_total").increment(1);
        let reason = self.trouble.explain("records were not delivered in time");
        tracing::warn!(reason, "a new producer; callers send again");
        if let Some(old) = old {
            // Other calls hold the old producer only until their reports have come, which the purge
            // brings.
            old.purge(rdkafka::producer::PurgeConfig::default().queue().inflight());
            let _ = tokio::task::spawn_blocking(move || drop(old)).await;
        }
    }
}

fn sender(options: &KafkaOptions, trouble: &Arc<Trouble>) -> Result<Sender, KafkaError> {
    let reports = Reports {
        trouble: trouble.clone(),
    };
    ThreadedProducer::from_config_and_context(&options.producer(), reports)
}

fn hand_over(sender: &Sender, call: &Arc<Call>, topic: &str, partitions: u32, records: &[Record]) {
    for (sent, record) in records.iter().enumerate() {
        let partition = partition_of(&record.key, partitions);
        let mut message = BaseRecord::with_opaque_to(topic, call.clone())
            .key(record.key.as_bytes())
            .payload(record.value.as_ref())
            .partition(i32::try_from(partition).unwrap_or(i32::MAX));
        if !record.headers.is_empty() {
            let headers = OwnedHeaders::new_with_capacity(record.headers.len());
            message = message.headers(record.headers.iter().fold(
                headers,
                |headers, (key, value)| {
                    headers.insert(Header {
                        key,
                        value: Some(value.as_ref()),
                    })
                },
            ));
        }
        if let Err((error, _)) = sender.send(message) {
            let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail);
            // The remaining records are not sent, so that nothing overtakes this one.
            for _ in sent..records.len() {
                call.report(Some(code));
            }
            return;
        }
    }
}

fn closed() -> PublishError {
    PublishError::Unavailable("it was closed".into())
}
