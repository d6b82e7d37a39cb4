//! The entry for sensors: gRPC `GatewayService.Record` and HTTP `POST /v1/samples` on one port, and
//! `POST /v1/falls/cancel` for a button at the gateway. The same port serves the people beside the
//! gateway: see [`crate::from_carers`].
//!
//! An answer means that the samples are on disk in the journal.

mod auth;
mod caller;
mod grpc;
pub mod http;
mod line;

use std::sync::Arc;

use ::http::StatusCode;
use axum::{
    Router,
    extract::{DefaultBodyLimit, Request},
    middleware,
    response::{IntoResponse, Response},
    routing::post,
};
use contracts::vitals::gateway_service_server::GatewayServiceServer;
use service_kit::{ConfigError, Context, Secret};
use tokio::net::TcpListener;
use tonic::service::Routes;

use crate::{
    Config,
    from_carers::{self, Carers},
    intake::Intake,
    journal::Disk,
};

/// Name under which the listener for sensors is announced.
pub const LISTENER: &str = "sensors";
/// Bytes of an HTTP body; a larger body is refused with 413.
const BODY_BYTES_MAX: usize = 4 << 20;
/// Bytes of a gRPC message; a larger message is refused with OUT_OF_RANGE.
const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// The tokens of sensors and of carers.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    pub sensor: Option<Secret>,
    pub carer: Option<Secret>,
}

pub fn router<D: Disk>(
    intake: Arc<Intake<D>>,
    carers: Arc<Carers<D>>,
    tokens: Tokens,
    context: &Context,
) -> Router {
    let recorder = grpc::Recorder::new(Arc::clone(&intake), Arc::clone(&carers), context.clone());
    let service = GatewayServiceServer::new(recorder).max_decoding_message_size(MESSAGE_BYTES_MAX);
    Routes::new(service)
        .prepare()
        .into_axum_router()
        .merge(
            Router::new()
                .route("/v1/samples", post(http::samples::<D>))
                .route("/v1/falls/cancel", post(http::cancel_fall::<D>))
                .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
                .with_state(intake),
        )
        .merge(from_carers::router(carers))
        .fallback(nothing_here)
        .layer(middleware::from_fn_with_state(
            Arc::new(auth::Token::new(tokens.sensor, tokens.carer)),
            auth::check,
        ))
}

/// A gRPC status is a 200 for an HTTP client, and a sensor would take it for an acknowledgement of
/// its samples.
async fn nothing_here(request: Request) -> Response {
    const THERE_IS: &str = "there is POST /v1/samples, POST /v1/falls/cancel, GET /v1/alerts, \
        POST /v1/alerts/acknowledge, the page / and braid.vitals.v1.GatewayService";
    if caller::is_grpc(request.headers()) {
        tonic::Status::unimplemented(THERE_IS).into_http()
    } else {
        (StatusCode::NOT_FOUND, format!("{THERE_IS}\n")).into_response()
    }
}

pub(crate) async fn bind(config: &Config) -> Result<TcpListener, ConfigError> {
    service_kit::grpc::bind(config.listen, "listen").await
}

/// Serves until shutdown is requested.
pub async fn serve<D: Disk>(
    listener: TcpListener,
    intake: Arc<Intake<D>>,
    carers: Arc<Carers<D>>,
    tokens: Tokens,
    context: &Context,
) -> Result<(), service_kit::grpc::ServeError> {
    let router = router(intake, carers, tokens, context);
    service_kit::grpc::serve(listener, LISTENER, router, None, context).await
}
