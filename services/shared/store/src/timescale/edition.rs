//! The edition of TimescaleDB.

/// Capabilities of the server's edition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edition {
    /// Compression, continuous aggregates and policies: `timescaledb.license` is `timescale`.
    pub community: bool,
}
