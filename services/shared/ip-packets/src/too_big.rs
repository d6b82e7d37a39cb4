//! The answer to a packet that is larger than the tunnel carries in one piece. It is "fragmentation
//! needed" (RFC 792, RFC 1191) or "packet too big" (RFC 4443, 3.2). Its sender then sends smaller
//! ones.

use std::net::IpAddr;

use super::{
    IpPacket,
    checksum::{checksum, checksum_between},
    packet::{HEADER_ICMP_BYTES, HEADER_V4_BYTES, HEADER_V6_BYTES, ICMP, ICMP_V6},
};

/// Bytes of an answer at most: what every host receives in one piece (RFC 1812, 4.3.2.3; RFC 4443,
/// 2.4 c).
const ANSWER_V4_BYTES_MAX: usize = 576;
const ANSWER_V6_BYTES_MAX: usize = 1_280;

const HOPS: u8 = 64;

/// "Don't fragment", in the byte of an IPv4 header that begins with the flags.
const DONT_FRAGMENT: u8 = 0x40;

/// The answer to the sender of `packet`, in the name of its destination, since the tunnel has no
/// address in the sender's network. `None` if the packet may be cut into fragments, is itself
/// an ICMP error, or is no valid packet of one sender.
pub fn too_big(packet: &[u8], bytes_max: u16) -> Option<Vec<u8>> {
    let read = IpPacket::read(packet).ok()?;
    let is_of_one = |address: IpAddr| !address.is_unspecified() && !address.is_multicast();
    if !is_of_one(read.source) || !is_of_one(read.destination) {
        return None;
    }
    match (read.destination, read.source) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let [flags, fragment] = [packet[6], packet[7]];
            if flags & DONT_FRAGMENT == 0 || [flags & 0x1f, fragment] != [0, 0] {
                return None;
            }
            // Only questions of ICMP are answered.
            if packet[9] == ICMP && packet.get(HEADER_V4_BYTES) != Some(&8) {
                return None;
            }
            let quote = ANSWER_V4_BYTES_MAX - HEADER_V4_BYTES - HEADER_ICMP_BYTES;
            let quoted = &packet[..packet.len().min(quote)];
            let length = HEADER_V4_BYTES + HEADER_ICMP_BYTES + quoted.len();
            let [high, low] = (length as u16).to_be_bytes();
            let mut header = [0x45, 0, high, low, 0, 0, 0, 0, HOPS, ICMP].to_vec();
            header.extend([0; 2]);
            header.extend(from.octets());
            header.extend(to.octets());
            let check = checksum(&[&header]);
            put(&mut header, 10, check);
            let [high, low] = bytes_max.to_be_bytes();
            let mut message = [&[3, 4, 0, 0, 0, 0, high, low], quoted].concat();
            let check = checksum(&[&message]);
            put(&mut message, 2, check);
            header.extend(message);
            Some(header)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            // Errors have types below 128.
            if packet[6] == ICMP_V6 && packet.get(HEADER_V6_BYTES).is_none_or(|kind| *kind < 128) {
                return None;
            }
            let quote = ANSWER_V6_BYTES_MAX - HEADER_V6_BYTES - HEADER_ICMP_BYTES;
            let quoted = &packet[..packet.len().min(quote)];
            let [high, low] = bytes_max.to_be_bytes();
            let mut message = [&[2, 0, 0, 0, 0, 0, high, low], quoted].concat();
            let check = checksum_between(read.destination, read.source, ICMP_V6, &message);
            put(&mut message, 2, check);
            let [high, low] = (message.len() as u16).to_be_bytes();
            let mut answer = [0x60, 0, 0, 0, high, low, ICMP_V6, HOPS].to_vec();
            answer.extend(from.octets());
            answer.extend(to.octets());
            answer.extend(message);
            Some(answer)
        }
        _ => None,
    }
}

fn put(bytes: &mut [u8], at: usize, word: u16) {
    bytes[at..at + 2].copy_from_slice(&word.to_be_bytes());
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::gate::example;

    const HERE: [u8; 4] = [10, 64, 0, 7];
    const THERE: [u8; 4] = [192, 0, 2, 9];
    const HERE_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 7);
    const THERE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9);

    fn v4(flags: u8, protocol: u8, length: u16) -> Vec<u8> {
        let [high, low] = length.to_be_bytes();
        let mut packet = vec![0x45, 0, high, low, 0, 0, flags, 0, 64, protocol, 0, 0];
        packet.extend(HERE);
        packet.extend(THERE);
        packet.push(8);
        packet.resize(length.into(), 0xab);
        packet
    }

    fn v6(protocol: u8, first: u8, length: u16) -> Vec<u8> {
        let [high, low] = (length - 40).to_be_bytes();
        let mut packet = vec![0x60, 0, 0, 0, high, low, protocol, 64];
        packet.extend(HERE_V6.octets());
        packet.extend(THERE_V6.octets());
        packet.push(first);
        packet.resize(length.into(), 0xab);
        packet
    }

    #[test]
    fn the_sender_is_told_the_size_that_fits() {
        for length in [1_400, 1_500, 9_000] {
            let packet = v4(DONT_FRAGMENT, 17, length);
            let answer = too_big(&packet, 1_324).unwrap();
            let read = example().arriving(&answer).unwrap();
            assert_eq!(read.source, IpAddr::from(Ipv4Addr::from(THERE)));
            assert_eq!(answer.len(), ANSWER_V4_BYTES_MAX);
            assert_eq!(checksum(&[&answer[..20]]), 0);
            assert_eq!(checksum(&[&answer[20..]]), 0);
            assert_eq!(answer[20..22], [3, 4]);
            assert_eq!(answer[26..28], 1_324_u16.to_be_bytes());
            assert_eq!(answer[28..], packet[..548]);
            let packet = v6(17, 1, length);
            let answer = too_big(&packet, 1_324).unwrap();
            let read = example().arriving(&answer).unwrap();
            assert_eq!(read.source, IpAddr::from(THERE_V6));
            assert_eq!(answer.len(), ANSWER_V6_BYTES_MAX);
            let message = &answer[40..];
            assert_eq!(
                checksum_between(read.source, read.destination, ICMP_V6, message),
                0
            );
            assert_eq!(message[..2], [2, 0]);
            assert_eq!(message[4..8], 1_324_u32.to_be_bytes());
            assert_eq!(message[8..], packet[..1_232]);
        }
    }

    #[test]
    fn questions_of_icmp_are_answered_and_errors_are_not() {
        assert!(too_big(&v4(DONT_FRAGMENT, ICMP, 1_400), 1_280).is_some());
        assert!(too_big(&v6(ICMP_V6, 128, 1_400), 1_280).is_some());
        assert_eq!(too_big(&v6(ICMP_V6, 2, 1_400), 1_280), None);
        let mut error = v4(DONT_FRAGMENT, ICMP, 1_400);
        error[20] = 3;
        assert_eq!(too_big(&error, 1_280), None);
    }

    #[test]
    fn a_packet_that_may_be_cut_and_one_of_many_get_no_answer() {
        assert_eq!(too_big(&v4(0, 17, 1_400), 1_280), None);
        // A later fragment.
        assert_eq!(too_big(&v4(DONT_FRAGMENT | 1, 17, 1_400), 1_280), None);
        let mut to_many = v4(DONT_FRAGMENT, 17, 1_400);
        to_many[16] = 224;
        assert_eq!(too_big(&to_many, 1_280), None);
        let mut from_none = v6(17, 1, 1_400);
        from_none[8..24].fill(0);
        assert_eq!(too_big(&from_none, 1_280), None);
        assert_eq!(too_big(&[0x45; 30], 1_280), None);
    }
}
