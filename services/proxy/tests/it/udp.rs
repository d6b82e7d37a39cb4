//! Gateway to a UDP destination through a running proxy, on real loopback sockets.

use std::{net::SocketAddr, time::Duration};

use crate::bench::{Proxy, authority_of, fast};
use testkit::{DEADLINE, within};
use tokio::net::UdpSocket;
use tunnel::{OpenError, StatusCode, Tunnel, UdpTunnel, Urgency};

/// Interval between two questions with the same datagram; the first may be lost.
const AGAIN_AFTER: Duration = Duration::from_millis(250);

/// Answers each datagram with its source address and its content.
async fn destination() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 2_048];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            let text = String::from_utf8_lossy(&buffer[..length]);
            let answer = format!("{from} {text}");
            let _ = socket.send_to(answer.as_bytes(), from).await;
        }
    });
    address
}

async fn open(tunnel: &Tunnel, to: SocketAddr) -> UdpTunnel {
    let to = authority_of(to);
    let opened = within(tunnel.open_udp(&to, Urgency::Bulk)).await;
    opened.unwrap()
}

async fn ask(tunnel: &UdpTunnel, question: &str) -> SocketAddr {
    within(async {
        loop {
            tunnel.send(question.as_bytes());
            let answer = tokio::time::timeout(AGAIN_AFTER, tunnel.receive()).await;
            let Ok(answer) = answer else {
                continue;
            };
            let answer = String::from_utf8(answer.unwrap().to_vec()).unwrap();
            let (from, text) = answer.split_once(' ').unwrap();
            assert_eq!(text, question);
            return from.parse().unwrap();
        }
    })
    .await
}

async fn status(tunnel: &Tunnel, to: &str) -> StatusCode {
    let opened = within(tunnel.open_udp(&to.parse().unwrap(), Urgency::Bulk)).await;
    match opened {
        Err(OpenError::Refused(status)) => status,
        other => panic!("{to} gives {other:?}"),
    }
}

#[tokio::test]
async fn datagrams_go_only_to_listed_destinations_from_one_socket_per_request() {
    let (listed, unlisted) = (destination().await, destination().await);
    let by_name = format!("localhost:{}", listed.port());
    let flags = ["--allow", &listed.to_string(), "--allow", &by_name];
    let proxy = Proxy::start(&flags).await;
    let tunnel = proxy.tunnel(&proxy.gateway(), &fast(), DEADLINE);
    let first = open(&tunnel, listed).await;
    let second = open(&tunnel, listed).await;
    let from = ask(&first, "first").await;
    assert_ne!(ask(&second, "second").await, from);
    assert_eq!(ask(&first, "again").await, from);
    assert_eq!(status(&tunnel, &unlisted.to_string()).await, 403);
    // The name is listed, but not in the list for private addresses.
    assert_eq!(status(&tunnel, &by_name).await, 403);
    assert_eq!(status(&tunnel, "name-of-nobody.invalid:53").await, 403);
    tunnel.close().await;
    proxy.stop().await;
}

#[tokio::test]
async fn datagrams_count_among_the_tunnels_of_a_gateway() {
    let listed = destination().await;
    let to = listed.to_string();
    let flags = ["--allow", &to, "--tunnels-per-gateway-max", "1"];
    let proxy = Proxy::start(&flags).await;
    let tunnel = proxy.tunnel(&proxy.gateway(), &fast(), DEADLINE);
    let first = open(&tunnel, listed).await;
    ask(&first, "only").await;
    assert_eq!(status(&tunnel, &to).await, StatusCode::TOO_MANY_REQUESTS);
    drop(first);
    let again = async {
        loop {
            if let Ok(next) = tunnel.open_udp(&authority_of(listed), Urgency::Bulk).await {
                return next;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    ask(&within(again).await, "next").await;
    tunnel.close().await;
    proxy.stop().await;
}

#[tokio::test]
async fn a_destination_without_a_listener_is_reached_later() {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    drop(socket);
    let proxy = Proxy::start(&["--allow", &address.to_string()]).await;
    let tunnel = proxy.tunnel(&proxy.gateway(), &fast(), DEADLINE);
    let udp = open(&tunnel, address).await;
    // ICMP reports that no socket listens; the tunnel goes on.
    for _ in 0..5 {
        udp.send(b"anybody?");
        assert!(
            tokio::time::timeout(Duration::from_millis(50), udp.receive())
                .await
                .is_err()
        );
    }
    let socket = UdpSocket::bind(address).await.unwrap();
    let mut buffer = [0; 64];
    within(async {
        loop {
            udp.send(b"now?");
            let heard = tokio::time::timeout(AGAIN_AFTER, socket.recv_from(&mut buffer)).await;
            if let Ok(heard) = heard {
                let (length, from) = heard.unwrap();
                assert_eq!(&buffer[..length], b"now?");
                socket.send_to(b"yes", from).await.unwrap();
                break;
            }
        }
        assert_eq!(udp.receive().await.unwrap(), "yes");
    })
    .await;
    tunnel.close().await;
    proxy.stop().await;
}
