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
    let (status, body) = exchange(to, method, path, &[], body.as_bytes(), limit).await?;
    let body = String::from_utf8(body).map_err(io::Error::other)?;
    Ok((status, body))
}

/// With own headers, and bytes as bodies.
pub(super) async fn exchange(
    to: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
    limit: Duration,
) -> io::Result<(u16, Vec<u8>)> {
    let exchange = async {
        let mut stream = TcpStream::connect(to).await?;
        let headers: String = headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {to}\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body).await?;
        let mut answer = Vec::new();
        stream
            .take(ANSWER_BYTES_MAX)
            .read_to_end(&mut answer)
            .await?;
        parse(&answer).ok_or_else(|| io::Error::other("the answer is cut off"))
    };
    tokio::time::timeout(limit, exchange).await?
}

fn parse(answer: &[u8]) -> Option<(u16, Vec<u8>)> {
    let end = answer.windows(4).position(|it| it == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?.to_lowercase();
    let body = &answer[end + 4..];
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let is_chunked = head.contains("transfer-encoding: chunked");
    let body = if is_chunked {
        whole(body)?
    } else {
        body.to_vec()
    };
    Some((status, body))
}

/// The body of its chunks. `None`: the last chunk is missing.
fn whole(mut chunks: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = chunks.windows(2).position(|it| it == b"\r\n")?;
        let size = std::str::from_utf8(&chunks[..end]).ok()?;
        let size = usize::from_str_radix(size.trim(), 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        body.extend(chunks.get(end + 2..end + 2 + size)?);
        chunks = chunks.get(end + 4 + size..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_whole_or_not_at_all() {
        let plain = parse(b"HTTP/1.1 200 OK\r\na: b\r\n\r\nbody");
        assert_eq!(plain, Some((200, b"body".to_vec())));
        let chunked =
            b"HTTP/1.1 503 no\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n";
        assert_eq!(parse(chunked), Some((503, b"abcd".to_vec())));
        assert_eq!(parse(&chunked[..chunked.len() - 6]), None);
        assert_eq!(parse(b"HTTP/1.1 200 OK"), None);
    }
}
