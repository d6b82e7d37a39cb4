//! Gateways that connect over TCP because UDP is blocked: admission and destinations are the same.

#![allow(clippy::unwrap_used)]

#[path = "support/bench.rs"]
mod bench;

use std::{sync::Arc, time::Duration};

use bench::{Proxy, authority_of, echo};
use rustls::{SignatureScheme, client::ResolvesClientCert, sign::CertifiedKey};
use service_kit::tls::PeerId;
use testkit::{DEADLINE, noise, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tunnel::{OpenError, StatusCode, Transport, Urgency};

/// Shows no certificate.
#[derive(Debug)]
struct Nobody;

impl ResolvesClientCert for Nobody {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_reaches_only_permitted_destinations() {
    let upstream = echo().await;
    let elsewhere = echo().await;
    let proxy = Proxy::start(&["--allow", &upstream.to_string()]).await;
    let tunnel = proxy.tunnel_without_udp(proxy.gateway().client_config(&[]), DEADLINE);
    let to = authority_of(upstream);
    let mut stream = within(tunnel.open_tcp(&to, Urgency::Bulk)).await.unwrap();
    assert_ne!(tunnel.transport(), Some(Transport::Quic));
    let sent = noise(2_000_000, 1);
    let mut back = vec![0; sent.len()];
    let (mut read, mut write) = tokio::io::split(&mut stream);
    let (wrote, read) = within(async {
        tokio::join!(
            async {
                write.write_all(&sent).await?;
                write.flush().await
            },
            read.read_exact(&mut back)
        )
    })
    .await;
    wrote.unwrap();
    read.unwrap();
    assert!(back == sent, "bytes differ");
    let to = authority_of(elsewhere);
    let refused = within(tunnel.open_tcp(&to, Urgency::Bulk)).await;
    assert!(matches!(
        refused,
        Err(OpenError::Refused(StatusCode::FORBIDDEN))
    ));
    drop(stream);
    tunnel.close().await;
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_known_gateways_get_a_session() {
    let upstream = echo().await;
    let proxy = Proxy::start(&["--allow", &upstream.to_string()]).await;
    let mut nobody = (*proxy.gateway().client_config(&[])).clone();
    nobody.client_auth_cert_resolver = Arc::new(Nobody);
    let service = proxy.identity(&PeerId::service("ingest"));
    let patience = Duration::from_secs(6);
    let to = authority_of(upstream);
    let refused = |tls| {
        let tunnel = proxy.tunnel_without_udp(tls, patience);
        let to = &to;
        async move {
            let opened = tunnel.open_tcp(to, Urgency::Bulk).await;
            // TLS admits a certificate of the wrong kind; the proxy then closes the session.
            let kept_out = matches!(
                opened,
                Err(OpenError::NoSession(_) | OpenError::TimedOut(_))
            );
            assert!(kept_out, "{opened:?}");
            tunnel.close().await;
        }
    };
    within(async {
        tokio::join!(
            refused(Arc::new(nobody)),
            refused(proxy.of_another_authority().client_config(&[])),
            refused(service.client_config(&[])),
        )
    })
    .await;
    proxy.stop().await;
}
