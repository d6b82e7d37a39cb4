//! The claims of one consumer: joins the bus's partitions to the store's epochs.
//!
//! Give it to `Bus::subscribe` as the start. On assignment it claims each partition in the store,
//! which fences the previous member, and starts the bus at the stored offset. Each write then takes
//! [`Claims::progress`] of its records.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bus::{Bus, Delivery, Start, StartAt, StartAtError, Topic};
use parking_lot::Mutex;

use crate::{Claim, Progress, ProgressStore};

/// After a fence the bus has this long to report that the partition went to another member. Without
/// a report the other member held it in passing only.
const RENEW_AFTER: Duration = Duration::from_secs(1);

pub struct Claims<S: ?Sized> {
    bus: Arc<dyn Bus>,
    store: Arc<S>,
    group: String,
    /// One entry per partition of the topics consumed; partitions are few.
    held: Mutex<BTreeMap<(Topic, u32), Claim>>,
    /// Fenced, and the bus has not said since that they went. Bounded as `held`.
    fenced: Mutex<BTreeMap<(Topic, u32), Instant>>,
    /// Stored since the bus was told last. Bounded as `held`.
    stored: Mutex<BTreeMap<(Topic, u32), u64>>,
    /// When the bus took the first record of the newest batch. Bounded as `held`.
    read_us: Mutex<BTreeMap<(Topic, u32), i64>>,
}

impl<S: ProgressStore + ?Sized> Claims<S> {
    pub fn new(bus: Arc<dyn Bus>, store: Arc<S>, group: impl Into<String>) -> Arc<Claims<S>> {
        Arc::new(Claims {
            bus,
            store,
            group: group.into(),
            held: Mutex::default(),
            fenced: Mutex::default(),
            stored: Mutex::default(),
            read_us: Mutex::default(),
        })
    }

    /// A batch is in hand, in the order of the bus. Progress over it carries its time.
    pub fn on_read(&self, deliveries: &[Delivery]) {
        let mut read_us = self.read_us.lock();
        for delivery in deliveries.iter().rev() {
            read_us.insert((delivery.topic, delivery.partition), delivery.published_us);
        }
    }

    /// Progress that says these deliveries are done. Leaves out partitions that are not held any
    /// more.
    pub fn progress<'a>(&self, done: impl IntoIterator<Item = &'a Delivery>) -> Vec<Progress> {
        let done = done.into_iter();
        self.progress_to(done.map(|d| (d.topic, d.partition, d.offset + 1)))
    }

    /// The same, by the next offset of each partition; the greatest of several counts, and 0 holds
    /// the claim and moves nothing.
    pub fn progress_to(
        &self,
        reached: impl IntoIterator<Item = (Topic, u32, u64)>,
    ) -> Vec<Progress> {
        let (held, read_us) = (self.held.lock(), self.read_us.lock());
        let mut next: BTreeMap<(Topic, u32), u64> = BTreeMap::new();
        for (topic, partition, reached) in reached {
            let offset = next.entry((topic, partition)).or_default();
            *offset = (*offset).max(reached);
        }
        next.into_iter()
            .filter_map(|(partition, offset)| {
                let progress = held.get(&partition)?.progress(offset);
                Some(Progress {
                    read_us: read_us.get(&partition).copied(),
                    ..progress
                })
            })
            .collect()
    }

    pub fn holds(&self, topic: Topic, partition: u32) -> bool {
        self.held.lock().contains_key(&(topic, partition))
    }

    /// Partitions of the topic that are held.
    pub fn held(&self, topic: Topic) -> BTreeSet<u32> {
        let held = self.held.lock();
        let of_topic = held.keys().filter(|(of, _)| *of == topic);
        of_topic.map(|(_, partition)| *partition).collect()
    }

    /// The store has this progress. It is what counts; the bus's own record of it serves the bus's
    /// figures.
    pub fn stored(&self, progress: &[Progress]) {
        let mut stored = self.stored.lock();
        for progress in progress {
            stored.insert((progress.topic, progress.partition), progress.next_offset);
        }
    }

    /// For `Consumer::commit`, about once a second. A commit takes a round trip to the cluster, and
    /// an alert would wait for the commit of every batch before it.
    pub fn to_commit(&self, topic: Topic) -> Vec<(u32, u64)> {
        let held = self.held.lock();
        let mut stored = self.stored.lock();
        stored.retain(|partition, _| held.contains_key(partition));
        stored
            .extract_if(.., |(of, _), _| *of == topic)
            .map(|((_, partition), next)| (partition, next))
            .collect()
    }

    /// After `Revoked`: what still comes from these partitions is not ours to write.
    pub fn forget(&self, topic: Topic, partitions: impl IntoIterator<Item = u32>) {
        let (mut held, mut fenced) = (self.held.lock(), self.fenced.lock());
        for partition in partitions {
            held.remove(&(topic, partition));
            fenced.remove(&(topic, partition));
            self.read_us.lock().remove(&(topic, partition));
        }
    }

    /// After a write was fenced: the same, and [`Claims::to_renew`] will name them unless the bus
    /// takes them first.
    pub fn fenced(&self, topic: Topic, partitions: impl IntoIterator<Item = u32>) {
        let (mut held, mut fenced) = (self.held.lock(), self.fenced.lock());
        for partition in partitions {
            held.remove(&(topic, partition));
            fenced.insert((topic, partition), Instant::now());
        }
    }

    /// Partitions for `Consumer::renew`, to be asked for every second or so. Members that fence
    /// each other in turn lose time, never records: each goes on at the offset that the other has
    /// stored.
    pub fn to_renew(&self, topic: Topic) -> Vec<u32> {
        let due = self
            .fenced
            .lock()
            .extract_if(.., |(of, _), since| {
                *of == topic && since.elapsed() >= RENEW_AFTER
            })
            .map(|((_, partition), _)| partition)
            .collect::<Vec<_>>();
        if !due.is_empty() {
            metrics::counter!("braid_store_claims_renewed_total", "group" => self.group.clone())
                .increment(due.len() as u64);
            let partitions = bus::listed(&due);
            tracing::info!(%topic, partitions, group = self.group, "claimed again");
        }
        due
    }
}

#[async_trait]
impl<S: ProgressStore + ?Sized> StartAt for Claims<S> {
    /// The store's account alone counts: what the group committed on the bus is ahead of a store
    /// that was restored.
    async fn start(&self, topic: Topic, partition: u32) -> Result<Start, StartAtError> {
        let log = self.bus.log(topic, partition).await;
        let log = log.map_err(|e| StartAtError(e.to_string()))?;
        let claim = self
            .store
            .claim(&self.group, topic, partition, &log)
            .await
            .map_err(|e| StartAtError(e.to_string()))?;
        if let Some(gap) = &claim.gap {
            tracing::error!(
                group = gap.group,
                %topic,
                partition,
                from_us = gap.from_us,
                to_us = gap.to_us,
                log = log.identity,
                "the bus is another one than before: reading begins at its oldest record, and records of this time may be missing"
            );
        }
        let start = claim.next_offset.map_or(Start::Oldest, Start::At);
        self.fenced.lock().remove(&(topic, partition));
        self.held.lock().insert((topic, partition), claim);
        Ok(start)
    }
}
