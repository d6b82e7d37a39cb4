//! The requests of both ends: the kind of a tunnel, and its urgency.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, uri::Authority};

use crate::carried::{ip_target, udp_target};

/// The resource for the names of paths; see `names`.
pub(crate) const NAMES_PATH: &str = "/.well-known/braid/paths";

/// `:protocol` of RFC 9298.
pub(crate) const CONNECT_UDP: &str = "connect-udp";

/// `:protocol` of RFC 9484.
pub(crate) const CONNECT_IP: &str = "connect-ip";

/// Header of a request for IP or UDP and of its answer: datagrams have places in an order.
const ORDER: HeaderName = HeaderName::from_static("braid-order");
const ORDER_VALUE: HeaderValue = HeaderValue::from_static("1");
/// The same: a datagram that did not come is asked for, and sent again.
const REPAIR: HeaderName = HeaderName::from_static("braid-repair");
const REPAIR_VALUE: HeaderValue = HeaderValue::from_static("1");

/// RFC 9297, 3.4.
const CAPSULE_PROTOCOL: HeaderName = HeaderName::from_static("capsule-protocol");

/// RFC 9218.
const PRIORITY: &str = "priority";

/// RFC 9218, section 4.1: the urgency of a request without the header.
const URGENCY_DEFAULT: i32 = 3;

/// How a stream shares the connection with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Urgency {
    /// Before everything else: alerts.
    Urgent,
    /// Before bulk: vitals, and interactive traffic.
    Prompt,
    /// After everything more urgent.
    #[default]
    Bulk,
}

impl Urgency {
    fn header(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Urgent => "u=0",
            Self::Prompt => "u=2",
            Self::Bulk => "u=5",
        })
    }

    /// The urgency in the request, rounded down to ours; a request without one is bulk.
    pub fn of(headers: &HeaderMap) -> Self {
        let urgency = headers
            .get(PRIORITY)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| {
                value
                    .split(',')
                    .find_map(|item| item.trim().strip_prefix("u=")?.parse::<i32>().ok())
            })
            .unwrap_or(URGENCY_DEFAULT);
        match urgency {
            ..=0 => Self::Urgent,
            1..URGENCY_DEFAULT => Self::Prompt,
            _ => Self::Bulk,
        }
    }

    /// Priority of the QUIC stream; higher goes first. Control streams have 0.
    pub(crate) fn stream_priority(self) -> i32 {
        match self {
            Self::Urgent => 3,
            Self::Prompt => -1,
            Self::Bulk => -2,
        }
    }
}

/// CONNECT of RFC 9114, 4.4. `h3` 0.0.8 adds `:scheme` and `:path`, which that section omits; our
/// server accepts both forms.
pub(crate) fn connect(authority: &Authority, urgency: Urgency) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = Method::CONNECT;
    *request.uri_mut() = Uri::from(authority.clone());
    request.headers_mut().insert(PRIORITY, urgency.header());
    request
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ExtendedRequestError {
    #[error("{0}")]
    Target(#[from] udp_target::Malformed),
    #[error("{0}")]
    Http(#[from] http::Error),
}

/// CONNECT-UDP of RFC 9298 to the proxy `server_name`; the transport adds `:protocol`.
pub(crate) fn connect_udp(
    server_name: &str,
    authority: &Authority,
    urgency: Urgency,
) -> Result<Request<()>, ExtendedRequestError> {
    let mut request = extended(server_name, &udp_target::path(authority)?, urgency)?;
    Agreed::ALL.say(request.headers_mut());
    Ok(request)
}

/// CONNECT-IP of RFC 9484, for everything that the proxy `server_name` permits.
pub(crate) fn connect_ip(
    server_name: &str,
    urgency: Urgency,
) -> Result<Request<()>, ExtendedRequestError> {
    let mut request = extended(server_name, ip_target::ANY_PATH, urgency)?;
    Agreed::ALL.say(request.headers_mut());
    Ok(request)
}

/// Services of the ends of a request for its datagrams. The client proposes them, and those that
/// the proxy says as well hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Agreed {
    /// The sender numbers datagrams, and the receiver puts them in order.
    pub(crate) ordered: bool,
    /// Datagrams that did not come are sent again. Only with an order.
    pub(crate) repaired: bool,
}

impl Agreed {
    pub(crate) const ALL: Self = Self {
        ordered: true,
        repaired: true,
    };

    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let ordered = headers.get(ORDER) == Some(&ORDER_VALUE);
        Self {
            ordered,
            repaired: ordered && headers.get(REPAIR) == Some(&REPAIR_VALUE),
        }
    }

    pub(crate) fn say(self, headers: &mut HeaderMap) {
        if self.ordered {
            headers.insert(ORDER, ORDER_VALUE);
        }
        if self.repaired {
            headers.insert(REPAIR, REPAIR_VALUE);
        }
    }
}

fn extended(
    server_name: &str,
    path: &str,
    urgency: Urgency,
) -> Result<Request<()>, ExtendedRequestError> {
    let mut request = Request::builder()
        .method(Method::CONNECT)
        .uri(format!("https://{server_name}{path}"))
        .header(PRIORITY, urgency.header())
        .body(())?;
    request.headers_mut().extend(carries_capsules());
    Ok(request)
}

/// The authority of a request for IP, which has no destination.
pub(crate) fn any_destination() -> Authority {
    Authority::from_static("*")
}

/// Headers of a request and its answer whose stream carries capsules.
pub(crate) fn carries_capsules() -> HeaderMap {
    HeaderMap::from_iter([(CAPSULE_PROTOCOL, HeaderValue::from_static("?1"))])
}

pub(crate) fn names(server_name: &str) -> Result<Request<()>, http::Error> {
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(format!("https://{server_name}{NAMES_PATH}"))
        .header(PRIORITY, Urgency::Urgent.header())
        .body(())?;
    crate::paths::agreement_headers::says_that_it_rests(request.headers_mut());
    Ok(request)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_service_holds_if_both_ends_say_it() {
        let asked = connect_ip("proxy", Urgency::Bulk).unwrap();
        assert_eq!(Agreed::of(asked.headers()), Agreed::ALL);
        // The answer of an older proxy, or of another make.
        let mut answer = carries_capsules();
        assert_eq!(Agreed::of(&answer), Agreed::default());
        let ordered = Agreed {
            ordered: true,
            repaired: false,
        };
        ordered.say(&mut answer);
        assert_eq!(Agreed::of(&answer), ordered);
        Agreed::ALL.say(&mut answer);
        assert_eq!(Agreed::of(&answer), Agreed::ALL);
        let udp = connect_udp("proxy", &"[::1]:53".parse().unwrap(), Urgency::Bulk);
        assert_eq!(Agreed::of(udp.unwrap().headers()), Agreed::ALL);
    }

    #[test]
    fn urgency_survives_the_header() {
        let authority: Authority = "ingest:7001".parse().unwrap();
        for urgency in [Urgency::Urgent, Urgency::Prompt, Urgency::Bulk] {
            let request = connect(&authority, urgency);
            assert_eq!(Urgency::of(request.headers()), urgency);
            assert_eq!(request.uri().authority(), Some(&authority));
            assert!(request.uri().scheme().is_none());
        }
    }

    #[test]
    fn foreign_priorities_are_read_leniently() {
        let urgency = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(PRIORITY, value.parse().unwrap());
            Urgency::of(&headers)
        };
        assert_eq!(urgency("i, u=1"), Urgency::Prompt);
        assert_eq!(urgency("u=0"), Urgency::Urgent);
        assert_eq!(urgency("u=7, i"), Urgency::Bulk);
        assert_eq!(urgency("u=x"), Urgency::Bulk);
        assert_eq!(Urgency::of(&HeaderMap::new()), Urgency::Bulk);
    }
}
