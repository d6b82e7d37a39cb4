//! How much the embedded bus keeps.

use std::time::Duration;

#[derive(Debug, Clone)]
pub struct EmbeddedOptions {
    /// Bytes kept of each partition; older records go first.
    pub retention_bytes: u64,
    /// Older records are removed.
    pub retention_age: Duration,
}

impl Default for EmbeddedOptions {
    /// 256 MiB a partition (2 GiB of vitals) and a week.
    fn default() -> EmbeddedOptions {
        EmbeddedOptions {
            retention_bytes: 256 << 20,
            retention_age: Duration::from_secs(7 * 24 * 3600),
        }
    }
}
