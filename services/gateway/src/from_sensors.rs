//! Sensors' way in: gRPC `GatewayService.Record` and HTTP `POST /v1/samples` on one port; `POST /v1/falls/cancel` for
//! a button at the gateway.
//!
//! An answer means that the journal has the samples on disk.

mod auth;
mod grpc;
mod http;
mod line;
mod time;

use std::sync::Arc;

use axum::{Router, extract::DefaultBodyLimit, middleware, routing::post};
use contracts::vitals::gateway_service_server::GatewayServiceServer;
use service_kit::{Context, Secret};
use tokio::net::TcpListener;
use tonic::service::Routes;

use crate::{intake::Intake, journal::Disk};

pub use time::parse_rfc3339_us;

/// Name under which the listener is announced.
pub const LISTENER: &str = "sensors";
/// Larger HTTP bodies are refused with 413.
const BODY_BYTES_MAX: usize = 4 << 20;
/// Larger gRPC messages are refused with OUT_OF_RANGE.
const MESSAGE_BYTES_MAX: usize = 4 << 20;

pub fn router<D: Disk>(intake: Arc<Intake<D>>, token: Option<Secret>, context: &Context) -> Router {
    let service = GatewayServiceServer::new(grpc::Recorder::new(
        Arc::clone(&intake),
        context.shutdown().clone(),
    ))
    .max_decoding_message_size(MESSAGE_BYTES_MAX);
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
        .layer(middleware::from_fn_with_state(
            Arc::new(auth::Token::new(token)),
            auth::check,
        ))
}

/// Serves until shutdown is requested.
pub async fn serve<D: Disk>(
    listener: TcpListener,
    intake: Arc<Intake<D>>,
    token: Option<Secret>,
    context: &Context,
) -> Result<(), service_kit::grpc::ServeError> {
    let router = router(intake, token, context);
    service_kit::grpc::serve(listener, LISTENER, router, None, context).await
}
