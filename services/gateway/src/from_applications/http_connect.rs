//! The proxy side of HTTP CONNECT (RFC 9110, 9.3.6): one request per connection.

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::{Buf, BytesMut};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use service_kit::Secret;
use tunnel::{Authority, OpenError, Urgency};

use super::{
    refusal::Refusal,
    step::{Step, Wanted},
};

/// Bytes of a head; a longer head is refused with 431.
const HEAD_BYTES_MAX: usize = 8 * 1024;
/// Lines of a head; a head with more is refused with 431.
const HEADERS_MAX: usize = 64;

/// RFC 9218.
const PRIORITY: &str = "priority";

pub(super) fn step(input: &mut BytesMut, token: Option<&Secret>) -> Step {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let head = match request.parse(input) {
        Ok(httparse::Status::Complete(head)) if head <= HEAD_BYTES_MAX => head,
        Ok(httparse::Status::Partial) if input.len() < HEAD_BYTES_MAX => return Step::More,
        Ok(_) | Err(httparse::Error::TooManyHeaders) => {
            return Step::Refuse(Refusal::TooLarge(HEAD_BYTES_MAX));
        }
        Err(_) => return Step::Refuse(Refusal::Malformed("not an HTTP request")),
    };
    match understand(&request, token) {
        Ok((authority, urgency)) => {
            input.advance(head);
            Step::Want(Wanted {
                authority,
                urgency,
                user: None,
                early: input.split().freeze(),
            })
        }
        Err(refusal) => Step::Refuse(refusal),
    }
}

fn understand(
    request: &httparse::Request<'_, '_>,
    token: Option<&Secret>,
) -> Result<(Authority, Option<Urgency>), Refusal> {
    let header = |name: &str| {
        let mut found = request
            .headers
            .iter()
            .filter(|header| header.name.eq_ignore_ascii_case(name));
        found.next().map(|header| header.value)
    };
    if let Some(token) = token
        && !header(header::PROXY_AUTHORIZATION.as_str()).is_some_and(|given| admits(token, given))
    {
        return Err(Refusal::Unauthorized);
    }
    if request.method != Some(Method::CONNECT.as_str()) {
        return Err(Refusal::NotConnect);
    }
    let malformed = || Refusal::Malformed("CONNECT names no host:port");
    let authority: Authority = request
        .path
        .and_then(|target| target.parse().ok())
        .ok_or_else(malformed)?;
    let has_user = authority.as_str().contains('@');
    if authority.port_u16().is_none() || authority.host().is_empty() || has_user {
        return Err(malformed());
    }
    let urgency = header(PRIORITY)
        .and_then(|value| HeaderValue::from_bytes(value).ok())
        .map(|value| Urgency::of(&HeaderMap::from_iter([(PRIORITY_NAME, value)])));
    Ok((authority, urgency))
}

const PRIORITY_NAME: http::HeaderName = http::HeaderName::from_static(PRIORITY);

/// `Basic` with the token as password and any user, or `Bearer`.
fn admits(token: &Secret, given: &[u8]) -> bool {
    let Some((scheme, credentials)) = given
        .iter()
        .position(|byte| *byte == b' ')
        .map(|at| (&given[..at], given[at..].trim_ascii()))
    else {
        return false;
    };
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return token.is(credentials);
    }
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return false;
    }
    let Ok(decoded) = BASE64_STANDARD.decode(credentials) else {
        return false;
    };
    decoded
        .iter()
        .position(|byte| *byte == b':')
        .is_some_and(|at| token.is(&decoded[at + 1..]))
}

pub(super) fn opened() -> Vec<u8> {
    b"HTTP/1.1 200 Connection established\r\n\r\n".to_vec()
}

pub(super) fn refused(refusal: &Refusal) -> Vec<u8> {
    let status = status(refusal);
    let more = match refusal {
        Refusal::Unauthorized => "proxy-authenticate: Basic realm=\"braid\"\r\n",
        Refusal::NotConnect => "allow: CONNECT\r\n",
        Refusal::Full(_) | Refusal::Crowded(_) | Refusal::NotOpened(OpenError::NoSession(_)) => {
            "retry-after: 5\r\n"
        }
        _ => "",
    };
    let body = format!("{refusal}\n");
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {}\r\nconnection: close\r\n{more}\r\n{body}",
        body.len()
    )
    .into_bytes()
}

fn status(refusal: &Refusal) -> StatusCode {
    match refusal {
        Refusal::Malformed(_) | Refusal::AddressKind => StatusCode::BAD_REQUEST,
        Refusal::TooLarge(_) => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        Refusal::TooSlow => StatusCode::REQUEST_TIMEOUT,
        Refusal::NotConnect => StatusCode::METHOD_NOT_ALLOWED,
        Refusal::Unauthorized => StatusCode::PROXY_AUTHENTICATION_REQUIRED,
        Refusal::Full(_) | Refusal::Crowded(_) | Refusal::NoSocket(_) | Refusal::Steered(_) => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        Refusal::NotOpened(error) => match error {
            OpenError::Refused(status) if status.is_client_error() || status.is_server_error() => {
                *status
            }
            OpenError::Refused(_) => StatusCode::BAD_GATEWAY,
            OpenError::NoSession(_) | OpenError::Closed => StatusCode::SERVICE_UNAVAILABLE,
            OpenError::TimedOut(_) => StatusCode::GATEWAY_TIMEOUT,
        },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn hear(text: &str, token: Option<&str>) -> Step {
        let mut input = BytesMut::from(text);
        step(&mut input, token.map(Secret::new).as_ref())
    }

    fn wanted(text: &str) -> Wanted {
        match hear(text, None) {
            Step::Want(wanted) => wanted,
            other => panic!("{text:?} gives {other:?}"),
        }
    }

    fn refusal(text: &str, token: Option<&str>) -> Refusal {
        match hear(text, token) {
            Step::Refuse(refusal) => refusal,
            other => panic!("{text:?} gives {other:?}"),
        }
    }

    #[test]
    fn a_request_in_pieces_is_read_when_its_head_is_complete() {
        let text =
            "CONNECT ingest:7001 HTTP/1.1\r\nHost: ingest:7001\r\nPriority: u=1\r\n\r\nearly";
        let head = text.find("early").unwrap();
        for at in 0..head {
            assert!(matches!(hear(&text[..at], None), Step::More), "{at}");
        }
        let wanted = wanted(text);
        assert_eq!(wanted.authority, "ingest:7001");
        assert_eq!(wanted.urgency, Some(Urgency::Prompt));
        assert_eq!(wanted.early, "early");
    }

    #[test]
    fn an_address_of_any_family_needs_a_port() {
        assert_eq!(
            wanted("CONNECT [2001:db8::1]:443 HTTP/1.1\r\n\r\n").authority,
            "[2001:db8::1]:443"
        );
        assert_eq!(wanted("CONNECT a:1 HTTP/1.0\r\n\r\n").urgency, None);
        for target in ["a", "a:", "a:99999", "user@a:1", "/", "*", "http://a:1/"] {
            let refusal = refusal(&format!("CONNECT {target} HTTP/1.1\r\n\r\n"), None);
            assert_eq!(status(&refusal), StatusCode::BAD_REQUEST, "{target}");
        }
    }

    #[test]
    fn other_requests_are_refused_by_their_status() {
        let get = refusal("GET http://a/ HTTP/1.1\r\nhost: a\r\n\r\n", None);
        assert_eq!(status(&get), StatusCode::METHOD_NOT_ALLOWED);
        let text = String::from_utf8(refused(&get)).unwrap();
        assert!(
            text.starts_with("HTTP/1.1 405 Method Not Allowed\r\n")
                && text.contains("allow: CONNECT\r\n")
        );
        assert_eq!(
            status(&refusal("what ever\u{1}\r\n\r\n", None)),
            StatusCode::BAD_REQUEST
        );
        let long = format!("CONNECT a:1 HTTP/1.1\r\nx: {}", "y".repeat(HEAD_BYTES_MAX));
        assert_eq!(
            status(&refusal(&long, None)),
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
        );
        assert_eq!(
            status(&refusal(&format!("{long}\r\n\r\n"), None)),
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
        );
        let many = format!(
            "CONNECT a:1 HTTP/1.1\r\n{}\r\n",
            "x: y\r\n".repeat(HEADERS_MAX + 1)
        );
        assert_eq!(
            status(&refusal(&many, None)),
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
        );
    }

    #[test]
    fn the_token_may_come_as_password_or_as_bearer() {
        let with = |value: &str| {
            let text = format!("CONNECT a:1 HTTP/1.1\r\nproxy-authorization: {value}\r\n\r\n");
            matches!(hear(&text, Some("open sesame")), Step::Want(_))
        };
        let basic = |pair: &str| format!("Basic {}", BASE64_STANDARD.encode(pair));
        assert!(with(&basic("me:open sesame")) && with("bearer open sesame"));
        assert!(with(&basic(":open sesame")));
        for wrong in [
            basic("me:open"),
            basic("open sesame"),
            "Basic ???".to_owned(),
            "Bearer open".to_owned(),
            "Digest open sesame".to_owned(),
            "open".to_owned(),
        ] {
            assert!(!with(&wrong), "{wrong}");
        }
        let none = refusal("CONNECT a:1 HTTP/1.1\r\n\r\n", Some("open sesame"));
        assert_eq!(status(&none), StatusCode::PROXY_AUTHENTICATION_REQUIRED);
    }

    #[test]
    fn the_proxys_refusal_is_passed_on() {
        let given = |error| status(&Refusal::NotOpened(error));
        for code in [403, 429, 502, 504] {
            let code = StatusCode::from_u16(code).unwrap();
            assert_eq!(given(OpenError::Refused(code)), code);
        }
        let strange = OpenError::Refused(StatusCode::FOUND);
        assert_eq!(given(strange), StatusCode::BAD_GATEWAY);
        assert_eq!(given(OpenError::Closed), StatusCode::SERVICE_UNAVAILABLE);
    }
}
