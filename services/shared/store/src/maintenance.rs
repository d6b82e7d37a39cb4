use async_trait::async_trait;

use crate::error::{NotReady, QueryError, WriteError};

/// Rows that expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Expire {
    /// Single values, by device time.
    Vitals,
    /// Waveforms, by device time.
    Waveforms,
    /// Path reports, by the end of their interval.
    Paths,
    /// Resolved alerts with all their transitions, by the time of the last one.
    Alerts,
    /// The same, of the system's own test alert only.
    CanaryAlerts,
    Audit,
}

/// The database was replaced by a backup. People and the bus know what was decided between the two
/// times, and the store does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restore {
    pub restored_us: i64,
    pub made_us: i64,
}

#[async_trait]
pub trait Maintenance: Send + Sync {
    /// Proves that the store takes a write, not only that it is connected.
    async fn ready(&self) -> Result<(), NotReady>;

    /// Removes what is older than `before_us`; returns how many rows. Engines do this by themselves
    /// as configured; this is for operators and tests.
    async fn expire(&self, what: Expire, before_us: i64) -> Result<u64, WriteError>;

    /// For the tool that restores, before any service uses the store. Ends every session: the copy
    /// may hold one that was revoked since.
    async fn note_restore(&self, restore: Restore) -> Result<(), WriteError>;

    /// The newest restore.
    async fn last_restore(&self) -> Result<Option<Restore>, QueryError>;
}
