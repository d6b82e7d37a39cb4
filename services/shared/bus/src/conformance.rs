//! The conformance suite of every engine of the bus. Each check takes a fresh [`Harness`] and
//! panics with a sentence when the promise is broken; [`crate::conformance_suite`] makes one test
//! of each.
//!
//! A "process" is a bus handle of its own on the harness's data: two of them share nothing but the
//! engine.

mod effects;
mod groups;
mod records;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use async_trait::async_trait;

pub use effects::{
    Ledger, a_claim_lost_in_passing_is_renewed, a_start_that_takes_long_is_come_to,
    an_empty_account_begins_at_the_oldest_record, exactly_once_through_crashes,
    start_is_asked_and_obeyed, work,
};
pub use groups::{
    a_commit_survives_and_the_rest_comes_again, a_dead_member_is_replaced,
    a_lost_partition_cannot_be_committed, an_observer_sees_the_ends_and_what_a_group_has_done,
    groups_are_independent, members_share_the_partitions,
};
pub use records::{
    concurrent_publishers_lose_and_double_nothing, durable_across_reopening, lag_counts_what_waits,
    limits_are_refused_with_their_reason, next_can_be_cancelled, order_per_key,
    read_back_begins_at_the_oldest_and_its_lag_tells_the_end, tail_gives_what_comes_after_it,
};

use crate::{Bus, Committed, ConsumeError, Consumer, Delivery, Event, Record, Topic};

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

const ASK_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Long enough for any engine's rebalance; reached only by a failing check.
pub const PATIENCE: Duration = Duration::from_secs(60);

#[macro_export]
macro_rules! conformance_suite {
    ($harness:expr) => {
        $crate::conformance_suite!($harness;
            order_per_key, durable_across_reopening, concurrent_publishers_lose_and_double_nothing,
            limits_are_refused_with_their_reason, tail_gives_what_comes_after_it,
            read_back_begins_at_the_oldest_and_its_lag_tells_the_end, next_can_be_cancelled,
            lag_counts_what_waits, members_share_the_partitions, a_dead_member_is_replaced,
            a_commit_survives_and_the_rest_comes_again, a_lost_partition_cannot_be_committed,
            an_observer_sees_the_ends_and_what_a_group_has_done, groups_are_independent, start_is_asked_and_obeyed, a_start_that_takes_long_is_come_to, an_empty_account_begins_at_the_oldest_record, a_claim_lost_in_passing_is_renewed, exactly_once_through_crashes);
    };
    ($harness:expr; $($check:ident),+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $check() {
                let harness = $harness;
                $crate::conformance::$check(&harness).await;
            }
        )+
    };
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
