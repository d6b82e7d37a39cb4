//! Who a process is and whom it believes: TLS 1.3 only, both ends with certificates of one authority.
//!
//! The identity is a SPIFFE-style URI in the certificate ([`PeerId`]). Files are looked at again at most every
//! [`identity::RELOAD_INTERVAL`] when a handshake needs them, so renewed certificates and authorities hold without a restart.

pub mod authority;
mod files;
pub mod identity;
mod peer_id;
pub mod renewal;
mod revocations;
mod verifier;

pub use files::{IdentityError, IdentityFiles};
pub use identity::Identity;
pub use peer_id::{GatewayId, PeerId, PeerIdError};
pub use revocations::{Fingerprint, Revocations};

/// Makes ring the process's default provider, for libraries that ask for one. Idempotent.
pub fn install_provider() {
    // An error means that a provider is already installed, which is all that is wanted.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
