//! The page behind the link of a heartbeat. The token proves that its bearer got the message.
//!
//! Mail systems open links by themselves, so opening the page confirms nothing: its button does.
//! A program, such as the receiver of a webhook, sends the same POST.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use store::Proof;

use super::app::App;
use super::page::CONTENT_SECURITY_POLICY;

/// Path of the page, before the token.
pub(super) const PATH: &str = "/confirm/";
/// Bytes of a token; a longer one is unknown.
const TOKEN_BYTES_MAX: usize = 128;

const ASKS: &str = "<p>Braid sends alerts to the address that got this link. Do they reach you?</p>\
     <form method=\"post\"><button>Yes, messages reach me</button></form>";
const THANKS: &str = "<p>Thank you. Braid now counts on this address.</p>";
const UNKNOWN: &str =
    "<p>This link is not known, or a newer message has replaced it. Open the newest message.</p>";
const AWAY: &str = "<p>Your answer cannot be stored now. Please try again.</p>";

pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new().route("/confirm/{token}", get(ask).post(confirm))
}

/// The same for every token, so that it says nothing about one.
async fn ask() -> Response {
    page(StatusCode::OK, ASKS)
}

async fn confirm(State(app): State<Arc<App>>, Path(token): Path<String>) -> Response {
    if token.len() > TOKEN_BYTES_MAX {
        return page(StatusCode::NOT_FOUND, UNKNOWN);
    }
    let token = Proof::token_of(&token);
    let confirmed = app
        .store
        .confirm_proof(&token, "the link", app.live.now_us());
    match confirmed.await {
        Ok(Some(proof)) => {
            tracing::info!(
                channel = proof.channel,
                tenant = proof.tenant,
                "a heartbeat is confirmed"
            );
            metrics::counter!("braid_dashboard_heartbeats_confirmed_total").increment(1);
            page(StatusCode::OK, THANKS)
        }
        Ok(None) => page(StatusCode::NOT_FOUND, UNKNOWN),
        Err(error) => {
            tracing::warn!(%error, "a confirmed heartbeat could not be stored");
            page(StatusCode::SERVICE_UNAVAILABLE, AWAY)
        }
    }
}

fn page(status: StatusCode, says: &str) -> Response {
    let text = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>Braid</title>\
         <h1>Braid</h1>{says}</html>"
    );
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (status, headers, text).into_response()
}
