//! Clients that open a connection and send nothing, or only the beginning of a request, lose their
//! place.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::time::Duration;

use axum::{Router, routing::get};
use service_kit::Context;
use service_kit::grpc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Only a failing test reaches this deadline.
const DEADLINE: Duration = Duration::from_secs(40);

async fn server(context: &Context) -> SocketAddr {
    let listener = grpc::bind("127.0.0.1:0".parse().unwrap(), "listen")
        .await
        .unwrap();
    let serving = context.clone();
    tokio::spawn(async move {
        let router = Router::new().route("/", get(async || "here"));
        grpc::serve(listener, "http", router, None, &serving)
            .await
            .unwrap();
    });
    context.address("http").await.unwrap()
}

#[tokio::test]
async fn incomplete_requests_are_closed() {
    let context = Context::new("ingest");
    let address = server(&context).await;
    let ends = |said: &'static [u8]| async move {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(said).await.unwrap();
        let mut rest = Vec::new();
        // An end or a reset.
        let ended = stream.read_to_end(&mut rest);
        let ended = tokio::time::timeout(DEADLINE, ended).await;
        assert!(ended.is_ok(), "{said:?} is still waited for");
    };
    // Nothing; bytes that may become HTTP/1 or HTTP/2; bytes that may become HTTP/2 only; half of a
    // head.
    tokio::join!(
        ends(b""),
        ends(b"P"),
        ends(b"PRI * HTTP/2.0\r\n"),
        ends(b"GET / HTTP/1.1\r\n"),
    );
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: ingest\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("here"), "{answer}");
    context.shutdown().request();
}
