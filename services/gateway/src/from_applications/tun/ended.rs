//! Why an IP tunnel has ended, and what a person can do about it.

use std::time::Duration;

use tunnel::{OpenError, StatusCode, TunnelEnded};

/// Longest wait for the proxy to assign an address; then the tunnel is given up.
pub(super) const AGREED_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    #[error("not opened: {0}")]
    Open(#[from] OpenError),
    #[error("{0}")]
    Tunnel(#[from] TunnelEnded),
    #[error("the proxy gave no address within {AGREED_WITHIN:?}")]
    NoAddress,
    #[error("all the proxy's addresses are in use")]
    Full,
}

impl Ended {
    /// `None`: the tunnel itself reports the session's end, and it returns.
    pub(super) fn to_do(&self) -> Option<&'static str> {
        Some(match self {
            Self::Open(OpenError::Refused(StatusCode::NOT_IMPLEMENTED)) => {
                "start the proxy with --ip-pool, --tun and --allow-ip, or this gateway without --tun"
            }
            Self::Open(OpenError::Refused(StatusCode::FORBIDDEN)) => {
                "permit destinations for this tenant with --allow-ip at the proxy"
            }
            Self::Open(OpenError::Refused(StatusCode::SERVICE_UNAVAILABLE)) => {
                "see /readyz of the proxy, which cannot use its TUN device"
            }
            Self::Full => "give the proxy a larger --ip-pool",
            Self::NoAddress => "see the proxy's log",
            Self::Open(_) | Self::Tunnel(_) => return None,
        })
    }
}
