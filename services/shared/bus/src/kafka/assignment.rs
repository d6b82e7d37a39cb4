//! The partitions of one member of a group: the cluster's decision, and the part of it that the
//! consumer knows.
//!
//! librdkafka calls [`Member::rebalance`] only while the consumer polls, that is inside `next`, and
//! when it is closed. A gain is remembered and answered later, once the store has given the
//! beginning. Until then the library waits, and the member keeps its place in the group. A loss is
//! obeyed at once and remembered for the next `Revoked`.

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::Mutex;
use rdkafka::{
    ClientContext, TopicPartitionList,
    config::RDKafkaLogLevel,
    consumer::{BaseConsumer, Consumer, ConsumerContext},
    error::KafkaError,
    types::RDKafkaRespErr,
};
use tokio::sync::Notify;

use super::trouble::{self, Trouble};

#[derive(Default)]
struct State {
    /// Given by the cluster, not yet begun. Bounded, as the other sets here, by the topic's
    /// partitions.
    gained: BTreeSet<u32>,
    /// Begun.
    held: BTreeSet<u32>,
    /// Taken by the cluster, not yet reported.
    revoked: BTreeSet<u32>,
    /// Since a loss the library has not returned with the remaining partitions, which ends the
    /// member's part in the rebalance.
    handing_over: bool,
    closing: bool,
}

#[derive(Default)]
pub struct Assignment {
    state: Mutex<State>,
    pub changed: Notify,
}

impl Assignment {
    pub fn gained(&self) -> BTreeSet<u32> {
        self.state.lock().gained.clone()
    }

    /// The library reads these partitions from here on.
    pub fn hold(&self, partitions: &[u32]) {
        let mut state = self.state.lock();
        for partition in partitions {
            state.gained.remove(partition);
            state.held.insert(*partition);
        }
    }

    pub fn holds(&self, partition: u32) -> bool {
        self.state.lock().held.contains(&partition)
    }

    pub fn is_handing_over(&self) -> bool {
        self.state.lock().handing_over
    }

    pub fn has_revoked(&self) -> bool {
        !self.state.lock().revoked.is_empty()
    }

    pub fn take_revoked(&self) -> BTreeSet<u32> {
        std::mem::take(&mut self.state.lock().revoked)
    }

    /// Marks held partitions for a new start, and returns them. The library must release them.
    pub fn renew(&self, partitions: &[u32]) -> Vec<u32> {
        let mut state = self.state.lock();
        let mine: Vec<u32> = partitions
            .iter()
            .copied()
            .filter(|partition| state.held.remove(partition))
            .collect();
        state.revoked.extend(&mine);
        state.gained.extend(&mine);
        drop(state);
        self.changed.notify_one();
        mine
    }

    /// From here on nothing is begun. True when the library still waits for an answer, which it
    /// needs before it can be closed.
    pub fn close(&self) -> bool {
        let mut state = self.state.lock();
        state.closing = true;
        !std::mem::take(&mut state.gained).is_empty()
    }

    /// True when the library must be answered at once: nothing was gained, or nothing will be
    /// begun.
    fn gain(&self, partitions: BTreeSet<u32>) -> bool {
        let mut state = self.state.lock();
        state.handing_over = false;
        let at_once = state.closing || partitions.is_empty();
        if !at_once {
            state.gained.extend(partitions);
        }
        drop(state);
        self.changed.notify_one();
        at_once
    }

    /// Those that the library reads and must release.
    fn lose(&self, partitions: &BTreeSet<u32>) -> Vec<u32> {
        let mut state = self.state.lock();
        state
            .gained
            .retain(|partition| !partitions.contains(partition));
        let lost: Vec<u32> = state.held.intersection(partitions).copied().collect();
        for partition in &lost {
            state.held.remove(partition);
            state.revoked.insert(*partition);
        }
        state.handing_over = true;
        drop(state);
        self.changed.notify_one();
        lost
    }
}

/// Context of a member's client.
pub struct Member {
    pub topic: String,
    pub assignment: Arc<Assignment>,
    pub trouble: Arc<Trouble>,
}

impl ClientContext for Member {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        trouble::log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        trouble::note(&self.trouble, &error, reason);
    }
}

impl ConsumerContext for Member {
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        error: RDKafkaRespErr,
        partitions: &mut TopicPartitionList,
    ) {
        let partitions: BTreeSet<u32> = partitions
            .elements()
            .iter()
            .filter_map(|element| u32::try_from(element.partition()).ok())
            .collect();
        let answered = match error {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => {
                if !self.assignment.gain(partitions) {
                    return;
                }
                consumer.incremental_assign(&TopicPartitionList::new())
            }
            _ => {
                let lost = self.assignment.lose(&partitions);
                consumer.incremental_unassign(&list(&self.topic, &lost))
            }
        };
        if let Err(error) = answered {
            tracing::warn!(%error, "the client library refuses an answer to a rebalance");
        }
    }
}

pub fn list(topic: &str, partitions: &[u32]) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(partitions.len());
    for partition in partitions {
        list.add_partition(topic, i32::try_from(*partition).unwrap_or(i32::MAX));
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_begun_is_reported_as_lost() {
        let assignment = Assignment::default();
        assert!(assignment.gain(BTreeSet::new()), "nothing to ask anybody");
        assert!(!assignment.gain(BTreeSet::from([0, 1, 2])));
        assignment.hold(&[0, 1]);
        assert_eq!(assignment.gained(), BTreeSet::from([2]));
        assert_eq!(assignment.lose(&BTreeSet::from([1, 2])), [1]);
        assert!(assignment.is_handing_over() && assignment.has_revoked());
        assert_eq!(assignment.take_revoked(), BTreeSet::from([1]));
        assert!(assignment.take_revoked().is_empty(), "told once");
        assert!(assignment.holds(0) && !assignment.holds(1) && assignment.gained().is_empty());
        assert!(assignment.gain(BTreeSet::new()) && !assignment.is_handing_over());
    }

    #[test]
    fn what_is_renewed_is_revoked_and_gained_if_it_was_held() {
        let assignment = Assignment::default();
        assignment.gain(BTreeSet::from([0, 1]));
        assignment.hold(&[0, 1]);
        assert_eq!(assignment.renew(&[1, 2]), [1]);
        assert_eq!(assignment.take_revoked(), BTreeSet::from([1]));
        assert_eq!(assignment.gained(), BTreeSet::from([1]));
        assert!(assignment.holds(0) && !assignment.holds(1) && !assignment.is_handing_over());
        // The loss is final before the partition was begun.
        assert!(assignment.lose(&BTreeSet::from([1])).is_empty());
        assert!(assignment.gained().is_empty());
    }

    #[test]
    fn a_closing_member_begins_nothing_and_answers_what_it_owes() {
        let assignment = Assignment::default();
        assert!(!assignment.gain(BTreeSet::from([0])));
        assert!(assignment.close());
        assert!(assignment.gain(BTreeSet::from([1])), "answered at once");
        assert!(assignment.gained().is_empty());
        assert!(!assignment.close());
    }
}
