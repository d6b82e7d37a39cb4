//! The network of an address, as the unit of per-address bounds.

use std::net::{IpAddr, Ipv6Addr};

/// A host of IPv6 has all 2^64 addresses of its network, so the network counts. An IPv4-mapped
/// address counts as IPv4.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
        }
        address => address,
    }
}
