//! The entry for the people beside the gateway, on the port for sensors: its page, its open alerts
//! and values, and their acknowledgement. It works without any network.
//!
//! The sensor token and the carer's token permit to read and to acknowledge. A listener gets the
//! whole list with each change, so a listener that missed a change has the newest list.

mod listen;
mod page;
pub mod shown;

use std::{sync::Arc, time::Instant};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, State},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use contracts::vitals::LocalAlert;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::Deserialize;
use serde_json::json;
use service_kit::{Health, Shutdown};
use tokio::sync::watch;
use tokio_stream::{StreamExt, wrappers::ReceiverStream};

use crate::{
    carers::{Heard, Hearing, Look, Newest},
    clock::Moment,
    from_sensors::http::Whole,
    intake::{AcknowledgeError, Intake},
    journal::{Disk, Journal},
    open_alerts::AlertsFile,
    to_proxy::Uplink,
};

pub use listen::{LISTENERS_MAX, Listeners, News};
pub use page::PATHS as PAGE_PATHS;

/// Bytes of an acknowledgement; a larger body is refused with 413.
const BODY_BYTES_MAX: usize = 4 << 10;
/// Interval of looks at whether the core hears the gateway.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_secs(1);
/// The answer of a gateway that the core has revoked.
pub const REVOKED: &str = "the core has revoked this gateway: it watches over nobody";
/// Checks of the links to ingest.
const LINKS: [&str; 2] = ["alerts-uplink", "vitals-uplink"];

/// Everything that the door shows.
pub struct Carers<D: Disk> {
    pub intake: Arc<Intake<D>>,
    pub file: AlertsFile<D>,
    pub newest: Newest,
    pub uplink: Arc<dyn Uplink>,
    /// The journals of vitals and of alerts.
    pub journals: [Journal<D>; 2],
    pub health: Health,
    pub freshness: std::time::Duration,
    pub gateway: String,
    pub shutdown: Shutdown,
    heard: watch::Sender<Heard>,
    pub listeners: Listeners,
}

impl<D: Disk> Carers<D> {
    pub fn new(
        (intake, file, newest): (Arc<Intake<D>>, AlertsFile<D>, Newest),
        (uplink, journals): (Arc<dyn Uplink>, [Journal<D>; 2]),
        (health, shutdown): (Health, Shutdown),
        (gateway, freshness): (String, std::time::Duration),
    ) -> Self {
        let listeners = Listeners::new(intake.open_alerts().clone(), shutdown.clone());
        Self {
            intake,
            file,
            newest,
            uplink,
            journals,
            health,
            freshness,
            gateway,
            shutdown,
            heard: watch::Sender::new(Heard::NoNetwork),
            listeners,
        }
    }

    /// Looks whether the core hears the gateway, until shutdown.
    pub async fn watch(self: Arc<Self>) {
        let mut hearing = Hearing::default();
        loop {
            let heard = hearing.on_look(self.look(), Instant::now());
            metrics::gauge!("braid_gateway_heard").set(f64::from(u8::from(heard == Heard::Yes)));
            self.heard
                .send_if_modified(|before| std::mem::replace(before, heard) != heard);
            tokio::select! {
                () = self.shutdown.requested() => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }

    fn look(&self) -> Look {
        let failing = self.health.failing();
        Look {
            waiting: self.waiting(),
            acknowledged: self.journals.iter().map(|it| it.reader().head()).sum(),
            is_linked: !failing.iter().any(|(name, _)| LINKS.contains(name)),
            has_path: self.uplink.accesses().iter().any(|(_, is_up)| *is_up),
            freshness: self.freshness,
        }
    }

    fn waiting(&self) -> u64 {
        self.journals.iter().map(Journal::waiting).sum()
    }

    pub fn alerts(&self) -> Vec<LocalAlert> {
        self.intake.open_alerts().list(Moment::now())
    }

    pub async fn acknowledge(&self, id: &str, by: &str) -> Result<LocalAlert, Refused> {
        vitals::validate_person("by", by).map_err(|error| Refused::Name(error.to_string()))?;
        let acknowledged = self.intake.acknowledge((id, by), Moment::now(), &self.file);
        Ok(acknowledged.await?.alert)
    }
}

/// Why an acknowledgement is not taken, or not stored yet.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("{0}")]
    Name(String),
    #[error(transparent)]
    Acknowledge(#[from] AcknowledgeError),
}

pub fn router<D: Disk>(carers: Arc<Carers<D>>) -> Router {
    let page = Router::new()
        .route("/", get(page::index))
        .route("/carer.css", get(page::style))
        .route("/carer.js", get(page::script));
    Router::new()
        .route("/v1/alerts", get(alerts::<D>))
        .route("/v1/alerts/acknowledge", post(acknowledge::<D>))
        .route("/v1/state", get(state::<D>))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(carers)
        .merge(page)
}

/// `GET /v1/alerts`: the open alerts as JSON, or with `accept: text/event-stream` as events. Status
/// 410: the core has revoked the gateway.
async fn alerts<D: Disk>(State(carers): State<Arc<Carers<D>>>, headers: HeaderMap) -> Response {
    if carers.intake.is_revoked() {
        return refused(StatusCode::GONE, REVOKED.to_owned());
    }
    let accept = headers.get(header::ACCEPT).map(HeaderValue::as_bytes);
    let wants_events = accept.is_some_and(|it| it.starts_with(b"text/event-stream"));
    if !wants_events {
        let alerts = carers.alerts();
        return private(Json(json!({ "alerts": shown::alerts(&alerts) })));
    }
    let Some(listening) = carers.listeners.listen(|news| match news {
        News::Alerts(alerts) => {
            let data = json!({ "alerts": shown::alerts(&alerts) });
            Bytes::from(format!("event: alerts\ndata: {data}\n\n"))
        }
        News::Nothing => Bytes::from_static(b": alive\n\n"),
    }) else {
        let text = format!("{LISTENERS_MAX} programs listen already; ask without events\n");
        return (StatusCode::TOO_MANY_REQUESTS, text).into_response();
    };
    let events = ReceiverStream::new(listening).map(Ok::<_, std::convert::Infallible>);
    let kind = [(header::CONTENT_TYPE, "text/event-stream")];
    private((kind, Body::from_stream(events)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Acknowledge {
    id: String,
    by: String,
}

/// `POST /v1/alerts/acknowledge`.
///
/// Status 200: it holds and is on disk. Status 404: no such alert is open. Status 503: it holds
/// here, and the disk has not taken the report to the core yet.
async fn acknowledge<D: Disk>(
    State(carers): State<Arc<Carers<D>>>,
    Whole(body): Whole,
) -> Response {
    let asked: Acknowledge = match serde_json::from_slice(&body) {
        Ok(asked) => asked,
        Err(error) => {
            let example = r#"{"id": "…", "by": "Ada Carer"}"#;
            let text = format!("{error}; for example {example}");
            return refused(StatusCode::BAD_REQUEST, text);
        }
    };
    match carers.acknowledge(&asked.id, &asked.by).await {
        Ok(alert) => private(Json(shown::alert(&alert))),
        Err(error) => {
            let status = match &error {
                Refused::Name(_) => StatusCode::BAD_REQUEST,
                Refused::Acknowledge(AcknowledgeError::Unknown(_)) => StatusCode::NOT_FOUND,
                Refused::Acknowledge(AcknowledgeError::Stored(_)) => {
                    StatusCode::SERVICE_UNAVAILABLE
                }
            };
            refused(status, error.to_string())
        }
    }
}

/// `GET /v1/state`: everything that the page shows.
async fn state<D: Disk>(State(carers): State<Arc<Carers<D>>>) -> Response {
    let values = carers.newest.list(Moment::now());
    let heard = *carers.heard.borrow();
    let (watched, alerts) = match carers.intake.is_revoked() {
        true => ("revoked", Vec::new()),
        false => (shown::watched(heard, &values), carers.alerts()),
    };
    private(Json(json!({
        "gateway": carers.gateway,
        "watched": watched,
        "alerts": shown::alerts(&alerts),
        "values": shown::values(&values),
        "accesses": shown::accesses(&carers.uplink.accesses()),
        "waiting": carers.waiting(),
    })))
}

fn refused(status: StatusCode, error: String) -> Response {
    (status, Json(json!({ "error": error }))).into_response()
}

/// Data of a person stays in no cache.
fn private(response: impl IntoResponse) -> Response {
    let mut response = response.into_response();
    let no_store = HeaderValue::from_static("no-store");
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, no_store);
    response
}
