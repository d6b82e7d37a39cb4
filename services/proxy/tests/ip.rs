//! IP packets of gateways through a running proxy and a real TUN device, in a network namespace.
//! Skips on hosts without namespaces.

#![allow(clippy::unwrap_used)]

#[path = "support/bench.rs"]
mod bench;
#[path = "support/packets.rs"]
mod packets;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};

use bench::{Proxy, authority_of, echo, fast};
use contracts::policy::{
    GetPolicyRequest, GetPolicyResponse, ListRevocationsRequest, ListRevocationsResponse,
    RevokedGateway,
    policy_service_server::{PolicyService, PolicyServiceServer},
};
use ip_packets::{IpPrefix, IpRange};
use packets::{PORT, echo_request, icmp_check, packet};
use parking_lot::Mutex;
use service_kit::tls::PeerId;
use testkit::{DEADLINE, netns::World, within};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, UdpSocket},
};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};
use tunnel::{IpAddressEntry, IpCapsule, IpTunnel, OpenError, Tunnel, TunnelEnded, Urgency};

/// Interval between two questions with the same packet; the first may be lost.
const AGAIN_AFTER: Duration = Duration::from_millis(250);

/// Longer than an answer takes; an unanswered packet was dropped.
const SILENCE: Duration = Duration::from_millis(300);

const FLAGS: [&str; 8] = [
    "--ip-pool",
    "10.64.0.0/29",
    "--tun",
    "braid0",
    "--allow-ip",
    "acme@10.8.0.0/24",
    "--allow-ip",
    "0.0.0.0/0",
];

/// A listed destination and one that is not listed.
const LISTED: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 2);
const UNLISTED: Ipv4Addr = Ipv4Addr::new(10, 8, 1, 2);
/// A public address of the machine itself.
const PUBLIC: Ipv4Addr = Ipv4Addr::new(9, 9, 9, 9);

/// Runs a test in a namespace that has both destinations.
fn alone<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let Some(world) = World::new() else {
        return;
    };
    for address in [LISTED, UNLISTED, PUBLIC] {
        world.ip("px", &format!("addr add {address}/32 dev lo"));
    }
    let tested = world.spawn("px", test).join();
    tested.unwrap();
}

/// The packets that a destination has received.
type Heard = Arc<Mutex<Vec<Vec<u8>>>>;

/// Sends back each packet.
async fn destination(at: Ipv4Addr) -> Heard {
    let socket = UdpSocket::bind((at, PORT)).await.unwrap();
    let heard = Heard::default();
    tokio::spawn({
        let heard = heard.clone();
        async move {
            let mut buffer = [0; 2_048];
            while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
                heard.lock().push(buffer[..length].to_vec());
                let _ = socket.send_to(&buffer[..length], from).await;
            }
        }
    });
    heard
}

async fn open(tunnel: &Tunnel) -> IpTunnel {
    within(tunnel.open_ip(Urgency::Bulk)).await.unwrap()
}

fn asking(request_id: u64, wanted: &str) -> IpCapsule {
    let prefix = wanted.parse().unwrap();
    IpCapsule::AddressRequest(vec![IpAddressEntry { request_id, prefix }])
}

/// The routes that the proxy advertises, and the address that it assigns.
async fn agree(ip: &IpTunnel, wanted: &str) -> (Vec<IpRange>, Ipv4Addr) {
    ip.say(&asking(1, wanted)).await.unwrap();
    let IpCapsule::RouteAdvertisement(routes) = within(ip.hear()).await.unwrap() else {
        panic!("no routes first");
    };
    (routes, given(ip).await)
}

async fn given(ip: &IpTunnel) -> Ipv4Addr {
    let heard = within(ip.hear()).await.unwrap();
    let IpCapsule::AddressAssign(entries) = heard else {
        panic!("{heard:?}");
    };
    let [entry] = entries[..] else {
        panic!("{entries:?}");
    };
    assert_eq!((entry.request_id, entry.prefix.length()), (1, 32));
    entry.prefix.network().to_string().parse().unwrap()
}

/// The payload of the answer; `None` if there is none.
async fn ask(ip: &IpTunnel, packet: &[u8]) -> Option<Vec<u8>> {
    ip.send(packet);
    let answer = tokio::time::timeout(SILENCE, ip.receive()).await.ok()?;
    Some(answer.unwrap()[28..].to_vec())
}

async fn ask_until_answered(ip: &IpTunnel, packet: &[u8]) -> Vec<u8> {
    within(async {
        loop {
            ip.send(packet);
            if let Ok(answer) = tokio::time::timeout(AGAIN_AFTER, ip.receive()).await {
                return answer.unwrap()[28..].to_vec();
            }
        }
    })
    .await
}

#[test]
fn packets_pass_only_from_the_own_address_to_listed_destinations() {
    alone(|| async {
        let proxy = Proxy::start(&FLAGS).await;
        let own = Ipv4Addr::new(10, 64, 0, 1);
        let mut heard = Vec::new();
        for address in [LISTED, UNLISTED, PUBLIC, Ipv4Addr::LOCALHOST, own] {
            heard.push(destination(address).await);
        }
        let tunnel = proxy.tunnel(&proxy.gateway(), &fast(), DEADLINE);
        let ip = open(&tunnel).await;
        let (routes, own) = agree(&ip, "0.0.0.0/32").await;
        let leads = |to: &str| {
            routes
                .iter()
                .any(|route| route.contains(to.parse().unwrap()))
        };
        assert_eq!(
            [LISTED, UNLISTED, PUBLIC].map(|to| leads(&to.to_string())),
            [true, false, false]
        );
        assert_eq!(
            ["9.9.9.8", "1.1.1.1", "127.0.0.1", "10.64.0.3"].map(leads),
            [true, true, false, false]
        );
        let sound = packet(own, LISTED, b"hello");
        assert_eq!(ask_until_answered(&ip, &sound).await, b"hello");
        let neighbour = Ipv4Addr::from_bits(own.to_bits() ^ 1);
        let mut options = packet(own, LISTED, &[1; 30]);
        options[0] = 0x46;
        let proxys_own = Ipv4Addr::new(10, 64, 0, 1);
        let hello = |heard: &Heard| {
            let heard = heard.lock();
            heard.iter().all(|payload| payload == b"hello")
        };
        for (dropped, why) in [
            (
                packet(own, UNLISTED, b"not listed"),
                "an unlisted destination",
            ),
            (packet(neighbour, LISTED, b"forged"), "another's source"),
            (packet(UNLISTED, LISTED, b"forged"), "a source of the core"),
            (
                packet(own, proxys_own, b"inside"),
                "the proxy's own address",
            ),
            (packet(own, neighbour, b"inside"), "another gateway"),
            (
                packet(own, PUBLIC, b"inside"),
                "the machine's public address",
            ),
            (packet(own, Ipv4Addr::LOCALHOST, b"inside"), "loopback"),
            (sound[..sound.len() - 1].to_vec(), "a torn packet"),
            (options, "options"),
            (Vec::new(), "nothing"),
            (vec![0x45], "one byte"),
        ] {
            assert_eq!(ask(&ip, &dropped).await, None, "{why}");
        }
        assert_eq!(ask_until_answered(&ip, &sound).await, b"hello");
        assert!(heard.iter().all(hello), "{heard:?}");
        // A source that the gateway may not reach cannot reach the gateway either.
        let unlisted = UdpSocket::bind((UNLISTED, 9)).await.unwrap();
        unlisted.send_to(b"unasked", (own, PORT)).await.unwrap();
        let listed = UdpSocket::bind((LISTED, 9)).await.unwrap();
        listed.send_to(b"allowed", (own, PORT)).await.unwrap();
        let first = within(ip.receive()).await.unwrap();
        assert_eq!(&first[28..], b"allowed");
        tunnel.close().await;
        proxy.stop().await;
    });
}

/// The policy's file permits one destination, and then another.
#[test]
fn an_ip_tunnel_ends_when_its_routes_change_and_the_next_one_has_the_new() {
    alone(|| async {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("policy.toml");
        let permit = |prefix: &str| {
            let group = "[[group]]\nname = \"g\"\ngateways = [\"acme/gw-1\"]";
            std::fs::write(&file, format!("{group}\nallow_ip = [\"{prefix}\"]")).unwrap();
        };
        permit("10.8.0.0/24");
        let pool = ["--ip-pool", "10.64.0.0/29", "--tun", "braid0"];
        let policy = ["--policy", file.to_str().unwrap()];
        let proxy = Proxy::start(&[&pool[..], &policy].concat()).await;
        for address in [LISTED, UNLISTED] {
            destination(address).await;
        }
        let tunnel = proxy.tunnel(&proxy.gateway(), &fast(), DEADLINE);
        let ip = open(&tunnel).await;
        let (_, own) = agree(&ip, "0.0.0.0/32").await;
        let first = packet(own, LISTED, b"first");
        assert_eq!(ask_until_answered(&ip, &first).await, b"first");
        permit("10.8.1.0/24");
        within(async { while ip.receive().await.is_ok() {} }).await;
        let ip = open(&tunnel).await;
        let (_, own) = agree(&ip, "0.0.0.0/32").await;
        let second = packet(own, UNLISTED, b"second");
        assert_eq!(ask_until_answered(&ip, &second).await, b"second");
        let first = packet(own, LISTED, b"first");
        assert_eq!(ask(&ip, &first).await, None);
        tunnel.close().await;
        proxy.stop().await;
    });
}

/// A client of another vendor tests the tunnel as an IPv6 link in this way (RFC 9484, 7.1).
#[test]
fn the_proxy_answers_an_echo_to_all_nodes() {
    alone(|| async {
        let flags = "--ip-pool fd00:64::/112 --tun braid0 --allow-ip fd00:8::/64";
        let proxy = Proxy::start(&flags.split(' ').collect::<Vec<_>>()).await;
        let tunnel = proxy.tunnel(&proxy.gateway(), &fast(), DEADLINE);
        let ip = open(&tunnel).await;
        ip.say(&asking(1, "::/128")).await.unwrap();
        within(ip.hear()).await.unwrap();
        let Ok(IpCapsule::AddressAssign(given)) = within(ip.hear()).await else {
            panic!("no address");
        };
        let IpAddr::V6(own) = given[0].prefix.network() else {
            panic!("{given:?}");
        };
        let all_nodes = "ff02::1".parse().unwrap();
        let answer = within(async {
            loop {
                ip.send(&echo_request(own, all_nodes, 1_232));
                if let Ok(answer) = tokio::time::timeout(AGAIN_AFTER, ip.receive()).await {
                    return answer.unwrap();
                }
            }
        })
        .await;
        let proxys: Ipv6Addr = "fd00:64::1".parse().unwrap();
        let mut expected = echo_request(proxys, own, 1_232);
        expected[40] = 129;
        expected[42..44].fill(0);
        let check = icmp_check(&expected);
        expected[42..44].copy_from_slice(&check.to_be_bytes());
        assert!(answer == expected, "{:x?}", &answer[..48]);
        // A question that was asked twice has two answers.
        while tokio::time::timeout(SILENCE, ip.receive()).await.is_ok() {}
        let neighbour = Ipv6Addr::from_bits(own.to_bits() ^ 1);
        let mut damaged = echo_request(own, all_nodes, 8);
        damaged[50] ^= 1;
        for unanswered in [
            echo_request(neighbour, all_nodes, 8),
            echo_request(own, "ff02::2".parse().unwrap(), 8),
            echo_request(own, proxys, 8),
            damaged,
        ] {
            assert_eq!(ask(&ip, &unanswered).await, None, "{unanswered:x?}");
        }
        tunnel.close().await;
        proxy.stop().await;
    });
}

#[test]
fn an_address_belongs_to_its_gateway_over_sessions_and_to_its_newest_tunnel() {
    alone(|| async {
        let proxy = Proxy::start(&FLAGS).await;
        destination(LISTED).await;
        let first = proxy.tunnel(&proxy.gateway(), &fast(), DEADLINE);
        let ip = open(&first).await;
        let (_, own) = agree(&ip, "10.64.0.5/32").await;
        assert_eq!(own, Ipv4Addr::new(10, 64, 0, 5));
        // A repeated request gets the same answer.
        ip.say(&asking(1, "10.64.0.6/32")).await.unwrap();
        assert_eq!(given(&ip).await, own);
        first.close().await;

        let second = proxy.tunnel(&proxy.gateway(), &fast(), DEADLINE);
        let ip = open(&second).await;
        assert_eq!(agree(&ip, "0.0.0.0/32").await.1, own);
        let newer = open(&second).await;
        assert_eq!(agree(&newer, "0.0.0.0/32").await.1, own);
        assert_eq!(within(ip.receive()).await, Err(TunnelEnded::ByPeer));
        let sound = packet(own, LISTED, b"newest");
        assert_eq!(ask_until_answered(&newer, &sound).await, b"newest");

        // The pool has five addresses: each gateway gets another address, and with all in use a new
        // gateway gets none.
        let mut others = Vec::new();
        for number in 2..=6 {
            let id = PeerId::gateway("acme", format!("gw-{number}"));
            let tunnel = proxy.tunnel(&proxy.identity(&id), &fast(), DEADLINE);
            let ip = open(&tunnel).await;
            let (_, given) = agree(&ip, "10.64.0.5/32").await;
            others.push((tunnel, ip, given));
        }
        let mut addresses: Vec<_> = others.iter().map(|(_, _, given)| *given).collect();
        assert_eq!(addresses.pop(), Some(Ipv4Addr::UNSPECIFIED));
        addresses.push(own);
        addresses.sort();
        let all = IpPrefix::new("10.64.0.0".parse().unwrap(), 29).unwrap();
        let expected = (2..=6).map(|offset| all.nth(offset).unwrap());
        assert!(expected.eq(addresses.into_iter().map(IpAddr::from)));
        for (tunnel, ..) in others {
            tunnel.close().await;
        }
        second.close().await;
        proxy.stop().await;
    });
}

/// A path-telemetry that revokes the listed gateways.
struct FakePathTelemetry(Arc<Mutex<Vec<RevokedGateway>>>);

#[tonic::async_trait]
impl PolicyService for FakePathTelemetry {
    async fn get_policy(
        &self,
        _: Request<GetPolicyRequest>,
    ) -> Result<Response<GetPolicyResponse>, Status> {
        Err(Status::not_found("no policy"))
    }

    async fn list_revocations(
        &self,
        request: Request<ListRevocationsRequest>,
    ) -> Result<Response<ListRevocationsResponse>, Status> {
        let gateways = self.0.lock().clone();
        let version = 1 + gateways.len() as u64;
        Ok(Response::new(ListRevocationsResponse {
            version,
            unchanged: version == request.into_inner().version,
            gateways,
        }))
    }
}

#[test]
fn a_revoked_gateway_loses_its_address() {
    alone(|| async {
        let revoked = Arc::new(Mutex::new(Vec::new()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(
            tonic::transport::Server::builder()
                .add_service(PolicyServiceServer::new(FakePathTelemetry(revoked.clone())))
                .serve_with_incoming(TcpListenerStream::new(listener)),
        );
        let flags = [&FLAGS[..], &["--path-telemetry", &url]].concat();
        let proxy = Proxy::start(&flags).await;
        let tunnel = proxy.tunnel(&proxy.gateway(), &fast(), DEADLINE);
        let ip = open(&tunnel).await;
        let (_, own) = agree(&ip, "10.64.0.5/32").await;
        revoked.lock().push(RevokedGateway {
            tenant: "acme".to_owned(),
            gateway: "gw-1".to_owned(),
            excepted: Vec::new(),
        });
        within(async { while ip.receive().await.is_ok() {} }).await;
        tunnel.close().await;
        // The requested address is assigned. The first packet may still arrive.
        let mut given = Vec::new();
        for number in 2..=4 {
            let id = PeerId::gateway("acme", format!("gw-{number}"));
            let tunnel = proxy.tunnel(&proxy.identity(&id), &fast(), DEADLINE);
            given.push(agree(&open(&tunnel).await, &format!("{own}/32")).await.1);
            tunnel.close().await;
        }
        assert!(given.contains(&own), "{given:?}");
        proxy.stop().await;
    });
}

/// An operator creates the device and gives it away; the steps that need rights are done by then.
#[test]
fn a_device_of_an_operator_needs_no_rights() {
    let Some(world) = World::new() else {
        return;
    };
    for arguments in [
        "tuntap add dev braid0 mode tun user root",
        "addr add 10.64.0.1/29 dev braid0",
        "addr add 10.8.0.2/32 dev lo",
    ] {
        world.ip("px", arguments);
    }
    let (says, is_down) = std::sync::mpsc::channel();
    let tested = world.spawn_powerless("px", || async move {
        // Without a usable device it serves all others, and says so.
        let echo = echo().await;
        let allowed = echo.to_string();
        let flags = [&FLAGS[..], &["--allow", &allowed]].concat();
        let proxy = Proxy::start(&flags).await;
        destination(LISTED).await;
        let tunnel = proxy.tunnel(&proxy.gateway(), &fast(), DEADLINE);
        assert_eq!(status(&tunnel).await, 503);
        let warnings = proxy.context.health().warnings();
        let warning = warnings.iter().find(|(name, _)| *name == "tun");
        assert_eq!(warning.unwrap().1.to_do, "ip link set braid0 up");
        let stream = within(tunnel.open_tcp(&authority_of(echo), Urgency::Bulk)).await;
        let mut stream = stream.unwrap();
        stream.write_all(b"x").await.unwrap();
        stream.flush().await.unwrap();
        within(stream.read_exact(&mut [0])).await.unwrap();
        says.send(()).unwrap();
        let ip = open_soon(&tunnel).await;
        let (_, own) = agree(&ip, "0.0.0.0/32").await;
        let sound = packet(own, LISTED, b"hello");
        assert_eq!(ask_until_answered(&ip, &sound).await, b"hello");
        tunnel.close().await;
        proxy.stop().await;
    });
    is_down.recv().unwrap();
    world.ip("px", "link set braid0 mtu 1280 up");
    tested.join().unwrap();
}

/// Asks until the proxy can use its device.
async fn open_soon(tunnel: &Tunnel) -> IpTunnel {
    within(async {
        loop {
            match tunnel.open_ip(Urgency::Bulk).await {
                Ok(ip) => return ip,
                Err(_) => tokio::time::sleep(AGAIN_AFTER).await,
            }
        }
    })
    .await
}

async fn status(tunnel: &Tunnel) -> u16 {
    match within(tunnel.open_ip(Urgency::Bulk)).await {
        Err(OpenError::Refused(status)) => status.as_u16(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_proxy_without_ip_refuses_it_with_501() {
    let proxy = Proxy::start(&["--allow", "*:*"]).await;
    let tunnel = proxy.tunnel(&proxy.gateway(), &fast(), DEADLINE);
    assert_eq!(status(&tunnel).await, 501);
    tunnel.close().await;
    proxy.stop().await;
}

#[test]
fn a_tenant_that_may_reach_nothing_is_refused() {
    alone(|| async {
        let mut flags = FLAGS[..6].to_vec();
        flags[5] = "other@10.8.0.0/24";
        let proxy = Proxy::start(&flags).await;
        let tunnel = proxy.tunnel(&proxy.gateway(), &fast(), DEADLINE);
        assert_eq!(status(&tunnel).await, 403);
        tunnel.close().await;
        proxy.stop().await;
    });
}
