//! Webpki verification with authorities that may change while the process runs.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::PeerId;
use super::source::Source;

/// The verifier for one set of roots; built again when the roots differ.
struct Cache<V: ?Sized> {
    built: Mutex<Option<(Arc<RootCertStore>, Arc<V>)>>,
}

impl<V: ?Sized> Cache<V> {
    fn new() -> Cache<V> {
        Cache {
            built: Mutex::new(None),
        }
    }

    fn get<E: fmt::Display>(
        &self,
        roots: Arc<RootCertStore>,
        build: impl FnOnce(Arc<RootCertStore>) -> Result<Arc<V>, E>,
    ) -> Result<Arc<V>, Error> {
        let mut built = self.built.lock();
        if let Some((of, verifier)) = built.as_ref()
            && Arc::ptr_eq(of, &roots)
        {
            return Ok(verifier.clone());
        }
        let verifier = build(roots.clone()).map_err(|error| Error::General(error.to_string()))?;
        *built = Some((roots, verifier.clone()));
        Ok(verifier)
    }
}

pub(super) struct ServerVerifier {
    source: Arc<Source>,
    cache: Cache<WebPkiServerVerifier>,
}

impl ServerVerifier {
    pub(super) fn new(source: Arc<Source>) -> ServerVerifier {
        ServerVerifier {
            source,
            cache: Cache::new(),
        }
    }
}

impl fmt::Debug for ServerVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerVerifier")
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verifier = self.cache.get(self.source.roots(), |roots| {
            WebPkiServerVerifier::builder_with_provider(roots, self.source.provider.clone()).build()
        })?;
        verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.3 only".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.source.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.source
            .provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

pub(super) struct ClientVerifier {
    source: Arc<Source>,
    cache: Cache<dyn ClientCertVerifier>,
    cache_of_clients: Cache<dyn ClientCertVerifier>,
}

impl ClientVerifier {
    pub(super) fn new(source: Arc<Source>) -> ClientVerifier {
        ClientVerifier {
            source,
            cache: Cache::new(),
            cache_of_clients: Cache::new(),
        }
    }

    fn built(
        &self,
        cache: &Cache<dyn ClientCertVerifier>,
        roots: Arc<RootCertStore>,
    ) -> Result<Arc<dyn ClientCertVerifier>, Error> {
        cache.get(roots, |roots| {
            WebPkiClientVerifier::builder_with_provider(roots, self.source.provider.clone()).build()
        })
    }
}

impl fmt::Debug for ClientVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientVerifier")
    }
}

impl ClientCertVerifier for ClientVerifier {
    /// No hints: they would be those of the roots at start, and a client has only one certificate.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self
            .built(&self.cache, self.source.roots())?
            .verify_client_cert(end_entity, intermediates, now);
        let roots = self.source.roots_of_clients();
        if verified.is_ok() || roots.is_empty() {
            return verified;
        }
        let vouched = self
            .built(&self.cache_of_clients, roots)?
            .verify_client_cert(end_entity, intermediates, now);
        match PeerId::from_certificate(end_entity) {
            Ok(PeerId::Gateway(_)) => vouched,
            // An authority for clients names no service: such a certificate counts as unknown.
            Ok(PeerId::Service { .. }) | Err(_) => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.3 only".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.source.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.source
            .provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
