//! The page for people beside the gateway: three files of the program, written by hand.

use axum::response::{IntoResponse, Response};
use http::header;

/// Paths that need no token: the files hold no data.
pub const PATHS: [&str; 3] = ["/", "/carer.css", "/carer.js"];

/// Nothing from elsewhere, nothing inline, and no frame around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub async fn index() -> Response {
    file(
        "text/html; charset=utf-8",
        include_str!("../../page/index.html"),
    )
}

pub async fn style() -> Response {
    file(
        "text/css; charset=utf-8",
        include_str!("../../page/carer.css"),
    )
}

pub async fn script() -> Response {
    file(
        "text/javascript; charset=utf-8",
        include_str!("../../page/carer.js"),
    )
}

fn file(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}
