//! A second check besides SameSite=Strict: a request that another site's page makes is refused.
//!
//! Browsers name the origin of a request in `Sec-Fetch-Site`. Older browsers, and those on an
//! address without TLS, name only the page, in `Origin`; that must be a page of the requested host.
//! Programs send neither header.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::app::App;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

pub(crate) async fn same_site_only(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Response {
    let asked = request.uri().authority();
    if is_cross_site(request.headers(), asked, app.trust_forwarded_for) {
        return StatusCode::FORBIDDEN.into_response();
    }
    let mut response = next.run(request).await;
    response
        .headers_mut()
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    response
}

/// `asked`: the authority of HTTP/2, which has no `Host`. `has_front`: a proxy in front may name
/// the host that the browser asked for.
fn is_cross_site(headers: &HeaderMap, asked: Option<&Authority>, has_front: bool) -> bool {
    if let Some(site) = headers.get(SEC_FETCH_SITE) {
        return site != "same-origin" && site != "none";
    }
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let origin = match (origins.next(), origins.next()) {
        (None, _) => return false,
        (Some(origin), None) => origin.to_str().unwrap_or_default(),
        (Some(_), Some(_)) => return true,
    };
    // `null`, and an origin that is no web page, has no host.
    let host = ["https://", "http://"]
        .iter()
        .find_map(|scheme| origin.strip_prefix(scheme));
    let Some(host) = host.filter(|host| !host.is_empty()) else {
        return true;
    };
    let is_own = |own: &str| own.eq_ignore_ascii_case(host);
    let by_front = has_front && names(headers, &FORWARDED_HOST).any(is_own);
    let own = asked.map(Authority::as_str);
    !(by_front
        || own
            .or_else(|| names(headers, &header::HOST).next())
            .is_some_and(is_own))
}

/// The only value of a header. If there are two, neither is trusted.
fn names<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let mut values = headers.get_all(name).iter();
    let only = values.next().filter(|_| values.next().is_none());
    only.and_then(|value| value.to_str().ok()).into_iter()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn is_refused(headers: &[(&'static str, &str)], has_front: bool) -> bool {
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
        is_cross_site(&headers, None, has_front)
    }

    #[test]
    fn what_the_browser_says_of_the_site_counts() {
        for (site, refused) in [
            ("same-origin", false),
            ("none", false),
            ("same-site", true),
            ("cross-site", true),
            ("", true),
        ] {
            let headers = [("sec-fetch-site", site), ("host", "braid:7000")];
            assert_eq!(is_refused(&headers, false), refused, "{site}");
        }
    }

    #[test]
    fn without_it_the_page_must_be_of_the_host_that_is_asked() {
        for (origin, refused) in [
            ("http://braid:7000", false),
            ("https://Braid:7000", false),
            ("http://braid:7001", true),
            ("http://braid", true),
            ("http://evil.example", true),
            ("http://braid:7000.evil.example", true),
            ("http://", true),
            ("null", true),
            ("braid:7000", true),
        ] {
            let headers = [("origin", origin), ("host", "braid:7000")];
            assert_eq!(is_refused(&headers, false), refused, "{origin}");
        }
        assert!(!is_refused(&[("host", "braid:7000")], false), "a program");
        assert!(
            is_refused(&[("origin", "http://braid:7000")], false),
            "no host"
        );
        let asked = Authority::from_static("braid:7000");
        let mut headers = HeaderMap::new();
        headers.insert(header::ORIGIN, "https://braid:7000".parse().unwrap());
        assert!(!is_cross_site(&headers, Some(&asked), false), "HTTP/2");
        headers.append(header::ORIGIN, "https://evil.example".parse().unwrap());
        assert!(is_cross_site(&headers, Some(&asked), false), "two");
    }

    #[test]
    fn the_host_of_a_front_is_believed_where_the_front_is() {
        let headers = [
            ("origin", "https://ward.example"),
            ("host", "dashboard:7000"),
            ("x-forwarded-host", "ward.example"),
        ];
        assert!(is_refused(&headers, false));
        assert!(!is_refused(&headers, true));
    }
}
