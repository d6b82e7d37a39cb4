//! The receiver of the webhook: stores every call.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::clock;
use crate::facts::Call;

/// Calls that are stored. A run makes some thousands; at the bound the receiver refuses, and the
/// alerts count as not notified.
const CALLS_MAX: usize = 200_000;

#[derive(Default)]
pub(super) struct Receiver {
    pub calls: Mutex<Vec<Call>>,
    pub is_away: AtomicBool,
}

impl Receiver {
    pub async fn serve(self: Arc<Self>, address: SocketAddr) -> io::Result<()> {
        let listener = TcpListener::bind(address).await?;
        let router = Router::new().route("/", post(take)).with_state(self);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(())
    }
}

async fn take(
    State(receiver): State<Arc<Receiver>>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> (StatusCode, Json<Value>) {
    let refused = (StatusCode::SERVICE_UNAVAILABLE, Json(Value::Null));
    if receiver.is_away.load(Ordering::Relaxed) {
        return refused;
    }
    if body["kind"] == "heartbeat" {
        // The receiver proves that it reads what it gets.
        let confirmed = json!({ "confirmed": body["challenge"] });
        return (StatusCode::OK, Json(confirmed));
    }
    let text = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
    let key = headers
        .get("idempotency-key")
        .and_then(|key| key.to_str().ok());
    let call = Call {
        key: key.unwrap_or_default().to_owned(),
        id: text("id"),
        patient: text("patient"),
        rule: text("rule"),
        since_us: body["since_us"].as_i64().unwrap_or_default(),
        revision: body["revision"].as_u64().unwrap_or_default(),
        state: text("state"),
        is_reminder: body["reason"] == "reminder",
        at_us: clock::now_us(),
    };
    let mut calls = receiver.calls.lock();
    if calls.len() >= CALLS_MAX {
        return refused;
    }
    calls.push(call);
    (StatusCode::OK, Json(Value::Null))
}
