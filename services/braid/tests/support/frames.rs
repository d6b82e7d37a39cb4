//! HTTP/2 by hand, for misbehaving clients.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used)]

/// RFC 9113, 4.1.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The beginning of a connection (RFC 9113, 3.4), with this window for each answer.
pub fn settings(window: u32) -> Vec<u8> {
    let mut said = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    said.extend(frame(
        4,
        0,
        0,
        &[&[0, 4], &window.to_be_bytes()[..]].concat(),
    ));
    said
}

/// RFC 7541, 6.2.2, with a new name and without compression.
pub fn literal(name: &str, value: &str) -> Vec<u8> {
    [&[0], &string(name)[..], &string(value)].concat()
}

/// The beginning of every request: RFC 7541, appendix A, lists the names.
pub fn headers(method: &str, path: &str) -> Vec<u8> {
    let method = if method == "POST" { 0x83 } else { 0x82 };
    [
        &[method, 0x87, 0x04],
        &string(path)[..],
        &[0x01],
        &string("envoy"),
    ]
    .concat()
}

/// RFC 7541, 5.2 and 5.1.
fn string(text: &str) -> Vec<u8> {
    let mut coded = Vec::new();
    match u8::try_from(text.len()) {
        Ok(length @ ..0x7f) => coded.push(length),
        _ => {
            coded.push(0x7f);
            let mut rest = text.len() - 0x7f;
            while rest >= 0x80 {
                coded.push((rest % 0x80) as u8 | 0x80);
                rest /= 0x80;
            }
            coded.push(rest as u8);
        }
    }
    coded.extend(text.as_bytes());
    coded
}
