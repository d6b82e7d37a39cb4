//! Authorisation for both protocols: a token is required, and web pages of others are refused. An
//! address that sends wrong tokens is slowed.
//!
//! The sensor token permits everything. The carer's token permits reading and acknowledging, so
//! that a phone in the room cannot write readings.
//!
//! A browser lets any page send requests to any address that its machine reaches, but marks them.
//! Without this check a page on a nearby machine could invent readings, or cancel a fall. The
//! gateway's own page may read and acknowledge. Another site can point its name to this address,
//! and its page would then look like the gateway's own. So without a token a request must name the
//! address itself.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header, uri::Authority};
use parking_lot::Mutex;
use service_kit::{Secret, grpc::Peer, guesses::Guesses};

use crate::from_carers::PAGE_PATHS;

/// Headers that only browsers set, in requests of pages.
const OF_PAGES: [HeaderName; 2] = [header::ORIGIN, HeaderName::from_static("sec-fetch-site")];

pub struct Token {
    token: Option<Secret>,
    carer: Option<Secret>,
    guesses: Mutex<Guesses>,
}

/// The permission that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    /// The files of the page.
    Nothing,
    /// To read alerts and values, and to acknowledge.
    Carer,
    /// To write readings, or cancel a fall.
    Sensor,
}

impl Needs {
    fn of(method: &Method, path: &str) -> Needs {
        let reads = *method == Method::GET || *method == Method::HEAD;
        const OF_CARERS: [&str; 5] = [
            "/v1/alerts",
            "/v1/alerts/acknowledge",
            "/v1/state",
            "/braid.vitals.v1.GatewayService/FollowAlerts",
            "/braid.vitals.v1.GatewayService/AcknowledgeAlert",
        ];
        match path {
            path if reads && PAGE_PATHS.contains(&path) => Needs::Nothing,
            path if OF_CARERS.contains(&path) => Needs::Carer,
            _ => Needs::Sensor,
        }
    }
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unheard {
    NoToken,
    /// The carer's token, where readings are written.
    ReadsOnly,
    /// Wrong tokens came from this address; none is checked for this time.
    Slowed(Duration),
}

impl Token {
    pub fn new(token: Option<Secret>, carer: Option<Secret>) -> Self {
        Self {
            token,
            carer,
            guesses: Mutex::default(),
        }
    }

    /// A request without a token does not count as a guess.
    fn check(
        &self,
        needs: Needs,
        headers: &HeaderMap,
        peer: Option<&Peer>,
        now: Instant,
    ) -> Result<(), Unheard> {
        let Some(token) = &self.token else {
            return Ok(());
        };
        let given = headers.get(header::AUTHORIZATION).ok_or(Unheard::NoToken)?;
        let address = peer.map(|peer| peer.address.ip());
        let mut guesses = self.guesses.lock();
        if let Some(Err(wait)) = address.map(|address| guesses.allowed(address, now)) {
            return Err(Unheard::Slowed(wait));
        }
        let given = given.as_bytes().strip_prefix(b"Bearer ");
        let is_carers = given.is_some_and(|it| self.carer.as_ref().is_some_and(|own| own.is(it)));
        let is_right = is_carers || given.is_some_and(|given| token.is(given));
        match address {
            Some(address) if is_right => guesses.right(address, now),
            Some(address) => guesses.wrong(address, given, now),
            None => {}
        }
        match (is_right, is_carers && needs == Needs::Sensor) {
            (true, false) => Ok(()),
            (true, true) => Err(Unheard::ReadsOnly),
            (false, _) => Err(Unheard::NoToken),
        }
    }
}

/// Whether a browser sends the request for a page that may not send it.
fn is_of_other_page(needs: Needs, request: &Request, has_token: bool) -> bool {
    let headers = request.headers();
    match needs {
        Needs::Nothing => false,
        Needs::Sensor => OF_PAGES.iter().any(|name| headers.contains_key(name)),
        Needs::Carer => {
            let host = headers.get(header::HOST).and_then(|it| it.to_str().ok());
            let host = host.or_else(|| request.uri().authority().map(Authority::as_str));
            let host = host.unwrap_or_default();
            let own = [format!("http://{host}"), format!("https://{host}")];
            let is_own = |it: &HeaderValue| own.iter().any(|own| own.as_bytes() == it.as_bytes());
            let of_site = headers.get(&OF_PAGES[1]).map(HeaderValue::as_bytes);
            let is_other = headers.get(header::ORIGIN).is_some_and(|it| !is_own(it))
                || !matches!(of_site, None | Some(b"same-origin" | b"none"));
            is_other || (!has_token && !is_address(host))
        }
    }
}

/// Whether a host names an address and no name that somebody could point here.
fn is_address(host: &str) -> bool {
    let name = host.parse::<Authority>();
    let name = name.as_ref().map_or("", Authority::host);
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    bare == "localhost" || bare.parse::<IpAddr>().is_ok()
}

pub async fn check(State(token): State<Arc<Token>>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let needs = Needs::of(request.method(), request.uri().path());
    if is_of_other_page(needs, &request, token.token.is_some()) {
        const REASON: &str = "requests of web pages are refused";
        return refuse(headers, tonic::Status::permission_denied(REASON), || {
            (StatusCode::FORBIDDEN, format!("{REASON}\n")).into_response()
        });
    }
    if needs == Needs::Nothing {
        return next.run(request).await;
    }
    match token.check(needs, headers, request.extensions().get(), Instant::now()) {
        Ok(()) => return next.run(request).await,
        Err(Unheard::NoToken) => {}
        Err(Unheard::ReadsOnly) => {
            const REASON: &str = "the carer's token only reads and acknowledges";
            return refuse(headers, tonic::Status::permission_denied(REASON), || {
                (StatusCode::FORBIDDEN, format!("{REASON}\n")).into_response()
            });
        }
        Err(Unheard::Slowed(wait)) => {
            metrics::counter!("braid_gateway_tokens_slowed_total").increment(1);
            const REASON: &str = "too many wrong tokens came from this address";
            let seconds = wait.as_secs() + 1;
            return refuse(headers, tonic::Status::resource_exhausted(REASON), || {
                (
                    StatusCode::TOO_MANY_REQUESTS,
                    [(header::RETRY_AFTER, seconds.to_string())],
                    format!("{REASON}; try again in {seconds} s\n"),
                )
                    .into_response()
            });
        }
    }
    metrics::counter!("braid_gateway_tokens_refused_total").increment(1);
    const REASON: &str = "the request has no valid `authorization: Bearer <token>`";
    refuse(headers, tonic::Status::unauthenticated(REASON), || {
        (
            StatusCode::UNAUTHORIZED,
            [(header::WWW_AUTHENTICATE, "Bearer")],
            format!("{REASON}\n"),
        )
            .into_response()
    })
}

/// The refusal in the caller's protocol.
fn refuse(headers: &HeaderMap, status: tonic::Status, plain: impl Fn() -> Response) -> Response {
    match super::caller::is_grpc(headers) {
        true => status.into_http(),
        false => plain(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn peer(address: &str) -> Peer {
        Peer {
            address: address.parse().unwrap(),
            id: None,
            certificate: None,
        }
    }

    fn shows(token: &Token, value: Option<&str>, peer: &Peer) -> Result<(), Unheard> {
        shows_for(Needs::Sensor, token, value, peer)
    }

    fn shows_for(
        needs: Needs,
        token: &Token,
        value: Option<&str>,
        peer: &Peer,
    ) -> Result<(), Unheard> {
        let mut headers = HeaderMap::new();
        if let Some(value) = value {
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
        }
        token.check(needs, &headers, Some(peer), Instant::now())
    }

    #[test]
    fn the_carers_token_reads_and_acknowledges_and_writes_no_reading() {
        let (own, carers) = (Secret::new("correct horse"), Secret::new("for the phone"));
        let token = Token::new(Some(own), Some(carers));
        let phone = peer("10.0.0.9:7");
        let carer = Some("Bearer for the phone");
        assert_eq!(shows_for(Needs::Carer, &token, carer, &phone), Ok(()));
        assert_eq!(shows(&token, carer, &phone), Err(Unheard::ReadsOnly));
        let sensor = Some("Bearer correct horse");
        assert_eq!(shows_for(Needs::Carer, &token, sensor, &phone), Ok(()));
        let none = shows_for(Needs::Carer, &token, None, &phone);
        assert_eq!(none, Err(Unheard::NoToken));
        for path in ["/v1/samples", "/v1/falls/cancel", "/v1/alert", "/carer.js/"] {
            assert_eq!(Needs::of(&Method::GET, path), Needs::Sensor, "{path}");
        }
        let record = "/braid.vitals.v1.GatewayService/Record";
        assert_eq!(Needs::of(&Method::POST, record), Needs::Sensor);
        assert_eq!(Needs::of(&Method::POST, "/"), Needs::Sensor);
        assert_eq!(Needs::of(&Method::GET, "/"), Needs::Nothing);
    }

    #[test]
    fn only_the_gateways_own_page_reads_and_acknowledges() {
        let is_refused = |headers: &[(&str, &str)], has_token| {
            let mut request = Request::builder().uri("/v1/state");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let request = request.body(axum::body::Body::empty()).unwrap();
            is_of_other_page(Needs::Carer, &request, has_token)
        };
        let own = ("host", "192.168.1.7:8090");
        assert!(!is_refused(&[own], false));
        let origin = ("origin", "http://192.168.1.7:8090");
        assert!(!is_refused(
            &[own, origin, ("sec-fetch-site", "same-origin")],
            false
        ));
        assert!(is_refused(&[own, ("origin", "http://evil.example")], true));
        assert!(is_refused(&[own, ("origin", "null")], true));
        assert!(is_refused(&[own, ("sec-fetch-site", "cross-site")], true));
        assert!(is_refused(&[own, ("sec-fetch-site", "same-site")], true));
        // Another site's name that points here.
        let rebound = ("host", "evil.example:8090");
        let origin = ("origin", "http://evil.example:8090");
        assert!(is_refused(&[rebound, origin], false));
        assert!(is_refused(&[rebound], false));
        assert!(!is_refused(&[("host", "[::1]:8090")], false));
        assert!(!is_refused(&[("host", "localhost:8090")], false));
    }

    #[test]
    fn only_the_exact_token_is_admitted() {
        let token = Token::new(Some(Secret::new("correct horse")), None);
        let sensor = peer("10.0.0.1:7");
        let with = |value: &str| shows(&token, Some(value), &sensor).is_ok();
        assert!(with("Bearer correct horse"));
        assert!(!with("Bearer correct hors"));
        assert!(!with("Bearer correct horsf"));
        assert!(!with("correct horse"));
        assert!(shows(&token, None, &sensor).is_err());
        assert!(shows(&Token::new(None, None), None, &sensor).is_ok());
    }

    #[test]
    fn wrong_tokens_slow_an_address_and_right_ones_do_not() {
        let token = Token::new(Some(Secret::new("correct horse")), None);
        let (sensor, guesser) = (peer("10.0.0.1:7"), peer("10.0.0.2:7"));
        let right = Some("Bearer correct horse");
        assert_eq!(shows(&token, right, &sensor), Ok(()));
        for n in 0..50 {
            let guess = format!("Bearer a guess {n}");
            let guessed = shows(&token, Some(&guess), &guesser);
            assert!(guessed.is_err());
            // Beside a sensor with its own token, one has another's token, and one has none.
            let _ = shows(&token, Some("Bearer of another"), &sensor);
            assert_eq!(shows(&token, None, &sensor), Err(Unheard::NoToken));
        }
        let slowed = shows(&token, right, &guesser);
        assert!(matches!(slowed, Err(Unheard::Slowed(_))), "{slowed:?}");
        assert_eq!(shows(&token, right, &sensor), Ok(()));
        assert_eq!(shows(&token, right, &peer("10.0.0.3:7")), Ok(()));
    }
}
