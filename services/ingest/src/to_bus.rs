//! Publishes admitted entries in two lanes: one for alerts, one for everything else.
//!
//! A lane takes all waiting uploads and publishes them in one call while the next ones gather. So
//! many gateways share a commit of the bus. One call at a time keeps the order of each gateway.
//! Calls of the bulk lane begin [`GATHER`] apart: each costs the bus and its readers about the
//! same, whatever it carries.
//! Alerts have such a queue for each partition. A partition without a leader thus delays only the
//! alerts of its own patients, whose order is kept.
//! When the bus does not answer, the lane tries again until it does or the service ends. Meanwhile
//! its queue fills, uploads wait, and the gateways keep their data in their journals.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bus::{Bus, PUBLISH_RECORDS_MAX, Record, Topic, partition_of};
use contracts::vitals::VitalsRecord;
use futures::FutureExt;
use futures::future::join_all;
use prost::Message;
use service_kit::{Backoff, Context, Shutdown};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

/// Uploads that may wait in a queue. Beyond it their streams wait, and by flow control the
/// gateways. All of them go out in one call, so a smaller number would limit the rate.
const WAITING_MAX: usize = 1024;
/// Bytes of records in the bulk lane, including those that are being published. Beyond it uploads
/// wait as well: waveforms would otherwise exhaust the memory while the bus is away.
const WAITING_BYTES_MAX: usize = 32 << 20;
/// The same for the alerts of one partition. It exceeds the alerts of two uploads.
const WAITING_ALERTS_BYTES_MAX: usize = 8 << 20;
/// From the beginning of one call of the bulk lane to the next; an upload after a pause goes at
/// once. Alerts are never gathered.
const GATHER: Duration = Duration::from_millis(20);
/// A call stops growing at this size.
const PUBLISH_BYTES_MAX: usize = 4 << 20;
/// A patient's record stops growing at this size, far below the limit of the bus.
const RECORD_BYTES_MAX: usize = 128 << 10;
const _: () = assert!(RECORD_BYTES_MAX * 4 < bus::RECORD_BYTES_MAX);

/// The records of one upload for one lane, by key of the bus.
pub(crate) type Records = BTreeMap<String, VitalsRecord>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotPublished {
    /// The service ends; the gateway repeats the upload elsewhere.
    Ending,
    /// The bus will never take it.
    Refused(String),
}

/// The answer of the bus for the records of one upload.
pub(crate) type Published = oneshot::Receiver<Result<(), NotPublished>>;

/// Waits for the answer. A lane that has ended gives none.
pub(crate) async fn answer_of(published: Published) -> Result<(), NotPublished> {
    published.await.unwrap_or(Err(NotPublished::Ending))
}

struct Job {
    records: Vec<Record>,
    bytes: usize,
    /// Its part of the lane's bytes.
    _room: OwnedSemaphorePermit,
    done: oneshot::Sender<Result<(), NotPublished>>,
}

#[derive(Clone)]
struct Queue {
    jobs: mpsc::Sender<Job>,
    /// One permit for each byte.
    room: Arc<Semaphore>,
    bytes_max: usize,
}

#[derive(Clone)]
pub(crate) struct Lanes {
    /// By partition, as far as the topic has its default number of them.
    alerts: Arc<[Queue]>,
    bulk: Queue,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    Alerts,
    Bulk,
}

impl Lane {
    const fn bytes_max(self) -> usize {
        match self {
            Lane::Alerts => WAITING_ALERTS_BYTES_MAX,
            Lane::Bulk => WAITING_BYTES_MAX,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Lane::Alerts => "alerts",
            Lane::Bulk => "bulk",
        }
    }
}

impl Lanes {
    /// The lanes end when every handle is dropped and their jobs are published.
    pub(crate) fn start(bus: &Arc<dyn Bus>, context: &Context) -> Lanes {
        let queue = |lane: Lane| {
            let (jobs, waiting) = mpsc::channel(WAITING_MAX);
            let room = Arc::new(Semaphore::new(lane.bytes_max()));
            let shutdown = context.shutdown().clone();
            let running = run(lane, Arc::clone(bus), waiting, shutdown);
            let bytes_max = lane.bytes_max();
            let queue = Queue {
                jobs,
                room,
                bytes_max,
            };
            (queue, running)
        };
        let health = context.health();
        let partitions = 0..Topic::Vitals.default_partitions();
        let (alerts, running): (Vec<Queue>, Vec<_>) =
            partitions.map(|_| queue(Lane::Alerts)).unzip();
        let running = join_all(running).map(drop);
        let tasks = context.tasks();
        tasks.spawn(health.watch(Lane::Alerts.name(), running));
        let (bulk, running) = queue(Lane::Bulk);
        tasks.spawn(health.watch(Lane::Bulk.name(), running));
        Lanes {
            alerts: alerts.into(),
            bulk,
        }
    }

    /// The partition of the alerts with this key.
    pub(crate) fn partition_of(&self, key: &str) -> u32 {
        partition_of(key, u32::try_from(self.alerts.len()).unwrap_or(u32::MAX))
    }

    /// Whether an upload with alerts of this partition might wait for a place. Half is kept free
    /// for the streams that look at the same time.
    pub(crate) fn is_full(&self, partition: u32) -> bool {
        let queue = self.alerts.get(partition as usize);
        queue.is_some_and(|queue| {
            let free = (queue.jobs.capacity(), queue.room.available_permits());
            free.0 < WAITING_MAX / 2 || free.1 < queue.bytes_max / 2
        })
    }

    /// Waits for a place in the lane. The receiver resolves when the bus holds the records.
    pub(crate) async fn publish(&self, lane: Lane, records: Records) -> Published {
        let records = encode(records);
        if lane == Lane::Bulk {
            return self.bulk.publish(records).await;
        }
        let mut parts: BTreeMap<u32, Vec<Record>> = BTreeMap::new();
        for record in records {
            let part = self.partition_of(&record.key);
            parts.entry(part).or_default().push(record);
        }
        let mut published = Vec::new();
        for (part, records) in parts {
            if let Some(queue) = self.alerts.get(part as usize) {
                published.push(queue.publish(records).await);
            }
        }
        match published.len() {
            1 => published.remove(0),
            _ => all_of(published),
        }
    }
}

impl Queue {
    async fn publish(&self, records: Vec<Record>) -> Published {
        let (done, receiver) = oneshot::channel();
        let bytes: usize = records.iter().map(|record| record.value.len()).sum();
        let wanted = u32::try_from(bytes.min(self.bytes_max)).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room).acquire_many_owned(wanted);
        let Ok(room) = room.await else {
            return receiver;
        };
        let job = Job {
            records,
            bytes,
            _room: room,
            done,
        };
        // A lane that has ended drops the job, and the receiver fails.
        let _ = self.jobs.send(job).await;
        receiver
    }
}

/// Resolves when the bus has answered for all parts; the first failure is the answer.
fn all_of(parts: Vec<Published>) -> Published {
    let (done, receiver) = oneshot::channel();
    tokio::spawn(async move {
        let mut result = Ok(());
        for part in join_all(parts.into_iter().map(answer_of)).await {
            result = result.and(part);
        }
        let _ = done.send(result);
    });
    receiver
}

/// One record for each key; a key with much data gets several, in order.
fn encode(records: Records) -> Vec<Record> {
    let mut encoded = Vec::with_capacity(records.len());
    for (key, record) in records {
        let mut open = Open {
            key,
            record: VitalsRecord::default(),
            bytes: 0,
            encoded: &mut encoded,
        };
        for alert in record.alerts {
            open.room(alert.encoded_len()).alerts.push(alert);
        }
        for sample in record.samples {
            open.room(sample.encoded_len()).samples.push(sample);
        }
        for gap in record.gaps {
            open.room(gap.encoded_len()).gaps.push(gap);
        }
        for apart in record.quarantined {
            open.room(apart.encoded_len()).quarantined.push(apart);
        }
        for ledger in record.ledgers {
            open.room(ledger.encoded_len()).ledgers.push(ledger);
        }
        open.close();
    }
    encoded
}

/// The record of a key while it is filled.
struct Open<'a> {
    key: String,
    record: VitalsRecord,
    bytes: usize,
    encoded: &'a mut Vec<Record>,
}

impl Open<'_> {
    /// Returns a record with room for this many bytes more.
    fn room(&mut self, more: usize) -> &mut VitalsRecord {
        // Including tag and length.
        let more = more + 4;
        if self.bytes > 0 && self.bytes + more > RECORD_BYTES_MAX {
            self.close();
        }
        self.bytes += more;
        &mut self.record
    }

    fn close(&mut self) {
        let record = std::mem::take(&mut self.record);
        self.bytes = 0;
        self.encoded
            .push(Record::new(self.key.clone(), record.encode_to_vec()));
    }
}

async fn run(lane: Lane, bus: Arc<dyn Bus>, mut queue: mpsc::Receiver<Job>, shutdown: Shutdown) {
    // A job that did not fit into the last call.
    let mut left: Option<Job> = None;
    let mut gathered_at = Instant::now();
    loop {
        let first = match left.take() {
            Some(job) => job,
            None => match queue.recv().await {
                Some(job) => {
                    if lane == Lane::Bulk {
                        tokio::select! {
                            () = sleep_until(gathered_at) => {}
                            () = shutdown.requested() => {}
                        }
                    }
                    job
                }
                None => return,
            },
        };
        gathered_at = Instant::now() + GATHER;
        let (mut bytes, mut records) = (first.bytes, first.records.len());
        let mut jobs = vec![first];
        while let Ok(job) = queue.try_recv() {
            if bytes + job.bytes > PUBLISH_BYTES_MAX
                || records + job.records.len() > PUBLISH_RECORDS_MAX
            {
                left = Some(job);
                break;
            }
            bytes += job.bytes;
            records += job.records.len();
            jobs.push(job);
        }
        publish(lane, bus.as_ref(), jobs, &shutdown).await;
    }
}

/// Publishes all jobs in one call. When the bus refuses the call for good, each job is published
/// alone, so that one gateway's record takes no other with it.
async fn publish(lane: Lane, bus: &dyn Bus, jobs: Vec<Job>, shutdown: &Shutdown) {
    let records = jobs.iter().flat_map(|job| job.records.iter().cloned());
    let started = std::time::Instant::now();
    let together = persist(bus, records.collect(), shutdown).await;
    metrics::histogram!("braid_ingest_publish_seconds", "lane" => lane.name())
        .record(started.elapsed());
    let each_alone = jobs.len() > 1 && matches!(together, Err(NotPublished::Refused(_)));
    for job in jobs {
        let result = if each_alone {
            persist(bus, job.records, shutdown).await
        } else {
            together.clone()
        };
        // A stream that has ended no longer waits.
        let _ = job.done.send(result);
    }
}

/// Tries until the bus holds the records, will never take them, or the service ends.
async fn persist(
    bus: &dyn Bus,
    records: Vec<Record>,
    shutdown: &Shutdown,
) -> Result<(), NotPublished> {
    let mut backoff = Backoff::for_reconnect();
    loop {
        // Records are cheap to copy, because their values are shared.
        match bus.publish(Topic::Vitals, records.clone()).await {
            Ok(()) => return Ok(()),
            Err(error) if error.is_retryable() => {
                metrics::counter!("braid_ingest_publish_retries_total").increment(1);
                tracing::warn!(%error, "the bus does not take records; gateways wait");
            }
            Err(error) => return Err(NotPublished::Refused(error.to_string())),
        }
        tokio::select! {
            () = shutdown.requested() => return Err(NotPublished::Ending),
            () = backoff.wait() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use bus::{EmbeddedBus, EmbeddedOptions, Interposed};
    use contracts::vitals::{Gap, Sample, Waveform, sample::Reading};

    use super::*;

    #[tokio::test]
    async fn what_the_bus_refuses_of_one_upload_takes_no_other_with_it() {
        let directory = tempfile::tempdir().unwrap();
        let bus = EmbeddedBus::open(directory.path(), EmbeddedOptions::default()).unwrap();
        let (mut jobs, mut answers) = (Vec::new(), Vec::new());
        for bytes in [10, bus::RECORD_BYTES_MAX + 1, 20] {
            let (done, answer) = oneshot::channel();
            let records = vec![Record::new("ann", vec![7; bytes])];
            let room = Arc::new(Semaphore::new(1)).try_acquire_owned();
            jobs.push(Job {
                records,
                bytes,
                _room: room.unwrap(),
                done,
            });
            answers.push(answer);
        }
        publish(Lane::Bulk, &bus, jobs, &Shutdown::default()).await;
        let mut held = Vec::new();
        for answer in answers {
            held.push(answer.await.unwrap().is_ok());
        }
        assert_eq!(held, [true, false, true]);
        let mut records = bus.read_back(Topic::Vitals).await.unwrap();
        let mut sizes = Vec::new();
        while records.lag().await.unwrap() > 0 {
            if let Ok(bus::Event::Batch(batch)) = records.next(10).await {
                sizes.extend(batch.iter().map(|delivery| delivery.value.len()));
            }
        }
        assert_eq!(sizes, [10, 20]);
    }

    /// Takes everything, and notes when.
    struct Noting(EmbeddedBus, parking_lot::Mutex<Vec<Instant>>);

    #[async_trait::async_trait]
    impl Interposed for Noting {
        fn inner(&self) -> &dyn Bus {
            &self.0
        }

        async fn publish(&self, _: Topic, _: Vec<Record>) -> Result<(), bus::PublishError> {
            self.1.lock().push(Instant::now());
            Ok(())
        }
    }

    #[tokio::test]
    async fn bulk_uploads_share_calls_after_a_pause_and_alerts_wait_for_none() {
        const UPLOADS: usize = 100;
        let directory = tempfile::tempdir().unwrap();
        for lane in [Lane::Bulk, Lane::Alerts] {
            let path = directory.path().join(lane.name());
            let bus = EmbeddedBus::open(&path, EmbeddedOptions::default()).unwrap();
            let bus = Arc::new(Noting(bus, parking_lot::Mutex::default()));
            let (jobs, waiting) = mpsc::channel(WAITING_MAX);
            let room = Arc::new(Semaphore::new(WAITING_BYTES_MAX));
            let bytes_max = WAITING_BYTES_MAX;
            let queue = Queue {
                jobs,
                room,
                bytes_max,
            };
            let noting: Arc<dyn Bus> = bus.clone();
            let running = tokio::spawn(run(lane, noting, waiting, Shutdown::default()));
            let upload = || queue.publish(vec![Record::new("ann", vec![7; 10])]);
            let mut soonest = Duration::MAX;
            for _ in 0..5 {
                tokio::time::sleep(GATHER * 2).await;
                let asked = Instant::now();
                assert_eq!(answer_of(upload().await).await, Ok(()));
                soonest = soonest.min(asked.elapsed());
            }
            assert!(soonest < GATHER / 2, "{lane:?}: {soonest:?} after a pause");
            bus.1.lock().clear();
            let mut answers = Vec::new();
            for _ in 0..UPLOADS {
                answers.push(upload().await);
                tokio::time::sleep(GATHER / 20).await;
            }
            for answer in answers {
                assert_eq!(answer_of(answer).await, Ok(()));
            }
            let calls = bus.1.lock().clone();
            let lasted = calls[calls.len() - 1] - calls[0];
            // The first and the last one are at the ends, and a busy machine notes one late.
            let most = lasted.div_duration_f64(GATHER) + 2.0;
            let apart = calls.len() as f64 <= most;
            assert_eq!(apart, lane == Lane::Bulk, "{lane:?}: {calls:?}");
            drop(queue);
            running.await.unwrap();
        }
    }

    #[tokio::test]
    async fn what_waits_for_a_bus_that_is_away_is_bounded_in_bytes() {
        let (jobs, mut waiting) = mpsc::channel(WAITING_MAX);
        let room = Arc::new(Semaphore::new(WAITING_BYTES_MAX));
        let bytes_max = WAITING_BYTES_MAX;
        let bulk = Queue {
            jobs,
            room,
            bytes_max,
        };
        let lanes = Lanes {
            alerts: [bulk.clone()].into(),
            bulk,
        };
        let waveform = Waveform {
            period_us: 4000,
            values: vec![0.5; 10_000],
        };
        let sample = Sample {
            reading: Some(Reading::Waveform(waveform)),
            ..Sample::default()
        };
        let record = VitalsRecord {
            samples: vec![sample; 25],
            ..VitalsRecord::default()
        };
        let enters = async || {
            let upload = Records::from([("ann".to_owned(), record.clone())]);
            let entering = lanes.publish(Lane::Bulk, upload);
            let entered = tokio::time::timeout(Duration::from_millis(200), entering).await;
            entered.is_ok()
        };
        let mut uploads = 0;
        while enters().await {
            uploads += 1;
        }
        // Each has 1 MB.
        assert!(
            (30..=WAITING_BYTES_MAX / 1_000_000).contains(&uploads),
            "{uploads}"
        );
        drop(waiting.recv().await);
        assert!(enters().await, "room for one more");
        assert!(!enters().await);
    }

    #[test]
    fn a_large_upload_becomes_several_records_in_order_and_loses_nothing() {
        let waveform = Waveform {
            period_us: 4000,
            values: vec![0.5; 2000],
        };
        let record = VitalsRecord {
            samples: (1..=200)
                .map(|sequence| Sample {
                    sequence,
                    reading: Some(Reading::Waveform(waveform.clone())),
                    ..Sample::default()
                })
                .collect(),
            gaps: (1..=20_000)
                .map(|last_sequence| Gap {
                    device: "d".repeat(36),
                    stream: "s".repeat(36),
                    last_sequence,
                    ..Gap::default()
                })
                .collect(),
            alerts: Vec::new(),
            ..VitalsRecord::default()
        };
        let records = encode(Records::from([("ann".to_owned(), record)]));
        assert!(records.len() > 10);
        let mut sequences = Vec::new();
        let mut gaps = 0;
        for record in &records {
            assert_eq!(record.key, "ann");
            assert!(record.value.len() <= RECORD_BYTES_MAX);
            let record = VitalsRecord::decode(record.value.clone()).unwrap();
            gaps += record.gaps.len();
            sequences.extend(record.samples.iter().map(|sample| sample.sequence));
        }
        assert_eq!(sequences, (1..=200).collect::<Vec<_>>());
        assert_eq!(gaps, 20_000);
    }
}
