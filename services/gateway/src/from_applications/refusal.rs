//! Why an application's connection is refused; each protocol has its own codes.

use std::io;

use tunnel::{OpenError, StatusCode};

use crate::steering::Blocked;

#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("{0}")]
    Malformed(&'static str),
    #[error("the request is larger than {0} bytes")]
    TooLarge(usize),
    #[error("the request did not arrive in time")]
    TooSlow,
    #[error("this is a proxy for CONNECT only")]
    NotConnect,
    #[error("no socket for datagrams: {0}")]
    NoSocket(io::Error),
    #[error("the address type is not supported")]
    AddressKind,
    #[error("the token is missing or wrong")]
    Unauthorized,
    #[error("{0} connections are open, the largest permitted number, and none ended in time")]
    Full(usize),
    #[error("{0} requests wait for a connection to end, the largest permitted number")]
    Crowded(usize),
    #[error(transparent)]
    Steered(Blocked),
    #[error(transparent)]
    NotOpened(OpenError),
}

impl Refusal {
    /// A label of metrics, from a bounded set.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Malformed(_) | Self::TooLarge(_) | Self::NotConnect | Self::AddressKind => {
                "malformed"
            }
            Self::NoSocket(_) => "no_socket",
            Self::TooSlow => "slow",
            Self::Unauthorized => "unauthorized",
            Self::Full(_) => "full",
            Self::Crowded(_) => "crowded",
            Self::Steered(_) => "steered",
            Self::NotOpened(OpenError::Refused(status)) => match *status {
                StatusCode::FORBIDDEN => "forbidden",
                StatusCode::TOO_MANY_REQUESTS => "limited",
                StatusCode::GATEWAY_TIMEOUT => "timeout",
                _ => "unreachable",
            },
            Self::NotOpened(OpenError::NoSession(_) | OpenError::Closed) => "no_session",
            Self::NotOpened(OpenError::TimedOut(_)) => "timeout",
        }
    }
}
