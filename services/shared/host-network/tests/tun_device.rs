//! A TUN device beside a machine's other devices. Skips on hosts without namespaces.

#![allow(clippy::unwrap_used)]

use std::net::IpAddr;

use host_network::{TunDevice, TunError};
use ip_packets::IpPrefix;
use testkit::netns::World;

#[test]
fn a_network_of_another_device_is_not_routed_to_the_tun_device() {
    let Some(world) = World::new() else {
        return;
    };
    let tested = world.spawn("px", || async {
        let device = TunDevice::open("braid0").unwrap();
        device.set_up().await.unwrap();
        let own: IpAddr = "10.64.0.7".parse().unwrap();
        // Twice, since the address may exist already.
        for _ in 0..2 {
            device.add_address(own, 32).await.unwrap();
        }
        let add = async |to: &str| device.add_route(to.parse::<IpPrefix>().unwrap(), own).await;
        for _ in 0..2 {
            add("10.7.0.0/24").await.unwrap();
        }
        // The route of the other device, which keeps it.
        for _ in 0..2 {
            let refused = add("10.9.0.0/24").await;
            assert!(
                matches!(refused, Err(TunError::Taken { .. })),
                "{refused:?}"
            );
        }
        let ours = "10.7.0.0/24".parse().unwrap();
        device.remove_route(ours).await.unwrap();
        assert!(device.remove_route(ours).await.is_err());
    });
    tested.join().unwrap();
}
