//! The listener for operators: `/healthz`, `/readyz`, `/metrics`, `/paths`, `/qlog`.
//!
//! Requests that change anything are for programs on this machine, and not for pages in a browser
//! there. The caller has a loopback address and sends [`OPERATOR_HEADER`].
//!
//! It runs on its own thread and event loop, so it still answers, and reports the stall, while the
//! main event loop is stuck.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{ConnectInfo, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;

use crate::path_table::AllPaths;
use crate::qlog::{QlogError, Recorder, Recording, Recordings, Wanted};
use crate::wrong::{self, Level, Wrong};
use crate::{ConfigError, Context, ProgressHandle};

/// Interval of the main event loop's beats.
const BEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Time without a beat after which the event loop counts as stalled.
const BEAT_SILENCE_MAX: Duration = Duration::from_secs(10);
/// A page of another site cannot set it without this listener's consent, which it never gives.
pub const OPERATOR_HEADER: &str = "x-braid-operator";

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
    let process = Context::new("process");
    let turns = process.health().progress("event loop", BEAT_SILENCE_MAX);
    tokio::spawn(beat(turns));
    let contexts: Vec<Context> = std::iter::once(process).chain(contexts).collect();
    std::thread::Builder::new()
        .name("admin".to_owned())
        .spawn(move || serve(listener, contexts))
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

/// Logs from the second look on, so not what every start waits for.
async fn log_wrong(observed: Observed) {
    let mut log = wrong::Log::default();
    let mut interval = tokio::time::interval(BEAT_INTERVAL);
    interval.tick().await;
    loop {
        interval.tick().await;
        log.on_look(&observed.wrong());
    }
}

fn serve(listener: std::net::TcpListener, contexts: Vec<Context>) {
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return tracing::error!(%error, "no event loop for the admin listener"),
    };
    runtime.block_on(async move {
        let observed = Observed { contexts };
        tokio::spawn(log_wrong(observed.clone()));
        let router = router(observed);
        let served = match TcpListener::from_std(listener) {
            Ok(listener) => {
                let service = router.into_make_service_with_connect_info::<SocketAddr>();
                axum::serve(listener, service).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = served {
            tracing::error!(%error, "the admin listener ended");
        }
    });
}

#[derive(Clone)]
struct Observed {
    /// The process itself first.
    contexts: Vec<Context>,
}

fn router(observed: Observed) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/paths", get(paths))
        .route("/qlog", get(recordings).post(record).delete(end_recording))
        .with_state(observed)
}

/// Alive as long as no loop stands still.
async fn healthz(State(observed): State<Observed>) -> Response {
    let wrong = observed.wrong();
    let alive = wrong.iter().all(|it| it.level != Level::Stalled);
    (
        status_of(alive),
        Json(json!({ "alive": alive, "wrong": wrong })),
    )
        .into_response()
}

/// Ready as long as no check fails.
async fn readyz(State(observed): State<Observed>) -> Response {
    let wrong = observed.wrong();
    let ready = wrong.iter().all(|it| it.level != Level::Failing);
    (
        status_of(ready),
        Json(json!({ "ready": ready, "wrong": wrong })),
    )
        .into_response()
}

async fn metrics(State(observed): State<Observed>) -> Response {
    let exposition = "text/plain; version=0.0.4";
    let mut body = crate::telemetry::metrics_handle().render();
    body.push_str(&wrong::render(&observed.wrong()));
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

impl Observed {
    fn wrong(&self) -> Vec<Wrong> {
        let now = Instant::now();
        wrong::merged(self.contexts.iter().map(|it| it.wrong(now)))
    }

    fn recorders(&self) -> Vec<Arc<Recorder>> {
        let recorders = self.contexts.iter().filter_map(Context::recorder);
        recorders.collect()
    }
}

/// Whether a program on this machine asks.
fn is_operator(peer: &ConnectInfo<SocketAddr>, headers: &HeaderMap) -> bool {
    peer.0.ip().to_canonical().is_loopback() && headers.contains_key(OPERATOR_HEADER)
}

/// The recordings of the process; 404 if it can make none.
async fn recordings(State(observed): State<Observed>) -> Response {
    let recorders = observed.recorders();
    let listed: Vec<Recording> = recorders.iter().flat_map(|it| it.list()).collect();
    listed_in(listed, recorders.is_empty())
}

fn listed_in(recordings: Vec<Recording>, has_no_recorder: bool) -> Response {
    let status = match has_no_recorder {
        true => StatusCode::NOT_FOUND,
        false => StatusCode::OK,
    };
    (status, Json(Recordings { recordings })).into_response()
}

/// Starts a recording at the first service that has a path of the gateway.
async fn record(
    State(observed): State<Observed>,
    peer: ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    Query(wanted): Query<Wanted>,
) -> Response {
    if !is_operator(&peer, &headers) {
        return StatusCode::FORBIDDEN.into_response();
    }
    let mut refused = None;
    for recorder in observed.recorders() {
        match recorder.start(&wanted) {
            Ok(recording) => return listed_in(vec![recording], false),
            Err(QlogError::NoPath) => refused = refused.or(Some(QlogError::NoPath)),
            Err(error) => refused = Some(error),
        }
    }
    match refused {
        Some(error) => (StatusCode::CONFLICT, error.to_string()).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// Ends the recordings of a gateway, or all.
async fn end_recording(
    State(observed): State<Observed>,
    peer: ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    Query(whose): Query<WhosePaths>,
) -> Response {
    if !is_operator(&peer, &headers) {
        return StatusCode::FORBIDDEN.into_response();
    }
    let recorders = observed.recorders();
    let ended = recorders
        .iter()
        .flat_map(|it| it.stop(whose.gateway.as_deref()));
    listed_in(ended.collect(), recorders.is_empty())
}

fn status_of(good: bool) -> StatusCode {
    if good {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}
