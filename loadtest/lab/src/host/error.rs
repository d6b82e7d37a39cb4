//! Why a simulated host ends its run.

use std::time::Duration;

use noq_proto::{ConnectionError, PathId};

use crate::pattern::TrafficError;

/// A client that hears nothing for so long gives the connection up once nothing disturbs it any
/// more. A gateway makes a fresh session beside a silent one far sooner, and gives that up when the
/// fresh one stands.
pub(super) const SILENT_MAX: Duration = Duration::from_secs(30);

/// Why a run ended early.
#[derive(Debug, Clone, thiserror::Error)]
pub enum HostError {
    #[error("the connection was lost: {0}")]
    Lost(#[from] ConnectionError),
    #[error(transparent)]
    Traffic(#[from] TrafficError),
    #[error("{0} was closed and is not released")]
    GaveUp(PathId),
    #[error("nothing was heard on any open path for {SILENT_MAX:?}")]
    Silent,
    #[error("the handshake could not start")]
    Connect,
    #[error("time stands still at {0:?}: {1}")]
    Standstill(Duration, &'static str),
    #[error("the run was given up at {0:?}, after {1} turns")]
    TooLong(Duration, u64),
}
