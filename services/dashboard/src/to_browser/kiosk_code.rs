//! The code of a wall display is exchanged, once, for the cookie of its session.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{Extension, Json, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use service_kit::grpc::Peer;
use store::{SessionKind, WriteError};

use super::app::App;
use super::kiosk::COOKIE_S;
use super::sign_in::{self, CodeGiven, Session, unavailable};
use crate::accounts::KIOSK_PREFIX;
use crate::kiosks;
use crate::sessions::person_of;
use crate::tokens::key_of;

pub(crate) const PATH: &str = "/api/kiosk";
const REFUSED: &str = "this link of a wall display was used already or has expired; ask an administrator for a new one";

pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new().route("/api/kiosk", post(redeem))
}

async fn redeem(
    State(app): State<Arc<App>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    Json(given): Json<CodeGiven>,
) -> Response {
    let now_us = contracts::now_us();
    let Some(code) = kiosks::code_key(&given.code) else {
        return refused();
    };
    let code = match app.store.close_session(&code, now_us).await {
        Ok(Some(code)) if code.kind == SessionKind::KioskCode => code,
        Ok(_) => return refused(),
        Err(error) => return unavailable(&error),
    };
    let address = sign_in::address(&app, peer.as_deref(), &headers);
    let name = format!("{}{}", KIOSK_PREFIX, code.name);
    let token = match app.tokens.sign(&name, now_us).await {
        Ok(token) => token,
        Err(error) => return unavailable(&error),
    };
    let session = kiosks::opened(&code, key_of(&token), now_us);
    let person = person_of(&session);
    let detail = format!("from {address}");
    if let Err(error) = app.audit(&person, "open kiosk", "", detail).await {
        return unavailable(&error);
    }
    match app.sessions.admit(&session, now_us).await {
        Ok(()) => {}
        Err(WriteError::Invalid(reason)) => return (StatusCode::CONFLICT, reason).into_response(),
        Err(error) => return unavailable(&error),
    }
    app.guesses.lock().right(address, Instant::now());
    sign_in::count("accepted");
    let mut response = Json(Session::from(&person)).into_response();
    let cookie = sign_in::cookie(&app, &token, COOKIE_S);
    sign_in::set_cookie(&mut response, &cookie);
    response
}

fn refused() -> Response {
    sign_in::count("refused");
    (StatusCode::FORBIDDEN, REFUSED).into_response()
}
