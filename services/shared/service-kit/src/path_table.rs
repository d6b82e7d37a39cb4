//! The table of paths that a gateway or a proxy serves at `/paths` for `braid paths`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Rows of one table; further paths are left out, and the answer says so.
pub const ROWS_MAX: usize = 4_096;

/// One open path. Counters begin with the path.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PathRow {
    pub gateway: String,
    /// Name of the access network.
    pub path: String,
    /// Distinguishes the successive sessions of one process.
    pub session: u64,
    pub path_id: u64,
    pub state: String,
    pub rtt_ms: f64,
    pub rtt_min_ms: f64,
    /// Share of lost packets, if enough were sent to measure it.
    pub loss: Option<f64>,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    pub sent_packets: u64,
    pub lost_packets: u64,
    pub congestion_window_bytes: u64,
    /// IP bytes of the access since its reset day; only a gateway counts them.
    pub month_bytes: Option<u64>,
    /// Rank by the steering rules: active, spill, standby or forbidden.
    pub rank: String,
    /// Steering rules whose flows may use the path now.
    pub rules: Vec<String>,
    /// Steering modes of those flows.
    #[serde(default)]
    pub modes: Vec<String>,
    pub local_address: String,
    pub remote_address: String,
}

/// Returns the rows of one gateway, or of all.
pub type PathTable = Arc<dyn Fn(Option<&str>) -> Vec<PathRow> + Send + Sync>;

/// The table of one service in the answer of `/paths`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServicePaths {
    pub service: String,
    pub paths: Vec<PathRow>,
    /// Rows beyond [`ROWS_MAX`].
    pub left_out: usize,
}

impl ServicePaths {
    pub fn new(service: &str, mut paths: Vec<PathRow>) -> Self {
        let left_out = paths.len().saturating_sub(ROWS_MAX);
        paths.truncate(ROWS_MAX);
        Self {
            service: service.to_owned(),
            paths,
            left_out,
        }
    }
}

/// The answer of `/paths`: a process may run several services.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AllPaths {
    pub services: Vec<ServicePaths>,
}
