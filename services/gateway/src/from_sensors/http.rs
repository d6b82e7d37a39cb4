//! `POST /v1/samples`: newline-delimited JSON in, one JSON object out.
//!
//! - Status 200: all lines were accepted. Status 207: some lines were. Status 400: no line was.
//! - Status 202: all lines were accepted, and `apart` lists those of a device that nobody wears any
//!   more. They are in the quarantine until a person assigns them.
//! - Status 409: no line was, because the journal has other readings under the sensor's numbers.
//! - Status 408: the body did not arrive. Status 413: the body is too large.
//! - Status 429: the journal's queue is full. Status 503: the journal cannot write, or the core has
//!   revoked the gateway.
//!
//! After 408 no line is kept. After 429 and 503 lines may be lost: send them again. After 503 lines
//! may be stored as well: only a `sensor_sequence` keeps them from being stored twice.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    body::Bytes,
    extract::{Extension, FromRequest, Request, State},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::Serialize;
use service_kit::grpc::Peer;

use super::line;
use crate::{
    clock::Moment,
    intake::{Intake, Patience, RecordError, Refused, SAMPLES_PER_REQUEST_MAX},
    journal::Disk,
};

/// The reason why an accepted line is in no patient's record.
const APART: &str =
    "nobody wears the device any more; the reading is kept apart until a person assigns it";
/// Rejections that an answer lists; further ones are only counted.
const REJECTIONS_LISTED_MAX: usize = 100;
/// Longest wait for a body; then it is refused with 408, so that a silent sensor does not keep a
/// connection's place.
const BODY_WITHIN: Duration = Duration::from_secs(30);

/// A complete body.
pub struct Whole(pub Bytes);

impl<S: Send + Sync> FromRequest<S> for Whole {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Whole, Response> {
        whole(request, state, BODY_WITHIN).await.map(Whole)
    }
}

async fn whole<S: Send + Sync>(
    request: Request,
    state: &S,
    within: Duration,
) -> Result<Bytes, Response> {
    match tokio::time::timeout(within, Bytes::from_request(request, state)).await {
        Ok(body) => body.map_err(IntoResponse::into_response),
        Err(_) => Err(StatusCode::REQUEST_TIMEOUT.into_response()),
    }
}

#[derive(Serialize)]
struct Answer {
    accepted: usize,
    rejected: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rejections: Vec<LineRejection>,
    /// Accepted lines of devices that nobody wears any more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    apart: Vec<LineApart>,
}

#[derive(Serialize)]
struct LineApart {
    /// Counted from 1.
    line: usize,
    reason: &'static str,
}

#[derive(Serialize)]
struct LineRejection {
    /// Counted from 1.
    line: usize,
    field: &'static str,
    reason: String,
    example: String,
}

#[derive(Serialize)]
struct Failure {
    accepted: usize,
    error: String,
}

pub async fn samples<D: Disk>(
    State(intake): State<Arc<Intake<D>>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    Whole(body): Whole,
) -> Response {
    let mut samples = Vec::new();
    let mut line_of = Vec::new();
    let mut rejections = Vec::new();
    for (n, text) in body.split(|byte| *byte == b'\n').enumerate() {
        let text = text.trim_ascii();
        if text.is_empty() {
            continue;
        }
        if samples.len() + rejections.len() >= SAMPLES_PER_REQUEST_MAX {
            return failure(
                StatusCode::PAYLOAD_TOO_LARGE,
                &RecordError::TooMany(samples.len() + rejections.len() + 1),
            );
        }
        match line::parse(text) {
            Ok(sample) => {
                samples.push(sample);
                line_of.push(n + 1);
            }
            Err(invalid) => rejections.push(rejection(n + 1, &invalid.into())),
        }
    }
    if samples.is_empty() && rejections.is_empty() {
        let empty = vitals::Invalid::new(
            "body",
            "has no line",
            r#"{"device":"d1","metric":"heart-rate","value":72}"#,
        );
        rejections.push(rejection(1, &empty.into()));
    }
    let from = super::caller::sender(peer.as_deref());
    let parent = service_kit::telemetry::traceparent_of_headers(&headers);
    let recorded = match intake
        .record(samples, Moment::now(), Patience::Refuse, from, parent)
        .await
    {
        Ok(recorded) => recorded,
        Err(error) => {
            let status = match &error {
                RecordError::TooMany(_) => StatusCode::PAYLOAD_TOO_LARGE,
                RecordError::Busy => StatusCode::TOO_MANY_REQUESTS,
                RecordError::Alerts(_) | RecordError::Journal(_) | RecordError::Revoked => {
                    StatusCode::SERVICE_UNAVAILABLE
                }
            };
            return failure(status, &error);
        }
    };
    for (index, refused) in &recorded.refused {
        let line = line_of.get(*index).copied().unwrap_or_default();
        rejections.push(rejection(line, refused));
    }
    rejections.sort_by_key(|rejection| rejection.line);
    let all = recorded.refused.len() == rejections.len();
    let is_conflict = all && recorded.refused.iter().all(|(_, it)| it.is_contradiction());
    let rejected = rejections.len();
    rejections.truncate(REJECTIONS_LISTED_MAX);
    let mut apart: Vec<usize> = recorded
        .apart
        .iter()
        .filter_map(|it| line_of.get(*it).copied())
        .collect();
    apart.truncate(REJECTIONS_LISTED_MAX);
    let status = match (recorded.accepted, rejected) {
        (_, 0) if !apart.is_empty() => StatusCode::ACCEPTED,
        (_, 0) => StatusCode::OK,
        (0, _) if is_conflict => StatusCode::CONFLICT,
        (0, _) => StatusCode::BAD_REQUEST,
        _ => StatusCode::MULTI_STATUS,
    };
    let answer = Answer {
        accepted: recorded.accepted,
        rejected,
        rejections,
        apart: apart
            .into_iter()
            .map(|line| LineApart {
                line,
                reason: APART,
            })
            .collect(),
    };
    (status, Json(answer)).into_response()
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cancel {
    device: String,
    /// The name in the device's samples.
    #[serde(default)]
    patient: String,
}

/// `POST /v1/falls/cancel`.
///
/// Status 200: the fall was cancelled before anybody was notified. Status 409: there is no fall to
/// cancel, or people were notified. Status 503: the journal cannot write. Then the next request
/// carries the cancellation.
pub async fn cancel_fall<D: Disk>(
    State(intake): State<Arc<Intake<D>>>,
    Whole(body): Whole,
) -> Response {
    let answer = |status: StatusCode, text: String| {
        (status, Json(CancelAnswer { answer: text })).into_response()
    };
    let cancel: Cancel = match serde_json::from_slice(&body) {
        Ok(cancel) => cancel,
        Err(error) => {
            let example = r#"{"device": "chest-belt-7"}"#;
            return answer(
                StatusCode::BAD_REQUEST,
                format!("{error}; for example {example}"),
            );
        }
    };
    for (field, id, may_be_empty) in [
        ("device", &cancel.device, false),
        ("patient", &cancel.patient, true),
    ] {
        if may_be_empty && id.is_empty() {
            continue;
        }
        if let Err(invalid) = vitals::validate_identifier(field, id, "chest-belt-7") {
            return answer(StatusCode::BAD_REQUEST, invalid.to_string());
        }
    }
    match intake.cancel_fall(&cancel.device, &cancel.patient).await {
        Ok(true) => answer(StatusCode::OK, "cancelled".to_owned()),
        Ok(false) => answer(
            StatusCode::CONFLICT,
            "there is no fall to cancel, or somebody was notified already".to_owned(),
        ),
        Err(error) => answer(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
    }
}

#[derive(Serialize)]
struct CancelAnswer {
    answer: String,
}

fn rejection(line: usize, refused: &Refused) -> LineRejection {
    let (field, reason, example) = refused.parts();
    LineRejection {
        line,
        field,
        reason,
        example,
    }
}

fn failure(status: StatusCode, error: &RecordError) -> Response {
    let body = Json(Failure {
        accepted: 0,
        error: error.to_string(),
    });
    let mut response = (status, body).into_response();
    if status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::SERVICE_UNAVAILABLE {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use axum::body::Body;
    use futures::{StreamExt, stream};

    use super::*;

    #[tokio::test]
    async fn a_body_that_does_not_arrive_is_refused() {
        let begun = stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"{"))]);
        let request = Request::new(Body::from_stream(begun.chain(stream::pending())));
        let waiting = whole(request, &(), Duration::from_millis(20));
        let refused = tokio::time::timeout(Duration::from_secs(30), waiting).await;
        let refused = refused.expect("a place for ever").unwrap_err();
        assert_eq!(refused.status(), StatusCode::REQUEST_TIMEOUT);
        let request = Request::new(Body::from("{}"));
        assert_eq!(whole(request, &(), BODY_WITHIN).await.unwrap(), "{}");
    }
}
