//! The people beside the gateway, without any network. They see alerts and acknowledge them. A lamp
//! and a webhook in the building are called.

use std::{
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use contracts::vitals::{
    AcknowledgeAlertRequest, FollowAlertsRequest, gateway_service_client::GatewayServiceClient,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use service_kit::{Secret, grpc::channel};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tonic::{Code, Request};

use super::{
    fake_ingest::FakeIngest,
    under_test::{DEADLINE, Gateway, until},
};
use crate::Config;

const S: i64 = 1_000_000;
const RULE: &str = "heart-rate-very-high";
const SENSOR: &str = "of the sensors";
const CARER: &str = "of the carers";

/// An address at which nothing listens.
async fn nobody() -> SocketAddr {
    let reserved = TcpListener::bind("127.0.0.1:0").await.unwrap();
    reserved.local_addr().unwrap()
}

async fn gateway(
    directory: &Path,
    ingest: SocketAddr,
    change: impl FnOnce(&mut Config),
) -> Gateway {
    Gateway::start_with(directory, ingest, Some(SENSOR), |config| {
        config.carer_token = Some(Secret::new(CARER));
        change(config);
    })
    .await
}

pub(super) async fn call(
    gateway: &Gateway,
    token: &str,
    request: &str,
    body: &str,
) -> (u16, String) {
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    let request = format!(
        "{request} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\nauthorization: Bearer {token}\r\n\
         content-length: {}\r\n\r\n{body}",
        gateway.address,
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    (answer[9..12].parse().unwrap(), body.to_owned())
}

/// The very high pulse among the open alerts.
async fn very_high(gateway: &Gateway) -> Option<Value> {
    let (status, body) = call(gateway, CARER, "GET /v1/alerts", "").await;
    assert_eq!(status, 200, "{body}");
    let body: Value = serde_json::from_str(&body).unwrap();
    let mut alerts = body["alerts"].as_array().unwrap().iter();
    alerts.find(|alert| alert["rule"] == RULE).cloned()
}

/// Readings of one pulse, one a second, the last at `end_us`.
async fn pulses(gateway: &Gateway, value: f64, seconds: i64, end_us: i64) {
    let lines = (0..seconds).map(|second| {
        json!({
            "device": "belt-1",
            "metric": "heart-rate",
            "value": value,
            "device_time_us": end_us - (seconds - 1 - second) * S,
        })
        .to_string()
    });
    let body = lines.collect::<Vec<_>>().join("\n");
    let (status, answer) = call(gateway, SENSOR, "POST /v1/samples", &body).await;
    assert_eq!(status, 200, "{answer}");
}

async fn acknowledge(gateway: &Gateway, id: &Value, by: &str) -> (u16, String) {
    let body = json!({ "id": id, "by": by }).to_string();
    call(gateway, CARER, "POST /v1/alerts/acknowledge", &body).await
}

#[tokio::test]
async fn without_a_network_an_alert_is_shown_and_acknowledged_and_the_core_learns_it_later() {
    let directory = tempfile::tempdir().unwrap();
    let ingest = nobody().await;
    let now_us = contracts::now_us();
    let first = gateway(directory.path(), ingest, |_| {}).await;
    pulses(&first, 150.0, 20, now_us - 60 * S).await;
    let alert = very_high(&first)
        .await
        .expect("it is shown without a network");
    assert_eq!(alert["priority"], "high");
    assert_eq!(alert["acknowledged_by"], "");
    let (_, state) = call(&first, CARER, "GET /v1/state", "").await;
    let state: Value = serde_json::from_str(&state).unwrap();
    assert_eq!(state["watched"], "no-network");
    assert!(state["waiting"].as_u64().unwrap() >= 21, "{state}");
    assert_eq!(state["values"][0]["value"], 150.0);

    let (status, _) = call(&first, CARER, "POST /v1/samples", "{}").await;
    assert_eq!(status, 403, "a phone writes no readings");
    for (by, expected) in [("", 400), ("Ada\u{1b}[2J", 400), ("Ada Carer", 200)] {
        let (status, answer) = acknowledge(&first, &alert["id"], by).await;
        assert_eq!(status, expected, "{by:?}: {answer}");
    }
    let (status, answer) = acknowledge(&first, &alert["id"], "Bob").await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(
        (status, &answer["acknowledged_by"]),
        (200, &json!("Ada Carer"))
    );
    assert_eq!(acknowledge(&first, &json!("other"), "Bob").await.0, 404);
    first.stop().await;

    let second = gateway(directory.path(), ingest, |_| {}).await;
    let shown = very_high(&second)
        .await
        .expect("it is shown after a restart");
    assert_eq!(shown["acknowledged_by"], "Ada Carer");
    assert_eq!(shown["id"], alert["id"]);

    let core = FakeIngest::default();
    let running = core.start_at(ingest).await;
    let is_report = |it: &&contracts::vitals::EdgeAlert| it.rule == RULE;
    until("the core has both reports", &core, |got| {
        got.alerts.values().filter(is_report).count() == 2
    })
    .await;
    {
        let got = core.got.lock();
        let reports: Vec<_> = got.alerts.values().filter(is_report).collect();
        assert_eq!(reports[0].acknowledged_by, "");
        assert_eq!(reports[1].acknowledged_by, "Ada Carer");
        assert_eq!(reports[0].since_us, reports[1].since_us);
        assert_eq!(reports[0].time_us, reports[1].time_us);
        assert!(reports[1].acknowledged_us >= now_us);
    }
    second.stop().await;
    running.task.abort();
}

/// A restart of a gateway that has no list on disk, such as one of an older release.
#[tokio::test]
async fn the_states_of_the_rules_alone_bring_an_alert_back() {
    let directory = tempfile::tempdir().unwrap();
    let ingest = nobody().await;
    let first = gateway(directory.path(), ingest, |_| {}).await;
    pulses(&first, 150.0, 20, contracts::now_us() - 60 * S).await;
    let alert = very_high(&first).await.unwrap();
    first.stop().await;
    std::fs::remove_file(directory.path().join("journal/open-alerts/alerts")).unwrap();
    let second = gateway(directory.path(), ingest, |_| {}).await;
    let shown = very_high(&second).await.expect("the rules hold it");
    assert_eq!(shown["id"], alert["id"]);
    assert_eq!(shown["summary"], alert["summary"]);
    second.stop().await;
}

/// A program that appends its input to a file.
fn lamp(directory: &Path) -> (PathBuf, PathBuf) {
    let (program, told) = (directory.join("lamp"), directory.join("told"));
    let text = format!("#!/bin/sh\ncat >> {}\n", told.display());
    std::fs::write(&program, text).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    (program, told)
}

/// Bodies of the calls that it gets. The first call is refused.
async fn webhook() -> (SocketAddr, Arc<Mutex<Vec<Value>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&told);
    let calls = std::sync::atomic::AtomicU32::new(0);
    let calls = Arc::new(calls);
    let take = move |axum::Json(body): axum::Json<Value>| {
        let is_first = calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
        if !is_first {
            noted.lock().push(body);
        }
        let status = if is_first { 500 } else { 200 };
        async move { http::StatusCode::from_u16(status).unwrap() }
    };
    let router = axum::Router::new().route("/alarm", axum::routing::post(take));
    tokio::spawn(async { axum::serve(listener, router).await });
    (address, told)
}

#[tokio::test]
async fn a_lamp_and_a_webhook_are_told_of_the_beginning_and_of_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let (program, written) = lamp(directory.path());
    let (address, told) = webhook().await;
    let gateway = gateway(directory.path(), nobody().await, |config| {
        config.alarm_command = Some(program);
        config.alarm_webhook = Some(Secret::new(format!("http://{address}/alarm")));
    })
    .await;
    let of_rule = |body: &Value| (body["alert"]["rule"] == RULE).then(|| body["event"].clone());
    let lamp = || {
        let text = std::fs::read_to_string(&written).unwrap_or_default();
        let bodies = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        bodies
            .filter_map(|body: Value| of_rule(&body))
            .collect::<Vec<_>>()
    };
    let called = || told.lock().iter().filter_map(of_rule).collect::<Vec<_>>();
    let events = async |expected: &[&str]| {
        let waiting = async {
            while lamp() != expected || called() != expected {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        };
        let waited = timeout(DEADLINE, waiting).await;
        assert!(waited.is_ok(), "{expected:?}, {:?}, {:?}", lamp(), called());
    };
    let now_us = contracts::now_us();
    pulses(&gateway, 150.0, 20, now_us - 120 * S).await;
    events(&["raised"]).await;
    let id = very_high(&gateway).await.unwrap()["id"].clone();
    assert_eq!(acknowledge(&gateway, &id, "Ada").await.0, 200);
    events(&["raised", "acknowledged"]).await;
    pulses(&gateway, 72.0, 100, now_us - 10 * S).await;
    events(&["raised", "acknowledged", "ended"]).await;
    assert_eq!(very_high(&gateway).await, None);
    gateway.stop().await;
}

#[tokio::test]
async fn listeners_get_the_open_alerts_first_and_then_each_change() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = gateway(directory.path(), nobody().await, |_| {}).await;
    let url = format!("http://{}", gateway.address);
    let mut client = GatewayServiceClient::new(channel(&url, None).unwrap());
    let refused = client.follow_alerts(FollowAlertsRequest {}).await;
    assert_eq!(refused.unwrap_err().code(), Code::Unauthenticated);
    let mut follow = Request::new(FollowAlertsRequest {});
    let bearer = format!("Bearer {CARER}").parse().unwrap();
    follow.metadata_mut().insert("authorization", bearer);
    let mut lists = client.follow_alerts(follow).await.unwrap().into_inner();
    assert_eq!(lists.message().await.unwrap().unwrap().alerts, []);

    let mut events = TcpStream::connect(gateway.address).await.unwrap();
    let request = format!(
        "GET /v1/alerts HTTP/1.1\r\nhost: {}\r\naccept: text/event-stream\r\n\
         authorization: Bearer {CARER}\r\n\r\n",
        gateway.address
    );
    events.write_all(request.as_bytes()).await.unwrap();

    pulses(&gateway, 150.0, 20, contracts::now_us() - 60 * S).await;
    let raised = timeout(DEADLINE, async {
        loop {
            let list = lists.message().await.unwrap().unwrap().alerts;
            if let Some(alert) = list.into_iter().find(|alert| alert.rule == RULE) {
                return alert;
            }
        }
    });
    let raised = raised.await.expect("a change");
    let mut acknowledge = Request::new(AcknowledgeAlertRequest {
        id: raised.id,
        by: "Ada Carer".into(),
    });
    let bearer = format!("Bearer {CARER}").parse().unwrap();
    acknowledge.metadata_mut().insert("authorization", bearer);
    let answer = client.acknowledge_alert(acknowledge).await.unwrap();
    assert_eq!(
        answer.into_inner().alert.unwrap().acknowledged_by,
        "Ada Carer"
    );

    let read = timeout(DEADLINE, async {
        let mut text = String::new();
        let mut buffer = [0; 4096];
        while !text.contains("\"acknowledged_by\":\"Ada Carer\"") {
            let count = events.read(&mut buffer).await.unwrap();
            text.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
        }
        text
    });
    let text = read.await.expect("an event of the acknowledgement");
    assert!(text.contains("content-type: text/event-stream"));
    let lists = text.matches("event: alerts\ndata: {").count();
    assert!(lists >= 2, "{text}");
    gateway.stop().await;
}

#[tokio::test]
async fn the_page_needs_no_token_and_its_data_does() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = gateway(directory.path(), nobody().await, |_| {}).await;
    for (path, part) in [
        ("/", "<h1 id=\"watched\""),
        ("/carer.css", "[data-watched"),
        ("/carer.js", "v1/state"),
    ] {
        let (status, body) = call(&gateway, "wrong", &format!("GET {path}"), "").await;
        assert_eq!(status, 200, "{path}");
        assert!(body.contains(part), "{path}");
    }
    for path in ["/v1/state", "/v1/alerts"] {
        let (status, _) = call(&gateway, "wrong", &format!("GET {path}"), "").await;
        assert_eq!(status, 401, "{path}");
    }
    gateway.stop().await;
}
