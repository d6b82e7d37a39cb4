//! The header of an IP packet: source, destination, and its validity.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The minimum that IPv6 demands of a link (RFC 8200, 5; RFC 9484, 7), however little paths carry.
pub const PACKET_BYTES_MIN: u16 = 1_280;

pub(super) const HEADER_V4_BYTES: usize = 20;
pub(super) const HEADER_V6_BYTES: usize = 40;

/// Bytes of an ICMP header.
pub(super) const HEADER_ICMP_BYTES: usize = 8;
pub(super) const ICMP: u8 = 1;
pub(super) const ICMP_V6: u8 = 58;

/// Extension headers of an IPv6 packet; a packet with more is refused. Hosts send at most four.
const EXTENSIONS_MAX: usize = 8;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MalformedPacket {
    #[error("shorter than its header")]
    Short,
    #[error("of an IP version {0}")]
    Version(u8),
    #[error("its length field is wrong")]
    Length,
    /// A source route leads to another place than the destination, and the other IPv4 options are
    /// not needed.
    #[error("has options, or a route of its own")]
    Options,
}

impl MalformedPacket {
    pub fn label(&self) -> &'static str {
        match self {
            Self::Short | Self::Version(_) | Self::Length => "malformed",
            Self::Options => "options",
        }
    }
}

/// The fields of a packet header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpPacket {
    pub source: IpAddr,
    pub destination: IpAddr,
}

impl IpPacket {
    /// Reads the header of a complete packet. The receiver verifies checksums.
    pub fn read(packet: &[u8]) -> Result<Self, MalformedPacket> {
        match packet.first().map(|first| first >> 4) {
            Some(4) => read_v4(packet),
            Some(6) => read_v6(packet),
            Some(other) => Err(MalformedPacket::Version(other)),
            None => Err(MalformedPacket::Short),
        }
    }

    /// Source and destination of a packet that is not checked further.
    pub fn ends(packet: &[u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => packet.first_chunk().map(ends_v4),
            6 => packet.first_chunk().map(ends_v6),
            _ => None,
        }
    }

    /// The packet that an ICMP error quotes (RFC 792, RFC 4443), from its header, which may be all
    /// that is quoted. `None` if this is no such error.
    pub(super) fn quoted(packet: &[u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => {
                let header = packet.first_chunk::<HEADER_V4_BYTES>()?;
                // Later fragments have no ICMP header at this place.
                let is_first = [header[6] & 0x1f, header[7]] == [0, 0];
                let message = packet.get(HEADER_V4_BYTES..)?;
                // Destination unreachable, time exceeded, parameter problem.
                let is_error = header[9] == ICMP && matches!(message.first()?, 3 | 11 | 12);
                let head = message.get(HEADER_ICMP_BYTES..)?.first_chunk()?;
                (is_first && is_error && head[0] >> 4 == 4).then(|| ends_v4(head))
            }
            6 => {
                let header = packet.first_chunk::<HEADER_V6_BYTES>()?;
                let message = packet.get(HEADER_V6_BYTES..)?;
                // ICMPv6 errors; the second is "packet too big".
                let is_error = header[6] == ICMP_V6 && matches!(message.first()?, 1..=4);
                let head = message.get(HEADER_ICMP_BYTES..)?.first_chunk()?;
                (is_error && head[0] >> 4 == 6).then(|| ends_v6(head))
            }
            _ => None,
        }
    }
}

/// RFC 791, 3.1.
fn read_v4(packet: &[u8]) -> Result<IpPacket, MalformedPacket> {
    let header = packet.first_chunk::<HEADER_V4_BYTES>();
    let header = header.ok_or(MalformedPacket::Short)?;
    match header[0] & 0xf {
        0..5 => return Err(MalformedPacket::Short),
        5 => {}
        _ => return Err(MalformedPacket::Options),
    }
    let length = u16::from_be_bytes([header[2], header[3]]);
    if usize::from(length) != packet.len() {
        return Err(MalformedPacket::Length);
    }
    Ok(ends_v4(header))
}

fn ends_v4(header: &[u8; HEADER_V4_BYTES]) -> IpPacket {
    let [.., a, b, c, d, e, f, g, h] = *header;
    IpPacket {
        source: Ipv4Addr::new(a, b, c, d).into(),
        destination: Ipv4Addr::new(e, f, g, h).into(),
    }
}

/// RFC 8200, 3.
fn read_v6(packet: &[u8]) -> Result<IpPacket, MalformedPacket> {
    let header = packet.first_chunk::<HEADER_V6_BYTES>();
    let header = header.ok_or(MalformedPacket::Short)?;
    let length = u16::from_be_bytes([header[4], header[5]]);
    if HEADER_V6_BYTES + usize::from(length) != packet.len() {
        return Err(MalformedPacket::Length);
    }
    refuse_routed(header[6], &packet[HEADER_V6_BYTES..])?;
    Ok(ends_v6(header))
}

/// Refuses a packet that continues from its destination to another, like segment routing (RFC
/// 8754): the core may trust packets from inside. The extension headers are parsed (RFC 8200, 4) up
/// to the payload. A first fragment must have all of them (RFC 7112); later fragments have none.
fn refuse_routed(mut kind: u8, mut rest: &[u8]) -> Result<(), MalformedPacket> {
    for _ in 0..=EXTENSIONS_MAX {
        // Hop-by-hop and destination options, mobility, host identity, shim.
        if !matches!(
            kind,
            0 | ROUTING | FRAGMENT | AUTHENTICATION | 60 | 135 | 139 | 140
        ) {
            return Ok(());
        }
        let [next, length, high, low] = *rest.first_chunk().ok_or(MalformedPacket::Short)?;
        let length = match kind {
            FRAGMENT if u16::from_be_bytes([high, low]) >> 3 != 0 => return Ok(()),
            FRAGMENT => 8,
            AUTHENTICATION => (usize::from(length) + 2) * 4,
            // Segments left.
            ROUTING if low != 0 => return Err(MalformedPacket::Options),
            _ => (usize::from(length) + 1) * 8,
        };
        rest = rest.get(length..).ok_or(MalformedPacket::Short)?;
        kind = next;
    }
    Err(MalformedPacket::Options)
}

fn ends_v6(header: &[u8; HEADER_V6_BYTES]) -> IpPacket {
    let at = |from: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&header[from..from + 16]);
        Ipv6Addr::from(octets).into()
    };
    IpPacket {
        source: at(8),
        destination: at(24),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn v4(payload: usize) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0];
        packet.extend([10, 64, 0, 2, 192, 0, 2, 9]);
        packet.resize(HEADER_V4_BYTES + payload, 7);
        packet[2..4].copy_from_slice(&((HEADER_V4_BYTES + payload) as u16).to_be_bytes());
        packet
    }

    fn v6(payload: usize) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, 0, 17, 64];
        packet.extend("fd00::2".parse::<Ipv6Addr>().unwrap().octets());
        packet.extend("2001:db8::9".parse::<Ipv6Addr>().unwrap().octets());
        packet.resize(HEADER_V6_BYTES + payload, 7);
        packet[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
        packet
    }

    #[test]
    fn source_and_destination_are_read() {
        let read = |packet: &[u8]| {
            let packet = IpPacket::read(packet).unwrap();
            [packet.source.to_string(), packet.destination.to_string()]
        };
        assert_eq!(read(&v4(0)), ["10.64.0.2", "192.0.2.9"]);
        assert_eq!(read(&v4(1_260)), ["10.64.0.2", "192.0.2.9"]);
        assert_eq!(read(&v6(0)), ["fd00::2", "2001:db8::9"]);
        assert_eq!(read(&v6(1_240)), ["fd00::2", "2001:db8::9"]);
    }

    #[test]
    fn invalid_packets_are_refused() {
        for whole in [v4(30), v6(30)] {
            let header = if whole[0] >> 4 == 4 { 20 } else { 40 };
            for length in 0..whole.len() {
                let expected = match length < header {
                    true => MalformedPacket::Short,
                    false => MalformedPacket::Length,
                };
                assert_eq!(IpPacket::read(&whole[..length]), Err(expected), "{length}");
            }
            let longer = [&whole[..], &[0]].concat();
            assert_eq!(IpPacket::read(&longer), Err(MalformedPacket::Length));
        }
        let mut options = v4(30);
        options[0] = 0x46;
        assert_eq!(IpPacket::read(&options), Err(MalformedPacket::Options));
        options[0] = 0x44;
        assert_eq!(IpPacket::read(&options), Err(MalformedPacket::Short));
        options[0] = 0x55;
        assert_eq!(IpPacket::read(&options), Err(MalformedPacket::Version(5)));
    }

    /// An extension header of one kind, with its length in units of eight bytes, and the next
    /// header.
    fn extension(next: u8, kind_and_left: [u8; 2], units: usize) -> Vec<u8> {
        let mut header = vec![next, units as u8 - 1, kind_and_left[0], kind_and_left[1]];
        header.resize(units * 8, 0);
        header
    }

    fn v6_with(first: u8, extensions: &[Vec<u8>]) -> Vec<u8> {
        let mut packet = v6(0);
        packet[6] = first;
        packet.extend(extensions.concat());
        packet.extend([7; 16]);
        let payload = (packet.len() - HEADER_V6_BYTES) as u16;
        packet[4..6].copy_from_slice(&payload.to_be_bytes());
        packet
    }

    #[test]
    fn a_source_routed_packet_is_refused_wherever_its_header_stands() {
        let routing = |next, left| extension(next, [4, left], 3);
        let skipped = |next| extension(next, [1, 4], 2);
        // The third and fourth byte hold the offset; the lowest bit says that more fragments
        // follow.
        let fragment = |next, offset: u16| {
            let mut header = extension(next, (offset << 3).to_be_bytes(), 1);
            header[1] = 0;
            header
        };
        // Its length counts units of four bytes, without the first two.
        let authenticated = |next| {
            let mut header = extension(next, [0, 0], 3);
            header[1] = 4;
            header
        };
        for (first, extensions) in [
            (43, vec![routing(17, 1)]),
            (43, vec![routing(17, 255)]),
            (0, vec![skipped(43), routing(17, 1)]),
            (60, vec![skipped(51), authenticated(43), routing(17, 1)]),
            (43, vec![routing(43, 0), routing(17, 2)]),
            (44, vec![fragment(43, 0), routing(17, 1)]),
            (0, vec![skipped(43)]),
            (0, vec![skipped(60), extension(17, [0, 0], 2)[..1].to_vec()]),
            (60, vec![skipped(60); EXTENSIONS_MAX + 1]),
        ] {
            let packet = v6_with(first, &extensions);
            let packet = match extensions.len() {
                // The packet ends within an announced header.
                1 if first == 0 => shortened(packet, 16),
                2 if extensions[1].len() == 1 => shortened(packet, 16),
                _ => packet,
            };
            let refused = IpPacket::read(&packet);
            assert!(
                matches!(
                    refused,
                    Err(MalformedPacket::Options | MalformedPacket::Short)
                ),
                "{first} {extensions:?}: {refused:?}"
            );
        }
        for (first, extensions) in [
            (43, vec![routing(17, 0)]),
            (0, vec![skipped(60), skipped(17)]),
            (44, vec![fragment(17, 0)]),
            // A later fragment has no further header.
            (44, vec![fragment(43, 100), routing(17, 1)]),
            (50, vec![routing(43, 1)]),
            (59, vec![]),
        ] {
            let read = IpPacket::read(&v6_with(first, &extensions));
            assert!(read.is_ok(), "{first} {extensions:?}: {read:?}");
        }
    }

    fn shortened(mut packet: Vec<u8>, by: usize) -> Vec<u8> {
        packet.truncate(packet.len() - by);
        let payload = (packet.len() - HEADER_V6_BYTES) as u16;
        packet[4..6].copy_from_slice(&payload.to_be_bytes());
        packet
    }

    #[test]
    fn noise_never_panics() {
        for seed in 0..2_000 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut packet: Vec<u8> = (0..rng.random_range(0..80)).map(|_| rng.random()).collect();
            if let Some(first) = packet.first_mut() {
                *first = [0x45, 0x60, *first][seed as usize % 3];
            }
            let _ = IpPacket::quoted(&packet);
            if let Ok(read) = IpPacket::read(&packet) {
                assert!(packet.len() >= 20 && read.source.is_ipv4() == (packet[0] >> 4 == 4));
            }
        }
    }
}
