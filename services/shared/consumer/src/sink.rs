//! The part of a consumer that a service writes.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bus::Delivery;
use store::{Progress, WriteError};

/// Result of reading one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decoded {
    /// Its rows are in the batch.
    Whole,
    /// The known part is in the batch; a copy of the record goes to the dead letters.
    InPart(String),
    /// It cannot be read: it goes to the dead letters, and progress passes it.
    Refused(String),
}

/// The store's answer to one write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Rows and progress are durable.
    Stored,
    /// The sink has judged the batch, and stores rows and progress itself, now or later.
    Taken,
    /// The store is away. The same write is repeated until the store answers.
    Transient(String),
    /// The store has other rows. The sink has taken them over, and the write is repeated, at most
    /// [`crate::work::ANSWERS_MAX`] times.
    Contradicts(String),
    /// Other members claimed these partitions. The rest is written without them.
    Fenced(Vec<u32>),
    /// The store will never take this batch.
    Refused(String),
    /// The service ends, and nothing was written.
    Ended,
}

impl From<WriteError> for Answer {
    fn from(error: WriteError) -> Answer {
        match error {
            WriteError::Fenced(lost) => {
                Answer::Fenced(lost.into_iter().map(|(_, partition)| partition).collect())
            }
            WriteError::Unavailable(reason) => Answer::Transient(reason),
            WriteError::Conflict(_) => Answer::Contradicts(error.to_string()),
            WriteError::Invalid(_) | WriteError::Unfit(_) => Answer::Refused(error.to_string()),
        }
    }
}

/// The engine that does not answer, with its reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Away<'a> {
    Bus(&'a str),
    Store(&'a str),
}

/// A batch of which every record is stored, taken, buried, or another member's.
#[derive(Debug, Clone, Copy)]
pub struct Done {
    pub records: usize,
    /// When the bus took the first record, by the clock of the bus.
    pub first_us: i64,
    /// The same of the newest record.
    pub newest_us: i64,
    pub took: Duration,
}

#[async_trait]
pub trait Sink: Send + Sync {
    /// Rows of several records, in their order. The default is a batch without rows.
    type Batch: Default + Send + Sync;

    /// Adds the rows of one record to the batch. It is called again for the same record after a
    /// batch is divided, so the result must depend on the record alone.
    fn decode(&self, delivery: &Delivery, batch: &mut Self::Batch) -> Decoded;

    /// One try to write rows and progress in one transaction. `progress` carries the fence; it is
    /// empty for a group whose positions are on the bus.
    async fn write(&self, batch: Arc<Self::Batch>, progress: &[Progress]) -> Answer;

    /// Called before each pause.
    fn on_away(&self, away: Away<'_>) {
        match away {
            Away::Bus(reason) => tracing::warn!(reason, "the bus or the claims do not answer"),
            Away::Store(reason) => {
                tracing::warn!(reason, "the store does not take rows; the bus keeps them");
            }
        }
    }

    /// Called after each answer of an engine that shows it is there.
    fn on_well(&self) {}

    async fn on_done(&self, _: Done) {}

    /// The member has these partitions from here on.
    async fn on_assigned(&self, _: &[u32]) {}

    /// The bus was replaced within the last days: records of the former one may never have come.
    /// Called after each assignment, so that an effect that was cut short is repeated.
    async fn on_another_log(&self) {}

    /// These partitions are another member's, and what is held of them is void. It may be called
    /// twice for one loss.
    async fn on_lost(&self, _: &[u32]) {}

    /// Called every [`crate::Setup::tick`], also while no record comes.
    async fn on_tick(&self, _: &mut dyn bus::Consumer) {}

    /// The last call: what is held is stored now or judged again by another member.
    async fn on_end(&self) {}
}
