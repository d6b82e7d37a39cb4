//! The header that stands before each packet of a device with offloads (virtio 1.2, 5.1.6). It says
//! what the sender of the packet left to the device: a checksum, and the cut into segments.

/// The largest packet of IP.
pub(crate) const PACKET_BYTES_MAX: usize = 65_535;

pub(super) const HEADER_BYTES: usize = 10;

/// The checksum is the sum of the pseudo-header so far.
const NEEDS_CHECKSUM: u8 = 1;

const ONE_PACKET: u8 = 0;
const TCP_V4: u8 = 1;
const TCP_V6: u8 = 4;
const UDP: u8 = 5;
/// The first segment alone has the flag CWR.
const WITH_ECN: u8 = 0x80;

/// The transport protocol of packets that can be cut and joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Tcp,
    Udp,
}

impl Protocol {
    /// Its number, and the place of the checksum in its header.
    pub(super) fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }

    pub(super) fn checksum_at(self) -> usize {
        match self {
            Self::Tcp => 16,
            Self::Udp => 6,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segmented {
    pub(super) protocol: Protocol,
    pub(super) is_v6: bool,
    /// Payload of each segment but the last.
    pub(super) size: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct VnetHeader {
    /// Where the sum begins, and where the checksum is from there.
    pub(super) checksum: Option<(u16, u16)>,
    pub(super) segmented: Option<Segmented>,
}

/// Why bytes of the device are dropped. The kernel sends no such bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum MalformedRead {
    #[error("{0} bytes, fewer than the headers")]
    Short(usize),
    #[error("segments of the unknown kind {0}")]
    Kind(u8),
    #[error("segments without a payload, or of another protocol than their header names")]
    Segments,
    #[error("a checksum outside the packet")]
    Checksum,
}

impl VnetHeader {
    /// The header before the packet, and the packet.
    pub(super) fn read(read: &[u8]) -> Result<(Self, &[u8]), MalformedRead> {
        let short = MalformedRead::Short(read.len());
        let (header, packet) = read.split_first_chunk::<HEADER_BYTES>().ok_or(short)?;
        let word = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let checksum = (header[0] & NEEDS_CHECKSUM != 0).then(|| (word(6), word(8)));
        let segmented = |protocol, is_v6| {
            Some(Segmented {
                protocol,
                is_v6,
                size: word(4),
            })
        };
        let is_v6 = packet.first().is_some_and(|first| first >> 4 == 6);
        let segmented = match header[1] & !WITH_ECN {
            ONE_PACKET => None,
            TCP_V4 => segmented(Protocol::Tcp, false),
            TCP_V6 => segmented(Protocol::Tcp, true),
            UDP => segmented(Protocol::Udp, is_v6),
            kind => return Err(MalformedRead::Kind(kind)),
        };
        let header = Self {
            checksum,
            segmented,
        };
        Ok((header, packet))
    }

    /// Before segments that have been joined to one packet.
    pub(super) fn write(
        segmented: Segmented,
        transport: usize,
        headers: usize,
    ) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[0] = NEEDS_CHECKSUM;
        header[1] = match (segmented.protocol, segmented.is_v6) {
            (Protocol::Tcp, false) => TCP_V4,
            (Protocol::Tcp, true) => TCP_V6,
            (Protocol::Udp, _) => UDP,
        };
        // The numbers are those of headers, which are short.
        let words = [
            (2, headers as u16),
            (4, segmented.size),
            (6, transport as u16),
            (8, segmented.protocol.checksum_at() as u16),
        ];
        for (at, word) in words {
            header[at..at + 2].copy_from_slice(&word.to_ne_bytes());
        }
        header
    }
}
