//! The certificates of the hospital's feed. They are apart from Braid's own authority, since an
//! interface engine has those of the hospital.

use std::path::Path;
use std::sync::Arc;

use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;
use service_kit::{ConfigError, https};
use tokio_rustls::TlsAcceptor;

use crate::config::Feed;

/// Reads the files. A peer needs a certificate of `hospital_ca`.
pub fn acceptor(feed: &Feed) -> Result<TlsAcceptor, ConfigError> {
    let refused = |field: &str, file: &Path, reason: &dyn std::fmt::Display| {
        let example = format!("--{} /etc/braid/hospital.pem", field.replace('_', "-"));
        ConfigError::new(field, format!("{}: {reason}", file.display()), example)
    };
    let [cert, key, ca] = feed.files()?;
    let chain = https::certificates("hospital_cert", cert)?;
    let private =
        PrivateKeyDer::from_pem_file(key).map_err(|error| refused("hospital_key", key, &error))?;
    let mut roots = RootCertStore::empty();
    for authority in https::certificates("hospital_ca", ca)? {
        let added = roots.add(authority);
        added.map_err(|error| refused("hospital_ca", ca, &error))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .map_err(|error| refused("hospital_ca", ca, &error))?;
    let tls = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| refused("hospital_cert", cert, &error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, private)
        .map_err(|error| refused("hospital_cert", cert, &error))?;
    Ok(TlsAcceptor::from(Arc::new(tls)))
}
