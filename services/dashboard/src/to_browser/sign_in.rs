//! Signing in and out: a password is exchanged for a token. Browsers get it as a cookie that
//! scripts cannot read.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Extension, Json, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};
use service_kit::{Secret, grpc::Peer, guesses::Attempts};
use store::{Account, QueryError, Role};

use super::{app::App, kiosk};
use crate::accounts::{self, FIRST_ACCOUNT};
use crate::sessions::{Key, Person};
use crate::tokens::key_of;

const COOKIE: &str = "braid_session";
/// With this prefix browsers insist on `Secure`, on this host alone, and on the path `/`.
const COOKIE_SECURE: &str = "__Host-braid_session";

pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/api/sign-in", post(sign_in))
        .route("/api/sign-in-code", post(sign_in_code))
        .route("/api/sign-out", post(sign_out))
        .route("/api/session", get(session))
        .route("/api/token", post(token))
        .route("/api/keys", get(keys))
}

#[derive(Deserialize)]
struct Credentials {
    name: String,
    password: Secret,
}

#[derive(Deserialize)]
pub(crate) struct CodeGiven {
    pub code: String,
}

#[derive(Serialize)]
pub(crate) struct Session {
    name: String,
    role: &'static str,
    /// Name of the wall display.
    #[serde(skip_serializing_if = "Option::is_none")]
    kiosk: Option<String>,
}

impl From<&Person> for Session {
    fn from(person: &Person) -> Session {
        Session {
            name: person.name.clone(),
            role: person.role.name(),
            kiosk: person.kiosk().map(str::to_owned),
        }
    }
}

async fn sign_in(
    State(app): State<Arc<App>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    Json(credentials): Json<Credentials>,
) -> Response {
    let address = address(&app, peer.as_deref(), &headers);
    match by_password(&app, &credentials, "sign in", address).await {
        Ok(opened) => with_cookie(&app, &opened),
        Err(refusal) => refusal,
    }
}

/// For programs, which send the token as `Authorization: Bearer`.
async fn token(
    State(app): State<Arc<App>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    Json(credentials): Json<Credentials>,
) -> Response {
    let address = address(&app, peer.as_deref(), &headers);
    match by_password(&app, &credentials, "sign in for a token", address).await {
        Ok(opened) => Json(serde_json::json!({
            "token": opened.token,
            "expires_in_s": app.session_us / 1_000_000,
        }))
        .into_response(),
        Err(refusal) => refusal,
    }
}

/// The keys that sign tokens, for a proxy in front.
async fn keys(State(app): State<Arc<App>>) -> Response {
    match app.tokens.shown(contracts::now_us()).await {
        Ok(keys) => ([(header::CONTENT_TYPE, "application/json")], keys).into_response(),
        Err(error) => unavailable(&error),
    }
}

async fn by_password(
    app: &App,
    credentials: &Credentials,
    action: &str,
    address: IpAddr,
) -> Result<Opened, Response> {
    let name = credentials.name.trim();
    match verified(app, name, credentials.password.expose(), address).await {
        Ok(Verified::Account(account)) => open(app, &account, action, address).await,
        Ok(Verified::Wrong) => Err(refuse(app, name, address).await),
        Ok(Verified::Slowed(wait)) => Err(slow(wait)),
        Err(error) => Err(unavailable(&error)),
    }
}

/// The owner of a password.
pub(crate) enum Verified {
    Account(Account),
    Wrong,
    /// Too many attempts have failed: the time before the next one is checked.
    Slowed(Duration),
}

/// Concurrent guesses learn no more than guesses in turn.
pub(crate) async fn verified(
    app: &App,
    name: &str,
    given: &str,
    address: IpAddr,
) -> Result<Verified, QueryError> {
    let wait = move |attempts: &Attempts, name: &str| {
        let allowed = attempts.allowed(name, address, Instant::now());
        allowed.err()
    };
    if let Some(wait) = wait(&app.attempts.lock(), name) {
        return Ok(Verified::Slowed(wait));
    }
    let (attempts, whose) = (Arc::clone(&app.attempts), name.to_owned());
    let is_allowed = move || wait(&attempts.lock(), &whose).is_none();
    let verified = accounts::verify_if(app.store.as_ref(), name, given, is_allowed).await?;
    // Other attempts may have failed meanwhile.
    let mut attempts = app.attempts.lock();
    if let Some(wait) = wait(&attempts, name) {
        return Ok(Verified::Slowed(wait));
    }
    Ok(match verified {
        Some(account) => {
            attempts.succeeded(name, address, Instant::now());
            Verified::Account(account)
        }
        None => Verified::Wrong,
    })
}

async fn sign_in_code(
    State(app): State<Arc<App>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    Json(given): Json<CodeGiven>,
) -> Response {
    let address = address(&app, peer.as_deref(), &headers);
    if let Some(refusal) = slowed(&app, FIRST_ACCOUNT, address) {
        return refusal;
    }
    let taken = {
        let mut code = app.code.lock();
        code.take_if(|code| code.matches(&given.code, contracts::now_us()))
            .is_some()
    };
    if !taken {
        return refuse(&app, FIRST_ACCOUNT, address).await;
    }
    match app.store.account(FIRST_ACCOUNT).await {
        Ok(Some(account)) if account.role == Role::Administrator => {
            match open(&app, &account, "sign in by link", address).await {
                Ok(opened) => with_cookie(&app, &opened),
                Err(refusal) => refusal,
            }
        }
        Ok(_) => StatusCode::UNAUTHORIZED.into_response(),
        Err(error) => unavailable(&error),
    }
}

async fn sign_out(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    if let Some(key) = key(&app, &headers)
        && let Ok(Some(person)) = app.person(&key).await
        && person.is_kiosk
    {
        return (StatusCode::FORBIDDEN, kiosk::STAYS).into_response();
    }
    let closed = match key(&app, &headers) {
        Some(key) => app.sessions.close(&key, contracts::now_us()).await,
        None => Ok(None),
    };
    if let Ok(Some(person)) = &closed
        && let Err(error) = app.audit(person, "sign out", "", String::new()).await
    {
        tracing::warn!(%error, "a sign-out was not recorded");
    }
    // The browser forgets its token either way, and is told if it may still be valid.
    let mut response = match closed {
        Ok(_) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => unavailable(&error),
    };
    set_cookie(&mut response, &cookie(&app, "", 0));
    response
}

async fn session(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    // No failure, because the page asks in order to find out.
    let Some(key) = key(&app, &headers) else {
        return StatusCode::NO_CONTENT.into_response();
    };
    let person = match app.person(&key).await {
        Ok(Some(person)) => person,
        Ok(None) => return StatusCode::NO_CONTENT.into_response(),
        Err(error) => return unavailable(&error),
    };
    let mut response = Json(Session::from(&person)).into_response();
    if let Some(token) = kiosk::renewed(&app, &key, &person).await {
        set_cookie(&mut response, &cookie(&app, &token, kiosk::COOKIE_S));
    }
    response
}

/// The answer after too many failures.
fn slowed(app: &App, name: &str, address: IpAddr) -> Option<Response> {
    let allowed = app.attempts.lock().allowed(name, address, Instant::now());
    allowed.err().map(slow)
}

fn slow(wait: Duration) -> Response {
    count("slowed");
    let seconds = wait.as_secs() + 1;
    let retry_after = [(header::RETRY_AFTER, seconds.to_string())];
    (StatusCode::TOO_MANY_REQUESTS, retry_after).into_response()
}

async fn refuse(app: &App, name: &str, address: IpAddr) -> Response {
    let now = Instant::now();
    app.attempts.lock().failed(name, address, now);
    count("refused");
    tracing::warn!(%address, "sign-in refused");
    // The typed name may be a password in the wrong field, so only existing names are recorded.
    if let Ok(Some(account)) = app.store.account(name).await {
        let person = person_of(&account);
        if let Err(error) = app
            .audit(&person, "sign in refused", "", format!("from {address}"))
            .await
        {
            tracing::warn!(%error, "a refused sign-in was not recorded");
        }
    }
    StatusCode::UNAUTHORIZED.into_response()
}

/// A session that has begun.
pub(crate) struct Opened {
    person: Person,
    token: String,
}

pub(crate) async fn open(
    app: &App,
    account: &Account,
    action: &str,
    address: IpAddr,
) -> Result<Opened, Response> {
    let now_us = contracts::now_us();
    let token = app.tokens.sign(&account.name, now_us).await;
    let token = token.map_err(|error| unavailable(&error))?;
    let until_us = now_us + app.session_us;
    let person = enter(app, account, &token, until_us, action, address).await?;
    Ok(Opened { person, token })
}

/// Accepts this token from here on.
pub(crate) async fn enter(
    app: &App,
    account: &Account,
    token: &str,
    until_us: i64,
    action: &str,
    address: IpAddr,
) -> Result<Person, Response> {
    let person = person_of(account);
    let audited = app.audit(&person, action, "", format!("from {address}"));
    audited.await.map_err(|error| unavailable(&error))?;
    let opened = app
        .sessions
        .open(key_of(token), account, contracts::now_us(), until_us);
    opened.await.map_err(|error| unavailable(&error))?;
    // A person who signed in from this address is not slowed for an expired token.
    app.guesses.lock().right(address, Instant::now());
    count("accepted");
    Ok(person)
}

fn with_cookie(app: &App, opened: &Opened) -> Response {
    let mut response = Json(Session::from(&opened.person)).into_response();
    set_cookie(&mut response, &opened.cookie(app));
    response
}

impl Opened {
    pub(crate) fn cookie(&self, app: &App) -> String {
        cookie(app, &self.token, app.session_us / 1_000_000)
    }
}

fn person_of(account: &Account) -> Person {
    Person {
        name: account.name.clone(),
        tenant: account.tenant.clone(),
        role: account.role,
        is_kiosk: false,
        reason: String::new(),
    }
}

pub(crate) fn unavailable(error: &dyn std::error::Error) -> Response {
    tracing::warn!(%error, "the session could not be asked of the store");
    StatusCode::SERVICE_UNAVAILABLE.into_response()
}

pub(crate) fn count(outcome: &'static str) {
    metrics::counter!("braid_dashboard_sign_ins_total", "outcome" => outcome).increment(1);
}

/// The address whose attempts are counted: the peer, or the client that a trusted proxy names.
pub(crate) fn address(app: &App, peer: Option<&Peer>, headers: &HeaderMap) -> IpAddr {
    let forwarded = app
        .trust_forwarded_for
        .then(|| headers.get_all("x-forwarded-for").iter().next_back())
        .flatten()
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.rsplit(',').next())
        .and_then(|last| last.trim().parse().ok());
    forwarded
        .or(peer.map(|peer| peer.address.ip()))
        .unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
}

fn cookie_name(app: &App) -> &'static str {
    if app.secure_cookies {
        COOKIE_SECURE
    } else {
        COOKIE
    }
}

pub(crate) fn cookie(app: &App, value: &str, seconds: i64) -> String {
    let name = cookie_name(app);
    let secure = if app.secure_cookies { "; Secure" } else { "" };
    format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
}

pub(crate) fn set_cookie(response: &mut Response, cookie: &str) {
    if let Ok(value) = HeaderValue::from_str(cookie) {
        response.headers_mut().append(header::SET_COOKIE, value);
    }
}

/// Names and values.
pub(crate) fn cookies(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
}

/// The session's key.
pub(crate) fn key(app: &App, headers: &HeaderMap) -> Option<Key> {
    shown_token(app, headers).map(key_of)
}

/// The token of the cookie, or the bearer token of a program.
pub(crate) fn shown_token<'a>(app: &App, headers: &'a HeaderMap) -> Option<&'a str> {
    let name = cookie_name(app);
    let cookie = cookies(headers).find(|(given, _)| *given == name);
    cookie.map(|(_, token)| token).or_else(|| bearer(headers))
}

pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    value.strip_prefix("Bearer ")
}
