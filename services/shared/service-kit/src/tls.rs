//! Identity and trust of a process: TLS 1.3 only, and both ends have certificates of one authority.
//!
//! The identity is a SPIFFE-style URI in the certificate ([`PeerId`]). A handshake looks at the
//! files again at most every [`identity::RELOAD_INTERVAL`]. So renewed certificates and authorities
//! take effect without a restart.

pub mod authority;
mod files;
pub mod identity;
mod peer_id;
pub mod renewal;
mod revocations;
mod source;
mod verifier;

pub use files::{IdentityError, IdentityFiles};
pub use identity::Identity;
pub use peer_id::{GatewayId, PeerId, PeerIdError};
pub use revocations::{Fingerprint, Revocations};

/// Makes ring the process's default provider, for libraries that need one. Idempotent.
pub fn install_provider() {
    // An error means that a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
