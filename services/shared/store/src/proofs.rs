//! Proofs of channels: heartbeats, and who confirmed one.

use async_trait::async_trait;
use sha2::{Digest, Sha256};

use crate::error::{QueryError, WriteError};

/// The last heartbeat of one recipient of a channel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proof {
    /// `webhook`, `email` or `mqtt`.
    pub channel: String,
    /// Empty: of the installation.
    pub tenant: String,
    /// Address; empty for a channel with one receiver.
    pub recipient: String,
    /// Names the settings by which it was sent.
    pub settings: String,
    /// Hash of the token that the heartbeat carries.
    pub token: String,
    pub sent_us: i64,
    /// When a heartbeat by these settings was last confirmed.
    pub confirmed_us: Option<i64>,
    /// How it was confirmed, for people.
    pub confirmed_by: String,
}

impl Proof {
    /// Hash of the token that a heartbeat carries.
    pub fn token_of(secret: &str) -> String {
        let hash = Sha256::digest(secret.as_bytes());
        hash.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[async_trait]
pub trait ProofsStore: Send + Sync {
    /// Records that a heartbeat is about to be sent. `before_us` is the `sent_us` that the caller
    /// has seen; `None`: there was no row. False: another member was first, and nothing is written.
    /// With the same settings an earlier confirmation stays.
    async fn begin_proof(&self, proof: &Proof, before_us: Option<i64>) -> Result<bool, WriteError>;

    /// The heartbeat with this hash of its token is confirmed. `None`: there is no such heartbeat,
    /// or a newer one has replaced it.
    async fn confirm_proof(
        &self,
        token: &str,
        by: &str,
        now_us: i64,
    ) -> Result<Option<Proof>, WriteError>;

    /// In order of channel, tenant and recipient.
    async fn proofs(&self) -> Result<Vec<Proof>, QueryError>;

    /// The recipient is gone.
    async fn end_proof(
        &self,
        channel: &str,
        tenant: &str,
        recipient: &str,
    ) -> Result<(), WriteError>;
}
