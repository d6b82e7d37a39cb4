//! The only packet that an end of the tunnel answers itself: an ICMPv6 echo request to all nodes of
//! the link. With it a peer tests that the tunnel carries the 1,280 bytes that IPv6 demands of a
//! link. Without an answer the peer gives up (RFC 9484, 7.1).

use std::net::{IpAddr, Ipv6Addr};

use super::{
    IpPacket,
    checksum::checksum_between,
    packet::{HEADER_V6_BYTES, ICMP_V6},
};

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Type and code (RFC 4443, 4).
const REQUEST: [u8; 2] = [128, 0];
const REPLY: [u8; 2] = [129, 0];

/// Only for the link, but a peer may decrement it once.
const HOPS: u8 = 64;

/// The answer of `own`, as long as the request; `None` for another or a damaged packet.
pub fn link_echo(packet: &[u8], own: Ipv6Addr) -> Option<Vec<u8>> {
    let read = IpPacket::read(packet).ok()?;
    let IpAddr::V6(asker) = read.source else {
        return None;
    };
    if read.destination != ALL_NODES || packet[6] != ICMP_V6 {
        return None;
    }
    let message = &packet[HEADER_V6_BYTES..];
    let [kind, code, _, _] = *message.first_chunk()?;
    if [kind, code] != REQUEST || checksum(asker, ALL_NODES, message) != 0 {
        return None;
    }
    let mut answer = packet.to_vec();
    answer[7] = HOPS;
    answer[8..24].copy_from_slice(&own.octets());
    answer[24..40].copy_from_slice(&asker.octets());
    answer[40..42].copy_from_slice(&REPLY);
    answer[42..44].fill(0);
    let check = checksum(own, asker, &answer[HEADER_V6_BYTES..]);
    answer[42..44].copy_from_slice(&check.to_be_bytes());
    Some(answer)
}

/// Zero for a message with a right checksum.
fn checksum(source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> u16 {
    checksum_between(source.into(), destination.into(), ICMP_V6, message)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const OWN: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x64, 0, 0, 0, 0, 0, 1);
    const ASKER: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x64, 0, 0, 0, 0, 0, 9);

    fn question(payload: usize) -> Vec<u8> {
        let mut message = [&REQUEST[..], &[0, 0, 0, 7, 0, 1]].concat();
        message.resize(8 + payload, 0xab);
        let check = checksum(ASKER, ALL_NODES, &message);
        message[2..4].copy_from_slice(&check.to_be_bytes());
        let length = (message.len() as u16).to_be_bytes();
        let head = [0x60, 0, 0, 0, length[0], length[1], ICMP_V6, 1];
        let addresses = [ASKER.octets(), ALL_NODES.octets()].concat();
        [&head[..], &addresses, &message].concat()
    }

    #[test]
    fn an_echo_to_all_nodes_is_answered_with_its_payload_and_a_right_checksum() {
        // The form that Linux sends.
        let (own, message) = (Ipv6Addr::LOCALHOST, [128, 0, 0, 0, 0, 7, 0, 1, 0xab]);
        assert_eq!(checksum(own, own, &message), 0xd4b1);
        for payload in [0, 1, 1_232, 65_527] {
            let asked = question(payload);
            let answer = link_echo(&asked, OWN).unwrap();
            let read = IpPacket::read(&answer).unwrap();
            assert_eq!(
                [read.source, read.destination],
                [OWN, ASKER].map(IpAddr::from)
            );
            assert_eq!(answer[40..42], REPLY);
            assert_eq!(answer[44..], asked[44..]);
            assert_eq!(checksum(OWN, ASKER, &answer[40..]), 0);
        }
    }

    #[test]
    fn other_packets_get_no_answer() {
        let asked = question(8);
        for (at, why) in [
            (6, "another protocol"),
            (20, "a forged source"),
            (39, "another group"),
            (40, "an answer or an error"),
            (41, "another code"),
            (42, "a damaged checksum"),
            (50, "a damaged payload"),
        ] {
            let mut other = asked.clone();
            other[at] ^= 1;
            assert_eq!(link_echo(&other, OWN), None, "{why}");
        }
        for length in 0..asked.len() {
            assert_eq!(link_echo(&asked[..length], OWN), None);
        }
        let mut short = asked[..43].to_vec();
        short[5] = 3;
        assert_eq!(link_echo(&short, OWN), None);
    }
}
