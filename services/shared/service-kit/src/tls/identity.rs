//! A loaded identity that follows its files.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::UnixTime;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::source::Source;
use super::verifier::{ClientVerifier, ServerVerifier};
use super::{IdentityError, IdentityFiles, PeerId};

/// Least interval between two looks at the files (three `stat`s); only a handshake looks.
pub const RELOAD_INTERVAL: Duration = Duration::from_secs(2);

/// Clones follow the same files.
#[derive(Clone)]
pub struct Identity {
    source: Arc<Source>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("files", &self.source.files)
            .finish()
    }
}

impl Identity {
    /// Reads the files, and follows their later changes.
    pub fn load(files: &IdentityFiles) -> Result<Identity, IdentityError> {
        Identity::load_with_interval(files, RELOAD_INTERVAL)
    }

    /// [`Identity::load`] with another interval, for tests.
    pub fn load_with_interval(
        files: &IdentityFiles,
        reload_interval: Duration,
    ) -> Result<Identity, IdentityError> {
        let identity = Identity {
            source: Arc::new(Source::load(files, reload_interval)?),
        };
        let who = identity.peer_id()?;
        if let Some(error) = identity.refused_by_peers(SystemTime::now())? {
            tracing::warn!(%who, %error, "peers refuse this certificate; another one in its file is taken without a restart");
        }
        Ok(identity)
    }

    /// The reason for which peers would refuse this certificate now, if they would. The peers'
    /// authorities may differ from those of this process: an authority for gateways is trusted only
    /// by services for gateways.
    pub fn refused_by_peers(
        &self,
        now: SystemTime,
    ) -> Result<Option<IdentityError>, IdentityError> {
        let is_gateway = matches!(self.peer_id()?, PeerId::Gateway(_));
        let refused = self.vouched_for(now).err();
        Ok(refused.filter(|error| !(is_gateway && error.is_unknown_issuer())))
    }

    /// The identity in the certificate.
    pub fn peer_id(&self) -> Result<PeerId, IdentityError> {
        let certified = self.source.certified();
        let leaf = certified
            .cert
            .first()
            .ok_or(super::PeerIdError::UriCount(0))?;
        Ok(PeerId::from_certificate(leaf)?)
    }

    /// End of the certificate's validity.
    pub fn valid_until(&self) -> Result<SystemTime, IdentityError> {
        let certified = self.source.certified();
        let leaf = certified
            .cert
            .first()
            .ok_or(super::PeerIdError::UriCount(0))?;
        let (_, certificate) = x509_parser::parse_x509_certificate(leaf)
            .map_err(|error| IdentityError::Verifier(error.to_string()))?;
        let end_s = certificate.validity().not_after.timestamp();
        Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(end_s).unwrap_or(0)))
    }

    /// Whether a trusted authority issued the own certificate, as peers will check at `now`.
    pub fn vouched_for(&self, now: SystemTime) -> Result<(), IdentityError> {
        let certified = self.source.certified();
        let (leaf, intermediates) = certified
            .cert
            .split_first()
            .ok_or(super::PeerIdError::UriCount(0))?;
        let since_epoch = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let now = UnixTime::since_unix_epoch(since_epoch);
        ClientVerifier::new(self.source.clone()).verify_client_cert(leaf, intermediates, now)?;
        Ok(())
    }

    /// TLS 1.3 as a server. With `client_auth` a client needs a certificate of a trusted authority;
    /// without it no certificate is asked for.
    pub fn server_config(&self, client_auth: bool, alpn: &[&[u8]]) -> Arc<rustls::ServerConfig> {
        let builder = self.server_builder();
        let builder = if client_auth {
            builder.with_client_cert_verifier(Arc::new(ClientVerifier::new(self.source.clone())))
        } else {
            builder.with_no_client_auth()
        };
        let mut config = builder.with_cert_resolver(Arc::new(Resolver(self.source.clone())));
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        // QUIC permits only two values here; without early data nothing can be replayed.
        config.max_early_data_size = 0;
        if client_auth {
            // A resumed session takes the client's certificate from the ticket without
            // verification. An expired certificate, or one of a removed authority, would be
            // admitted. A full handshake takes no more round trips.
            config.send_tls13_tickets = 0;
            config.session_storage = Arc::new(NoServerSessionStorage {});
        }
        Arc::new(config)
    }

    /// TLS 1.3 as a client that sends its certificate and verifies the server's name and chain.
    pub fn client_config(&self, alpn: &[&[u8]]) -> Arc<rustls::ClientConfig> {
        let mut config = self
            .client_builder()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(ServerVerifier::new(self.source.clone())))
            .with_client_cert_resolver(Arc::new(Resolver(self.source.clone())));
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        Arc::new(config)
    }

    #[allow(clippy::expect_used)]
    fn server_builder(&self) -> rustls::ConfigBuilder<rustls::ServerConfig, rustls::WantsVerifier> {
        rustls::ServerConfig::builder_with_provider(self.source.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("ring has cipher suites of TLS 1.3")
    }

    #[allow(clippy::expect_used)]
    fn client_builder(&self) -> rustls::ConfigBuilder<rustls::ClientConfig, rustls::WantsVerifier> {
        rustls::ClientConfig::builder_with_provider(self.source.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("ring has cipher suites of TLS 1.3")
    }
}

struct Resolver(Arc<Source>);

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver")
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.certified())
    }
}

impl ResolvesClientCert for Resolver {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.certified())
    }

    fn has_certs(&self) -> bool {
        true
    }
}
