//! HTTP routes of the sign-in at an OpenID Connect provider: the redirect to the provider, and the
//! return from it.
//!
//! A cookie binds the browser to its sign-in. The cookie is `SameSite=Lax`, because the browser
//! returns from the provider's site. Its value is the random `state` of the sign-in, which is
//! accepted once.
//!
//! A program sends an access token of the provider as bearer token and needs no sign-in. The first
//! request with the token opens a session. The session ends when the token expires, or earlier.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use serde::Deserialize;
use service_kit::grpc::Peer;
use store::Account;
use tonic::Status;

use super::app::App;
use super::sign_in;
use crate::to_identity_provider::{OidcError, Vouched};
use crate::tokens::key_of;

const COOKIE: &str = "braid_sso";
const COOKIE_SECURE: &str = "__Host-braid_sso";
/// The public text for an outage; its cause is logged.
const AWAY: &str = "the provider cannot be used now; try again";
/// A sign-in may take this long.
const COOKIE_S: u32 = 600;

/// Requested by the page itself.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/api/sso", get(available))
        .route("/api/sso/begin", get(begin))
        .route("/api/keys/provider", get(keys))
}

/// Requested by a browser that returns from the provider.
pub(crate) fn return_routes() -> Router<Arc<App>> {
    Router::new().route("/api/sso/return", get(come_back))
}

async fn available(State(app): State<Arc<App>>) -> Response {
    Json(serde_json::json!({ "available": app.oidc.is_some() })).into_response()
}

/// The keys that sign the provider's access tokens, for a proxy in front. Where no such tokens are
/// accepted: a key that fits none.
async fn keys(State(app): State<Arc<App>>) -> Response {
    let mut keys = app
        .oidc
        .as_ref()
        .map_or(Vec::new(), |oidc| oidc.shown_keys());
    if keys.is_empty() {
        keys.extend(app.nobodys_key.clone());
    }
    Json(serde_json::json!({ "keys": keys })).into_response()
}

async fn begin(
    State(app): State<Arc<App>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
) -> Response {
    let Some(oidc) = &app.oidc else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let from = sign_in::address(&app, peer.as_deref(), &headers);
    match oidc.begin(from).await {
        Ok((to, state)) => {
            let mut response = redirect(&to);
            sign_in::set_cookie(&mut response, &cookie(&app, &state, COOKIE_S));
            response
        }
        Err(error) => refuse(&error),
    }
}

#[derive(Deserialize)]
struct Returned {
    #[serde(default)]
    state: String,
    #[serde(default)]
    code: String,
    /// The provider's error when it does not admit a person.
    #[serde(default)]
    error: String,
}

async fn come_back(
    State(app): State<Arc<App>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    Query(returned): Query<Returned>,
) -> Response {
    let Some(oidc) = &app.oidc else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let is_bound = !returned.state.is_empty()
        && sign_in::cookies(&headers)
            .filter(|(name, _)| *name == cookie_name(&app))
            .any(|(_, state)| state == returned.state);
    if !is_bound {
        return refuse(&OidcError::Unknown);
    }
    if !returned.error.is_empty() || returned.code.is_empty() {
        sign_in::count("refused");
        return (StatusCode::FORBIDDEN, "the provider has not let you in").into_response();
    }
    let vouched = match oidc.finish(&returned.state, &returned.code).await {
        Ok(vouched) => vouched,
        Err(error) => return refuse(&error),
    };
    let account = account(vouched);
    let address = sign_in::address(&app, peer.as_deref(), &headers);
    let opened = match sign_in::open(&app, &account, "sign in by provider", address).await {
        Ok(opened) => opened,
        Err(refusal) => return refusal,
    };
    let mut response = redirect("/");
    sign_in::set_cookie(&mut response, &opened.cookie(&app));
    sign_in::set_cookie(&mut response, &cookie(&app, "", 0));
    response
}

/// Opens a session for an access token of the provider when it is first used. Every other request
/// passes unchanged.
pub(crate) async fn admit_caller(
    State(app): State<Arc<App>>,
    peer: Option<Extension<Peer>>,
    request: Request,
    next: Next,
) -> Response {
    let shown = sign_in::shown_token(&app, request.headers());
    let foreign = app
        .oidc
        .as_ref()
        .zip(shown)
        .filter(|(oidc, token)| oidc.takes(token));
    if let Some((oidc, token)) = foreign
        && !matches!(app.person(&key_of(token)).await, Ok(Some(_)))
    {
        let (vouched, token_until_us) = match oidc.caller(token).await {
            Ok(caller) => caller,
            Err(error) => return refuse_caller(&error, request.headers()),
        };
        let until_us = token_until_us.min(contracts::now_us() + app.session_us);
        let address = sign_in::address(&app, peer.as_deref(), request.headers());
        let (account, action) = (account(vouched), "call by token of provider");
        let entered = sign_in::enter(&app, &account, token, until_us, action, address);
        if let Err(refusal) = entered.await {
            return refusal;
        }
    }
    next.run(request).await
}

fn account(vouched: Vouched) -> Account {
    Account {
        name: vouched.name,
        tenant: vouched.tenant,
        role: vouched.role,
        // Without a password hash the session is not checked against an account of the store.
        password_hash: String::new(),
        created_us: contracts::now_us(),
    }
}

/// Exactly the cookie with the prefix: a neighbouring host could set one without it.
fn cookie_name(app: &App) -> &'static str {
    if app.secure_cookies {
        COOKIE_SECURE
    } else {
        COOKIE
    }
}

fn cookie(app: &App, state: &str, seconds: u32) -> String {
    let name = cookie_name(app);
    let secure = if app.secure_cookies { "; Secure" } else { "" };
    format!("{name}={state}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}")
}

fn redirect(to: &str) -> Response {
    let Ok(to) = HeaderValue::from_str(to) else {
        return StatusCode::BAD_GATEWAY.into_response();
    };
    let headers = [
        (header::LOCATION, to),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (StatusCode::SEE_OTHER, headers).into_response()
}

/// In the form of the caller's protocol: gRPC reads its status from headers, and takes any body for
/// a message.
fn refuse_caller(error: &OidcError, asked: &HeaderMap) -> Response {
    let mut refusal = refuse(error);
    // Another token may help. The header informs programs that they need a token.
    if let OidcError::Token(_) = error {
        *refusal.status_mut() = StatusCode::UNAUTHORIZED;
    }
    let asked = asked.get(header::CONTENT_TYPE);
    if !asked.is_some_and(|it| it.as_bytes().starts_with(b"application/grpc")) {
        return refusal;
    }
    let said = match refusal.status() {
        StatusCode::UNAUTHORIZED => Status::unauthenticated(error.to_string()),
        StatusCode::FORBIDDEN => Status::permission_denied(error.to_string()),
        _ => Status::unavailable(AWAY),
    };
    let mut answer = refusal.status().into_response();
    // A reason that no header can hold is left out. The status says the same.
    let _ = said.add_header(answer.headers_mut());
    answer
}

fn refuse(error: &OidcError) -> Response {
    tracing::warn!(%error, "sign-in by the provider failed");
    sign_in::count("refused");
    let (status, said) = if error.is_outage() {
        (StatusCode::BAD_GATEWAY, AWAY.to_owned())
    } else {
        (StatusCode::FORBIDDEN, error.to_string())
    };
    (status, [(header::CACHE_CONTROL, "no-store")], said).into_response()
}
