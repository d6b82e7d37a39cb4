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
    let expected = serde_json::json!([{
        "service": "ingest", "name": "bus", "level": "failing", "says": "starting", "do": "",
    }]);
    assert_eq!(body["wrong"], expected);

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
    let expected = serde_json::json!([{
        "service": "ingest", "name": "transport", "level": "warning", "says": "by TCP",
        "do": "open UDP",
    }]);
    assert_eq!(body["wrong"], expected);
    let (status, alive) = get(address, "/healthz").await;
    assert_eq!(status, 200);
    let alive: serde_json::Value = serde_json::from_str(&alive).unwrap();
    assert_eq!(alive["wrong"], expected);
    let (_, text) = get(address, "/metrics").await;
    let line = "braid_wrong{service=\"ingest\",name=\"transport\",level=\"warning\"} 1";
    assert!(text.contains(line), "{text}");

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

fn one_path() -> service_kit::path_table::PathTable {
    std::sync::Arc::new(|only| {
        vec![service_kit::path_table::PathRow {
            gateway: only.unwrap_or("gw-1").to_owned(),
            path: "wifi".to_owned(),
            ..service_kit::path_table::PathRow::default()
        }]
    })
}

async fn ask(address: SocketAddr, method: &str, page: &str, header: &str) -> (u16, String) {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request =
        format!("{method} {page} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n{header}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

#[tokio::test]
async fn only_programs_of_this_machine_record_paths() {
    const START: &str = "/qlog?gateway=gw-1&files=2&file_bytes=65536&seconds=60";
    const OPERATOR: &str = "x-braid-operator: braid\r\n";
    let folder = tempfile::tempdir().unwrap();
    let context = Context::new("gateway");
    let any = "127.0.0.1:0".parse().unwrap();
    let address = admin::start(any, "admin", vec![context.clone()])
        .await
        .unwrap();
    assert_eq!(get(address, "/qlog").await.0, 404, "no paths to record");
    context.record_paths(folder.path().to_owned(), one_path());
    // As a page in a browser on this machine could.
    assert_eq!(ask(address, "POST", START, "").await.0, 403);
    assert_eq!(ask(address, "DELETE", "/qlog", "").await.0, 403);
    assert_eq!(get(address, "/qlog").await.1, r#"{"recordings":[]}"#);
    let (status, body) = ask(address, "POST", START, OPERATOR).await;
    assert_eq!(status, 200, "{body}");
    let (status, body) = ask(address, "POST", START, OPERATOR).await;
    assert_eq!((status, body.contains("already")), (409, true), "{body}");
    assert!(get(address, "/qlog").await.1.contains("\"gw-1\""));
    let (status, body) = ask(address, "DELETE", "/qlog?gateway=gw-1", OPERATOR).await;
    assert_eq!((status, body.contains("\"gw-1\"")), (200, true), "{body}");
    let files = std::fs::read_dir(folder.path().join("gw-1")).unwrap();
    assert_eq!(files.count(), 1);
}
