//! The web page, embedded when the binary is built (`web/dist`).

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use rust_embed::RustEmbed;
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
            path => path,
        };
        let Some(file) = Dist::get(path) else {
            return StatusCode::NOT_FOUND.into_response();
        };
        let hash = file.metadata.sha256_hash();
        let is_linking = path == "index.html" && !self.gateway.is_empty();
        let (data, hash) = if is_linking {
            let data = self.with_link(&file.data);
            let hash = Sha256::digest(&data).into();
            (data.into(), hash)
        } else {
            (file.data, hash)
        };
        let tag = format!("\"{}\"", hex(&hash[..16]));
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
            response
        };
        let cache = if path.starts_with("assets/") {
            FOREVER
        } else {
            REVALIDATE
        };
        insert(response.headers_mut(), header::CACHE_CONTROL, cache);
        insert(response.headers_mut(), header::ETAG, &tag);
        for (name, value) in FIXED {
            insert(response.headers_mut(), name, value);
        }
        response
    }
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
        let asset = Dist::iter()
            .find(|name| name.starts_with("assets/"))
            .unwrap();
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
        for name in Dist::iter().filter(|name| name.starts_with("assets/")) {
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
