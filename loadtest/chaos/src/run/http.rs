//! One HTTP/1.1 request over a new connection.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Bytes of an answer; a longer answer is cut, which makes it unreadable.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// Status and body of the answer.
pub(super) async fn request(
    to: SocketAddr,
    method: &str,
    path: &str,
    body: &str,
    limit: Duration,
) -> io::Result<(u16, String)> {
    let exchange = async {
        let mut stream = TcpStream::connect(to).await?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body.as_bytes()).await?;
        let mut answer = String::new();
        stream
            .take(ANSWER_BYTES_MAX)
            .read_to_string(&mut answer)
            .await?;
        parse(&answer).ok_or_else(|| io::Error::other("the answer is cut off"))
    };
    tokio::time::timeout(limit, exchange).await?
}

fn parse(answer: &str) -> Option<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}
