//! Datagrams of applications over SOCKS5, through a real gateway and a real proxy to a real
//! destination.

#![allow(clippy::unwrap_used)]

#[path = "applications/stage.rs"]
mod stage;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use stage::Stage;
use testkit::{noise, udp_echo, within};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
};

/// Interval between two questions with the same datagram; the first may be lost.
const AGAIN_AFTER: Duration = Duration::from_millis(250);

/// Longer than an answer takes; an unanswered datagram was dropped.
const SILENCE: Duration = Duration::from_millis(300);

/// Datagrams sent one after another.
const BURST: u32 = 40;

/// An application with its association.
struct Application {
    connection: TcpStream,
    socket: UdpSocket,
    relay: SocketAddr,
}

/// Asks for an association; returns the reply's code and the address for datagrams.
async fn associate(connection: &mut TcpStream, port: u16) -> (u8, SocketAddr) {
    let mut request = vec![5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0];
    request.extend(port.to_be_bytes());
    within(connection.write_all(&request)).await.unwrap();
    let mut answer = [0; 12];
    within(connection.read_exact(&mut answer)).await.unwrap();
    let [5, 0, 5, code, 0, 1, ip @ .., high, low] = answer else {
        panic!("{answer:?}");
    };
    let port = u16::from_be_bytes([high, low]);
    (code, (Ipv4Addr::from(ip), port).into())
}

impl Application {
    async fn start(stage: &Stage) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let mut connection = stage.connect().await;
        let (code, relay) = associate(&mut connection, 0).await;
        assert_eq!((code, relay.ip()), (0, stage.address.ip()));
        Self {
            connection,
            socket,
            relay,
        }
    }

    async fn send(&self, header: &[u8], payload: &[u8]) {
        let datagram = [header, payload].concat();
        self.socket.send_to(&datagram, self.relay).await.unwrap();
    }

    /// The next datagram; `None` if none comes.
    async fn hear(&self, patience: Duration) -> Option<Vec<u8>> {
        let mut buffer = vec![0; 65_535];
        let heard = tokio::time::timeout(patience, self.socket.recv_from(&mut buffer)).await;
        let (length, from) = heard.ok()?.unwrap();
        assert_eq!(from, self.relay);
        buffer.truncate(length);
        Some(buffer)
    }

    /// Asks until the same datagram comes back under the same header.
    async fn ask(&self, header: &[u8], question: &[u8]) {
        let expected = [header, question].concat();
        within(async {
            loop {
                self.send(header, question).await;
                while let Some(heard) = self.hear(AGAIN_AFTER).await {
                    if heard == expected {
                        return;
                    }
                }
            }
        })
        .await;
    }
}

fn header(to: SocketAddr) -> Vec<u8> {
    let IpAddr::V4(ip) = to.ip() else {
        panic!("{to} is no IPv4 address");
    };
    let mut header = vec![0, 0, 0, 1];
    header.extend(ip.octets());
    header.extend(to.port().to_be_bytes());
    header
}

#[tokio::test]
async fn datagrams_go_to_several_destinations_and_come_back_under_their_header() {
    let (first, second) = (udp_echo().await, udp_echo().await);
    let by_name = format!("localhost:{}", second.port());
    let stage = Stage::start_with(&[first.to_string()], &[by_name], &[]).await;
    let application = Application::start(&stage).await;
    let mut name = b"\0\0\0\x03\x09localhost".to_vec();
    name.extend(second.port().to_be_bytes());
    for (size, seed) in [0, 500, 1_472, 30_000].into_iter().zip(1..) {
        application.ask(&header(first), &noise(size, seed)).await;
        application.ask(&name, &noise(size, seed)).await;
    }
    drop(application);
    stage.stop().await;
}

#[tokio::test]
async fn the_rules_see_each_destination_and_the_user() {
    let (first, second) = (udp_echo().await, udp_echo().await);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("steering.toml");
    let rule = |name: &str, matches: &str| {
        format!(
            "[[rule]]\nname = \"{name}\"\naccesses = [\"satellite\"]\nmatch = {{ {matches} }}\n"
        )
    };
    let port = first.port();
    let by_port = rule(
        "port",
        &format!("protocol = [\"udp\"], port = [\"{port}\"]"),
    );
    let by_user = rule("user", "application = [\"user:eve\"]");
    std::fs::write(&file, format!("format = 1\n{by_port}{by_user}")).unwrap();
    let allowed = [first, second].map(|to| to.to_string());
    let flags = ["--steering", &file.display().to_string()];
    let stage = Stage::start(&allowed, &flags).await;
    let application = Application::start(&stage).await;
    // The gateway has a path, and has decided.
    application.ask(&header(second), b"open").await;
    within(async {
        loop {
            application.send(&header(first), b"closed").await;
            if application.hear(SILENCE).await.is_none() {
                return;
            }
        }
    })
    .await;
    application.ask(&header(second), b"still open").await;
    // An association of a user without an access is refused.
    let mut connection = stage.connect().await;
    within(connection.write_all(b"\x05\x01\x02")).await.unwrap();
    let mut answer = [0; 2];
    within(connection.read_exact(&mut answer)).await.unwrap();
    within(connection.write_all(b"\x01\x03eve\x01x"))
        .await
        .unwrap();
    within(connection.read_exact(&mut answer)).await.unwrap();
    assert_eq!(answer, [1, 0]);
    let request = b"\x05\x03\0\x01\0\0\0\0\0\0";
    within(connection.write_all(request)).await.unwrap();
    within(connection.read_exact(&mut answer)).await.unwrap();
    assert_eq!((answer[0], answer[1] == 0), (5, false), "{answer:?}");
    drop(application);
    stage.stop().await;
}

/// A burst of an application exceeds the queue of a flow that is opening.
#[tokio::test]
async fn a_burst_comes_back_whole() {
    let to = udp_echo().await;
    let stage = Stage::start(&[to.to_string()], &[]).await;
    let application = Application::start(&stage).await;
    application.ask(&header(to), b"first").await;
    within(async {
        // A busy machine may lose some datagrams of a burst.
        loop {
            while application.hear(SILENCE).await.is_some() {}
            for _ in 0..BURST {
                application.send(&header(to), &[7; 1_000]).await;
            }
            let mut back = 0;
            while back < BURST && application.hear(SILENCE).await.is_some() {
                back += 1;
            }
            if back == BURST {
                return;
            }
        }
    })
    .await;
    drop(application);
    stage.stop().await;
}

#[tokio::test]
async fn datagrams_of_other_senders_are_dropped() {
    let (allowed, unlisted) = (udp_echo().await, udp_echo().await);
    let stage = Stage::start(&[allowed.to_string()], &[]).await;
    let application = Application::start(&stage).await;
    application.ask(&header(allowed), b"mine").await;
    // Another program of the same machine.
    let other_program = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let datagram = [&header(allowed)[..], b"theirs"].concat();
    other_program
        .send_to(&datagram, application.relay)
        .await
        .unwrap();
    let mut fragment = header(allowed);
    fragment[2] = 1;
    application.send(&fragment, b"a piece").await;
    application.send(&header(allowed)[..7], b"").await;
    application.send(&header(unlisted), b"not allowed").await;
    assert_eq!(application.hear(SILENCE).await, None);
    let mut buffer = [0; 64];
    let heard = tokio::time::timeout(SILENCE, other_program.recv_from(&mut buffer)).await;
    assert!(heard.is_err(), "{heard:?}");
    application.ask(&header(allowed), b"still mine").await;
    drop(application);
    stage.stop().await;
}

#[tokio::test]
async fn the_port_that_an_application_names_is_the_only_one() {
    let allowed = udp_echo().await;
    let stage = Stage::start(&[allowed.to_string()], &[]).await;
    let named = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let other = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut connection = stage.connect().await;
    let port = named.local_addr().unwrap().port();
    let (_, relay) = associate(&mut connection, port).await;
    // The first datagram, from a wrong address, has no effect.
    let early = [&header(allowed)[..], b"early"].concat();
    other.send_to(&early, relay).await.unwrap();
    let application = Application {
        connection,
        socket: named,
        relay,
    };
    application.ask(&header(allowed), b"named").await;
    drop(application);
    stage.stop().await;
}

#[tokio::test]
async fn an_association_ends_with_its_connection_and_gives_its_place_back() {
    let allowed = udp_echo().await;
    let flags = ["--applications-connections-max", "1"];
    let stage = Stage::start(&[allowed.to_string()], &flags).await;
    let application = Application::start(&stage).await;
    application.ask(&header(allowed), b"before").await;
    // The only place is taken.
    assert_eq!(associate(&mut stage.connect().await, 0).await.0, 1);
    drop(application.connection);
    let again = async {
        while associate(&mut stage.connect().await, 0).await.0 != 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(again).await;
    let datagram = [&header(allowed)[..], b"after"].concat();
    // The relay is closed; on loopback the kernel may report that.
    let _ = application
        .socket
        .send_to(&datagram, application.relay)
        .await;
    let mut buffer = [0; 64];
    let heard = tokio::time::timeout(SILENCE, application.socket.recv_from(&mut buffer)).await;
    assert!(!matches!(heard, Ok(Ok(_))), "{heard:?}");
    stage.stop().await;
}

/// One flow more than an association may have: the quietest gives way, and is reopened when it is
/// used again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_destinations_wait_until_an_old_one_is_quiet() {
    let mut destinations = Vec::new();
    for _ in 0..33 {
        destinations.push(udp_echo().await);
    }
    let allowed: Vec<String> = destinations.iter().map(SocketAddr::to_string).collect();
    let stage = Stage::start(&allowed, &[]).await;
    let application = Application::start(&stage).await;
    let (last, full) = destinations.split_last().unwrap();
    for to in full {
        application.ask(&header(*to), b"here").await;
    }
    // All flows were used a moment ago.
    application.send(&header(*last), b"no place").await;
    assert_eq!(application.hear(SILENCE).await, None);
    // The first flow has been quiet for five seconds at some time, and the second by the time that
    // the first is reopened.
    application.ask(&header(*last), b"one more").await;
    application.ask(&header(full[0]), b"back").await;
    drop(application);
    stage.stop().await;
}
