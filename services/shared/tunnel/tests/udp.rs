//! Properties of a UDP tunnel to a real destination over real sockets:
//! - datagrams of any size in both directions, over QUIC and where UDP is blocked,
//! - refusals with their status,
//! - a flow that survives the cut of a path or the loss of the session,
//! - no flood that delays urgent streams.

#![allow(clippy::unwrap_used)]

#[path = "support/bench.rs"]
mod bench;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bench::{Bench, Identities, echo, listen_anywhere, serve};
use emulated_link::link::{LinkConfig, Loss};
use testkit::{noise, udp_echo, within};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UdpSocket,
};
use tunnel::{
    Authority, ConnectRequest, OpenError, SessionHandle, StatusCode, Transport, TunnelEnded,
    TunnelEvent, TunnelServer, UdpTunnel, Urgency,
};

/// Interval between two questions with the same datagram; the first may be lost.
const AGAIN_AFTER: Duration = Duration::from_millis(250);

/// Far longer than a datagram needs on a busy machine.
const LONG: Duration = Duration::from_secs(20);

/// Datagrams that are sent once each.
const SENT: u32 = 300;

fn fast() -> LinkConfig {
    LinkConfig::new(100e6, Duration::from_millis(1))
}

/// Sends back each datagram.
async fn destination() -> Authority {
    udp_echo().await.to_string().parse().unwrap()
}

/// The proxy's handling of a request.
async fn relay(request: ConnectRequest, _: SessionHandle) {
    let address: SocketAddr = request.authority().as_str().parse().unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(address).await.unwrap();
    let tunnel = request.accept_udp().await.unwrap();
    let mut buffer = vec![0; 65_535];
    loop {
        tokio::select! {
            received = tunnel.receive() => match received {
                Ok(payload) => { socket.send(&payload).await.unwrap(); }
                Err(_) => return,
            },
            length = socket.recv(&mut buffer) => {
                tunnel.send(&buffer[..length.unwrap()]);
            }
        }
    }
}

fn server(identities: &Identities) -> Arc<TunnelServer> {
    let mut config = identities.server_config(listen_anywhere());
    config.fallback = true;
    Arc::new(TunnelServer::bind(config).unwrap())
}

/// Relays UDP and echoes streams over two links of `config`; `down` lists the links that are down.
fn start(config: &LinkConfig, down: &[usize]) -> (Bench, Arc<TunnelServer>) {
    let identities = Identities::new();
    let server = server(&identities);
    serve(server.clone(), |request, handle| async move {
        match request.is_udp() {
            true => relay(request, handle).await,
            false => echo(request, handle).await,
        }
    });
    let addr = server.local_addr();
    let bench = Bench::start_with(identities, addr, config, down, |config| {
        config.fallback = true;
    });
    (bench, server)
}

async fn open(bench: &Bench, to: &Authority) -> UdpTunnel {
    within(bench.tunnel.open_udp(to, Urgency::Bulk))
        .await
        .unwrap()
}

/// Asks until the same datagram comes back; UDP may lose it.
async fn ask(tunnel: &UdpTunnel, question: &[u8]) -> Result<(), TunnelEnded> {
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

async fn ask_all_sizes(bench: &Bench) {
    let tunnel = open(bench, &destination().await).await;
    // The largest payload over IPv4; datagrams larger than a packet are capsules.
    for (size, seed) in [0, 1, 63, 64, 1_200, 1_400, 1_500, 9_000, 65_507]
        .into_iter()
        .zip(1..)
    {
        ask(&tunnel, &noise(size, seed)).await.unwrap();
    }
    assert!(!tunnel.send(&vec![0; 65_528]));
    ask(&tunnel, b"and it goes on").await.unwrap();
}

#[tokio::test]
async fn datagrams_of_any_size_come_back_by_quic() {
    let (bench, _server) = start(&fast(), &[]);
    ask_all_sizes(&bench).await;
    assert_eq!(bench.tunnel.transport(), Some(Transport::Quic));
    bench.tunnel.close().await;
}

#[tokio::test]
async fn datagrams_of_any_size_come_back_where_udp_is_blocked() {
    let (bench, _server) = start(&fast(), &[0, 1]);
    ask_all_sizes(&bench).await;
    assert_ne!(bench.tunnel.transport(), Some(Transport::Quic));
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

async fn ask_what_is_refused(down: &[usize]) {
    let identities = Identities::new();
    let server = server(&identities);
    serve(server.clone(), |request, handle| async move {
        match request.authority().port_u16() {
            Some(1) => {
                assert_eq!(request.authority(), "[2001:db8::1]:1");
                assert_eq!(
                    (request.is_udp(), request.urgency()),
                    (true, Urgency::Prompt)
                );
                request.refuse(StatusCode::FORBIDDEN).await;
            }
            // A stream answer to a request for datagrams, and the reverse.
            Some(2) => assert!(request.accept().await.is_err()),
            Some(3) => assert!(request.accept_udp().await.is_err()),
            _ => relay(request, handle).await,
        }
    });
    let addr = server.local_addr();
    let bench = Bench::start_with(identities, addr, &fast(), down, |config| {
        config.fallback = true;
    });
    for (to, expected) in [("[2001:db8::1]:1", 403), ("dns:2", 501), ("dns", 400)] {
        let to = to.parse().unwrap();
        match within(bench.tunnel.open_udp(&to, Urgency::Prompt)).await {
            Err(OpenError::Refused(status)) => assert_eq!(status, expected, "{to}"),
            other => panic!("{other:?}"),
        }
    }
    let to = "dns:3".parse().unwrap();
    let opened = within(bench.tunnel.open_tcp(&to, Urgency::Bulk)).await;
    assert!(
        matches!(opened, Err(OpenError::Refused(StatusCode::NOT_IMPLEMENTED))),
        "{opened:?}"
    );
    bench.tunnel.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flow_goes_on_when_a_path_is_cut() {
    let (mut bench, _server) = start(&LinkConfig::new(20e6, Duration::from_millis(5)), &[]);
    bench.both_up().await;
    let tunnel = Arc::new(open(&bench, &destination().await).await);
    for cut in [0, 1] {
        ask(&tunnel, b"before").await.unwrap();
        bench.links[cut].set_up(false);
        bench
            .until(|event| matches!(event, TunnelEvent::PathDown { .. }))
            .await;
        // The same tunnel, over the remaining link.
        for round in 0..20_u8 {
            ask(&tunnel, &[round; 900]).await.unwrap();
        }
        bench.links[cut].set_up(true);
        bench.both_up().await;
    }
    bench.tunnel.close().await;
}

#[tokio::test]
async fn a_lost_session_ends_the_tunnel_and_the_next_one_takes_the_request() {
    let identities = Identities::new();
    let server = server(&identities);
    let (handle_to, mut handles) = tokio::sync::mpsc::channel(4);
    serve(server.clone(), move |request, handle: SessionHandle| {
        let handle_to = handle_to.clone();
        async move {
            handle_to.send(handle.clone()).await.unwrap();
            relay(request, handle).await;
        }
    });
    let bench = Bench::start(identities, server.local_addr(), &fast(), &[]);
    let to = destination().await;
    let first = open(&bench, &to).await;
    ask(&first, b"first").await.unwrap();
    within(handles.recv()).await.unwrap().close("lost");
    within(async { while first.receive().await.is_ok() {} }).await;
    let second = open(&bench, &to).await;
    ask(&second, b"second").await.unwrap();
    bench.tunnel.close().await;
    within(async { while second.receive().await.is_ok() {} }).await;
}

#[tokio::test]
async fn a_dropped_tunnel_ends_at_the_other_end() {
    let identities = Identities::new();
    let server = server(&identities);
    let (reason_to, mut reasons) = tokio::sync::mpsc::channel(4);
    serve(server.clone(), move |request: ConnectRequest, _| {
        let reason_to = reason_to.clone();
        async move {
            let tunnel = request.accept_udp().await.unwrap();
            while let Ok(payload) = tunnel.receive().await {
                tunnel.send(&payload);
            }
            let _ = reason_to.send(tunnel.receive().await.unwrap_err()).await;
        }
    });
    let bench = Bench::start(identities, server.local_addr(), &fast(), &[]);
    let tunnel = open(&bench, &"any.test:7".parse().unwrap()).await;
    ask(&tunnel, b"here").await.unwrap();
    drop(tunnel);
    assert_eq!(within(reasons.recv()).await, Some(TunnelEnded::ByPeer));
    bench.tunnel.close().await;
}

/// This distinguishes frames from capsules: all capsules would arrive, each delayed by the repair
/// of the one before.
#[tokio::test]
async fn lost_datagrams_are_not_sent_again() {
    let link = LinkConfig::new(20e6, Duration::from_millis(5)).with_loss(Loss::Bernoulli(0.1));
    let (bench, _server) = start(&link, &[]);
    let tunnel = open(&bench, &destination().await).await;
    ask(&tunnel, b"first").await.unwrap();
    let mut back = 0;
    let sending = async {
        for _ in 0..SENT {
            tunnel.send(b"once");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        std::future::pending::<()>().await;
    };
    let counting = async {
        loop {
            // The first quarter is awaited for as long as a busy machine takes.
            let patience = if back < SENT / 4 {
                LONG
            } else {
                AGAIN_AFTER * 4
            };
            match tokio::time::timeout(patience, tunnel.receive()).await {
                Ok(Ok(answer)) => back += u32::from(answer == "once"),
                Ok(Err(_)) | Err(_) => return,
            }
        }
    };
    tokio::select! {
        () = sending => {}
        () = counting => {}
    }
    assert!((SENT / 4..SENT).contains(&back), "{back} of {SENT}");
    bench.tunnel.close().await;
}

/// The transport drops the oldest datagrams when its memory is full, and each datagram takes memory
/// beside its payload.
#[tokio::test]
async fn no_datagram_is_lost_because_many_are_short() {
    const MANY: usize = 3_000;
    let identities = Identities::new();
    let server = server(&identities);
    let (arrived_to, mut arrived) = tokio::sync::mpsc::channel(MANY);
    serve(server.clone(), move |request: ConnectRequest, _| {
        let arrived_to = arrived_to.clone();
        async move {
            let tunnel = request.accept_udp().await.unwrap();
            while let Ok(payload) = tunnel.receive().await {
                arrived_to.send(payload.len()).await.unwrap();
            }
        }
    });
    let bench = Bench::start(identities, server.local_addr(), &fast(), &[]);
    for length in [0, 3] {
        let tunnel = open(&bench, &"any.test:7".parse().unwrap()).await;
        for _ in 0..MANY {
            assert!(tunnel.send(&[7; 3][..length]));
        }
        for _ in 0..MANY {
            assert_eq!(within(arrived.recv()).await, Some(length));
        }
    }
    bench.tunnel.close().await;
}

/// The transport sends datagrams before all streams; see `http_datagrams`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_datagrams_does_not_delay_urgent_streams() {
    let (bench, _server) = start(&LinkConfig::new(1e6, Duration::from_millis(10)), &[]);
    bench.both_up().await;
    let flood = Arc::new(open(&bench, &destination().await).await);
    let to = "any.test:7".parse().unwrap();
    let urgent = within(bench.tunnel.open_tcp(&to, Urgency::Urgent));
    let mut urgent = urgent.await.unwrap();
    let flooded = Arc::new(AtomicU64::new(0));
    let flooding = tokio::spawn({
        let (flood, flooded) = (flood.clone(), flooded.clone());
        async move {
            // Far more than both links carry, and too small to leave room in a packet.
            let mut ticks = tokio::time::interval(Duration::from_millis(4));
            loop {
                ticks.tick().await;
                for _ in 0..200 {
                    flooded.fetch_add(u64::from(!flood.send(&[7; 60])), Ordering::Relaxed);
                }
            }
        }
    });
    within(async {
        while flooded.load(Ordering::Relaxed) < 100 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        for round in 0..20_u8 {
            let before = flooded.load(Ordering::Relaxed);
            urgent.write_all(&[round; 4_000]).await.unwrap();
            urgent.flush().await.unwrap();
            let mut back = [0; 4_000];
            urgent.read_exact(&mut back).await.unwrap();
            assert_eq!(back, [round; 4_000]);
            // The flood went on all the time.
            while flooded.load(Ordering::Relaxed) == before {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    })
    .await;
    flooding.abort();
    bench.tunnel.close().await;
}
