//! The public addresses of the proxy's own machine, in a network namespace. Skips on hosts without
//! namespaces.

use std::net::{Ipv4Addr, SocketAddr};

use crate::bench::{Proxy, authority_of, fast};
use testkit::{DEADLINE, netns::World, within};
use tokio::net::TcpListener;
use tunnel::{Authority, OpenError, StatusCode, Urgency};

const PUBLIC: Ipv4Addr = Ipv4Addr::new(9, 9, 9, 9);
/// An address of the same network, so that the kernel makes it the secondary address.
const SECOND: Ipv4Addr = Ipv4Addr::new(9, 9, 9, 10);

/// Whether a gateway reaches a listener at this address.
async fn is_reached(flags: &[&str], at: SocketAddr) -> bool {
    is_reached_as(flags, authority_of(at)).await
}

async fn is_reached_as(flags: &[&str], authority: Authority) -> bool {
    let proxy = Proxy::start(flags).await;
    let tunnel = proxy.tunnel(&proxy.gateway(), &fast(), DEADLINE);
    let opened = within(tunnel.open_tcp(&authority, Urgency::Bulk)).await;
    let is_reached = match opened {
        Ok(_) => true,
        Err(OpenError::Refused(StatusCode::FORBIDDEN)) => false,
        Err(error) => panic!("{error}"),
    };
    drop(tunnel);
    proxy.stop().await;
    is_reached
}

/// The system's resolver reads the last number of `9.9.2313` as two bytes, so this name resolves to
/// 9.9.9.9 without a name server.
#[test]
fn a_suffix_does_not_match_this_machine() {
    let Some(world) = World::new() else {
        return;
    };
    world.ip("px", &format!("addr add {PUBLIC}/24 dev lo"));
    let tested = world.spawn("px", || async {
        let listener = TcpListener::bind((PUBLIC, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let name: Authority = format!("9.9.2313:{port}").parse().unwrap();
        let reached = |flags: &'static [&'static str]| is_reached_as(flags, name.clone());
        assert!(!reached(&["--allow", "*.2313:*"]).await);
        assert!(!reached(&["--allow", "*.2313:*,*:*"]).await);
        assert!(reached(&["--allow", "*.2313:*,9.9.2313:*"]).await, "named");
        assert!(reached(&["--allow-private", "*.2313:*"]).await);
    });
    tested.join().unwrap();
}

#[test]
fn the_pattern_for_any_host_does_not_match_this_machine() {
    let Some(world) = World::new() else {
        return;
    };
    for address in [PUBLIC, SECOND] {
        world.ip("px", &format!("addr add {address}/24 dev lo"));
    }
    let tested = world.spawn("px", || async {
        for address in [PUBLIC, SECOND] {
            let listener = TcpListener::bind((address, 0)).await.unwrap();
            let at = listener.local_addr().unwrap();
            let listed = at.to_string();
            assert!(!is_reached(&["--allow", "*:*"], at).await, "{address}");
            let by_name = ["--allow", "*:*", "--allow", &listed];
            assert!(is_reached(&by_name, at).await);
            assert!(is_reached(&["--allow-private", "*:*"], at).await);
        }
    });
    tested.join().unwrap();
}
