//! Revoked gateways, and their certificates that are valid all the same.
//!
//! A revocation names the gateway and not a certificate, so that no certificate is missed. A later
//! certificate of the gateway, from a new token, is excepted by its fingerprint.

use std::collections::HashMap;
use std::fmt;

use rustls_pki_types::CertificateDer;
use sha2::{Digest, Sha256};

use super::PeerId;

/// SHA-256 of a certificate in DER; as text lower-case hex, like Envoy's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    pub fn of(certificate: &CertificateDer<'_>) -> Fingerprint {
        Fingerprint(Sha256::digest(certificate).into())
    }

    pub fn from_hex(text: &str) -> Option<Fingerprint> {
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        Some(Fingerprint(bytes))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revocations {
    excepted: HashMap<PeerId, Vec<Fingerprint>>,
}

impl Revocations {
    /// Whether a peer with this certificate is refused. Without a known certificate, a revoked
    /// gateway is refused.
    pub fn refuses(&self, id: &PeerId, certificate: Option<&Fingerprint>) -> bool {
        self.excepted.get(id).is_some_and(|excepted| {
            !certificate.is_some_and(|certificate| excepted.contains(certificate))
        })
    }

    pub fn iter(&self) -> impl Iterator<Item = (&PeerId, &[Fingerprint])> {
        self.excepted
            .iter()
            .map(|(id, excepted)| (id, excepted.as_slice()))
    }

    pub fn len(&self) -> usize {
        self.excepted.len()
    }

    pub fn is_empty(&self) -> bool {
        self.excepted.is_empty()
    }
}

impl FromIterator<(PeerId, Vec<Fingerprint>)> for Revocations {
    fn from_iter<T: IntoIterator<Item = (PeerId, Vec<Fingerprint>)>>(revoked: T) -> Revocations {
        Revocations {
            excepted: revoked.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_revoked_gateway_is_admitted_only_with_a_newer_certificate() {
        let (old, new) = (
            Fingerprint::of(&CertificateDer::from(vec![1])),
            Fingerprint::of(&CertificateDer::from(vec![2])),
        );
        let revoked = PeerId::gateway("t", "gw");
        let revocations: Revocations = [(revoked.clone(), vec![new])].into_iter().collect();
        assert!(revocations.refuses(&revoked, Some(&old)));
        assert!(revocations.refuses(&revoked, None));
        assert!(!revocations.refuses(&revoked, Some(&new)));
        for other in [PeerId::gateway("u", "gw"), PeerId::gateway("t", "gw2")] {
            assert!(!revocations.refuses(&other, Some(&old)), "{other}");
        }
    }

    #[test]
    fn a_fingerprint_survives_its_text() {
        let it = Fingerprint::of(&CertificateDer::from(vec![7; 9]));
        assert_eq!(Fingerprint::from_hex(&it.to_string()), Some(it));
        for rubbish in ["", "ab", &"g".repeat(64), &"+1".repeat(32), &"é".repeat(32)] {
            assert_eq!(Fingerprint::from_hex(rubbish), None, "{rubbish}");
        }
    }
}
