//! Evidence of completeness: the gateways' accounts of the sequences that they assigned, and the
//! sequences that are stored. [`crate::completeness`] compares the two.

use async_trait::async_trait;

use crate::error::{QueryError, WriteError};

/// Islands of one stream in one answer; further ones are left out, and the answer says so.
pub const ISLANDS_MAX: usize = 2000;
/// Jumps of a sensor's numbers in one answer, of all streams together.
pub const SENSOR_JUMPS_MAX: usize = 1000;
/// Ranges that one gateway is asked for at once; further ones are asked for later.
pub const ASKED_MAX: usize = 256;
/// Time for which a gateway is asked: it accounts a few times meanwhile. A proof that finds the gap
/// again asks again.
pub const ASKED_US: i64 = 150 * 1_000_000;

/// The sequences that one journal of a gateway assigned to a stream, by its newest account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerRun {
    pub gateway: String,
    pub journal: u64,
    pub device: String,
    pub stream: String,
    /// 0: the gateway does not know where its numbers began.
    pub first: u64,
    pub next: u64,
    /// Times of the journal's first and newest account, by the core's clock.
    pub since_us: i64,
    pub as_of_us: i64,
    /// Entries of the journal that waited at the newest account.
    pub waiting: u64,
}

/// A journal of a gateway, by its first and newest account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalSpan {
    pub gateway: String,
    pub journal: u64,
    pub since_us: i64,
    pub as_of_us: i64,
}

/// Consecutive sequences that are stored, with the device times of the two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Island {
    pub first: u64,
    pub last: u64,
    pub from_us: i64,
    pub to_us: i64,
}

/// The stored sequences of one stream in and beside a stretch of device time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamStored {
    pub device: String,
    pub stream: String,
    /// Samples of the patient in the stretch.
    pub stored: u64,
    /// From the last sample before the stretch to the first one after it, whosever they are. In
    /// order of sequences.
    pub islands: Vec<Island>,
    pub is_cut: bool,
}

/// A sensor's own numbers skip some: `first` to `last` are missing between two readings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SensorJump {
    pub device: String,
    pub stream: String,
    pub first: u64,
    pub last: u64,
    pub from_us: i64,
    pub to_us: i64,
}

/// Samples that a gateway is to send again, and the times between which they were measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    pub device: String,
    pub stream: String,
    pub first: u64,
    pub last: u64,
    pub from_us: i64,
    pub to_us: i64,
}

/// Accounts come with [`crate::VitalsBatch`]. The newest one of a journal counts, whatever the
/// order in which they come.
#[async_trait]
pub trait LedgersStore: Send + Sync {
    /// Every account of streams of these devices, in order of device, stream and sequence.
    async fn ledger_runs(&self, devices: &[String]) -> Result<Vec<LedgerRun>, QueryError>;

    /// All journals of these gateways, in order of gateway and time.
    async fn journals(&self, gateways: &[String]) -> Result<Vec<JournalSpan>, QueryError>;

    /// For each stream with samples of the patient in the stretch, and for each of `others`, the
    /// stored sequences. A stream without a sample is left out.
    async fn stored_sequences(
        &self,
        patient: &str,
        others: &[(String, String)],
        from_us: i64,
        to_us: i64,
    ) -> Result<Vec<StreamStored>, QueryError>;

    /// Jumps between readings of the patient that follow each other in device time.
    async fn sensor_jumps(
        &self,
        patient: &str,
        from_us: i64,
        to_us: i64,
    ) -> Result<Vec<SensorJump>, QueryError>;

    /// Remembers for [`ASKED_US`] that a gateway is to send these ranges again, at most
    /// [`ASKED_MAX`].
    async fn ask_again(
        &self,
        gateway: &str,
        asked: Vec<Asked>,
        now_us: i64,
    ) -> Result<(), WriteError>;

    /// The ranges that the gateway is to send again.
    async fn asked_again(&self, gateway: &str, now_us: i64) -> Result<Vec<Asked>, QueryError>;
}
