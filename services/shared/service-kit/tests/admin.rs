//! The view of an orchestrator: not ready, ready, draining; alive while the event loop turns.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;

use service_kit::{Context, admin};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap().1.to_owned();
    (status, body)
}

#[tokio::test]
async fn readiness_names_what_is_missing_and_metrics_are_rendered() {
    let context = Context::new("ingest");
    let bus = context.health().check("bus");
    let any = "127.0.0.1:0".parse().unwrap();
    let address = admin::start(any, "admin", vec![context.clone()])
        .await
        .unwrap();

    let (status, body) = get(address, "/readyz").await;
    assert_eq!(status, 503);
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["failing"][0]["service"], "ingest");
    assert_eq!(body["failing"][0]["check"], "bus");
    assert_eq!(body["failing"][0]["reason"], "starting");

    bus.ok();
    context
        .health()
        .warning("transport")
        .set(Some(service_kit::Warning {
            says: "by TCP".to_owned(),
            to_do: "open UDP".to_owned(),
        }));
    let (status, body) = get(address, "/readyz").await;
    assert_eq!(status, 200, "a warning is no failure");
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["warnings"][0]["warning"], "transport");
    assert_eq!(body["warnings"][0]["do"], "open UDP");
    assert_eq!(get(address, "/healthz").await.0, 200);

    metrics::counter!("braid_admin_test_total").increment(3);
    metrics::histogram!("braid_admin_test_seconds").record(0.003);
    let (_, text) = get(address, "/metrics").await;
    assert!(text.contains("braid_admin_test_total 3"), "{text}");
    assert!(
        text.contains("braid_admin_test_seconds_bucket{le=\"0.005\"} 1"),
        "{text}"
    );

    let stalled = context
        .health()
        .progress("consumer", std::time::Duration::ZERO);
    tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    let (status, body) = get(address, "/healthz").await;
    assert_eq!(status, 503);
    assert!(body.contains("consumer"), "{body}");
    drop(stalled);

    context.shutdown().request();
    let (status, body) = get(address, "/readyz").await;
    assert_eq!(status, 503);
    assert!(body.contains("draining"), "{body}");

    // A second process on the same port fails with an error that names port and flag.
    let error = admin::start(address, "admin", vec![]).await.unwrap_err();
    assert!(
        error.to_string().contains(&address.port().to_string()),
        "{error}"
    );
    assert_eq!(error.field, "admin");
}
