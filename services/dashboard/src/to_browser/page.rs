//! The web page, embedded when the binary is built (`web/dist`), with the compressed copies of each
//! file that the page's build wrote.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use rust_embed::{EmbeddedFile, RustEmbed};
use sha2::{Digest, Sha256};

#[derive(RustEmbed)]
#[folder = "web/dist"]
struct Dist;

/// Scripts, styles and connections of this origin only. An injected script could neither load nor
/// send data. uPlot sets styles through the object model, which needs no exception.
pub(super) const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";
const FIXED: [(header::HeaderName, &str); 4] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_FRAME_OPTIONS, "DENY"),
];
/// Names under `assets/` carry a hash of their content.
const FOREVER: &str = "public, max-age=31536000, immutable";
/// The page itself is requested each time and answered with 304 while it is unchanged.
const REVALIDATE: &str = "no-cache";

/// First segments of the page's own addresses, each of which opens the page. `web/src/route.ts` has
/// the same list.
const SCREENS: [&str; 6] = ["ward", "patients", "alerts", "paths", "fleet", "manage"];
/// A copy of `FILE` is `FILE` with the ending. The first that a browser takes is sent.
const ENCODINGS: [(&str, &str); 2] = [("br", ".br"), ("gzip", ".gz")];

/// The embedded page, with a link to a gateway's own page if there is one.
#[derive(Clone, Default)]
pub(crate) struct Page {
    /// Empty: no link.
    gateway: Arc<str>,
}

impl Page {
    /// `gateway` is an address over http or https, or empty.
    pub(crate) fn linking_to(gateway: &str) -> Page {
        Page {
            gateway: gateway.into(),
        }
    }

    /// The first page, below what its script shows.
    fn with_link(&self, page: &[u8]) -> Vec<u8> {
        let page = String::from_utf8_lossy(page);
        let href = self.gateway.replace('&', "&amp;").replace('"', "&quot;");
        let link = format!(
            "<footer><a href=\"{href}\">The page beside the first gateway</a></footer>\n  </body>"
        );
        page.replacen("</body>", &link, 1).into_bytes()
    }

    pub(crate) async fn serve(self, method: Method, uri: Uri, headers: HeaderMap) -> Response {
        if method != Method::GET && method != Method::HEAD {
            return (
                StatusCode::METHOD_NOT_ALLOWED,
                [(header::ALLOW, "GET, HEAD")],
            )
                .into_response();
        }
        let path = match uri.path().trim_start_matches('/') {
            "" => "index.html",
            path if is_screen(path) => "index.html",
            path => path,
        };
        let is_copy = ENCODINGS.iter().any(|(_, ending)| path.ends_with(ending));
        let Some(file) = Dist::get(path).filter(|_| !is_copy) else {
            return StatusCode::NOT_FOUND.into_response();
        };
        let mut hash = file.metadata.sha256_hash();
        let mut data = file.data;
        let mut encoding = None;
        if path == "index.html" && !self.gateway.is_empty() {
            data = self.with_link(&data).into();
            hash = Sha256::digest(&data).into();
        } else if let Some((name, copy)) = copy_for(path, &headers) {
            data = copy.data;
            encoding = Some(name);
        }
        // Each copy is a representation of its own.
        let tag = format!("\"{}{}\"", hex(&hash[..16]), encoding.unwrap_or_default());
        let known = headers
            .get(header::IF_NONE_MATCH)
            .and_then(|value| value.to_str().ok())
            .is_some_and(|tags| {
                tags.split(',')
                    .any(|known| known.trim().trim_start_matches("W/") == tag)
            });
        let mut response = if known {
            StatusCode::NOT_MODIFIED.into_response()
        } else {
            let mut response = Response::new(Body::from(data));
            let mime = file.metadata.mimetype();
            let mime = if mime.starts_with("text/") {
                format!("{mime}; charset=utf-8")
            } else {
                mime.to_owned()
            };
            insert(response.headers_mut(), header::CONTENT_TYPE, &mime);
            if let Some(encoding) = encoding {
                insert(response.headers_mut(), header::CONTENT_ENCODING, encoding);
            }
            response
        };
        let cache = if path.starts_with("assets/") {
            FOREVER
        } else {
            REVALIDATE
        };
        insert(response.headers_mut(), header::CACHE_CONTROL, cache);
        insert(response.headers_mut(), header::ETAG, &tag);
        insert(response.headers_mut(), header::VARY, "accept-encoding");
        for (name, value) in FIXED {
            insert(response.headers_mut(), name, value);
        }
        response
    }
}

/// The page decides what the rest of the address means.
fn is_screen(path: &str) -> bool {
    let first = path.split('/').next().unwrap_or_default();
    SCREENS.contains(&first)
}

/// The smallest copy of the file that the browser takes, with the name of its encoding.
fn copy_for(path: &str, headers: &HeaderMap) -> Option<(&'static str, EmbeddedFile)> {
    let taken: Vec<&str> = headers
        .get_all(header::ACCEPT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter(|entry| !is_refused(entry))
        .filter_map(|entry| entry.split(';').next())
        .map(str::trim)
        .collect();
    ENCODINGS.iter().find_map(|(name, ending)| {
        let is_taken = taken.iter().any(|taken| taken.eq_ignore_ascii_case(name));
        let copy = is_taken.then(|| Dist::get(&format!("{path}{ending}")))??;
        Some((*name, copy))
    })
}

/// A weight of 0 refuses an encoding.
fn is_refused(entry: &str) -> bool {
    let weight = entry.split(';').skip(1).find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("q").then(|| value.trim())
    });
    weight.is_some_and(|weight| weight.parse().unwrap_or(0.0_f32) <= 0.0)
}

fn insert(headers: &mut HeaderMap, name: header::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parts() -> impl Iterator<Item = std::borrow::Cow<'static, str>> {
        let is_copy = |name: &str| ENCODINGS.iter().any(|(_, ending)| name.ends_with(ending));
        Dist::iter().filter(move |name| name.starts_with("assets/") && !is_copy(name))
    }

    async fn get(path: &str, headers: HeaderMap) -> Response {
        let page = Page::default();
        page.serve(Method::GET, path.parse().unwrap(), headers)
            .await
    }

    #[tokio::test]
    async fn only_the_first_page_links_to_the_gateways_own_page() {
        let linking = Page::linking_to("http://127.0.0.1:8090/?a=1&b=\"2");
        let get = async |page: &Page, path: &str| {
            let uri = path.parse().unwrap();
            let response = page.clone().serve(Method::GET, uri, HeaderMap::new()).await;
            let tag = response.headers()[header::ETAG].clone();
            let body = axum::body::to_bytes(response.into_body(), 1 << 24).await;
            (String::from_utf8(body.unwrap().to_vec()).unwrap(), tag)
        };
        let (with, tag) = get(&linking, "/").await;
        let link = "<a href=\"http://127.0.0.1:8090/?a=1&amp;b=&quot;2\">";
        assert_eq!(with.matches(link).count(), 1, "{with}");
        let (without, tag_without) = get(&Page::default(), "/").await;
        assert!(!without.contains("<a "), "{without}");
        assert_ne!(tag, tag_without, "a browser would show the older one");
        let asset = parts().next().unwrap();
        let path = format!("/{asset}");
        assert_eq!(
            get(&linking, &path).await,
            get(&Page::default(), &path).await
        );
    }

    #[tokio::test]
    async fn the_page_is_revalidated_and_its_parts_are_kept() {
        let page = get("/", HeaderMap::new()).await;
        assert_eq!(page.status(), StatusCode::OK);
        assert_eq!(page.headers()[header::CACHE_CONTROL], REVALIDATE);
        assert!(page.headers().contains_key(header::CONTENT_SECURITY_POLICY));
        let tag = page.headers()[header::ETAG].clone();
        let mut known = HeaderMap::new();
        known.insert(header::IF_NONE_MATCH, tag);
        assert_eq!(get("/", known).await.status(), StatusCode::NOT_MODIFIED);

        let mut scripts = 0;
        for name in parts() {
            let part = get(&format!("/{name}"), HeaderMap::new()).await;
            assert_eq!(part.headers()[header::CACHE_CONTROL], FOREVER);
            scripts += usize::from(
                part.headers()[header::CONTENT_TYPE]
                    .to_str()
                    .unwrap()
                    .contains("javascript"),
            );
        }
        assert!(scripts > 0, "the page has a script");
    }

    #[tokio::test]
    async fn each_screen_has_an_address_that_opens_the_page() {
        let page = get("/", HeaderMap::new()).await.headers()[header::ETAG].clone();
        for path in [
            "/ward",
            "/patients/p%201",
            "/alerts/a/b",
            "/paths",
            "/fleet/",
            "/manage/patients/p%201",
        ] {
            let screen = get(path, HeaderMap::new()).await;
            assert_eq!(screen.headers()[header::ETAG], page, "{path}");
            assert_eq!(screen.headers()[header::CACHE_CONTROL], REVALIDATE);
        }
    }

    #[tokio::test]
    async fn a_browser_gets_the_smallest_copy_that_it_takes() {
        let taking = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, text.parse().unwrap());
            headers
        };
        let script = parts().find(|name| name.ends_with(".js")).unwrap();
        let script = format!("/{script}");
        let mut lengths = Vec::new();
        for (accepted, expected) in [
            ("gzip, deflate, br, zstd", Some("br")),
            ("br;q=0, GZIP;q=0.5", Some("gzip")),
            ("br;q=wrong", None),
            ("identity", None),
        ] {
            let response = get(&script, taking(accepted)).await;
            let encoding = response.headers().get(header::CONTENT_ENCODING);
            assert_eq!(encoding.and_then(|it| it.to_str().ok()), expected);
            assert_eq!(response.headers()[header::VARY], "accept-encoding");
            let tag = response.headers()[header::ETAG].clone();
            let mime = response.headers()[header::CONTENT_TYPE].clone();
            assert!(mime.to_str().unwrap().contains("javascript"), "{mime:?}");
            let body = axum::body::to_bytes(response.into_body(), 1 << 24).await;
            lengths.push(body.unwrap().len());
            let mut known = taking(accepted);
            known.insert(header::IF_NONE_MATCH, tag.clone());
            let again = get(&script, known).await;
            assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
            let mut other = taking("zstd");
            other.insert(header::IF_NONE_MATCH, tag);
            let is_known = get(&script, other).await.status() == StatusCode::NOT_MODIFIED;
            assert_eq!(is_known, expected.is_none(), "a copy has a tag of its own");
        }
        assert!(
            lengths[0] < lengths[1] && lengths[1] * 2 < lengths[2],
            "{lengths:?}"
        );
        for ending in [".br", ".gz"] {
            let copy = get(&format!("{script}{ending}"), HeaderMap::new()).await;
            assert_eq!(copy.status(), StatusCode::NOT_FOUND);
        }
    }

    #[tokio::test]
    async fn nothing_else_is_there() {
        for path in [
            "/assets/",
            "/../Cargo.toml",
            "/%2e%2e/Cargo.toml",
            "/index",
            "/api/nothing",
        ] {
            assert_eq!(
                get(path, HeaderMap::new()).await.status(),
                StatusCode::NOT_FOUND,
                "{path}"
            );
        }
        let posted = Page::default().serve(Method::POST, "/".parse().unwrap(), HeaderMap::new());
        let posted = posted.await;
        assert_eq!(posted.status(), StatusCode::METHOD_NOT_ALLOWED);
    }
}
