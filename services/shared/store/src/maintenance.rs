use async_trait::async_trait;

use crate::error::{NotReady, WriteError};

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

#[async_trait]
pub trait Maintenance: Send + Sync {
    /// Proves that the store takes a write, not only that it is connected.
    async fn ready(&self) -> Result<(), NotReady>;

    /// Removes what is older than `before_us`; returns how many rows. Engines do this by themselves
    /// as configured; this is for operators and tests.
    async fn expire(&self, what: Expire, before_us: i64) -> Result<u64, WriteError>;
}
