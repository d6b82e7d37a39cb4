//! The end of a stream, as its carrier reports it and as this end asks for it.

use std::io;

/// Why a stream has ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    #[error("the peer reset the tunnel")]
    Aborted,
    #[error("{0}")]
    Lost(io::Error),
}

impl From<WireError> for io::Error {
    fn from(error: WireError) -> Self {
        match error {
            WireError::Aborted => Self::new(io::ErrorKind::ConnectionReset, error),
            WireError::Lost(error) => error,
        }
    }
}

/// The scope of a reset, and whether it means a TCP reset (RFC 9113, 8.5; RFC 9114, 4.4).
#[derive(Clone, Copy)]
pub(super) struct Broken {
    pub(super) deliberately: bool,
    pub(super) sending: bool,
    pub(super) receiving: bool,
}
