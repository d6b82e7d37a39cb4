//! Addresses of the simulated network. An address of the client names its interface and how often it has changed,
//! so that a datagram from or to an address that is gone can be told from one that arrives.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::scenario::INTERFACES_MAX;

/// The server's only address.
pub const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 255, 0, 1)), 443);
/// First port of the client; a translator takes others from here on.
const PORT: u16 = 50_000;
/// Addresses that an interface may have in one run; more would not fit the octet that counts them.
pub const ADDRESSES_MAX: usize = 200;

/// Which addresses an interface has at a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Generation {
    /// Changes of the client's own address.
    pub own: u8,
    /// Changes of the address that the server sees, its own ones included.
    pub public: u8,
}

/// The client's own address on an interface.
pub fn client(interface: usize, generation: Generation) -> SocketAddr {
    let ip = Ipv4Addr::new(10, generation.own, interface as u8, 2);
    SocketAddr::new(IpAddr::V4(ip), PORT + interface as u16)
}

/// The same behind an address translator, as the server sees it.
pub fn public(interface: usize, generation: Generation) -> SocketAddr {
    let mut address = client(interface, generation);
    address.set_port(PORT + interface as u16 + 16 * u16::from(generation.public));
    address
}

/// The interface that owns an address of the client.
pub fn interface_of(ip: IpAddr) -> Option<usize> {
    let IpAddr::V4(ip) = ip else { return None };
    let interface = usize::from(ip.octets()[2]);
    (ip.octets()[1] <= ADDRESSES_MAX as u8 && interface < INTERFACES_MAX).then_some(interface)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_its_interface_and_no_two_generations_share_one() {
        let first = Generation::default();
        let moved = Generation { own: 1, public: 1 };
        let translated = Generation { own: 0, public: 1 };
        for interface in 0..INTERFACES_MAX {
            for generation in [first, moved, translated] {
                let ip = public(interface, generation).ip();
                assert_eq!(interface_of(ip), Some(interface));
            }
            assert_ne!(public(interface, first), public(interface, moved));
            assert_ne!(public(interface, first), public(interface, translated));
            assert_eq!(client(interface, first), client(interface, translated));
        }
        assert_eq!(interface_of(SERVER.ip()), None);
    }
}
