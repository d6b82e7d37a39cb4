//! Whose address it is.

use std::net::{IpAddr, Ipv6Addr};

/// Who has one address of IPv6 has the 2^64 of its network, and IPv4 may come mapped.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
        }
        address => address,
    }
}
