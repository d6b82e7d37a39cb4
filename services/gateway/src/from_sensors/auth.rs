//! Who is heard, for both protocols: whoever has the sensor token, and no web page.
//!
//! A browser lets any page send to any address that its machine reaches, and says so. Without this a page that somebody beside the gateway
//! looks at could make up readings, or cancel a fall.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderName, StatusCode, header};
use service_kit::Secret;

/// What browsers put into requests of pages, and nobody else.
const OF_PAGES: [HeaderName; 2] = [header::ORIGIN, HeaderName::from_static("sec-fetch-site")];

pub struct Token(Option<Secret>);

impl Token {
    pub fn new(token: Option<Secret>) -> Self {
        Self(token)
    }

    fn admits(&self, headers: &HeaderMap) -> bool {
        let Some(token) = &self.0 else {
            return true;
        };
        headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.as_bytes().strip_prefix(b"Bearer "))
            .is_some_and(|given| token.is(given))
    }
}

pub async fn check(State(token): State<Arc<Token>>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    if OF_PAGES.iter().any(|name| headers.contains_key(name)) {
        const REASON: &str = "a web page is no sensor";
        return refuse(headers, tonic::Status::permission_denied(REASON), || {
            (StatusCode::FORBIDDEN, format!("{REASON}\n")).into_response()
        });
    }
    if token.admits(headers) {
        return next.run(request).await;
    }
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

/// As the caller's protocol has it.
fn refuse(headers: &HeaderMap, status: tonic::Status, plain: impl Fn() -> Response) -> Response {
    match super::is_grpc(headers) {
        true => status.into_http(),
        false => plain(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_the_exact_token_is_admitted() {
        let token = Token::new(Some(Secret::new("correct horse")));
        let with = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            token.admits(&headers)
        };
        assert!(with("Bearer correct horse"));
        assert!(!with("Bearer correct hors"));
        assert!(!with("Bearer correct horsf"));
        assert!(!with("correct horse"));
        assert!(!token.admits(&HeaderMap::new()));
        assert!(Token::new(None).admits(&HeaderMap::new()));
    }
}
