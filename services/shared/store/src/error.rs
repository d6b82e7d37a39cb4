use bus::Topic;
use prost::{DecodeError, Message};
use thiserror::Error;

#[derive(Debug, Clone, Error)]
pub enum WriteError {
    /// Another member claimed these partitions. Nothing was written; without what came from them
    /// the rest may be written.
    #[error("another member owns {}", owned(.0))]
    Fenced(Vec<(Topic, u32)>),
    /// A transition of these alerts exists already with other content. Nothing was written; read
    /// them and decide anew.
    #[error("alerts {} were changed by somebody else", bus::listed(.0))]
    Conflict(Vec<String>),
    /// The engine's fault; writing again is safe, because rows have an identity.
    #[error("the store does not answer: {0}")]
    Unavailable(String),
    /// The caller's fault, in words that it may repeat to its own caller; the same call would fail
    /// again.
    #[error("refused: {0}")]
    Invalid(String),
    /// The engine holds no such rows, and says why in its own words, which name what is inside of
    /// it: for logs. Again would fail again.
    #[error("the store refuses the rows: {0}")]
    Unfit(String),
}

fn owned(partitions: &[(Topic, u32)]) -> String {
    let named = partitions
        .iter()
        .map(|(topic, partition)| format!("partition {partition} of {topic}"));
    bus::listed(named)
}

impl WriteError {
    pub fn is_retryable(&self) -> bool {
        matches!(self, WriteError::Unavailable(_))
    }
}

#[derive(Debug, Clone, Error)]
pub enum QueryError {
    /// The engine's fault; asking again is safe.
    #[error("the store does not answer: {0}")]
    Unavailable(String),
    /// A row that this version cannot read.
    #[error("the store holds what this version cannot read: {0}")]
    Unreadable(String),
}

#[derive(Debug, Clone, Error)]
pub enum ClaimError {
    #[error("the store does not answer: {0}")]
    Unavailable(String),
}

#[derive(Debug, Clone, Error)]
#[error("the store is not ready: {0}")]
pub struct NotReady(pub String);

/// A row that a medium has damaged, or an older version cannot read, is passed over and said: no
/// other suffers for it.
pub(crate) fn readable<T: Message + Default>(kind: &'static str, payload: &[u8]) -> Option<T> {
    let decoded: Result<T, DecodeError> = T::decode(payload);
    decoded.inspect_err(|error| passed_over(kind, error)).ok()
}

pub(crate) fn passed_over(kind: &'static str, error: &dyn std::fmt::Display) {
    metrics::counter!("braid_store_unreadable_rows_total", "kind" => kind).increment(1);
    tracing::warn!(kind, %error, "a row cannot be read and is passed over");
}
