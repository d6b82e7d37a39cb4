//! An address that guesses the token of the applications' port is slowed, and no other address is.

#![allow(clippy::unwrap_used)]

#[path = "applications/stage.rs"]
mod stage;

use std::net::SocketAddr;

use service_kit::guesses::FREE;
use stage::{Stage, echo};
use testkit::within;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

/// "me:open sesame" and "me:wrong", as basic authentication.
const RIGHT: &str = "bWU6b3BlbiBzZXNhbWU=";
const WRONG: &str = "bWU6d3Jvbmc=";

async fn connect_from(stage: &Stage, address: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket
        .bind(SocketAddr::new(address.parse().unwrap(), 0))
        .unwrap();
    within(socket.connect(stage.address)).await.unwrap()
}

/// The status of a CONNECT; `None`: the connection was closed without an answer.
async fn ask(stage: &Stage, from: &str, to: SocketAddr, token: &str) -> Option<u16> {
    let mut stream = connect_from(stage, from).await;
    let request = format!(
        "CONNECT {to} HTTP/1.1\r\nhost: {to}\r\nproxy-authorization: Basic {token}\r\n\r\n"
    );
    // A slowed address may find its connection closed before it has written.
    let _ = within(stream.write_all(request.as_bytes())).await;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        match within(stream.read_u8()).await {
            Ok(byte) => answer.push(byte),
            Err(_) => return None,
        }
    }
    let answer = String::from_utf8(answer).unwrap();
    Some(answer.split(' ').nth(1).unwrap().parse().unwrap())
}

#[tokio::test]
async fn wrong_tokens_slow_their_address_and_no_other() {
    let to = echo().await;
    let stage = Stage::start(&[to.to_string()], &["--applications-token", "open sesame"]).await;
    assert_eq!(ask(&stage, "127.0.0.3", to, RIGHT).await, Some(200));
    for n in 0..=FREE {
        assert_eq!(ask(&stage, "127.0.0.2", to, WRONG).await, Some(407), "{n}");
    }
    // Within the wait no token of the address is looked at, not even the right one.
    assert_eq!(ask(&stage, "127.0.0.2", to, RIGHT).await, None);
    assert_eq!(
        ask(&stage, "127.0.0.3", to, RIGHT).await,
        Some(200),
        "known"
    );
    assert_eq!(ask(&stage, "127.0.0.4", to, RIGHT).await, Some(200), "new");
    // After the wait the right token works.
    let waited = async {
        while ask(&stage, "127.0.0.2", to, RIGHT).await.is_none() {
            tokio::task::yield_now().await;
        }
    };
    within(waited).await;
    assert_eq!(ask(&stage, "127.0.0.2", to, RIGHT).await, Some(200));
    stage.stop().await;
}
