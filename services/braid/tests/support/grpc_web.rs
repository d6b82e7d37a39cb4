//! One call of the page's interface, without a request's fields.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

/// `None`: no answer, or one that is cut off.
pub fn call<M: prost::Message + Default>(page: SocketAddr, token: &str, name: &str) -> Option<M> {
    let mut stream = TcpStream::connect(page).ok()?;
    write!(
        stream,
        "POST /braid.query.v1.QueryService/{name} HTTP/1.1\r\nhost: {page}\r\n\
         connection: close\r\nauthorization: Bearer {token}\r\n\
         content-type: application/grpc-web+proto\r\ncontent-length: 5\r\n\r\n\0\0\0\0\0"
    )
    .ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let text = String::from_utf8_lossy(&answer).into_owned();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    let body = answer.windows(4).position(|it| it == b"\r\n\r\n")? + 4;
    let body = unchunked(&answer[body..], text.contains("transfer-encoding: chunked"));
    let length = u32::from_be_bytes(body.get(1..5)?.try_into().ok()?) as usize;
    M::decode(body.get(5..5 + length)?).ok()
}

fn unchunked(body: &[u8], is_chunked: bool) -> Vec<u8> {
    let (mut rest, mut whole) = (body, Vec::new());
    while is_chunked && let Some(end) = rest.windows(2).position(|it| it == b"\r\n") {
        let length = std::str::from_utf8(&rest[..end]).unwrap_or_default();
        let length = usize::from_str_radix(length, 16).unwrap_or(0);
        whole.extend_from_slice(&rest[end + 2..end + 2 + length]);
        rest = &rest[(end + 4 + length).min(rest.len())..];
        if length == 0 {
            break;
        }
    }
    if is_chunked { whole } else { body.to_vec() }
}
