//! The certificates of the hospital's feed. They are apart from Braid's own authority, since an
//! interface engine has those of the hospital.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use service_kit::{ConfigError, https};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::config::Feed;

/// For connections to the hospital's own listener, which must have a certificate of `hospital_ca`.
pub fn connector(feed: &Feed) -> Result<TlsConnector, ConfigError> {
    let [cert, _, ca] = feed.files()?;
    let (chain, key) = own(feed)?;
    let tls = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| refused("hospital_cert", cert, &error))?
        .with_root_certificates(roots(ca)?)
        .with_client_auth_cert(chain, key)
        .map_err(|error| refused("hospital_cert", cert, &error))?;
    Ok(TlsConnector::from(Arc::new(tls)))
}

/// Certificate and key of this end.
fn own(feed: &Feed) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), ConfigError> {
    let [cert, key, _] = feed.files()?;
    let chain = https::certificates("hospital_cert", cert)?;
    let private = PrivateKeyDer::from_pem_file(key);
    let private = private.map_err(|error| refused("hospital_key", key, &error))?;
    Ok((chain, private))
}

fn refused(field: &str, file: &Path, reason: &dyn std::fmt::Display) -> ConfigError {
    let example = format!("--{} /etc/braid/hospital.pem", field.replace('_', "-"));
    ConfigError::new(field, format!("{}: {reason}", file.display()), example)
}

fn roots(ca: &Path) -> Result<RootCertStore, ConfigError> {
    let mut roots = RootCertStore::empty();
    for authority in https::certificates("hospital_ca", ca)? {
        let added = roots.add(authority);
        added.map_err(|error| refused("hospital_ca", ca, &error))?;
    }
    Ok(roots)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Reads the files. A peer needs a certificate of `hospital_ca`.
pub fn acceptor(feed: &Feed) -> Result<TlsAcceptor, ConfigError> {
    let [cert, _, ca] = feed.files()?;
    let (chain, key) = own(feed)?;
    let provider = provider();
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots(ca)?), Arc::clone(&provider))
            .build()
            .map_err(|error| refused("hospital_ca", ca, &error))?;
    let tls = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| refused("hospital_cert", cert, &error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(|error| refused("hospital_cert", cert, &error))?;
    Ok(TlsAcceptor::from(Arc::new(tls)))
}
