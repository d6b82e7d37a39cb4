//! The gateway's certificate: the first for a token, later ones with the certificate in force. The
//! key is made here and never leaves the machine.
//!
//! A new gateway does not know the authority. It asks for the authority's certificate, and trusts
//! the one whose fingerprint is in the token. Only then it sends the token's secret.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{HeaderValue, Method, StatusCode, header};
use serde::Deserialize;
use serde_json::json;
use service_kit::https::{self, CallError};
use service_kit::tls::renewal::{self, RenewalError, Request};
use service_kit::tls::{Fingerprint, Identity, IdentityError, IdentityFiles};
use service_kit::{Backoff, ConfigError, Secret, Shutdown};

/// Interval of looks at the certificate's end.
const LOOK_EVERY: Duration = Duration::from_secs(3600);
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("no certificate for this token: {0}")]
    Refused(String),
    #[error("the dashboard does not issue certificates now: {0}")]
    Unavailable(String),
    #[error("the dashboard: {0}")]
    Call(#[from] CallError),
    #[error("the token names another authority than that of the dashboard")]
    OtherAuthority,
    #[error("the token does not have the three parts that `braid gateways enrol` prints")]
    Token,
    #[error("{path}: {source}")]
    Io { path: String, source: io::Error },
    #[error("{0}")]
    Renewal(#[from] RenewalError),
    #[error("{0}")]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl CertificateError {
    fn is_retryable(&self) -> bool {
        match self {
            CertificateError::Unavailable(_) => true,
            CertificateError::Call(error) => !matches!(error, CallError::Url(_)),
            _ => false,
        }
    }
}

/// The dashboard's address, and the files of the identity.
#[derive(Clone, Debug)]
pub struct CertificateClient {
    pub url: String,
    pub files: IdentityFiles,
}

#[derive(Deserialize)]
struct Given {
    certificate: String,
}

impl CertificateClient {
    /// Gets the first certificate, unless there is one. Waits for an unreachable dashboard; returns
    /// false if shutdown was requested.
    pub async fn enrol(
        &self,
        token: &Secret,
        shutdown: &Shutdown,
    ) -> Result<bool, CertificateError> {
        let mut backoff = Backoff::for_reconnect();
        while !self.files.cert.exists() {
            match self.enrol_once(token).await {
                Ok(()) => tracing::info!(cert = %self.files.cert.display(), "enrolled"),
                Err(error) if error.is_retryable() => {
                    tracing::warn!(%error, "not enrolled yet");
                    tokio::select! {
                        () = shutdown.requested() => return Ok(false),
                        () = backoff.wait() => {}
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    async fn enrol_once(&self, token: &Secret) -> Result<(), CertificateError> {
        let fingerprint = token.expose().trim().rsplit('.').next();
        let fingerprint = fingerprint
            .and_then(Fingerprint::from_hex)
            .ok_or(CertificateError::Token)?;
        if !self.files.ca.exists() {
            self.learn_authority(&fingerprint).await?;
        }
        // The first request uses up the token; a repeated request with the same key gets its
        // certificate again.
        let request = Request::kept(&self.files)?;
        let asked = json!({"token": token.expose().trim(), "request": request.request_pem});
        let given = self.ask("enrol", &asked).await?;
        Ok(request.install(&given.certificate, &self.files)?)
    }

    async fn renew(&self) -> Result<(), CertificateError> {
        let read = |path: &Path| {
            std::fs::read_to_string(path).map_err(|source| CertificateError::Io {
                path: path.display().to_string(),
                source,
            })
        };
        let request = Request::new()?;
        let proof = request.proof(&self.files.key)?;
        let proof: String = proof.iter().map(|byte| format!("{byte:02x}")).collect();
        let asked = json!({
            "certificate": read(&self.files.cert)?,
            "request": request.request_pem,
            "proof": proof,
        });
        let given = self.ask("renew", &asked).await?;
        Ok(request.install(&given.certificate, &self.files)?)
    }

    async fn ask(&self, what: &str, asked: &serde_json::Value) -> Result<Given, CertificateError> {
        let tls = https::believing("ca", &self.files.ca)?;
        let json = HeaderValue::from_static("application/json");
        let (status, body) = https::call(
            Method::POST,
            &format!("{}/api/gateways/{what}", self.url.trim_end_matches('/')),
            &[(header::CONTENT_TYPE, json)],
            asked.to_string().into_bytes(),
            &tls,
        )
        .await?;
        let text = || String::from_utf8_lossy(&body).chars().take(300).collect();
        if status == StatusCode::OK {
            return serde_json::from_slice(&body)
                .map_err(|error| CallError::Answer(error.to_string()).into());
        }
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            return Err(CertificateError::Unavailable(text()));
        }
        Err(CertificateError::Refused(text()))
    }

    async fn learn_authority(&self, expected: &Fingerprint) -> Result<(), CertificateError> {
        let url = format!("{}/api/gateways/authority", self.url.trim_end_matches('/'));
        let tls = Arc::new(https::believing_anybody()?);
        let (status, body) = https::call(Method::GET, &url, &[], Vec::new(), &tls).await?;
        if status != StatusCode::OK {
            return Err(CertificateError::Unavailable(format!("{url}: {status}")));
        }
        let pem = String::from_utf8_lossy(&body).into_owned();
        if renewal::fingerprint(&pem)? != *expected {
            return Err(CertificateError::OtherAuthority);
        }
        Ok(renewal::write_authority(&pem, &self.files)?)
    }

    /// Renews with the certificate in force. If that is not valid any more, it enrols with a newer
    /// token.
    async fn renew_or_enrol(&self, token: Option<&Secret>) -> Result<(), CertificateError> {
        match (self.renew().await, token) {
            (Err(CertificateError::Refused(reason)), Some(token)) => {
                tracing::warn!(reason, "not renewed; enrolling with the token");
                self.enrol_once(token).await
            }
            (renewed, _) => renewed,
        }
    }

    /// Renews the certificate when less than `before` of it is left, until shutdown.
    pub async fn keep_renewed(
        self,
        identity: Identity,
        before: Duration,
        token: Option<Secret>,
        shutdown: Shutdown,
    ) {
        loop {
            let until = identity.valid_until().unwrap_or(SystemTime::UNIX_EPOCH);
            let left = until.duration_since(SystemTime::now()).unwrap_or_default();
            metrics::gauge!("braid_gateway_certificate_left_seconds").set(left.as_secs_f64());
            let mut pause = LOOK_EVERY;
            if left < before {
                let renewed = self.renew_or_enrol(token.as_ref()).await;
                let outcome = if renewed.is_ok() { "ok" } else { "failed" };
                metrics::counter!("braid_gateway_renewals_total", "outcome" => outcome)
                    .increment(1);
                match renewed {
                    Ok(()) => tracing::info!("the certificate is renewed"),
                    Err(error) => {
                        tracing::warn!(%error, left_s = left.as_secs(), "not renewed");
                        pause = TRY_AGAIN_AFTER;
                    }
                }
            }
            tokio::select! {
                () = shutdown.requested() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use axum::{Json, Router, routing::post};
    use service_kit::tls::{PeerId, authority::LocalAuthority};

    use super::*;

    #[tokio::test]
    async fn an_expired_certificate_is_replaced_with_a_token() {
        let dir = tempfile::tempdir().unwrap();
        let authority = LocalAuthority::open_or_create(dir.path()).unwrap();
        let peer = PeerId::gateway("default", "gw-1");
        let files = authority.issue(&peer, &[]).unwrap();
        let fingerprint = authority.fingerprint().unwrap();
        let before = std::fs::read_to_string(&files.cert).unwrap();
        let issuing = Arc::new((authority, peer));
        let enrol = move |Json(asked): Json<serde_json::Value>| {
            let issuing = Arc::clone(&issuing);
            async move {
                assert!(asked["token"].as_str().unwrap().starts_with("new."));
                let (authority, peer) = &*issuing;
                let signed = authority.sign(asked["request"].as_str().unwrap(), peer);
                Json(json!({"certificate": signed.unwrap().pem}))
            }
        };
        let renew = || async { (StatusCode::FORBIDDEN, "the certificate is not in force") };
        let router = Router::new()
            .route("/api/gateways/enrol", post(enrol))
            .route("/api/gateways/renew", post(renew));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async { axum::serve(listener, router).await });
        let client = CertificateClient { url, files };
        let refused = client.renew_or_enrol(None).await.unwrap_err();
        assert!(matches!(refused, CertificateError::Refused(_)));
        let token = Secret::new(format!("new.secret.{fingerprint}"));
        client.renew_or_enrol(Some(&token)).await.unwrap();
        let after = std::fs::read_to_string(&client.files.cert).unwrap();
        assert_ne!(after, before);
        Identity::load(&client.files).unwrap();
    }
}
