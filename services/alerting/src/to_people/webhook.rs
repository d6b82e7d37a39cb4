//! A webhook: one signed HTTP POST per notice.
//!
//! `braid-signature: t=<Unix seconds>,v1=<hex>` is HMAC-SHA256 with the secret over `<t>.<body>`. A
//! second secret adds a second `v1=` while the receiver changes to it. A receiver computes the
//! signature over the received bytes and compares in constant time. It refuses a `t` more than some
//! minutes away, so that an old call cannot be replayed. `idempotency-key` is the same for every
//! attempt.
//!
//! A heartbeat is a call with `"kind": "heartbeat"` and a `challenge`. The receiver confirms it by
//! `{"confirmed": CHALLENGE}` as answer, or later by a POST to `confirm_url`. A status alone
//! confirms nothing: a wrong address or a proxy may give it.

use std::{path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Collected, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use service_kit::{
    ConfigError, Secret,
    config::parse_address,
    https::{bare_host, believing},
};
use sha2::Sha256;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use super::{
    heartbeat::{Heartbeat, confirms},
    message::{Message, Undelivered},
};

/// From connecting to the end of the response.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// Bytes of the answer to a heartbeat; a longer one confirms nothing.
const ANSWER_BYTES_MAX: usize = 4 << 10;

pub(super) struct Webhook {
    uri: Uri,
    host: String,
    port: u16,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    authorization: Option<String>,
    /// Each secret adds a signature. Empty: calls are not signed.
    secrets: Vec<Secret>,
}

/// Shortest secret that is accepted: half the length of the hash.
const SECRET_BYTES_MIN: usize = 16;

#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
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
    pub(super) fn is_retryable(&self) -> bool {
        match self {
            CallError::Connection(_) | CallError::Http(_) | CallError::Late => true,
            CallError::Request(_) => false,
            // Only a verdict on this very message is final. Redirections and wrong methods can be
            // fixed.
            CallError::Status(status) => !matches!(
                *status,
                StatusCode::BAD_REQUEST
                    | StatusCode::CONFLICT
                    | StatusCode::GONE
                    | StatusCode::PAYLOAD_TOO_LARGE
                    | StatusCode::UNSUPPORTED_MEDIA_TYPE
                    | StatusCode::UNPROCESSABLE_ENTITY
            ),
        }
    }
}

impl Webhook {
    pub(super) fn new(
        url: &Secret,
        token: Option<&Secret>,
        ca: Option<&Path>,
        secrets: [Option<&Secret>; 2],
    ) -> Result<Webhook, ConfigError> {
        let refused = |reason: &str| {
            ConfigError::new(
                "webhook",
                reason,
                "--webhook http://alertmanager:9093/braid",
            )
        };
        // The URL may contain a secret, so no message repeats it.
        let uri =
            parse_address(url.expose(), &["http", "https"]).map_err(|reason| refused(&reason))?;
        let host = uri.host().ok_or_else(|| refused("has no host"))?;
        let host = bare_host(host);
        let (default_port, tls) = match uri.scheme_str() {
            Some("http") => (80, None),
            Some("https") => {
                let name = ServerName::try_from(host.clone())
                    .map_err(|_| refused("has a host that no certificate can name"))?;
                let ca = ca.ok_or_else(|| {
                    ConfigError::new(
                        "webhook_ca",
                        "an https webhook needs a trusted certificate authority",
                        "--webhook-ca /etc/ssl/certs/ca-certificates.crt",
                    )
                })?;
                (443, Some((believing("webhook_ca", ca)?, name)))
            }
            _ => return Err(refused("is neither http nor https")),
        };
        for (field, secret) in ["webhook_secret", "webhook_secret_next"]
            .iter()
            .zip(secrets)
        {
            if secret.is_some_and(|secret| secret.expose().len() < SECRET_BYTES_MIN) {
                return Err(ConfigError::new(
                    *field,
                    format!("is shorter than {SECRET_BYTES_MIN} bytes"),
                    "what `openssl rand -hex 32` prints",
                ));
            }
        }
        Ok(Webhook {
            secrets: secrets.into_iter().flatten().cloned().collect(),
            port: uri.port_u16().unwrap_or(default_port),
            host,
            uri,
            tls,
            authorization: token.map(|token| format!("Bearer {}", token.expose())),
        })
    }

    pub(super) async fn send(&self, message: &Message<'_>) -> Result<(), Undelivered> {
        let body = Bytes::from(message.json().to_string());
        self.within_limit(&message.key(), body, 0).await.map(drop)
    }

    /// Whether the answer confirms the heartbeat.
    pub(super) async fn prove(&self, heartbeat: &Heartbeat<'_>) -> Result<bool, Undelivered> {
        let body = serde_json::json!({
            "kind": "heartbeat",
            "challenge": heartbeat.secret,
            "confirm_url": heartbeat.link(),
        });
        let body = Bytes::from(body.to_string());
        let answer = self.within_limit(&heartbeat.key, body, ANSWER_BYTES_MAX);
        Ok(confirms(&answer.await?, heartbeat.secret))
    }

    async fn within_limit(
        &self,
        key: &str,
        body: Bytes,
        answer_max: usize,
    ) -> Result<Bytes, Undelivered> {
        let called = tokio::time::timeout(CALL_LIMIT, self.call(key, body, answer_max)).await;
        called
            .unwrap_or(Err(CallError::Late))
            .map_err(|error| Undelivered {
                is_retryable: error.is_retryable(),
                reason: error.to_string(),
            })
    }

    async fn call(&self, key: &str, body: Bytes, answer_max: usize) -> Result<Bytes, CallError> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            None => self.post(stream, key, body, answer_max).await,
            Some((config, name)) => {
                let connector = TlsConnector::from(Arc::clone(config));
                let stream = connector.connect(name.clone(), stream).await?;
                self.post(stream, key, body, answer_max).await
            }
        }
    }

    /// The first bytes of a successful answer; none with `answer_max` 0.
    async fn post<S>(
        &self,
        stream: S,
        key: &str,
        body: Bytes,
        answer_max: usize,
    ) -> Result<Bytes, CallError>
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
        if !self.secrets.is_empty() {
            request = request.header(
                "braid-signature",
                self.signature(contracts::now_us() / 1_000_000, &body),
            );
        }
        let request = request.body(Full::new(body))?;
        // The connection lives as long as this call; dropping it closes the socket. A receiver that
        // closes at once may end the connection in the turn in which the response becomes ready. So
        // the end of the connection is no verdict.
        let answer = sender.send_request(request);
        tokio::pin!(answer, connection);
        let mut is_ended = false;
        let answer = tokio::select! {
            answer = &mut answer => answer,
            ended = &mut connection => {
                ended?;
                is_ended = true;
                answer.await
            }
        }?;
        let status = answer.status();
        if !status.is_success() {
            return Err(CallError::Status(status));
        }
        if answer_max == 0 {
            return Ok(Bytes::new());
        }
        let body = Limited::new(answer.into_body(), answer_max).collect();
        tokio::pin!(body);
        let body = tokio::select! {
            body = &mut body => body,
            // Bytes that have arrived may still be read.
            _ = &mut connection, if !is_ended => body.await,
        };
        // An answer that is too long or cut off confirms nothing.
        Ok(body.map(Collected::to_bytes).unwrap_or_default())
    }

    fn signature(&self, at_s: i64, body: &[u8]) -> String {
        self.secrets
            .iter()
            .fold(format!("t={at_s}"), |header, secret| {
                format!("{header},v1={}", sign(secret, at_s, body))
            })
    }
}

fn sign(secret: &Secret, at_s: i64, body: &[u8]) -> String {
    // HMAC accepts a key of any length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret.expose().as_bytes()) else {
        return String::new();
    };
    mac.update(format!("{at_s}.").as_bytes());
    mac.update(body);
    let bytes = mac.finalize().into_bytes();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_a_refusal_of_the_message_itself_is_final() {
        for (code, is_retried) in [
            (302, true),
            (308, true),
            (400, false),
            (403, true),
            (404, true),
            (405, true),
            (407, true),
            (413, false),
            (422, false),
            (429, true),
            (451, true),
            (500, true),
            (503, true),
        ] {
            let answer = CallError::Status(StatusCode::from_u16(code).unwrap());
            assert_eq!(answer.is_retryable(), is_retried, "{code}");
        }
    }

    #[test]
    fn both_secrets_sign_while_they_change() {
        let secret = |letter: &str| Secret::new(letter.repeat(16));
        let url = Secret::new("http://127.0.0.1:1/hook");
        let signature = |one: Option<&Secret>, two: Option<&Secret>| {
            Webhook::new(&url, None, None, [one, two])
                .unwrap()
                .signature(7, b"{}")
        };
        let (old, new) = (secret("a"), secret("b"));
        // `printf '7.{}' | openssl dgst -sha256 -hmac aaaaaaaaaaaaaaaa`
        let by_old = "f0ee581eee05ca5220ccfa7354ea43b45c9eada2b519589e20c83879d5a75fc5";
        assert_eq!(signature(Some(&old), None), format!("t=7,v1={by_old}"));
        let both = signature(Some(&old), Some(&new));
        let by_new = sign(&new, 7, b"{}");
        assert_eq!(both, format!("t=7,v1={by_old},v1={by_new}"));
        assert_ne!(by_old, by_new);
        assert_ne!(sign(&new, 8, b"{}"), by_new, "the time is signed, too");
        let short = Secret::new("short");
        let refused = Webhook::new(&url, None, None, [None, Some(&short)])
            .err()
            .unwrap();
        assert_eq!(refused.field, "webhook_secret_next");
    }
}
