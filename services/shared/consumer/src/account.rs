//! Where a group's positions are kept: in the store with the rows, or on the bus by commits.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use bus::{Bus, Delivery, Start, StartAt, StartAtError, Topic};
use consumer_health::{Duty, duty::Kept};
use parking_lot::Mutex;
use store::{Claims, Progress, Store};

/// Begins after the group's commits. The claim in the store names the log of these commits, so that
/// a lost bus is noticed; it fences nobody.
struct OnBus(Arc<Claims<dyn Store>>);

#[async_trait]
impl StartAt for OnBus {
    async fn start(&self, topic: Topic, partition: u32) -> Result<Start, StartAtError> {
        self.0.start(topic, partition).await?;
        Ok(Start::Committed)
    }
}

pub(crate) struct Account {
    duty: Duty,
    claims: Arc<Claims<dyn Store>>,
    /// Next offsets that are done and not committed, of a group on the bus. Bounded by the
    /// partitions of the topic.
    done: Mutex<BTreeMap<u32, u64>>,
}

impl Account {
    pub(crate) fn new(duty: Duty, bus: Arc<dyn Bus>, store: Arc<dyn Store>) -> Account {
        Account {
            duty,
            claims: Claims::new(bus, store, duty.group),
            done: Mutex::default(),
        }
    }

    pub(crate) fn claims(&self) -> Arc<Claims<dyn Store>> {
        Arc::clone(&self.claims)
    }

    fn is_in_store(&self) -> bool {
        self.duty.kept == Kept::InStore
    }

    fn topic(&self) -> Topic {
        self.duty.topic
    }

    pub(crate) fn start(&self) -> Arc<dyn StartAt> {
        if self.is_in_store() {
            self.claims()
        } else {
            Arc::new(OnBus(self.claims()))
        }
    }

    /// A group on the bus has no fence: its effects are idempotent.
    pub(crate) fn holds(&self, partition: u32) -> bool {
        !self.is_in_store() || self.claims.holds(self.topic(), partition)
    }

    /// Progress with its fence; none for a group on the bus.
    pub(crate) fn progress_to(&self, reached: &[(u32, u64)]) -> Vec<Progress> {
        if !self.is_in_store() {
            return Vec::new();
        }
        let topic = self.topic();
        let reached = reached.iter().copied();
        self.claims
            .progress_to(reached.map(|(partition, next)| (topic, partition, next)))
    }

    pub(crate) fn on_read(&self, deliveries: &[Delivery]) {
        if self.is_in_store() {
            self.claims.on_read(deliveries);
        }
    }

    pub(crate) fn stored(&self, progress: &[Progress], reached: &[(u32, u64)]) {
        if self.is_in_store() {
            self.claims.stored(progress);
        } else {
            self.done.lock().extend(reached.iter().copied());
        }
    }

    /// After `Revoked`.
    pub(crate) fn forget(&self, partitions: &[u32]) {
        let of = partitions.iter().copied();
        self.claims.forget(self.topic(), of);
        let mut done = self.done.lock();
        done.retain(|partition, _| !partitions.contains(partition));
    }

    pub(crate) fn fenced(&self, partitions: &[u32]) {
        let of = partitions.iter().copied();
        self.claims.fenced(self.topic(), of);
    }

    pub(crate) fn to_renew(&self) -> Vec<u32> {
        self.claims.to_renew(self.topic())
    }

    pub(crate) fn to_commit(&self) -> Vec<(u32, u64)> {
        if self.is_in_store() {
            self.claims.to_commit(self.topic())
        } else {
            std::mem::take(&mut *self.done.lock()).into_iter().collect()
        }
    }

    /// After a commit without success. The store has its own account, and needs none.
    pub(crate) fn not_committed(&self, reached: Vec<(u32, u64)>) {
        if self.is_in_store() {
            return;
        }
        let mut done = self.done.lock();
        for (partition, next) in reached {
            done.entry(partition).or_insert(next);
        }
    }
}
