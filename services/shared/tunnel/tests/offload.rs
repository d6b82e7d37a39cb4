//! Trains of datagrams cross the sockets in one system call each; otherwise the processor would be
//! the bottleneck.

#![allow(clippy::unwrap_used)]

#[path = "support/bench.rs"]
mod bench;

use std::{net::IpAddr, sync::Arc};

use bench::{Identities, NAMES, authority, echo, listen_anywhere, serve};
use testkit::{noise, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tunnel::{DatagramCounts, Interface, Tunnel, TunnelConfig, TunnelServer, Urgency};

/// Least mean of a fast transfer on loopback. Without offload a send call carries one datagram, and
/// a receive call more only if several waited.
const DATAGRAMS_PER_SEND_MIN: u64 = 2;
const DATAGRAMS_PER_RECEIVE_MIN: u64 = 2;

#[track_caller]
fn assert_trains(counts: DatagramCounts) {
    let DatagramCounts {
        sends,
        sent_datagrams,
        receives,
        received_datagrams,
    } = counts;
    assert!(
        sent_datagrams >= DATAGRAMS_PER_SEND_MIN * sends,
        "{counts:?}"
    );
    assert!(
        received_datagrams >= DATAGRAMS_PER_RECEIVE_MIN * receives,
        "{counts:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_ends_send_and_receive_trains() {
    let identities = Identities::new();
    let server = Arc::new(TunnelServer::bind(identities.server_config(listen_anywhere())).unwrap());
    serve(server.clone(), echo);
    let interfaces = NAMES.iter().enumerate().map(|(index, name)| {
        let ip = IpAddr::from([127, 0, index as u8 + 1, 1]);
        Interface::bind(*name, ip, None).unwrap()
    });
    let tls = identities.client.client_config(&[tunnel::ALPN]);
    let config = TunnelConfig::new(server.local_addr(), "localhost", tls);
    let tunnel = Tunnel::start(config, interfaces.collect()).unwrap();
    let stream = within(tunnel.open_tcp(&authority(), Urgency::Bulk))
        .await
        .unwrap();
    let (mut read, mut write) = tokio::io::split(stream);
    let sent = noise(8_000_000, 1);
    let sending = async {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
    };
    let mut back = Vec::with_capacity(sent.len());
    within(async {
        tokio::join!(sending, async {
            read.read_to_end(&mut back).await.unwrap()
        })
    })
    .await;
    assert!(back == sent, "{} bytes differ", back.len());
    assert_trains(tunnel.datagrams());
    assert_trains(server.datagrams());
    tunnel.close().await;
    server.close().await;
}
