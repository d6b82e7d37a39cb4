//! Identities as URIs: `spiffe://braid/tenant/<tenant>/gateway/<id>` and
//! `spiffe://braid/service/<noun>`.

use std::fmt;
use std::str::FromStr;

use rustls_pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

const TRUST_DOMAIN: &str = "spiffe://braid/";
/// Bytes of a name within an identity; a longer name is refused.
const SEGMENT_BYTES_MAX: usize = 128;

/// A gateway, unique over all tenants.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GatewayId {
    pub tenant: String,
    pub id: String,
}

impl GatewayId {
    pub fn new(tenant: impl Into<String>, id: impl Into<String>) -> GatewayId {
        GatewayId {
            tenant: tenant.into(),
            id: id.into(),
        }
    }
}

impl fmt::Display for GatewayId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gateway {} of tenant {}", self.id, self.tenant)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PeerId {
    Gateway(GatewayId),
    Service { noun: String },
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PeerIdError {
    #[error("the certificate cannot be parsed: {0}")]
    Certificate(String),
    #[error("the certificate has {0} URI names instead of one")]
    UriCount(usize),
    #[error(
        "identity {0:?} is neither spiffe://braid/tenant/<tenant>/gateway/<id> nor spiffe://braid/service/<noun>"
    )]
    Form(String),
}

impl PeerId {
    pub fn gateway(tenant: impl Into<String>, id: impl Into<String>) -> PeerId {
        PeerId::Gateway(GatewayId::new(tenant, id))
    }

    pub fn service(noun: impl Into<String>) -> PeerId {
        PeerId::Service { noun: noun.into() }
    }

    /// Reads the identity from a certificate whose chain is verified.
    pub fn from_certificate(certificate: &CertificateDer<'_>) -> Result<PeerId, PeerIdError> {
        let (_, parsed) = X509Certificate::from_der(certificate)
            .map_err(|error| PeerIdError::Certificate(error.to_string()))?;
        let names = parsed
            .subject_alternative_name()
            .map_err(|error| PeerIdError::Certificate(error.to_string()))?;
        let uris: Vec<&str> = names
            .iter()
            .flat_map(|names| names.value.general_names.iter())
            .filter_map(|name| match name {
                GeneralName::URI(uri) => Some(*uri),
                _ => None,
            })
            .collect();
        match uris.as_slice() {
            [uri] => uri.parse(),
            other => Err(PeerIdError::UriCount(other.len())),
        }
    }

    /// A short name for files and logs.
    pub fn name(&self) -> &str {
        match self {
            PeerId::Gateway(gateway) => &gateway.id,
            PeerId::Service { noun } => noun,
        }
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerId::Gateway(GatewayId { tenant, id }) => {
                write!(f, "{TRUST_DOMAIN}tenant/{tenant}/gateway/{id}")
            }
            PeerId::Service { noun } => write!(f, "{TRUST_DOMAIN}service/{noun}"),
        }
    }
}

impl FromStr for PeerId {
    type Err = PeerIdError;

    fn from_str(uri: &str) -> Result<PeerId, PeerIdError> {
        let form = || PeerIdError::Form(uri.chars().take(4 * SEGMENT_BYTES_MAX).collect());
        let path = uri.strip_prefix(TRUST_DOMAIN).ok_or_else(form)?;
        let segments: Vec<&str> = path.split('/').take(5).collect();
        if !segments.iter().all(|segment| is_segment(segment)) {
            return Err(form());
        }
        match segments.as_slice() {
            ["tenant", tenant, "gateway", id] => Ok(PeerId::gateway(*tenant, *id)),
            ["service", noun] => Ok(PeerId::service(*noun)),
            _ => Err(form()),
        }
    }
}

/// SPIFFE ID, section 2.2: letters, digits, dot, dash, underscore; no `.` or `..`.
fn is_segment(segment: &str) -> bool {
    !segment.is_empty()
        && segment.len() <= SEGMENT_BYTES_MAX
        && segment != "."
        && segment != ".."
        && segment
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn both_forms_round_trip() {
        for id in [
            PeerId::gateway("home", "gw-1"),
            PeerId::service("path-telemetry"),
        ] {
            assert_eq!(id.to_string().parse::<PeerId>().unwrap(), id);
        }
    }

    #[test]
    fn other_uris_are_refused() {
        for uri in [
            "",
            "spiffe://other/service/ingest",
            "spiffe://braid/service/",
            "spiffe://braid/service/ingest/extra",
            "spiffe://braid/tenant/a/gateway/../x",
            "spiffe://braid/tenant/a/gateway/b c",
            "spiffe://braid/tenant/a/device/b",
            "https://braid/service/ingest",
        ] {
            assert!(uri.parse::<PeerId>().is_err(), "{uri}");
        }
        let long = format!(
            "spiffe://braid/service/{}",
            "x".repeat(SEGMENT_BYTES_MAX + 1)
        );
        assert!(long.parse::<PeerId>().is_err());
    }
}
