//! The flow of a packet, as far as rules and orders name it.

use std::net::IpAddr;

use super::{IpPacket, packet::HEADER_V6_BYTES};

const TCP: u8 = 6;
const UDP: u8 = 17;
/// SCTP, DCCP and UDP-Lite have their ports at the same place.
const WITH_PORTS: [u8; 5] = [TCP, UDP, 132, 33, 136];

/// A flow by its end behind the proxy, without the end at the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PacketFlow {
    pub destination: IpAddr,
    /// Number of the transport protocol.
    pub protocol: u8,
    /// The port of the destination; `None` for fragments and for protocols without ports.
    pub port: Option<u16>,
}

impl PacketFlow {
    /// The flow of a packet to its destination, whose header has been read.
    pub fn to(read: &IpPacket, packet: &[u8]) -> Self {
        Self::of(read.destination, packet, 2)
    }

    /// The flow of a packet that comes from there.
    pub fn from(read: &IpPacket, packet: &[u8]) -> Self {
        Self::of(read.source, packet, 0)
    }

    fn of(destination: IpAddr, packet: &[u8], port_at: usize) -> Self {
        let (protocol, ports) = transport(packet);
        Self {
            destination,
            protocol: protocol.unwrap_or_default(),
            port: ports.map(|ports| u16::from_be_bytes([ports[port_at], ports[port_at + 1]])),
        }
    }

    pub fn is_tcp(&self) -> bool {
        self.protocol == TCP
    }

    pub fn is_udp(&self) -> bool {
        self.protocol == UDP
    }
}

/// The transport protocol of a packet, and its ports of source and destination. Fragments have no
/// ports.
pub fn transport(packet: &[u8]) -> (Option<u8>, Option<&[u8; 4]>) {
    let (protocol, is_whole, at) = match packet.first().map(|first| first >> 4) {
        Some(4) => {
            let place = packet.get(6..8);
            let is_whole = place.is_some_and(|it| [it[0] & 0x3f, it[1]] == [0, 0]);
            (packet.get(9), is_whole, 4 * usize::from(packet[0] & 0xf))
        }
        // A fragment of IPv6 has a header of its own, which is no protocol with ports.
        Some(6) => (packet.get(6), true, HEADER_V6_BYTES),
        _ => return (None, None),
    };
    let ports = packet.get(at..).and_then(|rest| rest.first_chunk());
    let has_ports = is_whole && protocol.is_some_and(|it| WITH_PORTS.contains(it));
    (protocol.copied(), ports.filter(|_| has_ports))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn flow(packet: &[u8]) -> PacketFlow {
        PacketFlow::to(&IpPacket::read(packet).unwrap(), packet)
    }

    #[test]
    fn a_flow_has_the_port_of_its_destination_where_there_is_one() {
        let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, UDP, 0, 0];
        packet.extend([10, 64, 0, 7, 192, 0, 2, 9]);
        packet.extend([0x12, 0x34, 0x23, 0x28, 0, 8, 0, 0]);
        let udp = flow(&packet);
        assert_eq!(udp.destination, IpAddr::from([192, 0, 2, 9]));
        assert!(udp.is_udp() && !udp.is_tcp());
        assert_eq!(udp.port, Some(9_000));
        let back = PacketFlow::from(&IpPacket::read(&packet).unwrap(), &packet);
        assert_eq!(back.destination, IpAddr::from([10, 64, 0, 7]));
        assert_eq!(back.port, Some(0x1234));
        packet[9] = 1;
        assert_eq!(flow(&packet).port, None);
        packet[9] = TCP;
        assert!(flow(&packet).is_tcp());
        assert_eq!(flow(&packet).port, Some(9_000));
        // A fragment, of which only the first would have ports.
        packet[6] = 0x20;
        assert_eq!(flow(&packet).port, None);
    }

    #[test]
    fn a_flow_of_ipv6_has_it_as_well() {
        let mut packet = vec![0x60, 0, 0, 0, 0, 8, UDP, 64];
        packet.extend([7; 32]);
        packet.extend([0x12, 0x34, 0x23, 0x28, 0, 8, 0, 0]);
        assert_eq!(flow(&packet).port, Some(9_000));
        // A fragment.
        packet[6] = 44;
        packet[40..48].copy_from_slice(&[UDP, 0, 0, 1, 0, 0, 0, 1]);
        assert_eq!(flow(&packet).port, None);
    }
}
