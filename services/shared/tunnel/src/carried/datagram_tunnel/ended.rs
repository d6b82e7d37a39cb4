//! Why a datagram tunnel has ended.

use std::io;

use super::payload::MalformedDatagram;
use crate::{carried::ip_tunnel::capsule::MalformedCapsule, http::stream::wire_error::WireError};

/// Why a datagram tunnel has ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TunnelEnded {
    #[error("the peer ended it")]
    ByPeer,
    /// The next session accepts the same request.
    #[error("its session was replaced by another")]
    Session,
    #[error("the peer sent {0}")]
    Malformed(#[from] MalformedDatagram),
    #[error("the peer sent {0}")]
    MalformedCapsule(#[from] MalformedCapsule),
    #[error("its stream was lost: {0}")]
    Lost(io::ErrorKind),
}

impl TunnelEnded {
    /// Whether the peer violated the protocol.
    pub(super) fn is_malformed(&self) -> bool {
        matches!(self, Self::Malformed(_) | Self::MalformedCapsule(_))
    }
}

impl From<WireError> for TunnelEnded {
    fn from(error: WireError) -> Self {
        match error {
            WireError::Aborted => Self::ByPeer,
            WireError::Lost(error) => Self::Lost(error.kind()),
        }
    }
}
