//! TLS of the simulated endpoints: real handshakes and real packet protection, so that byte counts
//! are those of the product. Keys and signatures are Ed25519 because their encodings have a fixed
//! length: a run's packet sizes do not depend on chance.

use std::sync::Arc;

use noq_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

/// Name in the certificate.
pub const SERVER_NAME: &str = "proxy.lab";

/// TLS configuration of both ends; one serves any number of runs.
#[derive(Clone)]
pub struct Identity {
    pub client: Arc<QuicClientConfig>,
    pub server: Arc<QuicServerConfig>,
}

/// The lab could not make its own certificate; nothing a user can do.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("cannot make a certificate")]
    Certificate(#[from] rcgen::Error),
    #[error("TLS refuses the lab's own configuration")]
    Tls(#[from] rustls::Error),
    #[error("no cipher suite for QUIC's first packets")]
    Initial(#[from] noq_proto::crypto::rustls::NoInitialCipherSuite),
}

impl Identity {
    pub fn new() -> Result<Self, IdentityError> {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519)?;
        let mut params = rcgen::CertificateParams::new(vec![SERVER_NAME.to_owned()])?;
        params.serial_number = Some(rcgen::SerialNumber::from(vec![1; 16]));
        let certificate: CertificateDer<'static> = params.self_signed(&key)?.der().clone();
        let provider = Arc::new(rustls::crypto::ring::default_provider());

        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate.clone())?;
        let mut client = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_no_client_auth();
        // A run must not resume the session of the run before it.
        client.resumption = rustls::client::Resumption::disabled();
        let server = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate],
                PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
            )?;
        Ok(Self {
            client: Arc::new(client.try_into()?),
            server: Arc::new(server.try_into()?),
        })
    }
}
