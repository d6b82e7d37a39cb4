//! One HTTP request to a server without gRPC, bounded in time and size.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::ConfigError;

/// Time from connecting to the last byte of the answer; then the call fails.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// Bytes of an answer; a longer answer is refused.
const ANSWER_BYTES_MAX: usize = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("{0:?} is no http or https address")]
    Url(String),
    #[error("connection: {0}")]
    Connection(#[from] std::io::Error),
    #[error("HTTP: {0}")]
    Http(#[from] hyper::Error),
    #[error("request: {0}")]
    Request(#[from] http::Error),
    #[error("the answer: {0}")]
    Answer(String),
    #[error("no answer within {} s", CALL_LIMIT.as_secs())]
    Late,
}

/// Trusts only the authorities of the file.
pub fn believing(field: &str, ca: &Path) -> Result<Arc<ClientConfig>, ConfigError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(field, ca)? {
        roots
            .add(certificate)
            .map_err(|error| refused(field, ca, &error))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| refused(field, ca, &error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// At least one certificate.
pub fn certificates(field: &str, ca: &Path) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let certificates = CertificateDer::pem_file_iter(ca)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| refused(field, ca, &error))?;
    if certificates.is_empty() {
        return Err(refused(field, ca, &"contains no certificate"));
    }
    Ok(certificates)
}

fn refused(field: &str, ca: &Path, reason: &dyn std::fmt::Display) -> ConfigError {
    ConfigError::new(
        field,
        format!("{}: {reason}", ca.display()),
        "/etc/ssl/certs/ca-certificates.crt",
    )
}

/// Without TLS, health data and passwords may go to this machine only.
pub fn is_loopback(host: &str) -> bool {
    host == "localhost"
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// The brackets of an IPv6 address belong to the URL, not to the host.
pub fn bare_host(host: &str) -> String {
    host.trim_start_matches('[')
        .trim_end_matches(']')
        .to_owned()
}

/// Trusts every certificate: for questions without secrets whose answer is verified otherwise.
pub fn believing_anybody() -> Result<ClientConfig, ConfigError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Arc::new(Anybody(provider.clone()));
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| ConfigError::new("tls", error.to_string(), "a build with TLS 1.3"))?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Ok(config)
}

#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.3 only".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// `tls` is for https addresses; an http address is used without encryption.
pub async fn call(
    method: Method,
    url: &str,
    headers: &[(HeaderName, HeaderValue)],
    body: Vec<u8>,
    tls: &Arc<ClientConfig>,
) -> Result<(StatusCode, Bytes), CallError> {
    let called = tokio::time::timeout(CALL_LIMIT, exchange(method, url, headers, body, tls)).await;
    called.unwrap_or(Err(CallError::Late))
}

async fn exchange(
    method: Method,
    url: &str,
    headers: &[(HeaderName, HeaderValue)],
    body: Vec<u8>,
    tls: &Arc<ClientConfig>,
) -> Result<(StatusCode, Bytes), CallError> {
    let refused = || CallError::Url(url.to_owned());
    let uri: Uri = url.parse().map_err(|_| refused())?;
    let host = uri.host().ok_or_else(refused)?;
    // The brackets of an IPv6 address belong to the URL and not to the host.
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_tls = match uri.scheme_str() {
        Some("https") => true,
        Some("http") => false,
        _ => return Err(refused()),
    };
    let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, uri.authority().map_or("", |it| it.as_str()))
        .header(header::CONNECTION, "close")
        .body(Full::new(Bytes::from(body)))?;
    let own: HeaderMap = headers.iter().cloned().collect();
    request.headers_mut().extend(own);
    let stream = TcpStream::connect((host, port)).await?;
    if !is_tls {
        return send(stream, request).await;
    }
    let name = ServerName::try_from(host.to_owned()).map_err(|_| refused())?;
    let stream = TlsConnector::from(Arc::clone(tls))
        .connect(name, stream)
        .await?;
    send(stream, request).await
}

async fn send<S>(stream: S, request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes), CallError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let answer = async {
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| CallError::Answer(error.to_string()))?;
        Ok((head.status, body.to_bytes()))
    };
    // The connection lives as long as this call. A complete answer is valid even if the connection
    // fails afterwards.
    tokio::pin!(answer, connection);
    tokio::select! {
        answer = &mut answer => answer,
        _ = &mut connection => answer.await,
    }
}
