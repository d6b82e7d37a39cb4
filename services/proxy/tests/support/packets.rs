//! IP packets as a gateway writes them.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Both ports of a datagram.
pub const PORT: u16 = 9_007;

fn sum(words: impl Iterator<Item = u16>) -> u16 {
    let sum: u32 = words.map(u32::from).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// A UDP datagram without checksum, which IPv4 permits.
pub fn packet(from: Ipv4Addr, to: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let length = (28 + payload.len()) as u16;
    let mut packet = vec![0x45, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    let check = sum(packet
        .chunks(2)
        .map(|pair| u16::from_be_bytes([pair[0], pair[1]])));
    packet[10..12].copy_from_slice(&check.to_be_bytes());
    packet.extend(PORT.to_be_bytes());
    packet.extend(PORT.to_be_bytes());
    packet.extend((length - 20).to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(payload);
    packet
}

/// An echo request of ICMPv6 with its checksum.
pub fn echo_request(from: Ipv6Addr, to: Ipv6Addr, payload: usize) -> Vec<u8> {
    let length = (8 + payload) as u16;
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([58, 64]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    packet.extend([128, 0, 0, 0, 0, 7, 0, 1]);
    packet.resize(packet.len() + payload, 5);
    let check = icmp_check(&packet);
    packet[42..44].copy_from_slice(&check.to_be_bytes());
    packet
}

/// Zero if the checksum of the packet is right (RFC 4443, 2.3).
pub fn icmp_check(packet: &[u8]) -> u16 {
    let words = packet[8..].chunks(2);
    let words = words.map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
    sum(words.chain([(packet.len() - 40) as u16, 58]))
}
