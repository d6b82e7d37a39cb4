//! Bounds of one address at a gateway that all sensors share.

use tokio::net::TcpSocket;

use super::{
    fake_ingest::FakeIngest,
    under_test::{Gateway, line, post_over},
};

async fn post_from(address: &str, gateway: &Gateway, body: &str) -> (u16, serde_json::Value) {
    let socket = TcpSocket::new_v4().unwrap();
    socket
        .bind(format!("{address}:0").parse().unwrap())
        .unwrap();
    let stream = socket.connect(gateway.address).await.unwrap();
    let (status, body) = post_over(stream, "/v1/samples", "", body).await;
    (status, serde_json::from_str(&body).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invented_streams_of_a_sensor_leave_some_to_others() {
    let directory = tempfile::tempdir().unwrap();
    let running = FakeIngest::default().start().await;
    let gateway = Gateway::start(directory.path(), running.address, None).await;
    let made_up: Vec<String> = (0..5_000).map(|n| line(&format!("x{n}"), 70.0)).collect();
    let (status, answer) = post_from("127.0.0.2", &gateway, &made_up.join("\n")).await;
    assert_eq!((status, &answer["accepted"]), (207, &3_072.into()));
    let reason = answer["rejections"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("one address"), "{reason}");
    // The address goes on with its streams, and other addresses begin theirs.
    for (address, device) in [
        ("127.0.0.2", "x7"),
        ("127.0.0.3", "d1"),
        ("127.0.0.4", "d2"),
    ] {
        let (status, answer) = post_from(address, &gateway, &line(device, 72.0)).await;
        assert_eq!(status, 200, "{device}: {answer}");
    }
    gateway.stop().await;
}
