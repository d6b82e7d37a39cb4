//! A sensor that the register does not know is refused by line; one that is just being registered
//! is waited for.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Parser;
use service_kit::Context;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::broadcast,
};

use super::{core::Core, direct::Direct, serve, under_test::stored_rules};
use crate::{LISTENER, config::CommandLine};

/// Reached only by a failing test.
const PATIENCE: Duration = Duration::from_secs(60);
/// `KNOWN_WITHIN` of the gateway: so long an unknown sensor is waited for.
const KNOWN_WITHIN: Duration = Duration::from_secs(3);

fn line(device: &str) -> String {
    format!(r#"{{"device":"{device}","metric":"heart-rate","value":72}}"#)
}

/// Status and answer of `POST /v1/samples`.
async fn post(address: std::net::SocketAddr, devices: &[&str]) -> (u16, serde_json::Value) {
    let body: String = devices.iter().map(|it| line(it) + "\n").collect();
    let request = format!(
        "POST /v1/samples HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let json = &body[body.find('{').unwrap()..=body.rfind('}').unwrap()];
    (status, serde_json::from_str(json).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_of_an_unregistered_sensor_is_refused_after_a_bounded_wait() {
    let core = Core::start().await;
    let data = core.directory().join("gateway");
    core.register("one", "belt", "ada").await;
    let ingest = core.ingest().await;
    let mut config = CommandLine::parse_from(["gateway", "--listen", "127.0.0.1:0"]).config;
    config.data_dir.clone_from(&data);
    core.url().clone_into(&mut config.ingest);
    let context = Context::new("gateway");
    let uplink = Arc::new(Direct {
        identity: Some(core.identity("one")),
        events: broadcast::channel(1).0,
    });
    let running = tokio::spawn({
        let context = context.clone();
        async move { serve(config, "gw".into(), uplink, &context).await }
    });
    let address = context.address(LISTENER).await.unwrap();
    let told = || {
        let in_force = stored_rules(&data).unwrap_or_default();
        in_force.intervals.iter().any(|it| it.device == "belt")
    };
    let waiting = async {
        while !told() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, waiting).await;
    waited.expect("the core has told of the belt");
    // The rules are on disk before they are in force.
    let in_force = async {
        while post(address, &["other"]).await.0 != 400 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let in_force = tokio::time::timeout(PATIENCE, in_force).await;
    in_force.expect("a sensor that is not registered is refused");

    let begun = Instant::now();
    let (status, answer) = post(address, &["belt", "stray", "belt"]).await;
    assert!(begun.elapsed() >= KNOWN_WITHIN, "{:?}", begun.elapsed());
    assert_eq!((status, &answer["accepted"]), (207, &2.into()), "{answer}");
    let rejection = &answer["rejections"][0];
    assert_eq!(
        (&rejection["line"], &rejection["field"]),
        (&2.into(), &"device".into())
    );
    let reason = rejection["reason"].as_str().unwrap();
    assert!(
        reason.contains("is not registered at this gateway"),
        "{reason}"
    );
    // Waited for in vain, it keeps no request waiting again.
    let begun = Instant::now();
    assert_eq!(post(address, &["stray"]).await.0, 400);
    assert!(begun.elapsed() < KNOWN_WITHIN, "{:?}", begun.elapsed());
    // One that is registered while it is waited for is taken.
    let (posted, ()) = tokio::join!(
        post(address, &["late"]),
        core.register("one", "late", "ben")
    );
    assert_eq!(posted.0, 200, "{}", posted.1);

    // One that nobody wears any more loses nothing, and its answer says where the reading is.
    core.end("one", "belt", contracts::now_us() - 600_000_000)
        .await;
    let told = async {
        loop {
            let (status, answer) = post(address, &["belt"]).await;
            if status != 200 {
                break (status, answer);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let (status, answer) = tokio::time::timeout(PATIENCE, told).await.unwrap();
    assert_eq!((status, &answer["accepted"]), (202, &1.into()), "{answer}");
    let reason = answer["apart"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("nobody wears the device"), "{reason}");

    context.shutdown().request();
    running.await.unwrap().unwrap();
    ingest.stop().await;
}
