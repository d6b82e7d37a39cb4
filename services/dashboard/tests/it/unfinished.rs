//! Requests that are never completed do not hold a connection's place.

use crate::browser::{ANYWHERE, within};
use crate::ward::Ward;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_does_not_arrive_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &[]).await;
    let mut stream = TcpStream::connect(ward.address).await.unwrap();
    let head = "POST /api/sign-in HTTP/1.1\r\nhost: ward\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    within("the connection ends", stream.read_to_string(&mut answer))
        .await
        .unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    ward.end().await;
}
