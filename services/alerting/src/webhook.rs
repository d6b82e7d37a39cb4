//! One HTTP POST: what a webhook needs and no more.

use std::{path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject};
use service_kit::{ConfigError, Secret};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

/// From connecting to the head of the answer.
const CALL_LIMIT: Duration = Duration::from_secs(10);

pub(crate) struct Webhook {
    uri: Uri,
    host: String,
    port: u16,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    authorization: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("connection: {0}")]
    Connection(#[from] std::io::Error),
    #[error("HTTP: {0}")]
    Http(#[from] hyper::Error),
    #[error("request: {0}")]
    Request(#[from] http::Error),
    #[error("no answer within {} s", CALL_LIMIT.as_secs())]
    Late,
    #[error("answered {0}")]
    Status(StatusCode),
}

impl CallError {
    /// Whether the same call may succeed later.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            CallError::Connection(_) | CallError::Http(_) | CallError::Late => true,
            CallError::Request(_) => false,
            CallError::Status(status) => {
                status.is_server_error()
                    || matches!(
                        *status,
                        StatusCode::REQUEST_TIMEOUT
                            | StatusCode::TOO_MANY_REQUESTS
                            | StatusCode::TOO_EARLY
                            | StatusCode::UNAUTHORIZED
                            | StatusCode::FORBIDDEN
                            | StatusCode::NOT_FOUND
                    )
            }
        }
    }
}

impl Webhook {
    pub(crate) fn new(
        url: &Secret,
        token: Option<&Secret>,
        ca: Option<&Path>,
    ) -> Result<Webhook, ConfigError> {
        let refused = |reason: &str| {
            ConfigError::new(
                "webhook",
                reason,
                "--webhook http://alertmanager:9093/braid",
            )
        };
        // The URL may hold a secret: no message repeats it.
        let uri: Uri = url.expose().parse().map_err(|_| refused("is no URL"))?;
        let host = uri.host().ok_or_else(|| refused("has no host"))?;
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let (default_port, tls) = match uri.scheme_str() {
            Some("http") => (80, None),
            Some("https") => {
                let name = ServerName::try_from(host.clone())
                    .map_err(|_| refused("has a host that no certificate can name"))?;
                let ca = ca.ok_or_else(|| {
                    ConfigError::new(
                        "webhook_ca",
                        "an https webhook needs the authority to believe",
                        "--webhook-ca /etc/ssl/certs/ca-certificates.crt",
                    )
                })?;
                (443, Some((client_config(ca)?, name)))
            }
            _ => return Err(refused("is neither http nor https")),
        };
        Ok(Webhook {
            port: uri.port_u16().unwrap_or(default_port),
            host,
            uri,
            tls,
            authorization: token.map(|token| format!("Bearer {}", token.expose())),
        })
    }

    /// POSTs JSON; `key` makes a repetition recognisable to the receiver.
    pub(crate) async fn post(&self, key: &str, body: Bytes) -> Result<(), CallError> {
        tokio::time::timeout(CALL_LIMIT, self.call(key, body))
            .await
            .map_err(|_| CallError::Late)?
    }

    async fn call(&self, key: &str, body: Bytes) -> Result<(), CallError> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            None => self.send(stream, key, body).await,
            Some((config, name)) => {
                let connector = TlsConnector::from(Arc::clone(config));
                self.send(connector.connect(name.clone(), stream).await?, key, body)
                    .await
            }
        }
    }

    async fn send<S>(&self, stream: S, key: &str, body: Bytes) -> Result<(), CallError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let path = self.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::post(path)
            .header(
                header::HOST,
                self.uri.authority().map_or("", |a| a.as_str()),
            )
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONNECTION, "close")
            .header("idempotency-key", key);
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request = request.body(Full::new(body))?;
        // The connection lives as long as this call: dropping it closes the socket. A receiver that closes at once ends it in
        // the same turn in which the answer becomes ready, so its end says nothing about the answer.
        let answer = sender.send_request(request);
        tokio::pin!(answer, connection);
        let answer = tokio::select! {
            answer = &mut answer => answer,
            ended = &mut connection => {
                ended?;
                answer.await
            }
        }?;
        let status = answer.status();
        if status.is_success() {
            Ok(())
        } else {
            Err(CallError::Status(status))
        }
    }
}

fn client_config(ca: &Path) -> Result<Arc<ClientConfig>, ConfigError> {
    let refused = |reason: String| {
        ConfigError::new(
            "webhook_ca",
            format!("{}: {reason}", ca.display()),
            "--webhook-ca /etc/ssl/certs/ca-certificates.crt",
        )
    };
    let mut roots = RootCertStore::empty();
    let certificates =
        CertificateDer::pem_file_iter(ca).map_err(|error| refused(error.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| refused(error.to_string()))?;
        roots
            .add(certificate)
            .map_err(|error| refused(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(refused("holds no certificate".to_owned()));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| refused(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
