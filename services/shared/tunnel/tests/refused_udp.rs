//! A network answers UDP by an error of ICMP. The session falls back to TCP within a second, at the
//! start and while it runs. Over two access networks in namespaces; skips on hosts without them.

#![allow(clippy::unwrap_used)]

#[path = "support/bench.rs"]
mod bench;
#[path = "support/beside_server.rs"]
mod beside_server;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bench::{Identities, authority, echo};
use beside_server::{DEVICES, beside_server, config};
use testkit::netns::World;
use testkit::{noise, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tunnel::{Interface, Transport, Tunnel, TunnelStream, Urgency};

const RATE: &str = "50mbit";

/// Longest time from the first refused datagram, or from the start, to a session over TCP.
const FALLBACK_MAX: Duration = Duration::from_secs(1);

/// Data before and after the change.
const BYTES: usize = 2_000_000;

fn start(identities: &Identities) -> Tunnel {
    let interfaces = DEVICES.map(|(device, net)| {
        let ip = std::net::IpAddr::from([10, net, 0, 2]);
        Interface::bind(device, ip, Some(device)).unwrap()
    });
    Tunnel::start(config(identities), interfaces.into()).unwrap()
}

async fn carried_by(tunnel: &Tunnel, wanted: impl Fn(Transport) -> bool) {
    within(async {
        while !tunnel.transport().is_some_and(&wanted) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

async fn falls_back(tunnel: &Tunnel, since: Instant, what: &str) {
    carried_by(tunnel, |transport| transport != Transport::Quic).await;
    let took = since.elapsed();
    println!("{what}: TCP after {took:?}");
    assert!(took <= FALLBACK_MAX, "{what}: TCP after {took:?}");
}

/// Sends noise and compares what comes back.
async fn exchange(stream: &mut TunnelStream, seed: u64) {
    let sent = noise(BYTES, seed);
    let (mut read, mut write) = tokio::io::split(stream);
    let mut back = vec![0; BYTES];
    let writing = async {
        write.write_all(&sent).await.unwrap();
        write.flush().await.unwrap();
    };
    let (_, read) = within(async { tokio::join!(writing, read.read_exact(&mut back)) }).await;
    read.unwrap();
    assert!(back == sent, "bytes differ");
}

/// Runs `test` in the gateway's namespace, with both networks.
fn with_server<F>(test: impl FnOnce(Arc<World>, Identities) -> F + Send + 'static)
where
    F: Future<Output = ()>,
{
    let Some(world) = World::new() else {
        return;
    };
    for (device, net) in DEVICES {
        world.plug(device, net, RATE);
    }
    beside_server(world, echo, test);
}

#[test]
fn udp_that_is_refused_from_the_start_costs_less_than_a_second() {
    with_server(|world, identities| async move {
        world.reject_udp();
        let began = Instant::now();
        let tunnel = start(&identities);
        falls_back(&tunnel, began, "at the start").await;
        let to = authority();
        let opened = tunnel.open_tcp(&to, Urgency::Bulk);
        let mut stream = within(opened).await.unwrap();
        exchange(&mut stream, 1).await;
        // QUIC answers again, and the stream goes on over it.
        world.let_udp_pass();
        carried_by(&tunnel, |transport| transport == Transport::Quic).await;
        exchange(&mut stream, 2).await;
        tunnel.close().await;
    });
}

#[test]
fn udp_that_is_refused_under_a_session_costs_less_than_a_second() {
    with_server(|world, identities| async move {
        let tunnel = start(&identities);
        carried_by(&tunnel, |transport| transport == Transport::Quic).await;
        let to = authority();
        let opened = tunnel.open_tcp(&to, Urgency::Prompt);
        let mut stream = within(opened).await.unwrap();
        exchange(&mut stream, 1).await;
        world.reject_udp();
        let began = Instant::now();
        let fallen = falls_back(&tunnel, began, "under a session");
        tokio::join!(exchange(&mut stream, 2), fallen);
        tunnel.close().await;
    });
}

/// One network that refuses UDP is no reason to leave QUIC on the other.
#[test]
fn one_network_that_refuses_udp_does_not_end_quic() {
    with_server(|world, identities| async move {
        let [(_, refusing), _] = DEVICES;
        let rule = format!("rule add iif m-wlan0 ipproto udp prohibit pref {refusing}");
        world.ip("rt", &rule);
        let tunnel = start(&identities);
        let to = authority();
        let opened = tunnel.open_tcp(&to, Urgency::Bulk);
        let mut stream = within(opened).await.unwrap();
        for seed in 0..5 {
            exchange(&mut stream, seed).await;
            assert_eq!(tunnel.transport(), Some(Transport::Quic));
        }
        tunnel.close().await;
    });
}

/// The network that is left has refused before the other went away.
#[test]
fn the_end_of_the_only_network_that_carries_udp_costs_less_than_a_second() {
    with_server(|world, identities| async move {
        let [(_, refusing), (leaving, _)] = DEVICES;
        let rule = format!("rule add iif m-wlan0 ipproto udp prohibit pref {refusing}");
        world.ip("rt", &rule);
        let tunnel = start(&identities);
        let to = authority();
        let opened = tunnel.open_tcp(&to, Urgency::Bulk);
        let mut stream = within(opened).await.unwrap();
        exchange(&mut stream, 1).await;
        assert_eq!(tunnel.transport(), Some(Transport::Quic));
        tunnel.detach(leaving);
        let began = Instant::now();
        let fallen = falls_back(&tunnel, began, "the other has gone");
        tokio::join!(exchange(&mut stream, 2), fallen);
        tunnel.close().await;
    });
}
