//! The end of every partition, in memory. Consumers wait on it and read the database only when it
//! has a new record.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

use crate::Topic;

pub struct Heads {
    topics: Vec<(Topic, Vec<AtomicU64>, watch::Sender<()>)>,
}

impl Heads {
    pub fn new(heads: &[(Topic, u32, u64)]) -> Heads {
        let topics = Topic::ALL
            .into_iter()
            .map(|topic| {
                let count = heads.iter().filter(|(t, _, _)| *t == topic).count();
                let offsets = (0..count).map(|_| AtomicU64::new(0)).collect();
                (topic, offsets, watch::Sender::new(()))
            })
            .collect();
        let this = Heads { topics };
        this.advance(heads);
        this
    }

    pub fn partitions(&self, topic: Topic) -> u32 {
        u32::try_from(self.of(topic).1.len()).unwrap_or(u32::MAX)
    }

    /// The next offset; 0 for a partition that does not exist.
    pub fn get(&self, topic: Topic, partition: u32) -> u64 {
        usize::try_from(partition)
            .ok()
            .and_then(|p| self.of(topic).1.get(p))
            .map_or(0, |head| head.load(Ordering::Acquire))
    }

    pub fn subscribe(&self, topic: Topic) -> watch::Receiver<()> {
        self.of(topic).2.subscribe()
    }

    /// Raises the heads and wakes the consumers of topics that grew.
    pub fn advance(&self, heads: &[(Topic, u32, u64)]) {
        for (topic, offsets, changed) in &self.topics {
            let mut grew = false;
            for (_, partition, next) in heads.iter().filter(|(t, _, _)| t == topic) {
                let head = usize::try_from(*partition)
                    .ok()
                    .and_then(|p| offsets.get(p));
                if let Some(head) = head {
                    grew |= head.fetch_max(*next, Ordering::AcqRel) < *next;
                }
            }
            if grew {
                changed.send_replace(());
            }
        }
    }

    fn of(&self, topic: Topic) -> &(Topic, Vec<AtomicU64>, watch::Sender<()>) {
        // `new` made one entry per topic, in the order of the enum.
        &self.topics[topic as usize]
    }
}
