//! Slows an address that shows wrong tokens. They are session tokens as `Authorization: Bearer`,
//! the tokens and certificates of gateways, the codes of wall displays, and the tokens of
//! heartbeats.
//!
//! Passwords and sign-in codes have counters of their own. A cookie is no guess: a ward's screen
//! repeats requests with an expired cookie.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use contracts::identity::administration_service_server::SERVICE_NAME as ADMINISTRATION_NAME;
use contracts::query::query_service_server::SERVICE_NAME;
use service_kit::grpc::Peer;

use super::{app::App, confirm, kiosk_code, sign_in};

/// Where a request brings a token, and how the answer shows that the token is wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TokenEntry {
    /// 401: the token opens no session.
    Service,
    /// 204: the token belongs to no session.
    Session,
    /// 403: the token is unknown, used, or expired.
    Certificate,
    /// 403: no wall display waits for the code.
    KioskCode,
    /// 404: the token belongs to no heartbeat.
    Heartbeat,
}

impl TokenEntry {
    fn of(request: &Request) -> Option<TokenEntry> {
        let path = request.uri().path();
        if let Some(asked) = path.strip_prefix("/api/gateways/") {
            let takes_token = request.method() == Method::POST && asked != "authority";
            return takes_token.then_some(TokenEntry::Certificate);
        }
        if path.starts_with(confirm::PATH) {
            return (request.method() == Method::POST).then_some(TokenEntry::Heartbeat);
        }
        if path == kiosk_code::PATH {
            return Some(TokenEntry::KioskCode);
        }
        sign_in::bearer(request.headers())?;
        let service = path.strip_prefix('/')?.split('/').next()?;
        match path {
            "/api/session" => Some(TokenEntry::Session),
            _ => [SERVICE_NAME, ADMINISTRATION_NAME]
                .contains(&service)
                .then_some(TokenEntry::Service),
        }
    }

    const fn wrong(self) -> StatusCode {
        match self {
            TokenEntry::Service => StatusCode::UNAUTHORIZED,
            TokenEntry::Session => StatusCode::NO_CONTENT,
            TokenEntry::Certificate | TokenEntry::KioskCode => StatusCode::FORBIDDEN,
            TokenEntry::Heartbeat => StatusCode::NOT_FOUND,
        }
    }
}

pub(crate) async fn slowed(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let Some(entry) = TokenEntry::of(&request) else {
        return next.run(request).await;
    };
    let peer = request.extensions().get::<Peer>();
    let address = sign_in::address(&app, peer, request.headers());
    let allowed = app.guesses.lock().allowed(address, Instant::now());
    if let Err(wait) = allowed {
        metrics::counter!("braid_dashboard_tokens_slowed_total").increment(1);
        let retry_after = [(header::RETRY_AFTER, (wait.as_secs() + 1).to_string())];
        return (StatusCode::TOO_MANY_REQUESTS, retry_after).into_response();
    }
    let shown = sign_in::bearer(request.headers()).map(str::to_owned);
    let answer = next.run(request).await;
    let (mut guesses, now) = (app.guesses.lock(), Instant::now());
    if answer.status() == entry.wrong() {
        guesses.wrong(address, shown.as_deref().map(str::as_bytes), now);
    } else if answer.status() == StatusCode::OK {
        guesses.right(address, now);
    }
    drop(guesses);
    answer
}
