//! Datagrams over paths that lose packets: the ends send lost ones again, and keep the order.

#![allow(clippy::unwrap_used)]

#[path = "support/bench.rs"]
mod bench;

use std::{sync::Arc, time::Duration};

use bench::{Bench, Identities, authority, listen_anywhere, serve};
use emulated_link::{
    LinkControl,
    link::{LinkConfig, Loss},
};
use testkit::within;
use tunnel::{TunnelServer, Urgency};

const SENT: u32 = 3_000;
/// 500 datagrams a second: 2 Mbit/s.
const INTERVAL: Duration = Duration::from_millis(2);
const DATAGRAM_BYTES: usize = 500;
/// One way.
const DELAY: Duration = Duration::from_millis(10);
/// Share of each direction's packets.
const LOST: f64 = 0.03;

/// The numbers of the echoes, in the order in which they came, of datagrams over the first so many
/// links.
async fn echoes(links: usize) -> Vec<u32> {
    let identities = Identities::new();
    let server = TunnelServer::bind(identities.server_config(listen_anywhere())).unwrap();
    let server = Arc::new(server);
    serve(server.clone(), |request, _| async move {
        let tunnel = request.accept_udp().await.unwrap();
        while let Ok(datagram) = tunnel.receive().await {
            tunnel.send(&datagram);
        }
    });
    let link = LinkConfig::new(20e6, DELAY).with_loss(Loss::Bernoulli(LOST));
    let down = Vec::from_iter(links..2);
    let bench = Bench::start(identities, server.local_addr(), &link, &down);
    if links == 2 {
        bench.both_up().await;
    }
    let udp = within(bench.tunnel.open_udp(&authority(), Urgency::Bulk)).await;
    let udp = udp.unwrap();
    let mut ticks = tokio::time::interval(INTERVAL);
    let mut datagram = [0; DATAGRAM_BYTES];
    let (mut sent, mut came) = (0, Vec::new());
    let mut last_at = None;
    loop {
        tokio::select! {
            _ = ticks.tick(), if sent < SENT => {
                datagram[..4].copy_from_slice(&sent.to_be_bytes());
                assert!(udp.send(&datagram));
                sent += 1;
                last_at = (sent == SENT).then(tokio::time::Instant::now);
            }
            echo = udp.receive() => {
                came.push(u32::from_be_bytes(echo.unwrap()[..4].try_into().unwrap()));
            }
            () = silence(last_at) => break,
        }
    }
    drop(udp);
    let counters = bench.links.iter().map(LinkControl::snapshot);
    let lost: u64 = counters
        .map(|both| both.uplink.lost_random + both.downlink.lost_random)
        .sum();
    assert!(lost >= 90, "the links lost {lost}");
    bench.tunnel.close().await;
    server.close().await;
    came
}

/// A second after the last datagram.
async fn silence(last_at: Option<tokio::time::Instant>) {
    match last_at {
        Some(at) => tokio::time::sleep_until(at + Duration::from_secs(1)).await,
        None => std::future::pending().await,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_path_loses_comes_in_its_place() {
    for links in [1, 2] {
        let came = echoes(links).await;
        let lost = SENT as usize - came.len();
        let disordered = came.windows(2).filter(|pair| pair[0] > pair[1]).count();
        println!("{links} links: {lost} of {SENT} lost, {disordered} out of order");
        // Without a repair 167 are lost.
        assert!(lost <= 15, "{lost}");
        // A machine that does not keep up delays an answer.
        assert!(disordered <= 60, "{disordered}");
    }
}
