use async_trait::async_trait;
use bus::Topic;

use crate::error::{ClaimError, QueryError};

/// Right of one member to write the rows of one partition, until another member claims it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub group: String,
    pub topic: Topic,
    pub partition: u32,
    /// Rises by 1 with every claim of (group, topic, partition).
    pub epoch: u64,
    /// Offset of the first record whose effect is not stored. `None`: the group never stored any;
    /// begin at the oldest record.
    pub next_offset: Option<u64>,
}

impl Claim {
    pub fn progress(&self, next_offset: u64) -> Progress {
        Progress {
            group: self.group.clone(),
            topic: self.topic,
            partition: self.partition,
            epoch: self.epoch,
            next_offset,
        }
    }
}

/// Written in the same transaction as the rows that come from the records before `next_offset`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    pub group: String,
    pub topic: Topic,
    pub partition: u32,
    pub epoch: u64,
    pub next_offset: u64,
}

#[async_trait]
pub trait ProgressStore: Send + Sync {
    /// Takes the partition for the caller: every earlier claim of it is fenced from here on.
    async fn claim(&self, group: &str, topic: Topic, partition: u32) -> Result<Claim, ClaimError>;

    /// `(partition, next_offset)` of each partition whose progress the group stored.
    async fn progress(&self, group: &str, topic: Topic) -> Result<Vec<(u32, u64)>, QueryError>;
}
