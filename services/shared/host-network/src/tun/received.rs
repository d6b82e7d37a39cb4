//! The packets in one read of a device. With offloads the kernel hands over up to 64 KiB of a flow
//! as one packet, and names the size of its segments. Here it is cut into them. Sans-IO.
//!
//! The cut needs no second buffer: the headers of a segment are written over the end of the segment
//! before, which has been handed out.

use super::vnet::{MalformedRead, Protocol, VnetHeader};
use ip_packets::{IpPacket, checksum, checksum_between};

pub(super) const V4_BYTES: usize = 20;
pub(super) const V6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;
const TCP_BYTES: usize = 20;

/// Flags of TCP that belong to the last segment (FIN, PSH), and to the first (CWR).
const LAST_FLAGS: u8 = 0x09;
const FIRST_FLAGS: u8 = 0x80;

/// Packets of one read; at most one for each byte of it.
#[derive(Debug)]
pub struct Received<'a> {
    bytes: &'a mut [u8],
    cut: Option<Cut>,
    /// Segments handed out; without a cut the packet is the only one.
    count: usize,
}

/// Where a packet is cut.
#[derive(Debug, Clone, Copy)]
struct Cut {
    protocol: Protocol,
    is_v6: bool,
    /// Where the transport header begins.
    transport: usize,
    /// Where the payload begins.
    payload: usize,
    /// Payload of each segment but the last.
    size: usize,
    /// Flags of TCP of the whole.
    flags: u8,
}

impl<'a> Received<'a> {
    /// A read of a device without offloads.
    pub(super) fn one(bytes: &'a mut [u8]) -> Self {
        Self {
            bytes,
            cut: None,
            count: 0,
        }
    }

    /// A read of a device with offloads. The packets have complete checksums.
    pub(super) fn with_header(read: &'a mut [u8]) -> Result<Self, MalformedRead> {
        let (header, packet) = VnetHeader::read(read)?;
        let cut = match header.segmented {
            None => None,
            Some(segmented) => {
                let (transport, _) = header.checksum.ok_or(MalformedRead::Checksum)?;
                let cut = Cut {
                    protocol: segmented.protocol,
                    is_v6: segmented.is_v6,
                    transport: transport.into(),
                    payload: 0,
                    size: segmented.size.into(),
                    flags: 0,
                };
                Some(cut.checked(packet)?)
            }
        };
        let before = read.len() - packet.len();
        let bytes = &mut read[before..];
        if cut.is_none()
            && let Some((from, offset)) = header.checksum
        {
            complete(bytes, from.into(), offset.into())?;
        }
        Ok(Self {
            bytes,
            cut,
            count: 0,
        })
    }

    /// The next packet.
    // An iterator cannot lend.
    #[expect(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<&[u8]> {
        let index = self.count;
        self.count += 1;
        match self.cut {
            None => (index == 0).then_some(&*self.bytes),
            Some(cut) => cut.segment(self.bytes, index),
        }
    }
}

impl Cut {
    fn checked(self, packet: &[u8]) -> Result<Self, MalformedRead> {
        let (version, before) = match self.is_v6 {
            false => (4, V4_BYTES),
            true => (6, V6_BYTES),
        };
        if packet.first().is_none_or(|first| first >> 4 != version) || self.transport < before {
            return Err(MalformedRead::Segments);
        }
        let short = MalformedRead::Short(packet.len());
        let header = packet.get(self.transport..).ok_or(short)?;
        let (length, flags) = match self.protocol {
            Protocol::Udp => (UDP_BYTES, 0),
            Protocol::Tcp => {
                let fixed = header.first_chunk::<TCP_BYTES>().ok_or(short)?;
                (4 * usize::from(fixed[12] >> 4), fixed[13])
            }
        };
        let least = match self.protocol {
            Protocol::Udp => UDP_BYTES,
            Protocol::Tcp => TCP_BYTES,
        };
        if length < least || header.len() <= length || self.size == 0 {
            return Err(MalformedRead::Segments);
        }
        Ok(Self {
            payload: self.transport + length,
            flags,
            ..self
        })
    }

    /// The segment of this number; the one before must have been handed out.
    fn segment(self, bytes: &mut [u8], index: usize) -> Option<&[u8]> {
        let from = index.checked_mul(self.size)?;
        let whole = bytes.get_mut(from..)?;
        // The first byte of the payload.
        whole.get(self.payload)?;
        let length = whole.len().min(self.payload + self.size);
        let is_last = length == whole.len();
        if index > 0 {
            bytes.copy_within(from - self.size..from - self.size + self.payload, from);
        }
        let segment = &mut bytes[from..from + length];
        self.set_network_header(segment, index);
        let transport = &mut segment[self.transport..];
        match self.protocol {
            Protocol::Udp => set(transport, 4, (length - self.transport) as u16),
            Protocol::Tcp => {
                if index > 0 {
                    let before = [transport[4], transport[5], transport[6], transport[7]];
                    let number = u32::from_be_bytes(before).wrapping_add(self.size as u32);
                    transport[4..8].copy_from_slice(&number.to_be_bytes());
                }
                transport[13] = self.flags
                    & !(if is_last { 0 } else { LAST_FLAGS })
                    & !(if index == 0 { 0 } else { FIRST_FLAGS });
            }
        }
        let at = self.protocol.checksum_at();
        set(transport, at, 0);
        let ends = IpPacket::ends(segment)?;
        let transport = &mut segment[self.transport..];
        let number = self.protocol.number();
        let sum = checksum_between(ends.source, ends.destination, number, transport);
        set(transport, at, not_zero(sum, self.protocol));
        Some(segment)
    }

    /// The header of a segment before has the values of that segment.
    fn set_network_header(self, segment: &mut [u8], index: usize) {
        let length = segment.len();
        if self.is_v6 {
            return set(segment, 4, (length - V6_BYTES) as u16);
        }
        set(segment, 2, length as u16);
        if index > 0 {
            let id = u16::from_be_bytes([segment[4], segment[5]]);
            set(segment, 4, id.wrapping_add(1));
        }
        set(segment, 10, 0);
        let header = 4 * usize::from(segment[0] & 0xf);
        let sum = checksum(&[&segment[..header.min(self.transport)]]);
        set(segment, 10, sum);
    }
}

pub(super) fn set(bytes: &mut [u8], at: usize, word: u16) {
    bytes[at..at + 2].copy_from_slice(&word.to_be_bytes());
}

/// Zero means "no checksum" in UDP (RFC 768).
fn not_zero(sum: u16, protocol: Protocol) -> u16 {
    match protocol {
        Protocol::Udp if sum == 0 => u16::MAX,
        _ => sum,
    }
}

/// Completes a checksum whose field holds the sum of the pseudo-header.
fn complete(packet: &mut [u8], from: usize, offset: usize) -> Result<(), MalformedRead> {
    let covered = packet.get_mut(from..).ok_or(MalformedRead::Checksum)?;
    let field = covered
        .get(offset..)
        .and_then(|rest| rest.first_chunk::<2>());
    if field.is_none() {
        return Err(MalformedRead::Checksum);
    }
    let sum = checksum(&[covered]);
    // In TCP both forms of zero mean the same.
    set(covered, offset, if sum == 0 { u16::MAX } else { sum });
    Ok(())
}
