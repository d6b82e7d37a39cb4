//! The harness of an engine, which every check takes, and steps that checks have in common.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{Bus, Committed, ConsumeError, Consumer, Delivery, Event, Record, Topic};

pub(super) const ASK_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Long enough for any engine's rebalance; reached only by a failing check.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// An engine with empty topics.
#[async_trait]
pub trait Harness: Send + Sync {
    async fn start(&self) -> Process;

    /// How long the engine takes to replace a member that was killed, so that a check does not kill
    /// faster than that.
    fn notices_death_within(&self) -> Duration {
        Duration::ZERO
    }
}

pub struct Process {
    pub bus: Arc<dyn Bus>,
    /// Ends the bus as `kill -9` would: nothing is flushed, no group is left.
    pub kill: Box<dyn FnOnce() + Send>,
}

/// A record whose value says which one it is.
pub fn numbered(key: &str, number: u32) -> Record {
    Record::new(key, number.to_string()).header("number", number.to_be_bytes().to_vec())
}

pub fn number(delivery: &Delivery) -> u32 {
    let text = std::str::from_utf8(&delivery.value).unwrap_or_default();
    let number = text
        .parse()
        .unwrap_or_else(|_| panic!("value `{text}` of {delivery:?} was published by nobody"));
    assert_eq!(
        delivery.header("number"),
        Some(u32::to_be_bytes(number).as_slice()),
        "the header belongs to the value"
    );
    number
}

pub async fn join(bus: &Arc<dyn Bus>, topic: Topic, group: &str) -> Box<dyn Consumer> {
    bus.subscribe(topic, group, Arc::new(Committed))
        .await
        .unwrap_or_else(|e| panic!("subscribe: {e}"))
}

pub async fn publish(bus: &Arc<dyn Bus>, topic: Topic, records: Vec<Record>) {
    bus.publish(topic, records)
        .await
        .unwrap_or_else(|e| panic!("publish: {e}"));
}

/// An engine that does not answer, for want of a leader of a topic that was just made, say, is
/// asked again, as services do.
pub async fn next(consumer: &mut Box<dyn Consumer>) -> Event {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        match tokio::time::timeout_at(deadline, consumer.next(100)).await {
            Ok(Ok(event)) => return event,
            Ok(Err(ConsumeError::Unavailable(_))) => tokio::time::sleep(ASK_AGAIN_AFTER).await,
            Ok(Err(e)) => panic!("next: {e}"),
            Err(_) => panic!("no event within {PATIENCE:?}"),
        }
    }
}

/// Reads until `count` records have come.
pub async fn read(consumer: &mut Box<dyn Consumer>, count: usize) -> Vec<Delivery> {
    let mut got = Vec::new();
    while got.len() < count {
        if let Event::Batch(batch) = next(consumer).await {
            assert!(!batch.is_empty(), "a batch has at least one record");
            assert!(batch.len() <= 100, "a batch has at most what was asked for");
            got.extend(batch);
        }
    }
    assert_eq!(got.len(), count, "more records came than were published");
    got
}

/// Reads until the member has this many partitions; no record may be waiting.
pub async fn wait_for_partitions(consumer: &mut Box<dyn Consumer>, count: usize) -> BTreeSet<u32> {
    let mut mine = BTreeSet::new();
    follow(consumer, &mut mine, count).await;
    mine
}

/// The same for a member that has `mine` already.
pub async fn follow(consumer: &mut Box<dyn Consumer>, mine: &mut BTreeSet<u32>, count: usize) {
    while mine.len() != count {
        match next(consumer).await {
            Event::Assigned(partitions) => mine.extend(partitions),
            Event::Revoked(partitions) => mine.retain(|p| !partitions.contains(p)),
            Event::Batch(batch) => panic!("nothing was published, yet {batch:?} came"),
        }
    }
}
