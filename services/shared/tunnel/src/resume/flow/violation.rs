//! Violations of the protocol by a peer.

use super::super::capsule::Malformed;

/// Violations of the protocol by a peer; the tunnel is reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    #[error("{0}")]
    Malformed(#[from] Malformed),
    #[error("more was sent than the window allows")]
    Window,
    #[error("data after the end")]
    BehindEnd,
    #[error("the end is at {declared}, but {received} bytes arrived")]
    End { declared: u64, received: u64 },
    #[error("the peer continues at {offset}, but only {received} bytes arrived")]
    Gap { offset: u64, received: u64 },
    #[error("{offset} bytes are reported as received; {kept} to {sent} are possible")]
    Offset { offset: u64, kept: u64, sent: u64 },
}
