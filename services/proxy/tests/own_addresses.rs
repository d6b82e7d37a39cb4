//! The public addresses of the proxy's own machine, in a network namespace of its own. Skips where there are no namespaces to be had.

#![allow(clippy::unwrap_used)]

#[path = "support/bench.rs"]
mod bench;

use std::net::{Ipv4Addr, SocketAddr};

use bench::{Proxy, authority_of, fast};
use testkit::{DEADLINE, netns::World, within};
use tokio::net::TcpListener;
use tunnel::{OpenError, StatusCode, Urgency};

const PUBLIC: Ipv4Addr = Ipv4Addr::new(9, 9, 9, 9);
/// Of the same network, so that the kernel takes it for the second.
const SECOND: Ipv4Addr = Ipv4Addr::new(9, 9, 9, 10);

/// Whether a gateway gets to a listener there.
async fn is_reached(flags: &[&str], at: SocketAddr) -> bool {
    let proxy = Proxy::start(flags).await;
    let tunnel = proxy.tunnel(&proxy.gateway(), &fast(), DEADLINE);
    let opened = within(tunnel.open_tcp(&authority_of(at), Urgency::Bulk)).await;
    let is_reached = match opened {
        Ok(_) => true,
        Err(OpenError::Refused(StatusCode::FORBIDDEN)) => false,
        Err(error) => panic!("{error}"),
    };
    drop(tunnel);
    proxy.stop().await;
    is_reached
}

#[test]
fn any_host_does_not_mean_this_machine() {
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
