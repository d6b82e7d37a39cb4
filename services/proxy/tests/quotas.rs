//! Quotas of a gateway hold over any number of sessions.

#![allow(clippy::unwrap_used)]

#[path = "support/bench.rs"]
mod bench;

use std::{net::SocketAddr, time::Instant};

use bench::{Proxy, authority_of, fast};
use testkit::{DEADLINE, udp_echo, within};
use tokio::{io::AsyncWriteExt, net::TcpListener};
use tunnel::Urgency;

/// Burst of a gateway that may ask once a second.
const BURST: u64 = 4;

#[tokio::test]
async fn a_new_session_brings_no_new_requests() {
    let to = udp_echo().await;
    let flags = ["--allow", &to.to_string(), "--requests-per-second-max", "1"];
    let proxy = Proxy::start(&flags).await;
    let (gateway, to) = (proxy.gateway(), authority_of(to));
    let began = Instant::now();
    let mut given = 0;
    for _ in 0..5 {
        let tunnel = proxy.tunnel(&gateway, &fast(), DEADLINE);
        for _ in 0..BURST {
            let opened = within(tunnel.open_udp(&to, Urgency::Prompt)).await;
            given += u64::from(opened.is_ok());
        }
        tunnel.close().await;
    }
    let earned = BURST + began.elapsed().as_secs() + 1;
    assert!((BURST..=earned).contains(&given), "{given} of {earned}");
    proxy.stop().await;
}

/// Takes connections and reads nothing.
async fn reads_nothing() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            kept.push(connection);
        }
    });
    address
}

/// Unread data stays in the windows of the sessions, 2.3 MB a tunnel. All permitted tunnels over
/// four sessions hold 320 MiB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_tunnels_have_a_lower_bound_than_resumable_ones() {
    let to = reads_nothing().await;
    let flags = [
        "--allow",
        &to.to_string(),
        "--requests-per-second-max",
        "1000",
        "--plain-tunnels-per-gateway-max",
        "12",
    ];
    let proxy = Proxy::start(&flags).await;
    let (gateway, to) = (proxy.gateway(), authority_of(to));
    let mut open = Vec::new();
    let mut sessions = Vec::new();
    for _ in 0..4 {
        let tunnel = proxy.tunnel(&gateway, &fast(), DEADLINE);
        for _ in 0..6 {
            if let Ok(mut plain) = within(tunnel.open_plain_tcp(&to, Urgency::Bulk)).await {
                plain.write_all(b"unread").await.unwrap();
                open.push(plain);
            }
        }
        sessions.push(tunnel);
    }
    assert_eq!(open.len(), 8, "a third is left to what is urgent");
    // Tunnels of a gateway to ingest still pass, and resumable tunnels are bounded by their bytes.
    let urgent = within(sessions[3].open_plain_tcp(&to, Urgency::Urgent)).await;
    assert!(urgent.is_ok());
    let resumable = within(sessions[3].open_tcp(&to, Urgency::Bulk)).await;
    assert!(resumable.is_ok());
    for tunnel in sessions {
        tunnel.close().await;
    }
    proxy.stop().await;
}
