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
use contracts::patients::patients_service_server::{
    PatientsServiceServer, SERVICE_NAME as PATIENTS_NAME,
};
use contracts::query::query_service_server::{QueryServiceServer, SERVICE_NAME};
use tower::ServiceBuilder;

use crate::from_gateway;

mod administration;
mod app;
mod built_in;
mod calls;
mod catalogue;
mod confirm;
mod federated;
mod guesses;
mod kiosk;
mod kiosk_code;
mod origin;
mod page;
mod patients;
mod query;
mod reason;
mod sign_in;
mod sign_in_code;
mod viewers;
mod watch;

pub(crate) use app::{App, Clients};

/// Bodies of `/api/*`; a longer one is refused with 413.
const API_BODY_BYTES_MAX: usize = 4 * 1024;
/// A body must arrive within this time, or it is refused with 408, so that slow senders hold no
/// places.
const BODY_WITHIN: Duration = Duration::from_secs(10);

pub(crate) fn router(app: Arc<App>) -> Router {
    let query = ServiceBuilder::new()
        .layer(tonic_web::GrpcWebLayer::new())
        .service(QueryServiceServer::new(query::Query::new(app.clone())));
    let administration = administration::Administration { app: app.clone() };
    let administration = ServiceBuilder::new()
        .layer(tonic_web::GrpcWebLayer::new())
        .service(AdministrationServiceServer::new(administration));
    let patients = patients::Patients { app: app.clone() };
    let patients = ServiceBuilder::new()
        .layer(tonic_web::GrpcWebLayer::new())
        .service(PatientsServiceServer::new(patients));
    let grpc = Router::new()
        .route_service(&format!("/{PATIENTS_NAME}/{{*method}}"), patients)
        .route_service(&format!("/{SERVICE_NAME}/{{*method}}"), query)
        .route_service(
            &format!("/{ADMINISTRATION_NAME}/{{*method}}"),
            administration,
        )
        .layer(middleware::from_fn_with_state(app.clone(), signed_in_only));
    let api = sign_in::routes()
        .merge(federated::routes())
        .merge(kiosk_code::routes())
        .layer(DefaultBodyLimit::max(API_BODY_BYTES_MAX))
        .layer(middleware::from_fn(whole_bodies_only));
    // A second check besides the one against other sites, because a provider is another site.
    let back = federated::return_routes().with_state(app.clone());
    let issuer = app.issuer.clone().map(from_gateway::routes);
    let issuer = issuer.map(|routes| routes.layer(middleware::from_fn(whole_bodies_only)));
    let guesses = middleware::from_fn_with_state(app.clone(), guesses::slowed);
    let same_site = middleware::from_fn_with_state(app.clone(), origin::same_site_only);
    // The link is in a letter, which another site may show. No other person knows its token.
    let confirm = confirm::routes()
        .layer(DefaultBodyLimit::max(API_BODY_BYTES_MAX))
        .layer(middleware::from_fn(whole_bodies_only))
        .layer(guesses.clone())
        .with_state(app.clone());
    let page = app.page.clone();
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
        .merge(confirm)
        .fallback(move |method, uri, headers| page.serve(method, uri, headers))
}

/// Puts the [`Person`] and the session's [`Key`] into the request, or refuses it.
async fn signed_in_only(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let Some(key) = sign_in::key(&app, request.headers()) else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    let mut person = match app.person(&key).await {
        Ok(Some(person)) => person,
        Ok(None) => return StatusCode::UNAUTHORIZED.into_response(),
        Err(error) => return sign_in::unavailable(&error),
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
