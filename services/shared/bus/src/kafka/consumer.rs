//! One member of a group, or a reader without a group.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use rdkafka::{
    Message, Offset, TopicPartitionList,
    consumer::{CommitMode, Consumer as _, StreamConsumer},
    error::KafkaError,
    message::{BorrowedMessage, Headers},
    types::RDKafkaErrorCode,
};
use tokio::sync::oneshot;

use super::{
    assignment::{Assignment, Member, list},
    ended::Ended,
    offsets::{complete, known_offsets},
    trouble::Trouble,
};
use crate::{
    CommitError, ConsumeError, Consumer, Delivery, Event, Start, Topic, beginning::Beginning,
};

/// Bytes of values in one batch; at least one record is delivered whatever its size.
const BATCH_BYTES_MAX: usize = 4 << 20;
/// Limit of a question to the cluster about offsets, or of a commit.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// After so long, partitions that were just made, or lost their broker, have leaders.
const LEADERS_WITHIN: Duration = Duration::from_secs(15);
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// The same for the lag, which services ask for between two batches.
const LAG_WITHIN: Duration = Duration::from_secs(1);

/// A member that lost partitions keeps polling for this long before it reports the loss. Its part
/// in the rebalance is then over, and others need not wait until it has stored its records. It
/// takes milliseconds while the cluster is well.
const HAND_OVER_WITHIN: Duration = Duration::from_millis(500);
/// Records that may come meanwhile; further records wait in the library.
const EARLY_RECORDS_MAX: usize = 1000;

type Client = StreamConsumer<Member>;

pub struct Group {
    pub name: String,
    pub beginning: Beginning,
}

pub struct KafkaConsumer {
    /// `None` only while it is being dropped.
    client: Option<Arc<Client>>,
    topic: Topic,
    name: String,
    assignment: Arc<Assignment>,
    /// `None`: a reader without a group.
    group: Option<Group>,
    /// The next offset of each partition of this member. Bounded by the topic's partitions.
    positions: BTreeMap<u32, u64>,
    /// Taken from the library, not yet delivered; at most [`EARLY_RECORDS_MAX`].
    early: VecDeque<Delivery>,
    /// A commit that was cut short may still be running; the next commit fails until it ends.
    committing: Arc<AtomicBool>,
    ended: Ended,
    trouble: Arc<Trouble>,
}

impl KafkaConsumer {
    pub fn new(
        client: Client,
        topic: Topic,
        name: String,
        assignment: Arc<Assignment>,
        group: Option<Group>,
        ended: Ended,
        trouble: Arc<Trouble>,
    ) -> KafkaConsumer {
        KafkaConsumer {
            client: Some(Arc::new(client)),
            topic,
            name,
            assignment,
            group,
            positions: BTreeMap::new(),
            early: VecDeque::new(),
            committing: Arc::default(),
            ended,
            trouble,
        }
    }

    /// Reads all partitions from their present end or from their oldest record, without a group.
    pub async fn read_all(&mut self, partitions: u32, from: Offset) -> Result<(), ConsumeError> {
        let all: Vec<u32> = (0..partitions).collect();
        let given_up = tokio::time::Instant::now() + LEADERS_WITHIN;
        let starts = loop {
            let known = self.offsets(&all, from, ANSWER_WITHIN).await;
            match known.and_then(|known| complete(&known, &all).map(|()| known)) {
                Ok(known) => break known,
                // Leaders are being elected, or the library has not heard of them.
                Err(_) if tokio::time::Instant::now() < given_up => {
                    tokio::time::sleep(ASK_AGAIN_AFTER).await;
                }
                Err(error) => return Err(error),
            }
        };
        let client = self.client()?;
        client
            .assign(&self.at(&starts))
            .map_err(|e| ConsumeError::Unavailable(e.to_string()))?;
        self.assignment.hold(&all);
        self.positions = starts;
        Ok(())
    }

    fn client(&self) -> Result<&Arc<Client>, ConsumeError> {
        match &self.client {
            Some(client) if !self.ended.is_ended() => Ok(client),
            _ => Err(ConsumeError::Unavailable("it was closed".into())),
        }
    }

    fn at(&self, starts: &BTreeMap<u32, u64>) -> TopicPartitionList {
        let mut list = TopicPartitionList::with_capacity(starts.len());
        for (partition, offset) in starts {
            let partition = i32::try_from(*partition).unwrap_or(i32::MAX);
            let offset = Offset::Offset(i64::try_from(*offset).unwrap_or(i64::MAX));
            // Fails only for offsets that the library has no number for.
            let _ = list.add_partition_offset(&self.name, partition, offset);
        }
        list
    }

    /// The ends or the oldest offsets, asked in one request per broker.
    async fn offsets(
        &self,
        partitions: &[u32],
        which: Offset,
        within: Duration,
    ) -> Result<BTreeMap<u32, u64>, ConsumeError> {
        let client = self.client()?.clone();
        let mut question = list(&self.name, partitions);
        // Instead of a time, the protocol takes -1 for the end and -2 for the oldest.
        question
            .set_all_offsets(which)
            .map_err(|e| ConsumeError::Unavailable(e.to_string()))?;
        let name = self.name.clone();
        let answer = tokio::task::spawn_blocking(move || {
            let ask = || {
                let answer = client.offsets_for_times(question.clone(), within);
                answer.and_then(|answer| known_offsets(&answer))
            };
            // The library keeps its knowledge of leaders for up to a minute unless a request
            // corrects it.
            ask().or_else(|_| {
                let _ = client.fetch_metadata(Some(&name), within);
                ask()
            })
        });
        self.answered(answer.await)
    }

    async fn committed(&self, partitions: &[u32]) -> Result<BTreeMap<u32, u64>, ConsumeError> {
        let client = self.client()?.clone();
        let question = list(&self.name, partitions);
        let answer = tokio::task::spawn_blocking(move || {
            client
                .committed_offsets(question, ANSWER_WITHIN)
                .and_then(|answer| known_offsets(&answer))
        });
        self.answered(answer.await)
    }

    fn answered<T>(
        &self,
        answer: Result<Result<T, KafkaError>, tokio::task::JoinError>,
    ) -> Result<T, ConsumeError> {
        match answer {
            Ok(Ok(answer)) => {
                self.trouble.over();
                Ok(answer)
            }
            Ok(Err(e)) => Err(ConsumeError::Unavailable(
                self.trouble.explain(&e.to_string()),
            )),
            Err(e) => Err(ConsumeError::Unavailable(e.to_string())),
        }
    }

    async fn revoked(&mut self) -> Result<Option<Event>, ConsumeError> {
        if !self.assignment.has_revoked() {
            return Ok(None);
        }
        let given_up = tokio::time::sleep(HAND_OVER_WITHIN);
        tokio::pin!(given_up);
        while self.assignment.is_handing_over() && self.early.len() < EARLY_RECORDS_MAX {
            let client = self.client()?.clone();
            tokio::select! {
                message = client.recv() => {
                    // A complaint was noted by the client's context.
                    self.early.extend(message.ok().map(|m| delivery(self.topic, &m)));
                }
                () = self.assignment.changed.notified() => {}
                () = &mut given_up => break,
            }
        }
        let partitions = self.assignment.take_revoked();
        self.positions.retain(|p, _| !partitions.contains(p));
        self.early.retain(|d| !partitions.contains(&d.partition));
        Ok(Some(Event::Revoked(partitions.into_iter().collect())))
    }

    async fn assigned(&mut self) -> Result<Option<Event>, ConsumeError> {
        let gained: Vec<u32> = self.assignment.gained().into_iter().collect();
        let Some(group) = self.group.as_mut() else {
            return Ok(None);
        };
        let answers = group.beginning.of(&gained).await?;
        if gained.is_empty() {
            return Ok(None);
        }
        let mut starts = BTreeMap::new();
        let mut asked = Vec::new();
        for (partition, answer) in answers {
            match answer {
                Start::At(offset) => drop(starts.insert(partition, offset)),
                Start::Committed => asked.push(partition),
                Start::Oldest => {}
            }
        }
        if !asked.is_empty() {
            starts.extend(self.committed(&asked).await?);
        }
        let new: Vec<u32> = gained
            .iter()
            .filter(|p| !starts.contains_key(p))
            .copied()
            .collect();
        if !new.is_empty() {
            starts.extend(self.offsets(&new, Offset::Beginning, ANSWER_WITHIN).await?);
        }
        complete(&starts, &gained)?;
        // No await from here on: a cancelled call has changed nothing, and the next one asks again.
        let list = self.at(&starts);
        self.client()?
            .incremental_assign(&list)
            .map_err(|e| ConsumeError::Unavailable(e.to_string()))?;
        self.assignment.hold(&gained);
        self.positions.extend(starts);
        Ok(Some(Event::Assigned(gained)))
    }

    /// Records that the library has already. Never waits, so a cancelled call has taken nothing.
    fn batch(&mut self, max_records: usize) -> Vec<Delivery> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < max_records && bytes < BATCH_BYTES_MAX {
            let next = self.early.pop_front().or_else(|| self.at_hand());
            let Some(delivery) = next else { break };
            bytes += delivery.value.len();
            batch.push(delivery);
        }
        // A partition may be lost while the batch was gathered; another member gets these records.
        batch.retain(|delivery| self.assignment.holds(delivery.partition));
        batch
    }

    fn at_hand(&self) -> Option<Delivery> {
        // A complaint, noted by the client's context, ends the batch too.
        let message = self.client.as_ref()?.recv().now_or_never()?.ok()?;
        Some(delivery(self.topic, &message))
    }

    /// Moves the positions, and logs when records were removed before this group read them: offsets
    /// are continuous otherwise.
    fn pass(&mut self, batch: &[Delivery]) {
        for delivery in batch {
            let Some(position) = self.positions.get_mut(&delivery.partition) else {
                continue;
            };
            if delivery.offset > *position && self.group.is_some() {
                let (topic, partition) = (self.topic, delivery.partition);
                let records = delivery.offset - *position;
                tracing::error!(%topic, partition, records, "records expired before they were read");
                metrics::counter!("braid_bus_unread_expired_records_total", "topic" => topic.name())
                    .increment(records);
            }
            *position = delivery.offset + 1;
        }
    }
}

#[async_trait]
impl Consumer for KafkaConsumer {
    async fn next(&mut self, max_records: usize) -> Result<Event, ConsumeError> {
        loop {
            if let Some(event) = self.revoked().await? {
                return Ok(event);
            }
            if let Some(event) = self.assigned().await? {
                return Ok(event);
            }
            if self.early.is_empty() {
                let client = self.client()?.clone();
                tokio::select! {
                    message = client.recv() => match message {
                        Ok(message) => self.early.push_back(delivery(self.topic, &message)),
                        Err(error) => {
                            if let Some(reason) = lasting(&error) {
                                return Err(ConsumeError::Unavailable(self.trouble.explain(&reason)));
                            }
                            continue;
                        }
                    },
                    () = self.assignment.changed.notified() => continue,
                    () = self.ended.ended() => continue,
                }
            }
            self.trouble.over();
            let batch = self.batch(max_records.max(1));
            if !batch.is_empty() {
                self.pass(&batch);
                return Ok(Event::Batch(batch));
            }
        }
    }

    async fn commit(&mut self, asked: &[(u32, u64)]) -> Result<(), CommitError> {
        if self.group.is_none() || asked.is_empty() {
            return Ok(());
        }
        let unavailable = CommitError::Unavailable;
        let client = self.client().map_err(|e| unavailable(e.to_string()))?;
        let (mine, others): (Vec<_>, Vec<_>) = asked
            .iter()
            .copied()
            .partition(|(p, _)| self.assignment.holds(*p));
        if !mine.is_empty() {
            if self.committing.swap(true, Ordering::AcqRel) {
                return Err(unavailable("an earlier commit has no answer yet".into()));
            }
            let offsets = self.at(&mine.into_iter().collect());
            let (client, committing) = (client.clone(), self.committing.clone());
            let answer = aside(move || {
                let answer = client.commit(&offsets, CommitMode::Sync);
                // The last holder of the client leaves the group, and that is seldom this thread.
                drop(client);
                committing.store(false, Ordering::Release);
                answer
            });
            match tokio::time::timeout(ANSWER_WITHIN, answer).await {
                Ok(Ok(Ok(()))) => {}
                Ok(Ok(Err(error))) if is_foreign(&error) => {
                    let all = asked.iter().map(|(partition, _)| *partition);
                    return Err(CommitError::NotOwner(all.collect()));
                }
                Ok(Ok(Err(error))) => {
                    return Err(unavailable(self.trouble.explain(&error.to_string())));
                }
                Ok(Err(error)) => return Err(unavailable(error.to_string())),
                Err(_) => {
                    let what = format!("no answer within {ANSWER_WITHIN:?}");
                    return Err(unavailable(self.trouble.explain(&what)));
                }
            }
        }
        if others.is_empty() {
            Ok(())
        } else {
            Err(CommitError::NotOwner(
                others.into_iter().map(|(p, _)| p).collect(),
            ))
        }
    }

    fn renew(&mut self, partitions: &[u32]) {
        let Some(client) = &self.client else { return };
        let mine = self.assignment.renew(partitions);
        if mine.is_empty() {
            return;
        }
        if let Err(error) = client.incremental_unassign(&list(&self.name, &mine)) {
            tracing::warn!(%error, "the client library does not let go of partitions that begin anew");
        }
    }

    async fn lag(&mut self) -> Result<u64, ConsumeError> {
        let mine: Vec<u32> = self.positions.keys().copied().collect();
        let lag = if mine.is_empty() {
            0
        } else {
            let ends = self.offsets(&mine, Offset::End, LAG_WITHIN).await?;
            let waiting = |(partition, position): (&u32, &u64)| {
                ends.get(partition)
                    .map_or(0, |end| end.saturating_sub(*position))
            };
            self.positions.iter().map(waiting).sum()
        };
        Ok(lag)
    }
}

impl Drop for KafkaConsumer {
    fn drop(&mut self) {
        let Some(client) = self.client.take() else {
            return;
        };
        if self.ended.is_ended() {
            // As if the process had been killed: the group must learn of it by itself.
            std::mem::forget(client);
            return;
        }
        if self.assignment.close() {
            // The library waits for the answer to a rebalance and cannot be closed without it.
            let _ = client.incremental_assign(&TopicPartitionList::new());
        }
        // Leaving the group takes a round trip to the cluster. A runtime that ends meanwhile waits
        // for it, within a limit.
        let (leaving, left) = std::sync::mpsc::channel::<()>();
        aside(move || {
            drop(client);
            drop(leaving);
        });
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || left.recv_timeout(ANSWER_WITHIN));
        }
    }
}

/// Calls of the library that may wait without end for a lost cluster have a thread of their own. A
/// runtime does not end before its threads for blocking calls.
fn aside<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> oneshot::Receiver<T> {
    let (answered, answer) = oneshot::channel();
    let begun = std::thread::Builder::new()
        .name("bus-kafka-aside".to_owned())
        .spawn(move || drop(answered.send(call())));
    if let Err(error) = begun {
        tracing::error!(%error, "no thread for a call to Kafka");
    }
    answer
}

/// Complaints that waiting inside `next` would hide. Lost connections are not among them: the
/// library heals those.
fn lasting(error: &KafkaError) -> Option<String> {
    if let KafkaError::MessageConsumptionFatal(code) = error {
        return Some(code.to_string());
    }
    match error.rdkafka_error_code()? {
        code @ (RDKafkaErrorCode::Authentication
        | RDKafkaErrorCode::SaslAuthenticationFailed
        | RDKafkaErrorCode::TopicAuthorizationFailed
        | RDKafkaErrorCode::GroupAuthorizationFailed
        | RDKafkaErrorCode::UnknownTopicOrPartition
        | RDKafkaErrorCode::UnknownTopic) => Some(code.to_string()),
        _ => None,
    }
}

/// The group has continued without this member.
fn is_foreign(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            RDKafkaErrorCode::IllegalGeneration
                | RDKafkaErrorCode::UnknownMemberId
                | RDKafkaErrorCode::FencedInstanceId
                | RDKafkaErrorCode::AssignmentLost
        )
    )
}

fn delivery(topic: Topic, message: &BorrowedMessage<'_>) -> Delivery {
    let bytes = |slice: Option<&[u8]>| slice.map(Bytes::copy_from_slice).unwrap_or_default();
    let headers = message.headers().map_or_else(Vec::new, |headers| {
        headers
            .iter()
            .map(|header| (header.key.to_owned(), bytes(header.value)))
            .collect()
    });
    Delivery {
        topic,
        partition: u32::try_from(message.partition()).unwrap_or_default(),
        offset: u64::try_from(message.offset()).unwrap_or_default(),
        key: message
            .key()
            .map_or_else(String::new, |key| String::from_utf8_lossy(key).into_owned()),
        value: bytes(message.payload()),
        headers,
        published_us: message.timestamp().to_millis().unwrap_or_default() * 1000,
    }
}
