//! Addresses of the simulated network.
//!
//! The client's local address identifies an interface and never changes, because a socket stays
//! bound to its interface. The address that the server sees contains the number of changes
//! ([`Generation`]), so packets to an earlier address are recognised and dropped.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Interfaces that a client may have; the tables of the library and of the path scheduler are sized
/// for this.
pub const INTERFACES_MAX: usize = 8;
/// The server's only address.
pub const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 255, 0, 1)), 443);
/// First port of the client; a translator takes others from here on.
const PORT: u16 = 50_000;
/// Addresses that an interface may have in one run; more would not fit the octet that counts them.
pub const ADDRESSES_MAX: usize = 200;

/// How often an interface's address has changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Generation {
    /// The client's own.
    pub own: u8,
    /// The one that the server sees, the changes of the own one included.
    pub public: u8,
}

/// The client's end of a path over an interface, as it is known to the library.
pub fn client(interface: usize) -> SocketAddr {
    public(interface, Generation::default())
}

/// The client's address as the server sees it.
pub fn public(interface: usize, generation: Generation) -> SocketAddr {
    let ip = Ipv4Addr::new(10, generation.own, interface as u8, 2);
    let port = PORT + interface as u16 + 16 * u16::from(generation.public);
    SocketAddr::new(IpAddr::V4(ip), port)
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
            assert_eq!(client(interface), public(interface, first));
        }
        assert_eq!(interface_of(SERVER.ip()), None);
    }
}
