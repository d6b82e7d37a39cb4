//! Gateway to destination through a running proxy, on real loopback sockets.

#![allow(clippy::unwrap_used)]

#[path = "support/bench.rs"]
mod bench;

use std::{net::SocketAddr, time::Duration};

use bench::{NAMES, Proxy, authority_of, echo, fast};
use emulated_link::link::LinkConfig;
use service_kit::tls::PeerId;
use testkit::{DEADLINE, noise, within, write_until_blocked};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
};
use tunnel::{OpenError, PathState, StatusCode, Tunnel, TunnelStream, Urgency};

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

async fn exchange(stream: TunnelStream, sent: &[u8]) -> Vec<u8> {
    let (mut read, mut write) = tokio::io::split(stream);
    let bytes = sent.to_vec();
    let writing = tokio::spawn(async move {
        write.write_all(&bytes).await.unwrap();
        write.shutdown().await.unwrap();
    });
    let mut back = Vec::new();
    read.read_to_end(&mut back).await.unwrap();
    writing.await.unwrap();
    back
}

async fn both_up(tunnel: &Tunnel) {
    within(async {
        loop {
            let paths = tunnel.paths();
            let up = |name: &&str| {
                paths.iter().any(|path| {
                    path.name == *name
                        && matches!(path.state, PathState::Available | PathState::Backup)
                })
            };
            if NAMES.iter().all(up) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

fn refused(opened: Result<TunnelStream, OpenError>) -> StatusCode {
    match opened {
        Err(OpenError::Refused(status)) => status,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_paths_carry_one_stream() {
    let upstream = echo().await;
    let proxy = Proxy::start(&["--allow", &upstream.to_string()]).await;
    let link = LinkConfig::new(20e6, Duration::from_millis(10));
    let tunnel = proxy.tunnel(&proxy.gateway(), &link, DEADLINE);
    both_up(&tunnel).await;
    let stream = within(tunnel.open_tcp(&authority_of(upstream), Urgency::Bulk))
        .await
        .unwrap();
    let sent = noise(4_000_000, 1);
    let back = within(exchange(stream, &sent)).await;
    assert!(back == sent, "bytes differ");
    let paths = tunnel.paths();
    for count in [
        |path: &tunnel::PathSnapshot| path.sent_bytes,
        |path: &tunnel::PathSnapshot| path.received_bytes,
    ] {
        let sum: u64 = paths.iter().map(count).sum();
        assert!(sum > 4_000_000);
        for name in NAMES {
            let of_name = paths.iter().filter(|path| path.name == name);
            let bytes: u64 = of_name.map(count).sum();
            assert!(bytes * 10 > sum * 3, "{name} carried {bytes} of {sum}");
        }
    }
    tunnel.close().await;
    proxy.stop().await;
}

#[tokio::test]
async fn only_listed_destinations_are_reached() {
    let upstream = echo().await;
    let unlisted = echo().await;
    let (closed, closed_address) = listener().await;
    drop(closed);
    let port = upstream.port();
    let (by_name, by_tenant) = (
        format!("localhost:{port}"),
        format!("other@localhost:{}", unlisted.port()),
    );
    let proxy = Proxy::start(&[
        "--allow",
        &upstream.to_string(),
        "--allow",
        &closed_address.to_string(),
        "--allow",
        &by_name,
        "--allow-private",
        &by_tenant,
        "--allow-private",
        "name.invalid:1",
    ])
    .await;
    let tunnel = proxy.tunnel(&proxy.gateway(), &fast(), DEADLINE);
    let ask = |authority: String| {
        let tunnel = tunnel.clone();
        async move { within(tunnel.open_tcp(&authority.parse().unwrap(), Urgency::Bulk)).await }
    };
    assert!(ask(upstream.to_string()).await.is_ok());
    assert_eq!(
        refused(ask(unlisted.to_string()).await),
        StatusCode::FORBIDDEN
    );
    // Listed by name, but the name leads to loopback.
    assert_eq!(refused(ask(by_name).await), StatusCode::FORBIDDEN);
    // Listed for another tenant.
    let of_other = format!("localhost:{}", unlisted.port());
    assert_eq!(refused(ask(of_other).await), StatusCode::FORBIDDEN);
    assert_eq!(
        refused(ask(closed_address.to_string()).await),
        StatusCode::BAD_GATEWAY
    );
    assert_eq!(
        refused(ask("name.invalid:1".into()).await),
        StatusCode::BAD_GATEWAY
    );
    tunnel.close().await;
    proxy.stop().await;
}

#[tokio::test]
async fn tunnels_of_a_gateway_are_bounded() {
    let upstream = echo().await;
    let allowed = upstream.to_string();
    let proxy = Proxy::start(&["--allow", &allowed, "--tunnels-per-gateway-max", "2"]).await;
    let tunnel = proxy.tunnel(&proxy.gateway(), &fast(), DEADLINE);
    let to = authority_of(upstream);
    let first = within(tunnel.open_tcp(&to, Urgency::Bulk)).await.unwrap();
    let _second = within(tunnel.open_tcp(&to, Urgency::Bulk)).await.unwrap();
    let third = within(tunnel.open_tcp(&to, Urgency::Bulk)).await;
    assert_eq!(refused(third), StatusCode::TOO_MANY_REQUESTS);
    drop(first);
    within(async {
        while tunnel.open_tcp(&to, Urgency::Bulk).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    tunnel.close().await;
    proxy.stop().await;
}

#[tokio::test]
async fn only_known_gateways_get_a_session() {
    let upstream = echo().await;
    let proxy = Proxy::start(&["--allow", &upstream.to_string()]).await;
    let service = proxy.identity(&PeerId::service("ingest"));
    for identity in [proxy.of_another_authority(), service] {
        let tunnel = proxy.tunnel(&identity, &fast(), Duration::from_secs(2));
        let opened = within(tunnel.open_tcp(&authority_of(upstream), Urgency::Bulk)).await;
        assert!(
            matches!(
                opened,
                Err(OpenError::NoSession(_) | OpenError::TimedOut(_))
            ),
            "{opened:?}"
        );
        tunnel.close().await;
    }
    let tunnel = proxy.tunnel(&proxy.gateway(), &fast(), DEADLINE);
    let opened = within(tunnel.open_tcp(&authority_of(upstream), Urgency::Bulk)).await;
    assert!(opened.is_ok());
    tunnel.close().await;
    proxy.stop().await;
}

#[tokio::test]
async fn a_slow_destination_stops_the_gateway() {
    let (listener, address) = listener().await;
    let (go, going) = oneshot::channel::<()>();
    let reading = tokio::spawn(async move {
        let (mut stream, _): (TcpStream, _) = listener.accept().await.unwrap();
        going.await.unwrap();
        let mut sum = 0;
        let mut buffer = vec![0; 64 * 1024];
        loop {
            match stream.read(&mut buffer).await.unwrap() {
                0 => return sum,
                count => sum += count,
            }
        }
    });
    let proxy = Proxy::start(&["--allow", &address.to_string()]).await;
    let tunnel = proxy.tunnel(&proxy.gateway(), &fast(), DEADLINE);
    let mut stream = within(tunnel.open_tcp(&authority_of(address), Urgency::Bulk))
        .await
        .unwrap();
    let taken = within(write_until_blocked(&mut stream, Duration::from_secs(1))).await;
    // A resumable tunnel holds 4 MB. The kernel's TCP buffers hold up to 4 and 6 MB, and the splice
    // holds one chunk.
    assert!(
        (2_500_000..15_000_000).contains(&taken),
        "{taken} bytes were taken"
    );
    go.send(()).unwrap();
    within(stream.shutdown()).await.unwrap();
    assert_eq!(within(reading).await.unwrap(), taken);
    tunnel.close().await;
    proxy.stop().await;
}

#[tokio::test]
async fn an_aborted_destination_is_no_clean_end() {
    let (listener, address) = listener().await;
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut byte = [0];
        stream.read_exact(&mut byte).await.unwrap();
        socket2::SockRef::from(&stream)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
    });
    let proxy = Proxy::start(&["--allow", &address.to_string()]).await;
    let tunnel = proxy.tunnel(&proxy.gateway(), &fast(), DEADLINE);
    let mut stream = within(tunnel.open_tcp(&authority_of(address), Urgency::Bulk))
        .await
        .unwrap();
    within(stream.write_all(b"xyz")).await.unwrap();
    within(stream.flush()).await.unwrap();
    let error = within(stream.read_to_end(&mut Vec::new()))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    tunnel.close().await;
    proxy.stop().await;
}

#[tokio::test]
async fn a_shutdown_lets_open_tunnels_end() {
    let upstream = echo().await;
    let allowed = upstream.to_string();
    let proxy = Proxy::start(&["--allow", &allowed, "--drain-ms", "20000"]).await;
    let tunnel = proxy.tunnel(&proxy.gateway(), &fast(), DEADLINE);
    let mut stream = within(tunnel.open_tcp(&authority_of(upstream), Urgency::Bulk))
        .await
        .unwrap();
    proxy.context.shutdown().request();
    within(stream.write_all(b"last words")).await.unwrap();
    within(stream.shutdown()).await.unwrap();
    let mut back = String::new();
    within(stream.read_to_string(&mut back)).await.unwrap();
    assert_eq!(back, "last words");
    drop(stream);
    within(proxy.running).await.unwrap().unwrap();
    tunnel.close().await;
}
