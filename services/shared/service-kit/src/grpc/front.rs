//! A front (such as Envoy) ends the client's TLS, and names the client in a header.
//!
//! The header counts only if the peer's own certificate is that of the configured front. The front
//! must replace the header in every request (Envoy: `SANITIZE_SET`). So a header with more than one
//! client comes from a misconfigured front and is refused.
//!
//! A front that trusts the authority for gateways cannot check which names that authority may give.
//! So the front also names the issuer of the client's certificate. A client counts as a service
//! only if the issuer is named and is another authority.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Peer;
use crate::tls::authority::GATEWAYS_NAME;
use crate::tls::{Fingerprint, PeerId, PeerIdError};

const FORWARDED_CERTIFICATE: HeaderName = HeaderName::from_static("x-forwarded-client-cert");
const FORWARDED_ISSUER: HeaderName = HeaderName::from_static("x-forwarded-client-issuer");

/// The flag of services that may stand behind a front.
#[derive(Clone, Debug, Default, clap::Args, serde::Serialize)]
pub struct FrontConfig {
    /// Service in front that ends clients' TLS and whose header names the client, such as envoy.
    /// Empty: only the client's own certificate counts.
    #[arg(long, value_name = "NOUN")]
    pub front: Option<String>,
}

impl FrontConfig {
    /// The router for [`serve`](super::serve), with the front's header applied if there is a front.
    pub fn router(&self, routes: tonic::service::Routes) -> axum::Router {
        let router = routes.prepare().into_axum_router();
        let Some(front) = self.front.clone() else {
            return router;
        };
        let believe = move |request, next| believe(front.clone(), request, next);
        router.layer(axum::middleware::from_fn(believe))
    }
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
enum FrontError {
    #[error("the front named {0} clients instead of one")]
    Clients(usize),
    #[error("the front named a client with {0} URIs instead of one")]
    Uris(usize),
    #[error("the front's header is not text")]
    NotText,
    #[error(
        "the certificate of {0} is not of an authority that the front named and that is for services"
    )]
    Issuer(PeerId),
    #[error(transparent)]
    Identity(#[from] PeerIdError),
}

/// Replaces the front's own identity by that of the client in the header.
async fn believe(front: String, mut request: Request, next: Next) -> Response {
    if let Some(peer) = request.extensions().get::<Peer>() {
        match speaks_for(&front, peer, request.headers()) {
            Ok(peer) => {
                request.extensions_mut().insert(peer);
            }
            Err(error) => {
                tracing::warn!(%error, %front, "request refused");
                return (StatusCode::FORBIDDEN, error.to_string()).into_response();
            }
        }
    }
    request.headers_mut().remove(FORWARDED_CERTIFICATE);
    request.headers_mut().remove(FORWARDED_ISSUER);
    next.run(request).await
}

fn speaks_for(front: &str, peer: &Peer, headers: &HeaderMap) -> Result<Peer, FrontError> {
    let is_front = matches!(&peer.id, Some(PeerId::Service { noun }) if noun == front);
    if !is_front {
        return Ok(peer.clone());
    }
    let mut values = headers.get_all(FORWARDED_CERTIFICATE).iter();
    let (id, certificate) = match (values.next(), values.count()) {
        // The front admitted a client without a certificate.
        (None, _) => (None, None),
        (Some(value), 0) => {
            let (id, certificate) = client(value.to_str().map_err(|_| FrontError::NotText)?)?;
            if matches!(id, PeerId::Service { .. }) && !is_for_services(headers) {
                return Err(FrontError::Issuer(id));
            }
            (Some(id), certificate)
        }
        (Some(_), more) => return Err(FrontError::Clients(1 + more)),
    };
    Ok(Peer {
        address: peer.address,
        id,
        certificate,
    })
}

fn is_for_services(headers: &HeaderMap) -> bool {
    let mut issuers = headers.get_all(FORWARDED_ISSUER).iter();
    match (issuers.next().map(|issuer| issuer.to_str()), issuers.next()) {
        (Some(Ok(issuer)), None) => !issuer.is_empty() && !issuer.contains(GATEWAYS_NAME),
        _ => false,
    }
}

/// Parses `By=...;Hash=...;URI=spiffe://...`. Values may be quoted; commas separate clients.
fn client(value: &str) -> Result<(PeerId, Option<Fingerprint>), FrontError> {
    let clients = split(value, ',');
    let [client] = clients.as_slice() else {
        return Err(FrontError::Clients(clients.len()));
    };
    let pairs: Vec<(&str, &str)> = split(client, ';')
        .into_iter()
        .filter_map(|pair| pair.trim().split_once('='))
        .map(|(key, value)| (key, value.trim_matches('"')))
        .collect();
    let values = |of: &'static str| {
        let pairs = pairs
            .iter()
            .filter(move |(key, _)| key.eq_ignore_ascii_case(of));
        pairs.map(|(_, value)| *value)
    };
    let uris: Vec<&str> = values("uri").collect();
    match uris.as_slice() {
        [uri] => Ok((uri.parse()?, values("hash").find_map(Fingerprint::from_hex))),
        _ => Err(FrontError::Uris(uris.len())),
    }
}

/// Splits at separators outside of quotes; a backslash escapes the next character.
fn split(text: &str, separator: char) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut begin, mut quoted, mut escaped) = (0, false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            _ if c == separator && !quoted => {
                parts.push(&text[begin..at]);
                begin = at + c.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(&text[begin..]);
    parts
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const GATEWAY: &str = "spiffe://braid/tenant/home/gateway/gw-1";

    fn heard(from: &PeerId, headers: &[&str]) -> Result<Option<PeerId>, FrontError> {
        let peer = Peer {
            address: "127.0.0.1:1".parse().unwrap(),
            id: Some(from.clone()),
            certificate: None,
        };
        let headers: HeaderMap = headers
            .iter()
            .map(|value| (FORWARDED_CERTIFICATE, value.parse().unwrap()))
            .collect();
        speaks_for("envoy", &peer, &headers).map(|peer| peer.id)
    }

    fn element(uri: &str) -> String {
        format!(r#"By=spiffe://braid/service/envoy;Hash=ab12;Subject="CN=a\",URI=b,c";URI={uri}"#)
    }

    #[test]
    fn the_front_names_its_client() {
        let envoy = PeerId::service("envoy");
        let gateway: PeerId = GATEWAY.parse().unwrap();
        assert_eq!(heard(&envoy, &[&element(GATEWAY)]), Ok(Some(gateway)));
        assert_eq!(heard(&envoy, &[]), Ok(None));
    }

    #[test]
    fn a_service_needs_an_issuer_that_is_not_for_gateways() {
        let peer = Peer {
            address: "127.0.0.1:1".parse().unwrap(),
            id: Some(PeerId::service("envoy")),
            certificate: None,
        };
        let heard = |uri: &str, issuers: &[&str]| {
            let mut headers = HeaderMap::new();
            headers.insert(FORWARDED_CERTIFICATE, element(uri).parse().unwrap());
            for issuer in issuers {
                headers.append(FORWARDED_ISSUER, issuer.parse().unwrap());
            }
            speaks_for("envoy", &peer, &headers).map(|peer| peer.id)
        };
        let proxy = PeerId::service("proxy");
        let uri = proxy.to_string();
        let (all, gateways) = (
            "CN=Braid local authority",
            "CN=Braid authority for gateways",
        );
        assert_eq!(heard(&uri, &[all]), Ok(Some(proxy.clone())));
        for issuers in [&[gateways][..], &[], &[""], &[all, gateways]] {
            let refused = Err(FrontError::Issuer(proxy.clone()));
            assert_eq!(heard(&uri, issuers), refused, "{issuers:?}");
        }
        let gateway = Ok(Some(GATEWAY.parse().unwrap()));
        for issuers in [&[gateways][..], &[all], &[]] {
            assert_eq!(heard(GATEWAY, issuers), gateway);
        }
    }

    #[test]
    fn the_front_names_the_certificate() {
        let hash = "0f".repeat(32);
        let (_, certificate) = client(&format!("Hash={hash};URI={GATEWAY}")).unwrap();
        assert_eq!(certificate.map(|it| it.to_string()), Some(hash));
        assert_eq!(client(&element(GATEWAY)).unwrap().1, None, "no such hash");
    }

    #[test]
    fn headers_of_other_peers_have_no_effect() {
        for peer in [
            PeerId::gateway("home", "gw-2"),
            PeerId::service("dashboard"),
        ] {
            assert_eq!(heard(&peer, &[&element(GATEWAY)]), Ok(Some(peer.clone())));
        }
    }

    #[test]
    fn a_header_without_exactly_one_client_is_refused() {
        let envoy = PeerId::service("envoy");
        let two = format!("{},{}", element(GATEWAY), element(GATEWAY));
        assert_eq!(heard(&envoy, &[&two]), Err(FrontError::Clients(2)));
        let one = element(GATEWAY);
        assert_eq!(heard(&envoy, &[&one, &one]), Err(FrontError::Clients(2)));
        assert_eq!(heard(&envoy, &["By=x;Hash=y"]), Err(FrontError::Uris(0)));
        let both = format!("{one};URI={GATEWAY}");
        assert_eq!(heard(&envoy, &[&both]), Err(FrontError::Uris(2)));
        let foreign = heard(&envoy, &[&element("spiffe://other/service/ingest")]);
        assert!(matches!(foreign, Err(FrontError::Identity(_))));
        // An unclosed quote hides the rest of the text.
        assert_eq!(
            heard(&envoy, &[r#"Subject="a;URI=b"#]),
            Err(FrontError::Uris(0))
        );
    }
}
