//! The checksum of the internet (RFC 1071), as ICMP, TCP and UDP have it.

use std::net::IpAddr;

use super::IpPacket;

/// The complement of the sum of 16-bit words. Over a message with a right checksum it is zero.
pub fn checksum(pieces: &[&[u8]]) -> u16 {
    !fold(pieces.iter().map(|piece| sum(piece)).sum())
}

/// The checksum over a message and its pseudo-header (RFC 793, 3.1; RFC 8200, 8.1).
pub fn checksum_between(source: IpAddr, destination: IpAddr, protocol: u8, message: &[u8]) -> u16 {
    let ends = IpPacket {
        source,
        destination,
    };
    !fold(u64::from(sum_between(ends, protocol, message.len())) + sum(message))
}

/// The sum of a pseudo-header, which a device completes.
pub fn sum_between(ends: IpPacket, protocol: u8, length: usize) -> u16 {
    let of = |address: IpAddr| match address {
        IpAddr::V4(address) => sum(&address.octets()),
        IpAddr::V6(address) => sum(&address.octets()),
    };
    // The length of a payload has 16 bits.
    let head = length as u64 + u64::from(protocol);
    fold(of(ends.source) + of(ends.destination) + head)
}

/// Without carry; each piece but the last must have an even length.
fn sum(piece: &[u8]) -> u64 {
    let (words, rest) = piece.as_chunks::<4>();
    // In the machine's own order: the sum's bytes are swapped with those of the words (RFC 1071,
    // 2).
    let sum: u64 = words
        .iter()
        .map(|word| u64::from(u32::from_ne_bytes(*word)))
        .sum();
    let (pairs, last) = rest.as_chunks::<2>();
    let pairs = pairs.iter().map(|pair| u16::from_be_bytes(*pair));
    let last = last.iter().map(|last| u16::from(*last) << 8);
    let rest: u64 = pairs.chain(last).map(u64::from).sum();
    u64::from(u16::from_be(fold(sum))) + rest
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_rfc_has_its_checksum() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(checksum(&[&bytes]), !0xddf2);
        assert_eq!(checksum(&[&bytes[..2], &bytes[2..]]), !0xddf2);
        assert_eq!(checksum(&[&bytes, &[0x22, 0x0d]]), 0);
    }

    #[test]
    fn an_odd_last_byte_counts_as_the_high_half() {
        assert_eq!(checksum(&[&[1, 2, 3]]), checksum(&[&[1, 2, 3, 0]]));
    }
}
