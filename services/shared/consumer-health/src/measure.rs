//! Queries the engines for the position of a consumer and for the end.

use std::{collections::BTreeMap, fmt::Display, sync::Arc, time::Duration};

use async_trait::async_trait;
use bus::{Bus, Extent, Topic};
use parking_lot::Mutex;
use store::{QueryError, Store};
use tokio::time::{Instant, timeout_at};

use crate::{
    duty::{Duty, Kept},
    standing::PartitionOffsets,
};

/// Entries of the outbox that are counted. Beyond it this number is reported.
const OUTBOX_COUNTED_MAX: usize = 256;
/// Notices that are counted. Beyond it this number is reported.
const NOTICES_COUNTED_MAX: usize = 10_000;
/// A notice is normally taken within a second, and counts as waiting when due for this time. With
/// the patience of [`crate::Pace`] a standstill is reported in time.
const UNTRIED_AFTER_US: i64 = 5_000_000;

/// The store's part of a measurement. Every [`Store`] implements it; tests have their own.
#[async_trait]
pub trait Asked: Send + Sync {
    /// `(partition, next_offset)` of each partition whose progress the group stored.
    async fn stored(&self, group: &str, topic: Topic) -> Result<Vec<(u32, u64)>, QueryError>;

    /// Ids of the oldest alerts that wait to be published, in order.
    async fn waiting(&self, limit: usize) -> Result<Vec<u64>, QueryError>;

    /// Notices that were due before `due_us` and that no member has taken since; at most `limit`
    /// are counted. `now_us` is the present.
    async fn untried(&self, due_us: i64, now_us: i64, limit: usize) -> Result<u64, QueryError>;
}

#[async_trait]
impl<T: Store + ?Sized> Asked for T {
    async fn stored(&self, group: &str, topic: Topic) -> Result<Vec<(u32, u64)>, QueryError> {
        self.progress(group, topic).await
    }

    async fn waiting(&self, limit: usize) -> Result<Vec<u64>, QueryError> {
        let entries = self.outbox(limit).await?;
        Ok(entries.into_iter().map(|entry| entry.id).collect())
    }

    async fn untried(&self, due_us: i64, now_us: i64, limit: usize) -> Result<u64, QueryError> {
        self.untried_notices(due_us, now_us, limit).await
    }
}

/// Position of a reader without a group. The reader writes it, and the watcher compares it with the
/// end.
#[derive(Debug, Default)]
pub struct Seen {
    /// Next offset by partition, bounded by the partitions of a topic. Empty: reading has not
    /// begun.
    next: Mutex<BTreeMap<u32, u64>>,
}

impl Seen {
    /// Reading begins at these ends, or later.
    pub fn begin(&self, ends: &BTreeMap<u32, Extent>) {
        let ends = ends.iter().map(|(partition, it)| (*partition, it.next));
        *self.next.lock() = ends.collect();
    }

    pub fn passed(&self, partition: u32, next: u64) {
        self.next.lock().insert(partition, next);
    }
}

#[derive(Debug, Clone)]
pub enum Source {
    Duty(Duty),
    Reader { topic: Topic, seen: Arc<Seen> },
}

impl Source {
    /// `vitals`, for people.
    pub fn of(&self) -> &'static str {
        match self {
            Source::Duty(duty) if duty.kept == Kept::Outbox => "the outbox",
            Source::Duty(duty) if duty.kept == Kept::Notices => "the queue of notices",
            Source::Duty(duty) => duty.topic.name(),
            Source::Reader { topic, .. } => topic.name(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    #[error("the bus does not answer: {0}")]
    Bus(String),
    #[error("the store does not answer: {0}")]
    Store(String),
    #[error("reading has not begun")]
    NotBegun,
}

/// A measurement without the end: an engine did not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missed {
    pub reason: Unanswered,
    /// Next offset by partition, if the position was read. A position that moves is progress, also
    /// while the end is unknown.
    pub done: BTreeMap<u32, u64>,
}

impl From<Unanswered> for Missed {
    fn from(reason: Unanswered) -> Missed {
        let done = BTreeMap::new();
        Missed { reason, done }
    }
}

/// One measurement, within this time. The position is read before the end, so that records in
/// between do not count as progress.
pub async fn measure<S: Asked + ?Sized>(
    bus: &dyn Bus,
    store: &S,
    source: &Source,
    now_us: i64,
    within: Duration,
) -> Result<BTreeMap<u32, PartitionOffsets>, Missed> {
    let limit = Limit {
        ends: Instant::now() + within,
        within,
    };
    let (topic, done) = match source {
        Source::Duty(duty) => match duty.kept {
            Kept::InStore => {
                let stored = store.stored(duty.group, duty.topic);
                let stored = limit.of(Unanswered::Store, stored).await?;
                (duty.topic, stored.into_iter().collect())
            }
            Kept::OnBus => {
                let committed = bus.committed(duty.topic, duty.group);
                (duty.topic, limit.of(Unanswered::Bus, committed).await?)
            }
            Kept::Outbox => {
                let waiting = store.waiting(OUTBOX_COUNTED_MAX);
                let waiting = limit.of(Unanswered::Store, waiting).await?;
                return Ok(BTreeMap::from([(0, outbox(&waiting))]));
            }
            Kept::Notices => {
                let due_us = now_us.saturating_sub(UNTRIED_AFTER_US);
                let untried = store.untried(due_us, now_us, NOTICES_COUNTED_MAX);
                let offsets = PartitionOffsets {
                    oldest: 0,
                    next: limit.of(Unanswered::Store, untried).await?,
                    // Never moves: attempts at other notices do not help the overdue ones.
                    done: Some(0),
                };
                return Ok(BTreeMap::from([(0, offsets)]));
            }
        },
        Source::Reader { topic, seen } => {
            let next = seen.next.lock().clone();
            if next.is_empty() {
                return Err(Unanswered::NotBegun.into());
            }
            (*topic, next)
        }
    };
    let extents = match limit.of(Unanswered::Bus, bus.extents(topic)).await {
        Ok(extents) => extents,
        Err(reason) => return Err(Missed { reason, done }),
    };
    let partitions = extents.into_iter().map(|(partition, extent)| {
        let Extent { oldest, next } = extent;
        let done = done.get(&partition).copied();
        (partition, PartitionOffsets { oldest, next, done })
    });
    Ok(partitions.collect())
}

/// The limit of all questions of one measurement.
struct Limit {
    ends: Instant,
    within: Duration,
}

impl Limit {
    /// An engine that exceeds the limit is named, like one that answers with an error.
    async fn of<T, E: Display>(
        &self,
        engine: fn(String) -> Unanswered,
        asked: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Unanswered> {
        match timeout_at(self.ends, asked).await {
            Ok(answer) => answer.map_err(|error| engine(error.to_string())),
            Err(_) => Err(engine(format!("no answer within {:?}", self.within))),
        }
    }
}

/// The outbox as one partition. It moves when its oldest entry changes.
fn outbox(waiting: &[u64]) -> PartitionOffsets {
    let oldest = waiting.first().copied().unwrap_or_default();
    PartitionOffsets {
        oldest: 0,
        next: oldest + waiting.len() as u64,
        done: Some(oldest),
    }
}
