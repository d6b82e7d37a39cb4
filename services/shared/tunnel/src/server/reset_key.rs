//! The key of stateless resets (RFC 9000, section 10.3). A server with the key of its predecessor
//! answers packets of lost connections with a reset that their clients believe. So after a crash
//! clients connect again at once, and not after a silence.
//!
//! Only packets with a connection id of the predecessor are answered. Without a server id such an
//! id proves itself by a signature.

use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use noq::{
    ConnectionId, ConnectionIdGenerator, InvalidCid,
    crypto::{CryptoError, HmacKey},
};
use sha2::Sha256;

/// Separates this use of the secret from others.
const LABEL: &[u8] = b"braid stateless reset\0";
/// Separates signatures of connection ids from reset tokens, which sign an id alone.
const IDS: &[u8] = b"connection ids of a braid proxy\0";

/// As long as the library's own ids: each packet to the server has one.
const NONCE_BYTES: usize = 6;
const SIGNATURE_BYTES: usize = 2;

/// Must be secret, and the same for no two servers: one would end the connections of the other.
#[derive(Clone)]
pub struct ResetKey(Hmac<Sha256>);

impl ResetKey {
    /// `server` names the server, so that servers with one secret have different keys. None: the
    /// secret is empty.
    pub fn derive(secret: &[u8], server: &str) -> Option<Self> {
        if secret.is_empty() {
            return None;
        }
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).ok()?;
        mac.update(LABEL);
        mac.update(server.as_bytes());
        let key = mac.finalize().into_bytes();
        Hmac::new_from_slice(&key).ok().map(Self)
    }

    fn of(&self, data: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(data);
        mac
    }
}

impl HmacKey for ResetKey {
    fn sign(&self, data: &[u8], signature_out: &mut [u8]) {
        let signature = self.of(data).finalize().into_bytes();
        for (to, from) in signature_out.iter_mut().zip(signature) {
            *to = from;
        }
    }

    fn signature_len(&self) -> usize {
        32
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        let verified = self.of(data).verify_slice(signature);
        verified.map_err(|_| CryptoError)
    }
}

/// Connection ids that a successor with the same key knows.
#[derive(Clone)]
pub(super) struct SignedIds(pub(super) ResetKey);

impl SignedIds {
    fn signature(&self, nonce: &[u8]) -> [u8; SIGNATURE_BYTES] {
        let mut mac = self.0.of(IDS);
        mac.update(nonce);
        let whole = mac.finalize().into_bytes();
        [whole[0], whole[1]]
    }
}

impl ConnectionIdGenerator for SignedIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let nonce: [u8; NONCE_BYTES] = rand::random();
        ConnectionId::new(&[&nonce[..], &self.signature(&nonce)].concat())
    }

    fn validate(&self, cid: ConnectionId) -> Result<(), InvalidCid> {
        let parts = cid.split_at_checked(NONCE_BYTES).ok_or(InvalidCid)?;
        match *parts.1 == self.signature(parts.0) {
            true => Ok(()),
            false => Err(InvalidCid),
        }
    }

    fn cid_len(&self) -> usize {
        NONCE_BYTES + SIGNATURE_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn token(secret: &[u8], server: &str) -> [u8; 32] {
        let mut token = [0; 32];
        let key = ResetKey::derive(secret, server).unwrap();
        key.sign(b"connection id", &mut token);
        assert!(key.verify(b"connection id", &token).is_ok());
        assert!(key.verify(b"another", &token).is_err());
        token
    }

    #[test]
    fn a_restarted_server_has_the_same_key_and_another_one_has_not() {
        let known = token(b"secret", "proxy-1");
        assert_eq!(known, token(b"secret", "proxy-1"));
        assert_ne!(known, token(b"secret", "proxy-2"));
        assert_ne!(known, token(b"another", "proxy-1"));
        assert!(ResetKey::derive(b"", "proxy-1").is_none());
    }

    #[test]
    fn a_restarted_server_knows_the_ids_of_its_predecessor() {
        let of = |server| SignedIds(ResetKey::derive(b"secret", server).unwrap());
        let id = of("proxy-1").generate_cid();
        assert_eq!(id.len(), of("proxy-1").cid_len());
        assert!(of("proxy-1").validate(id).is_ok());
        assert!(of("proxy-2").validate(id).is_err());
        assert!(of("proxy-1").validate(ConnectionId::new(&[7; 3])).is_err());
    }
}
