//! IP packets, and the capsules of both ends (CONNECT-IP, RFC 9484), over emulated links and real
//! sockets. They use HTTP/3 and, where UDP is blocked, HTTP/2.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::bench::{Bench, Identities, listen_anywhere, serve};
use emulated_link::link::LinkConfig;
use ip_packets::IpRange;
use testkit::{noise, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tunnel::{
    ConnectRequest, IpAddressEntry, IpCapsule, IpTunnel, OpenError, SessionHandle, StatusCode,
    Transport, TunnelEnded, TunnelEvent, TunnelServer, Urgency,
};

/// Interval between two questions with the same packet; the first may be lost.
const AGAIN_AFTER: Duration = Duration::from_millis(250);

fn fast() -> LinkConfig {
    LinkConfig::new(200e6, Duration::from_millis(1))
}

fn entry(request_id: u64, prefix: &str) -> IpAddressEntry {
    let prefix = prefix.parse().unwrap();
    IpAddressEntry { request_id, prefix }
}

fn routes() -> IpCapsule {
    let at = |text: &str| text.parse().unwrap();
    let ranges = [("1.0.0.0", "9.255.255.255"), ("2001::", "2002::")];
    let ranges = ranges.map(|(first, last)| IpRange::new(at(first), at(last)).unwrap());
    IpCapsule::RouteAdvertisement(ranges.into())
}

/// Answers each request for an address, advertises routes, and sends every packet back.
async fn echo(request: ConnectRequest, _: SessionHandle) {
    let (ip, udp, authority) = (
        request.is_ip(),
        request.is_udp(),
        request.authority().clone(),
    );
    assert_eq!((ip, udp, authority.as_str()), (true, false, "*"));
    let tunnel = request.accept_ip().await.unwrap();
    tunnel.say(&routes()).await.unwrap();
    loop {
        let ended = tokio::select! {
            packet = tunnel.receive() => packet.map(|packet| {
                tunnel.send(&packet);
            }),
            heard = tunnel.hear() => match heard {
                Ok(IpCapsule::AddressRequest(asked)) => {
                    let given = asked.iter().map(|asked| entry(asked.request_id, "10.64.0.7/32"));
                    tunnel.say(&IpCapsule::AddressAssign(given.collect())).await
                }
                Ok(other) => panic!("{other:?}"),
                Err(ended) => Err(ended),
            },
        };
        if ended.is_err() {
            return;
        }
    }
}

fn server(identities: &Identities) -> Arc<TunnelServer> {
    let mut config = identities.server_config(listen_anywhere());
    config.fallback = true;
    Arc::new(TunnelServer::bind(config).unwrap())
}

/// A client whose listed links block UDP.
fn start(link: &LinkConfig, down: &[usize]) -> (Bench, Arc<TunnelServer>) {
    let identities = Identities::new();
    let server = server(&identities);
    serve(server.clone(), echo);
    let addr = server.local_addr();
    let bench = Bench::start_with(identities, addr, link, down, |config| {
        config.fallback = true;
    });
    (bench, server)
}

async fn open(bench: &Bench) -> IpTunnel {
    within(bench.tunnel.open_ip(Urgency::Bulk)).await.unwrap()
}

/// Asks until the same packet comes back; packets may be lost.
async fn ask(tunnel: &IpTunnel, question: &[u8]) -> Result<(), TunnelEnded> {
    within(async {
        loop {
            tunnel.send(question);
            let again = Instant::now() + AGAIN_AFTER;
            while let Ok(answer) = tokio::time::timeout_at(again.into(), tunnel.receive()).await {
                if answer? == question {
                    return Ok(());
                }
            }
        }
    })
    .await
}

/// Capsules in both directions, then packets that fit into a QUIC packet and others.
async fn agree_and_exchange(bench: &Bench) {
    let tunnel = open(bench).await;
    assert_eq!(within(tunnel.hear()).await.unwrap(), routes());
    for number in [1, 2] {
        let asked = IpCapsule::AddressRequest(vec![entry(number, "0.0.0.0/32")]);
        tunnel.say(&asked).await.unwrap();
        let given = IpCapsule::AddressAssign(vec![entry(number, "10.64.0.7/32")]);
        assert_eq!(within(tunnel.hear()).await.unwrap(), given);
        for (size, seed) in [1, 20, 1_280, 1_500, 9_000, 65_535].into_iter().zip(1..) {
            ask(&tunnel, &noise(size, seed)).await.unwrap();
        }
    }
    assert!(!tunnel.send(&vec![0; 65_536]));
    ask(&tunnel, b"and it goes on").await.unwrap();
}

#[tokio::test]
async fn ends_agree_and_packets_of_any_size_come_back_by_quic() {
    let (bench, _server) = start(&fast(), &[]);
    agree_and_exchange(&bench).await;
    assert_eq!(bench.tunnel.transport(), Some(Transport::Quic));
    bench.tunnel.close().await;
}

#[tokio::test]
async fn ends_agree_and_packets_of_any_size_come_back_where_udp_is_blocked() {
    let (bench, _server) = start(&fast(), &[0, 1]);
    agree_and_exchange(&bench).await;
    assert_ne!(bench.tunnel.transport(), Some(Transport::Quic));
    bench.tunnel.close().await;
}

async fn ask_what_is_refused(down: &[usize]) {
    let identities = Identities::new();
    let server = server(&identities);
    serve(server.clone(), |request, _| async move {
        assert!(request.is_ip());
        match request.urgency() {
            Urgency::Prompt => request.refuse(StatusCode::FORBIDDEN).await,
            // A UDP answer, and a stream answer, to a request for packets.
            Urgency::Urgent => assert!(request.accept_udp().await.is_err()),
            Urgency::Bulk => assert!(request.accept().await.is_err()),
        }
    });
    let addr = server.local_addr();
    let bench = Bench::start_with(identities, addr, &fast(), down, |config| {
        config.fallback = true;
    });
    for (urgency, expected) in [
        (Urgency::Prompt, 403),
        (Urgency::Urgent, 501),
        (Urgency::Bulk, 501),
    ] {
        match within(bench.tunnel.open_ip(urgency)).await {
            Err(OpenError::Refused(status)) => assert_eq!(status, expected),
            other => panic!("{other:?}"),
        }
    }
    bench.tunnel.close().await;
}

#[tokio::test]
async fn refusals_carry_their_status_by_quic() {
    ask_what_is_refused(&[]).await;
}

#[tokio::test]
async fn refusals_carry_their_status_where_udp_is_blocked() {
    ask_what_is_refused(&[0, 1]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_request_goes_on_when_a_path_is_cut() {
    let (mut bench, _server) = start(&LinkConfig::new(20e6, Duration::from_millis(5)), &[]);
    bench.both_up().await;
    let tunnel = open(&bench).await;
    for cut in [0, 1] {
        ask(&tunnel, b"before").await.unwrap();
        bench.links[cut].set_up(false);
        bench
            .until(|event| matches!(event, TunnelEvent::PathDown { .. }))
            .await;
        for round in 0..20_u8 {
            ask(&tunnel, &[round; 1_280]).await.unwrap();
        }
        bench.links[cut].set_up(true);
        bench.both_up().await;
    }
    bench.tunnel.close().await;
}

#[tokio::test]
async fn an_invalid_capsule_ends_the_request_and_the_peer_sees_the_end() {
    let identities = Identities::new();
    let server = server(&identities);
    let (reason_to, mut reasons) = tokio::sync::mpsc::channel(4);
    serve(server.clone(), move |request: ConnectRequest, _| {
        let reason_to = reason_to.clone();
        async move {
            let tunnel = request.accept_ip().await.unwrap();
            let ended = tunnel.hear().await.unwrap_err();
            assert_eq!(tunnel.receive().await, Err(ended.clone()));
            let _ = reason_to.send(ended).await;
        }
    });
    let bench = Bench::start(identities, server.local_addr(), &fast(), &[]);
    let tunnel = open(&bench).await;
    // A request without a number (RFC 9484, 4.7.2).
    let unasked = IpCapsule::AddressRequest(vec![entry(0, "0.0.0.0/32")]);
    tunnel.say(&unasked).await.unwrap();
    let ended = within(reasons.recv()).await.unwrap();
    assert!(
        matches!(ended, TunnelEnded::MalformedCapsule(_)),
        "{ended:?}"
    );
    // The client sees the reset.
    let ended = within(tunnel.hear()).await.unwrap_err();
    assert_eq!(ended, TunnelEnded::ByPeer);
    drop(open(&bench).await);
    assert_eq!(within(reasons.recv()).await, Some(TunnelEnded::ByPeer));
    bench.tunnel.close().await;
}

/// A flood of packets is bulk in either form.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_packets_does_not_delay_urgent_streams() {
    let identities = Identities::new();
    let server = server(&identities);
    serve(server.clone(), |request, handle| async move {
        match request.is_ip() {
            true => echo(request, handle).await,
            false => crate::bench::echo(request, handle).await,
        }
    });
    let link = LinkConfig::new(1e6, Duration::from_millis(10));
    let bench = Bench::start(identities, server.local_addr(), &link, &[]);
    bench.both_up().await;
    let flood = open(&bench).await;
    let to = "any.test:7".parse().unwrap();
    let urgent = within(bench.tunnel.open_tcp(&to, Urgency::Urgent));
    let mut urgent = urgent.await.unwrap();
    let flooded = Arc::new(AtomicU64::new(0));
    let flooding = tokio::spawn({
        let flooded = flooded.clone();
        async move {
            // Far more than both links carry, in both sizes that TCP makes.
            let mut ticks = tokio::time::interval(Duration::from_millis(4));
            loop {
                ticks.tick().await;
                for size in [1_280, 52].repeat(10) {
                    flooded.fetch_add(u64::from(!flood.send(&vec![7; size])), Ordering::Relaxed);
                }
            }
        }
    });
    let mut times = Vec::new();
    within(async {
        while flooded.load(Ordering::Relaxed) < 100 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        for round in 0..20_u8 {
            let before = flooded.load(Ordering::Relaxed);
            let start = Instant::now();
            urgent.write_all(&[round; 4_000]).await.unwrap();
            urgent.flush().await.unwrap();
            let mut back = [0; 4_000];
            urgent.read_exact(&mut back).await.unwrap();
            times.push(start.elapsed());
            assert_eq!(back, [round; 4_000]);
            // The flood went on all the time.
            while flooded.load(Ordering::Relaxed) == before {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    })
    .await;
    times.sort();
    println!(
        "urgent exchanges took {:?} in the middle, {:?} at most",
        times[10], times[19]
    );
    flooding.abort();
    bench.tunnel.close().await;
}
