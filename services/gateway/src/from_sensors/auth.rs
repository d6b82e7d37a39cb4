//! Authorisation for both protocols: the sensor token is required, and web pages are refused. An
//! address that sends wrong tokens is slowed.
//!
//! A browser lets any page send requests to any address that its machine reaches, but marks them.
//! Without this check a page on a nearby machine could invent readings, or cancel a fall.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderName, StatusCode, header};
use parking_lot::Mutex;
use service_kit::{Secret, grpc::Peer, guesses::Guesses};

/// Headers that only browsers set, in requests of pages.
const OF_PAGES: [HeaderName; 2] = [header::ORIGIN, HeaderName::from_static("sec-fetch-site")];

pub struct Token {
    token: Option<Secret>,
    guesses: Mutex<Guesses>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unheard {
    NoToken,
    /// Wrong tokens came from this address; none is checked for this time.
    Slowed(Duration),
}

impl Token {
    pub fn new(token: Option<Secret>) -> Self {
        Self {
            token,
            guesses: Mutex::default(),
        }
    }

    /// A request without a token does not count as a guess.
    fn check(&self, headers: &HeaderMap, peer: Option<&Peer>, now: Instant) -> Result<(), Unheard> {
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
        let is_right = given.is_some_and(|given| token.is(given));
        match address {
            Some(address) if is_right => guesses.right(address, now),
            Some(address) => guesses.wrong(address, now),
            None => {}
        }
        if is_right {
            Ok(())
        } else {
            Err(Unheard::NoToken)
        }
    }
}

pub async fn check(State(token): State<Arc<Token>>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    if OF_PAGES.iter().any(|name| headers.contains_key(name)) {
        const REASON: &str = "requests of web pages are refused";
        return refuse(headers, tonic::Status::permission_denied(REASON), || {
            (StatusCode::FORBIDDEN, format!("{REASON}\n")).into_response()
        });
    }
    match token.check(headers, request.extensions().get(), Instant::now()) {
        Ok(()) => return next.run(request).await,
        Err(Unheard::NoToken) => {}
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
    const REASON: &str = "the request has no valid `authorization: Bearer <sensor token>`";
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
        let mut headers = HeaderMap::new();
        if let Some(value) = value {
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
        }
        token.check(&headers, Some(peer), Instant::now())
    }

    #[test]
    fn only_the_exact_token_is_admitted() {
        let token = Token::new(Some(Secret::new("correct horse")));
        let sensor = peer("10.0.0.1:7");
        let with = |value: &str| shows(&token, Some(value), &sensor).is_ok();
        assert!(with("Bearer correct horse"));
        assert!(!with("Bearer correct hors"));
        assert!(!with("Bearer correct horsf"));
        assert!(!with("correct horse"));
        assert!(shows(&token, None, &sensor).is_err());
        assert!(shows(&Token::new(None), None, &sensor).is_ok());
    }

    #[test]
    fn wrong_tokens_slow_an_address_and_right_ones_do_not() {
        let token = Token::new(Some(Secret::new("correct horse")));
        let (sensor, guesser) = (peer("10.0.0.1:7"), peer("10.0.0.2:7"));
        let right = Some("Bearer correct horse");
        assert_eq!(shows(&token, right, &sensor), Ok(()));
        for _ in 0..50 {
            let guessed = shows(&token, Some("Bearer a guess"), &guesser);
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
