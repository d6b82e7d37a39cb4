//! The sensor token, for both protocols.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode, header};
use service_kit::Secret;

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
    if token.admits(request.headers()) {
        return next.run(request).await;
    }
    const REASON: &str = "the request has no valid `authorization: Bearer <sensor token>`";
    if super::is_grpc(request.headers()) {
        tonic::Status::unauthenticated(REASON).into_http()
    } else {
        (
            StatusCode::UNAUTHORIZED,
            [(header::WWW_AUTHENTICATE, "Bearer")],
            format!("{REASON}\n"),
        )
            .into_response()
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
