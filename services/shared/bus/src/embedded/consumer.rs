//! One member of a group, or a tail.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::sync::{oneshot, watch};

use super::{
    assignment::Assignment,
    damage,
    groups::Command,
    schema::{self, delivery},
    threads::Inner,
};
use crate::{
    CommitError, ConsumeError, Consumer, Delivery, Event, Start, Topic, beginning::Beginning,
};

/// Bytes of values in one batch; at least one record is delivered whatever its size.
const BATCH_BYTES_MAX: usize = 4 << 20;

pub struct Membership {
    pub id: u64,
    pub group: String,
    pub assignment: Arc<Assignment>,
    pub beginning: Beginning,
}

pub struct EmbeddedConsumer {
    inner: Arc<Inner>,
    topic: Topic,
    reader: Arc<Mutex<Connection>>,
    /// The next offset of each partition of this member. Bounded by the topic's partitions.
    positions: BTreeMap<u32, u64>,
    /// Partitions without a known beginning: records before their first record were never promised
    /// to this group.
    from_oldest: BTreeSet<u32>,
    /// The first partition to read moves on with every batch, so that a busy partition cannot
    /// starve the others.
    turn: u32,
    grown: watch::Receiver<()>,
    /// `None`: a tail.
    membership: Option<Membership>,
}

impl EmbeddedConsumer {
    pub fn new(
        inner: Arc<Inner>,
        topic: Topic,
        reader: Connection,
        positions: BTreeMap<u32, u64>,
        membership: Option<Membership>,
    ) -> EmbeddedConsumer {
        EmbeddedConsumer {
            grown: inner.heads.subscribe(topic),
            inner,
            topic,
            reader: Arc::new(Mutex::new(reader)),
            positions,
            from_oldest: BTreeSet::new(),
            turn: 0,
            membership,
        }
    }

    fn revoked(&mut self) -> Option<Event> {
        let membership = self.membership.as_ref()?;
        let (partitions, released) = membership.assignment.take_revoked();
        if released {
            self.inner.groups(Command::Released);
        }
        if partitions.is_empty() {
            return None;
        }
        for partition in &partitions {
            self.positions.remove(partition);
        }
        Some(Event::Revoked(partitions))
    }

    async fn assigned(&mut self) -> Result<Option<Event>, ConsumeError> {
        let Some(membership) = self.membership.as_mut() else {
            return Ok(None);
        };
        let gained = membership.assignment.begin();
        let answers = membership.beginning.of(&gained).await?;
        let mut starts = Vec::with_capacity(gained.len());
        for (partition, answer) in answers {
            let start = match answer {
                Start::Committed => {
                    committed(&self.inner, &membership.group, self.topic, partition).await?
                }
                Start::Oldest => None,
                Start::At(offset) => Some(offset),
            };
            starts.push((partition, start));
        }
        // No await from here on: a cancelled call has changed nothing, and the next one asks again.
        let mut owned = Vec::with_capacity(starts.len());
        for (partition, start) in starts {
            if membership.assignment.own(partition) {
                self.positions.insert(partition, start.unwrap_or(0));
                if start.is_none() {
                    self.from_oldest.insert(partition);
                } else {
                    self.from_oldest.remove(&partition);
                }
                owned.push(partition);
            }
        }
        Ok((!owned.is_empty()).then_some(Event::Assigned(owned)))
    }

    /// Reads the records that are there, without waiting. Positions move only once the records are
    /// in hand.
    async fn batch(&mut self, max_records: usize) -> Result<Option<Event>, ConsumeError> {
        let mut wanted: Vec<(u32, u64)> = self
            .positions
            .iter()
            .filter(|(partition, position)| {
                self.inner.heads.get(self.topic, **partition) > **position
            })
            .map(|(partition, position)| (*partition, *position))
            .collect();
        if wanted.is_empty() {
            return Ok(None);
        }
        let first = usize::try_from(self.turn).unwrap_or(0) % wanted.len();
        wanted.rotate_left(first);
        let heads: Vec<u64> = wanted
            .iter()
            .map(|(partition, _)| self.inner.heads.get(self.topic, *partition))
            .collect();
        let reader = self.reader.clone();
        let topic = self.topic;
        // It moves after a failure as well: a partition that cannot be read must not stay first.
        self.turn = self.turn.wrapping_add(1);
        let read = tokio::task::spawn_blocking(move || {
            let read = read(&reader.lock(), topic, &mut wanted, max_records);
            read.map(|(deliveries, exhausted)| (deliveries, exhausted, wanted))
        });
        let (deliveries, exhausted, wanted) = read
            .await
            .map_err(|e| ConsumeError::Unavailable(e.to_string()))?
            .map_err(|e| ConsumeError::Unavailable(e.to_string()))?;
        self.notice_loss(&wanted, &heads[..exhausted], &deliveries);
        // These partitions have been read up to the head, also where retention removed the last
        // records.
        for ((partition, _), head) in wanted.iter().zip(&heads).take(exhausted) {
            self.positions.insert(*partition, *head);
            self.from_oldest.remove(partition);
        }
        for delivery in &deliveries {
            let position = self.positions.entry(delivery.partition).or_default();
            *position = (*position).max(delivery.offset + 1);
        }
        Ok((!deliveries.is_empty()).then_some(Event::Batch(deliveries)))
    }

    /// Offsets are continuous here, so a hole is what retention removed before this group had read
    /// it.
    fn notice_loss(&mut self, wanted: &[(u32, u64)], exhausted: &[u64], deliveries: &[Delivery]) {
        let Some(membership) = &self.membership else {
            return;
        };
        for (n, (partition, position)) in wanted.iter().enumerate() {
            let first = deliveries.iter().find(|d| d.partition == *partition);
            let Some(first) = first.map(|d| d.offset).or(exhausted.get(n).copied()) else {
                continue;
            };
            let known_start = !self.from_oldest.remove(partition);
            if known_start && first > *position {
                let (topic, records) = (self.topic, first - position);
                let group = membership.group.as_str();
                tracing::error!(%topic, partition, group, records, "records expired before they were read");
                metrics::counter!("braid_bus_unread_expired_records_total", "topic" => topic.name())
                    .increment(records);
            }
        }
    }
}

#[async_trait]
impl Consumer for EmbeddedConsumer {
    async fn next(&mut self, max_records: usize) -> Result<Event, ConsumeError> {
        let assignment = self.membership.as_ref().map(|m| m.assignment.clone());
        let _waiting = assignment.as_ref().map(|assignment| assignment.wait());
        loop {
            self.grown.mark_unchanged();
            if let Some(event) = self.revoked() {
                return Ok(event);
            }
            if let Some(event) = self.assigned().await? {
                return Ok(event);
            }
            if let Some(event) = self.batch(max_records.max(1)).await? {
                return Ok(event);
            }
            match &assignment {
                Some(assignment) => tokio::select! {
                    _ = self.grown.changed() => {}
                    () = assignment.changed.notified() => {}
                },
                None => {
                    let _ = self.grown.changed().await;
                }
            }
        }
    }

    async fn commit(&mut self, offsets: &[(u32, u64)]) -> Result<(), CommitError> {
        let Some(membership) = &self.membership else {
            return Ok(());
        };
        if offsets.is_empty() {
            return Ok(());
        }
        let (reply, answer) = oneshot::channel();
        self.inner.groups(Command::Commit {
            id: membership.id,
            offsets: offsets.to_vec(),
            reply,
        });
        answer
            .await
            .unwrap_or_else(|_| Err(CommitError::Unavailable("it was closed".into())))
    }

    fn renew(&mut self, partitions: &[u32]) {
        if let Some(membership) = &self.membership {
            membership.assignment.renew(partitions);
        }
    }

    async fn lag(&mut self) -> Result<u64, ConsumeError> {
        Ok(self
            .positions
            .iter()
            .map(|(partition, position)| {
                self.inner
                    .heads
                    .get(self.topic, *partition)
                    .saturating_sub(*position)
            })
            .sum())
    }
}

impl Drop for EmbeddedConsumer {
    fn drop(&mut self) {
        if let Some(membership) = &self.membership {
            self.inner.groups(Command::Leave { id: membership.id });
        }
    }
}

async fn committed(
    inner: &Inner,
    group: &str,
    topic: Topic,
    partition: u32,
) -> Result<Option<u64>, ConsumeError> {
    let (reply, answer) = oneshot::channel();
    inner.groups(Command::Committed {
        group: group.to_owned(),
        topic,
        partition,
        reply,
    });
    answer
        .await
        .unwrap_or_else(|_| Err("it was closed".into()))
        .map_err(ConsumeError::Unavailable)
}

/// Records of the wanted partitions in turn, until a bound is reached, and the number of partitions
/// that were read to their end. A position passes damaged records.
fn read(
    connection: &Connection,
    topic: Topic,
    wanted: &mut [(u32, u64)],
    max_records: usize,
) -> rusqlite::Result<(Vec<Delivery>, usize)> {
    let mut deliveries = Vec::new();
    let mut exhausted = 0;
    while let Some((partition, position)) = wanted.get_mut(exhausted) {
        match read_partition(
            connection,
            (topic, *partition),
            *position,
            max_records,
            &mut deliveries,
        ) {
            Ok(true) => exhausted += 1,
            Ok(false) => break,
            // Records that were read are delivered first; the next call begins at the failure.
            Err(_) if !deliveries.is_empty() => break,
            Err(e) if damage::is_damage(&e) => {
                *position = damage::end(connection, topic, *partition, *position).ok_or(e)?;
            }
            Err(e) => return Err(e),
        }
    }
    Ok((deliveries, exhausted))
}

/// Returns false when a bound was reached.
fn read_partition(
    connection: &Connection,
    (topic, partition): (Topic, u32),
    position: u64,
    max_records: usize,
    deliveries: &mut Vec<Delivery>,
) -> rusqlite::Result<bool> {
    let table = schema::table(topic, partition);
    let mut statement = connection.prepare_cached(&format!(
        "SELECT offset, published_us, key, headers, value FROM {table} WHERE offset >= ?1 ORDER BY offset"
    ))?;
    let mut rows = statement.query([position])?;
    let mut bytes: usize = deliveries.iter().map(|d| d.value.len()).sum();
    while let Some(row) = rows.next()? {
        let delivery = delivery(row, topic, partition)?;
        bytes += delivery.value.len();
        deliveries.push(delivery);
        if deliveries.len() >= max_records || bytes >= BATCH_BYTES_MAX {
            return Ok(false);
        }
    }
    Ok(true)
}
