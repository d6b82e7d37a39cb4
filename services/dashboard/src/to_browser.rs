//! Everything that a browser sees: the page, signing in, and gRPC-web.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use contracts::identity::administration_service_server::{
    AdministrationServiceServer, SERVICE_NAME as ADMINISTRATION_NAME,
};
use contracts::query::query_service_server::{QueryServiceServer, SERVICE_NAME};
use parking_lot::Mutex;
use service_kit::{Shutdown, guesses::Guesses};
use store::{AuditEntry, Store, WriteError};
use tower::ServiceBuilder;

use crate::Config;
use crate::attempts::Attempts;
use crate::from_gateway::{self, CertificateIssuer};
use crate::live::Live;
use crate::oidc::Oidc;
use crate::sessions::{Key, Person, Sessions};
use crate::to_alerting::Alerting;
use crate::to_links::Links;
use crate::tokens::{self, Tokens};
use viewers::Viewers;

mod administration;
mod calls;
mod federated;
mod guesses;
mod origin;
mod page;
mod query;
mod reason;
mod sign_in;
mod viewers;
mod watch;

/// Bodies of `/api/*`; a longer one is refused with 413.
const API_BODY_BYTES_MAX: usize = 4 * 1024;
/// A body must arrive within this time, or it is refused with 408, so that slow senders hold no
/// places.
const BODY_WITHIN: Duration = Duration::from_secs(10);
/// A removed account or a changed password ends its sessions within this time.
const RECHECK_INTERVAL: Duration = Duration::from_secs(15);

/// Clients of the services that are called in the name of people.
pub(crate) struct Clients {
    pub alerting: Alerting,
    /// `None`: no demonstration.
    pub links: Option<Links>,
}

pub(crate) struct App {
    store: Arc<dyn Store>,
    live: Arc<Live>,
    clients: Clients,
    issuer: Option<Arc<CertificateIssuer>>,
    oidc: Option<Arc<Oidc>>,
    sessions: Mutex<Sessions>,
    tokens: Tokens,
    nobodys_key: Option<serde_json::Value>,
    attempts: Arc<Mutex<Attempts>>,
    guesses: Mutex<Guesses>,
    code: Mutex<Option<sign_in::Code>>,
    viewers: Viewers,
    session_us: i64,
    secure_cookies: bool,
    trust_forwarded_for: bool,
    shutdown: Shutdown,
}

impl App {
    pub(crate) fn new(
        config: &Config,
        store: Arc<dyn Store>,
        live: Arc<Live>,
        clients: Clients,
        issuer: Option<Arc<CertificateIssuer>>,
        oidc: Option<Arc<Oidc>>,
        shutdown: Shutdown,
    ) -> Arc<App> {
        let session_us = i64::from(config.session_hours) * 3_600_000_000;
        Arc::new(App {
            tokens: Tokens::new(Arc::clone(&store), session_us, config.trust_forwarded_for),
            nobodys_key: tokens::nobodys_key(),
            store,
            live,
            clients,
            issuer,
            oidc,
            sessions: Mutex::default(),
            attempts: Arc::default(),
            guesses: Mutex::default(),
            code: Mutex::new(
                config
                    .sign_in_code
                    .clone()
                    .map(|code| sign_in::Code::new(code, contracts::now_us())),
            ),
            viewers: Viewers::default(),
            session_us,
            secure_cookies: config.tls || config.secure_cookies,
            trust_forwarded_for: config.trust_forwarded_for,
            shutdown,
        })
    }

    /// Writes a row of the audit log before the recorded action happens, so nothing happens
    /// unrecorded.
    async fn audit(
        &self,
        person: &Person,
        action: &str,
        patient: &str,
        detail: String,
    ) -> Result<(), WriteError> {
        let entry = AuditEntry {
            time_us: contracts::now_us(),
            tenant: person.tenant.clone(),
            who: person.name.clone(),
            action: action.to_owned(),
            patient: patient.to_owned(),
            detail,
        };
        let entry = entry.because(&person.reason);
        self.store.append_audit(vec![entry]).await
    }

    fn is_signed_in(&self, key: &Key) -> bool {
        self.sessions
            .lock()
            .person(key, contracts::now_us())
            .is_some()
    }
}

pub(crate) fn router(app: Arc<App>) -> Router {
    let query = ServiceBuilder::new()
        .layer(tonic_web::GrpcWebLayer::new())
        .service(QueryServiceServer::new(query::Query::new(app.clone())));
    let administration = administration::Administration { app: app.clone() };
    let administration = ServiceBuilder::new()
        .layer(tonic_web::GrpcWebLayer::new())
        .service(AdministrationServiceServer::new(administration));
    let grpc = Router::new()
        .route_service(&format!("/{SERVICE_NAME}/{{*method}}"), query)
        .route_service(
            &format!("/{ADMINISTRATION_NAME}/{{*method}}"),
            administration,
        )
        .layer(middleware::from_fn_with_state(app.clone(), signed_in_only));
    let api = sign_in::routes()
        .merge(federated::routes())
        .layer(DefaultBodyLimit::max(API_BODY_BYTES_MAX))
        .layer(middleware::from_fn(whole_bodies_only));
    // A second check besides the one against other sites, because a provider is another site.
    let back = federated::return_routes().with_state(app.clone());
    let issuer = app.issuer.clone().map(from_gateway::routes);
    let issuer = issuer.map(|routes| routes.layer(middleware::from_fn(whole_bodies_only)));
    let guesses = middleware::from_fn_with_state(app.clone(), guesses::slowed);
    let same_site = middleware::from_fn_with_state(app.clone(), origin::same_site_only);
    Router::new()
        .merge(grpc)
        .merge(api)
        .layer(middleware::from_fn_with_state(
            app.clone(),
            federated::admit_caller,
        ))
        .with_state(app)
        .merge(issuer.unwrap_or_default())
        .layer(guesses)
        .layer(same_site)
        .merge(back)
        .fallback(page::serve)
}

/// Puts the [`Person`] and the session's [`Key`] into the request, or refuses it.
async fn signed_in_only(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let found = sign_in::key(&app, request.headers()).and_then(|key| {
        let person = app
            .sessions
            .lock()
            .person(&key, contracts::now_us())
            .cloned()?;
        Some((key, person))
    });
    let Some((key, mut person)) = found else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    match reason::of(request.headers()) {
        Ok(reason) => person.reason = reason,
        Err(said) => return (StatusCode::BAD_REQUEST, said).into_response(),
    }
    request.extensions_mut().insert(person);
    request.extensions_mut().insert(key);
    next.run(request).await
}

/// For requests without a session: gRPC needs a signed-in person.
async fn whole_bodies_only(request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    // The longest bodies of all routes; each route has its own limit besides.
    let whole = axum::body::to_bytes(body, from_gateway::BODY_BYTES_MAX);
    match tokio::time::timeout(BODY_WITHIN, whole).await {
        Ok(Ok(body)) => next.run(Request::from_parts(head, body.into())).await,
        Ok(Err(_)) => StatusCode::PAYLOAD_TOO_LARGE.into_response(),
        Err(_) => StatusCode::REQUEST_TIMEOUT.into_response(),
    }
}

/// Ends sessions whose account was removed or changed.
pub(crate) async fn recheck_sessions(app: Arc<App>) {
    loop {
        tokio::select! {
            () = app.shutdown.requested() => return,
            () = tokio::time::sleep(RECHECK_INTERVAL) => {}
        }
        let names = app.sessions.lock().names();
        for name in names {
            match app.store.account(&name).await {
                Ok(account) => app.sessions.lock().recheck(&name, account.as_ref()),
                // Keeps the sessions: an absent store must not sign out the ward's screens.
                Err(error) => tracing::warn!(%error, "sessions could not be checked"),
            }
        }
        metrics::gauge!("braid_dashboard_sessions").set(app.sessions.lock().count() as f64);
    }
}
