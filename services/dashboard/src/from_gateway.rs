//! Gateways that ask for a certificate: by a token, or by their previous certificate. The
//! authority's certificate is public; the gateway checks it against the token.

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Json, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use service_kit::Secret;
use service_kit::tls::authority::{AuthorityError, LocalAuthority};
use store::Store;

use crate::gateways::{self, Certificate, GatewayError};

/// Longest request; certificates and requests are some kilobytes.
pub(crate) const BODY_BYTES_MAX: usize = 32 * 1024;

pub(crate) struct CertificateIssuer {
    pub store: Arc<dyn Store>,
    pub authority: LocalAuthority,
}

pub(crate) fn routes(issuer: Arc<CertificateIssuer>) -> Router {
    Router::new()
        .route("/api/gateways/authority", get(authority))
        .route("/api/gateways/enrol", post(enrol))
        .route("/api/gateways/renew", post(renew))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(issuer)
}

#[derive(Deserialize)]
struct Enrolment {
    token: Secret,
    request: String,
}

#[derive(Deserialize)]
struct Renewal {
    certificate: String,
    request: String,
    /// Signature over the request with the key of the certificate, in hex.
    proof: String,
}

async fn authority(State(issuer): State<Arc<CertificateIssuer>>) -> Response {
    match issuer.authority.certificate_pem() {
        Ok(pem) => pem.into_response(),
        Err(error) => refuse("authority", &error.into()),
    }
}

async fn enrol(
    State(issuer): State<Arc<CertificateIssuer>>,
    Json(asked): Json<Enrolment>,
) -> Response {
    let given = gateways::exchange(
        issuer.store.as_ref(),
        &issuer.authority,
        asked.token.expose(),
        &asked.request,
    );
    answer("enrol", given.await)
}

async fn renew(
    State(issuer): State<Arc<CertificateIssuer>>,
    Json(asked): Json<Renewal>,
) -> Response {
    let proof = unhex(&asked.proof);
    let given = gateways::renew(
        issuer.store.as_ref(),
        &issuer.authority,
        &asked.certificate,
        &asked.request,
        &proof,
    );
    answer("renew", given.await)
}

fn answer(what: &'static str, given: Result<Certificate, GatewayError>) -> Response {
    match given {
        Ok(certificate) => {
            count(what, "given");
            Json(certificate).into_response()
        }
        Err(error) => refuse(what, &error),
    }
}

fn refuse(what: &'static str, error: &GatewayError) -> Response {
    tracing::warn!(what, %error, "no certificate for a gateway");
    // Anybody may ask, so answers have no details of failures.
    let said = match error {
        GatewayError::Query(_)
        | GatewayError::Write(_)
        | GatewayError::Authority(AuthorityError::Io { .. } | AuthorityError::Certificate { .. }) => {
            "this cannot be answered at the moment; the reason is in the dashboard's log".to_owned()
        }
        error => error.to_string(),
    };
    let (status, outcome) = match error {
        GatewayError::Authority(AuthorityError::Request(_)) | GatewayError::Invalid { .. } => {
            (StatusCode::BAD_REQUEST, "refused")
        }
        GatewayError::Query(_)
        | GatewayError::Write(_)
        | GatewayError::Authority(_)
        | GatewayError::Contended
        | GatewayError::Full => (StatusCode::SERVICE_UNAVAILABLE, "failed"),
        _ => (StatusCode::FORBIDDEN, "refused"),
    };
    count(what, outcome);
    (status, said).into_response()
}

fn count(what: &'static str, outcome: &'static str) {
    metrics::counter!("braid_dashboard_certificates_total", "by" => what, "outcome" => outcome)
        .increment(1);
}

/// A proof that is not hexadecimal proves nothing.
fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    let bytes: Option<Vec<u8>> = digits
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect();
    bytes.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use service_kit::tls::PeerId;
    use store::{QueryError, SqliteStore};

    use super::*;

    #[tokio::test]
    async fn clients_without_a_certificate_learn_no_paths_or_addresses() {
        let inner = "postgres://braid@timescaledb:5432";
        let away = GatewayError::Query(QueryError::Unavailable(inner.to_owned()));
        let unreadable = GatewayError::Authority(AuthorityError::Io {
            path: inner.into(),
            source: std::io::ErrorKind::NotFound.into(),
        });
        for error in [away, unreadable] {
            let (status, said) = refused(&error).await;
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
            assert!(!said.contains(inner), "{said}");
        }
        // Mistakes of the gateway itself are explained.
        let none = GatewayError::Authority(AuthorityError::Request("not PEM".to_owned()));
        let (status, said) = refused(&none).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(said.contains("not PEM"), "{said}");
    }

    #[tokio::test]
    async fn nor_where_the_authority_is_kept_when_it_cannot_be_read() {
        let directory = tempfile::tempdir().unwrap();
        let authority = LocalAuthority::open_or_create(directory.path()).unwrap();
        let files = authority.issue(&PeerId::gateway("t", "gw"), &[]).unwrap();
        let certificate = std::fs::read_to_string(files.cert).unwrap();
        std::fs::remove_file(authority.ca_file()).unwrap();
        let store = SqliteStore::open(directory.path()).unwrap();
        let given = gateways::renew(&store, &authority, &certificate, "", &[]).await;
        let (status, said) = refused(&given.unwrap_err()).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(!said.contains(directory.path().to_str().unwrap()), "{said}");
    }

    async fn refused(error: &GatewayError) -> (StatusCode, String) {
        let answer = refuse("enrol", error);
        let status = answer.status();
        let body = axum::body::to_bytes(answer.into_body(), 4096)
            .await
            .unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }
}
