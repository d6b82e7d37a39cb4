//! The claims of one consumer: joins the bus's partitions to the store's epochs.
//!
//! Give it to `Bus::subscribe` as the start; on assignment it claims each partition in the store, which fences the
//! member that had it before, and starts the bus at the stored offset. Each write then takes [`Claims::progress`] of what it has in hand.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use bus::{Delivery, StartAt, StartAtError, Topic};
use parking_lot::Mutex;

use crate::{Claim, Progress, ProgressStore};

pub struct Claims<S: ?Sized> {
    store: Arc<S>,
    group: String,
    /// One entry per partition of the topics consumed; partitions are few.
    held: Mutex<BTreeMap<(Topic, u32), Claim>>,
}

impl<S: ProgressStore + ?Sized> Claims<S> {
    pub fn new(store: Arc<S>, group: impl Into<String>) -> Arc<Claims<S>> {
        Arc::new(Claims {
            store,
            group: group.into(),
            held: Mutex::new(BTreeMap::new()),
        })
    }

    /// Progress that says these deliveries are done. Leaves out partitions that are not held any more.
    pub fn progress<'a>(&self, done: impl IntoIterator<Item = &'a Delivery>) -> Vec<Progress> {
        let held = self.held.lock();
        let mut next: BTreeMap<(Topic, u32), u64> = BTreeMap::new();
        for delivery in done {
            let offset = next
                .entry((delivery.topic, delivery.partition))
                .or_default();
            *offset = (*offset).max(delivery.offset + 1);
        }
        next.into_iter()
            .filter_map(|(partition, offset)| held.get(&partition).map(|c| c.progress(offset)))
            .collect()
    }

    pub fn holds(&self, topic: Topic, partition: u32) -> bool {
        self.held.lock().contains_key(&(topic, partition))
    }

    /// After `Revoked`, or after a write was fenced: what still comes from these partitions is not ours to write.
    pub fn forget(&self, topic: Topic, partitions: impl IntoIterator<Item = u32>) {
        let mut held = self.held.lock();
        for partition in partitions {
            held.remove(&(topic, partition));
        }
    }
}

#[async_trait]
impl<S: ProgressStore + ?Sized> StartAt for Claims<S> {
    async fn next_offset(&self, topic: Topic, partition: u32) -> Result<Option<u64>, StartAtError> {
        let claim = self
            .store
            .claim(&self.group, topic, partition)
            .await
            .map_err(|e| StartAtError(e.to_string()))?;
        let next = claim.next_offset;
        self.held.lock().insert((topic, partition), claim);
        Ok(next)
    }
}
