//! Trust of the channels: only the certificate authorities of a file.

use std::{net::IpAddr, path::Path, sync::Arc};

use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use service_kit::ConfigError;

const EXAMPLE: &str = "/etc/ssl/certs/ca-certificates.crt";

pub(super) fn client_config(field: &str, ca: &Path) -> Result<Arc<ClientConfig>, ConfigError> {
    let refused =
        |reason: String| ConfigError::new(field, format!("{}: {reason}", ca.display()), EXAMPLE);
    let mut roots = RootCertStore::empty();
    for certificate in certificates(field, ca)? {
        roots
            .add(certificate)
            .map_err(|error| refused(error.to_string()))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| refused(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// At least one certificate.
pub(super) fn certificates(
    field: &str,
    ca: &Path,
) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let refused =
        |reason: String| ConfigError::new(field, format!("{}: {reason}", ca.display()), EXAMPLE);
    let certificates = CertificateDer::pem_file_iter(ca)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| refused(error.to_string()))?;
    if certificates.is_empty() {
        return Err(refused("contains no certificate".to_owned()));
    }
    Ok(certificates)
}

/// Without TLS, health data and passwords may go to this machine only.
pub(super) fn is_loopback(host: &str) -> bool {
    host == "localhost"
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// The brackets of an IPv6 address belong to the URL, not to the host.
pub(super) fn bare_host(host: &str) -> String {
    host.trim_start_matches('[')
        .trim_end_matches(']')
        .to_owned()
}
