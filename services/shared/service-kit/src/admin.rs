//! The listener for operators: `/healthz`, `/readyz`, `/metrics`, `/paths`.
//!
//! It runs on its own thread and event loop, so it still answers, and reports the stall, while the
//! main event loop is stuck.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;

use crate::path_table::AllPaths;
use crate::{ConfigError, Context, Health, ProgressHandle};

/// Interval of the main event loop's beats.
const BEAT_INTERVAL: Duration = Duration::from_secs(1);
const BEAT_SILENCE_MAX: Duration = Duration::from_secs(10);

/// Serves the health of `contexts` until the process ends; returns the bound address. A process
/// with several services is ready when all of them are.
pub async fn start(
    address: SocketAddr,
    flag: &'static str,
    contexts: Vec<Context>,
) -> Result<SocketAddr, ConfigError> {
    let listener = crate::grpc::bind(address, flag).await?;
    let failed =
        |error: std::io::Error| ConfigError::new(flag, error.to_string(), "--admin 127.0.0.1:9101");
    let bound = listener.local_addr().map_err(failed)?;
    let listener = listener.into_std().map_err(failed)?;

    // Installed on first use: metrics that were counted earlier would be lost.
    crate::telemetry::metrics_handle();
    let process = Health::new();
    tokio::spawn(beat(process.progress("event loop", BEAT_SILENCE_MAX)));
    let router = router(process, contexts);
    std::thread::Builder::new()
        .name("admin".to_owned())
        .spawn(move || serve(listener, router))
        .map_err(failed)?;
    Ok(bound)
}

async fn beat(handle: ProgressHandle) {
    let mut interval = tokio::time::interval(BEAT_INTERVAL);
    loop {
        interval.tick().await;
        handle.beat();
        crate::telemetry::metrics_handle().run_upkeep();
    }
}

fn serve(listener: std::net::TcpListener, router: Router) {
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return tracing::error!(%error, "no event loop for the admin listener"),
    };
    runtime.block_on(async move {
        let served = match TcpListener::from_std(listener) {
            Ok(listener) => axum::serve(listener, router).await,
            Err(error) => Err(error),
        };
        if let Err(error) = served {
            tracing::error!(%error, "the admin listener ended");
        }
    });
}

#[derive(Clone)]
struct Observed {
    process: Health,
    contexts: Vec<Context>,
}

/// The routes alone, for services with their own HTTP listener.
pub fn router(process: Health, contexts: Vec<Context>) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/paths", get(paths))
        .with_state(Observed { process, contexts })
}

async fn healthz(State(observed): State<Observed>) -> Response {
    let now = Instant::now();
    let stalled: Vec<_> = std::iter::once(("process", &observed.process))
        .chain(
            observed
                .contexts
                .iter()
                .map(|context| (context.noun(), context.health())),
        )
        .flat_map(|(noun, health)| {
            health.stalled(now).into_iter().map(move |(name, silence)| {
                json!({ "service": noun, "loop": name, "silent_seconds": silence.as_secs() })
            })
        })
        .collect();
    let status = status_of(stalled.is_empty());
    (
        status,
        Json(json!({ "alive": stalled.is_empty(), "stalled": stalled })),
    )
        .into_response()
}

async fn readyz(State(observed): State<Observed>) -> Response {
    let (mut failing, mut warnings) = (Vec::new(), Vec::new());
    for context in &observed.contexts {
        for (name, warning) in context.health().warnings() {
            warnings.push(json!({
                "service": context.noun(), "warning": name, "says": warning.says, "do": warning.to_do,
            }));
        }
        if context.shutdown().is_requested() {
            failing.push(json!({
                "service": context.noun(), "check": "shutdown", "reason": "draining",
            }));
        }
        for (check, reason) in context.health().failing() {
            failing.push(json!({ "service": context.noun(), "check": check, "reason": reason }));
        }
    }
    let status = status_of(failing.is_empty());
    (
        status,
        Json(json!({ "ready": failing.is_empty(), "failing": failing, "warnings": warnings })),
    )
        .into_response()
}

async fn metrics() -> Response {
    let exposition = "text/plain; version=0.0.4";
    let body = crate::telemetry::metrics_handle().render();
    ([(header::CONTENT_TYPE, exposition)], body).into_response()
}

#[derive(Deserialize)]
struct WhosePaths {
    gateway: Option<String>,
}

/// The paths of the process's gateways and proxies; 404 if it runs none.
async fn paths(State(observed): State<Observed>, Query(whose): Query<WhosePaths>) -> Response {
    let contexts = observed.contexts.iter();
    let services: Vec<_> = contexts
        .filter_map(|context| context.paths(whose.gateway.as_deref()))
        .collect();
    let status = match services.is_empty() {
        true => StatusCode::NOT_FOUND,
        false => StatusCode::OK,
    };
    (status, Json(AllPaths { services })).into_response()
}

fn status_of(good: bool) -> StatusCode {
    if good {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}
