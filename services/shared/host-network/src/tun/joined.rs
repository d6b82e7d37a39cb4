//! Packets that go to a device together. With offloads the kernel takes consecutive segments of one
//! flow as one packet, and cuts it again only where it must. Sans-IO.
//!
//! Only neighbours are joined, so packets of all flows keep their order. As the kernel's own rules
//! demand, the headers are equal. Excepted are lengths, checksums, the number in the flow, and the
//! flag PSH of the last. Each segment but the last has the same payload, and each checksum is
//! right: the kernel does not verify the checksum of the whole.

use std::io::IoSlice;

use bytes::Bytes;

use super::{
    received::{V4_BYTES, V6_BYTES, set},
    vnet::{HEADER_BYTES, PACKET_BYTES_MAX, Protocol, Segmented, VnetHeader},
};
use ip_packets::{IpPacket, checksum, checksum_between, sum_between};

/// Packets that are joined to one.
const JOINED_MAX: usize = 64;

/// IPv6 and the longest header of TCP.
const HEADERS_MAX: usize = V6_BYTES + 60;

const UDP_BYTES: usize = 8;
const TCP_BYTES: usize = 20;
const ACK: u8 = 0x10;
const PSH: u8 = 0x08;

/// "Don't fragment", without which the numbers of packets matter.
const DONT_FRAGMENT: u8 = 0x40;

/// The first packets of a batch that the kernel takes as one.
pub(super) struct Joined<'a> {
    packets: &'a [Bytes],
    /// `None` for a single packet as it is.
    whole: Option<Whole>,
}

/// The headers of several packets.
struct Whole {
    vnet: [u8; HEADER_BYTES],
    headers: [u8; HEADERS_MAX],
    length: usize,
}

impl<'a> Joined<'a> {
    /// As many packets as possible, and the rest of the batch; `None` for an empty batch.
    pub(super) fn first_of(batch: &'a [Bytes], with_udp: bool) -> Option<(Self, &'a [Bytes])> {
        let (first, others) = batch.split_first()?;
        let mut count = 1;
        let mut whole = None;
        if let Some(segment) = Segment::read(first, with_udp) {
            let mut run = Run::new(segment);
            let fitting = others.iter().take(JOINED_MAX - 1);
            count += fitting.take_while(|next| run.takes(next)).count();
            whole = (count > 1).then(|| run.whole());
        }
        let (packets, rest) = batch.split_at(count);
        Some((Self { packets, whole }, rest))
    }

    pub(super) fn packets(&self) -> &'a [Bytes] {
        self.packets
    }

    /// The bytes for the device, with its header.
    pub(super) fn pieces<'b>(&'b self, pieces: &mut Vec<IoSlice<'b>>) {
        match &self.whole {
            None => {
                pieces.push(IoSlice::new(&[0; HEADER_BYTES]));
                pieces.extend(self.packets.iter().map(|packet| IoSlice::new(packet)));
            }
            Some(whole) => {
                pieces.push(IoSlice::new(&whole.vnet));
                pieces.push(IoSlice::new(&whole.headers[..whole.length]));
                let payload = |packet: &'b Bytes| IoSlice::new(&packet[whole.length..]);
                pieces.extend(self.packets.iter().map(payload));
            }
        }
    }
}

/// A packet that may be joined with others.
#[derive(Clone, Copy)]
struct Segment<'a> {
    packet: &'a [u8],
    protocol: Protocol,
    /// Where the transport header begins.
    transport: usize,
    /// Where the payload begins.
    payload: usize,
}

impl<'a> Segment<'a> {
    fn read(packet: &'a [u8], with_udp: bool) -> Option<Self> {
        let (number, transport) = match packet.first()? {
            // Without options, and no fragment.
            0x45 => {
                let header = packet.first_chunk::<V4_BYTES>()?;
                let is_whole = [header[6] & !DONT_FRAGMENT, header[7]] == [0, 0];
                let is_whole = is_whole && word(packet, 2) == packet.len();
                (is_whole && checksum(&[header]) == 0).then_some((header[9], V4_BYTES))?
            }
            first if first >> 4 == 6 => {
                let header = packet.first_chunk::<V6_BYTES>()?;
                let is_whole = V6_BYTES + word(packet, 4) == packet.len();
                is_whole.then_some((header[6], V6_BYTES))?
            }
            _ => return None,
        };
        let header = &packet[transport..];
        let (protocol, length) = match number {
            6 => {
                let fixed = header.first_chunk::<TCP_BYTES>()?;
                let length = 4 * usize::from(fixed[12] >> 4);
                let flags = fixed[13] & !PSH;
                let is_data = length >= TCP_BYTES && flags == ACK;
                is_data.then_some((Protocol::Tcp, length))?
            }
            17 if with_udp => {
                let fixed = header.first_chunk::<UDP_BYTES>()?;
                // Zero means "no checksum", which the whole would have.
                let fits = word(header, 4) == header.len() && fixed[6..] != [0, 0];
                fits.then_some((Protocol::Udp, UDP_BYTES))?
            }
            _ => return None,
        };
        (header.len() > length).then_some(Self {
            packet,
            protocol,
            transport,
            payload: transport + length,
        })
    }

    fn payload_bytes(&self) -> usize {
        self.packet.len() - self.payload
    }

    fn header(&self) -> &'a [u8] {
        &self.packet[self.transport..self.payload]
    }

    fn is_pushed(&self) -> bool {
        self.protocol == Protocol::Tcp && self.header()[13] & PSH != 0
    }

    fn number(&self) -> u32 {
        let header = self.header();
        u32::from_be_bytes([header[4], header[5], header[6], header[7]])
    }

    fn is_intact(&self) -> bool {
        let transport = &self.packet[self.transport..];
        let number = self.protocol.number();
        IpPacket::ends(self.packet).is_some_and(|ends| {
            checksum_between(ends.source, ends.destination, number, transport) == 0
        })
    }

    /// Whether the headers of the packet of that index after this one are equal as far as they must
    /// be.
    fn is_alike(&self, other: &Segment<'_>, index: usize) -> bool {
        let (own, its) = (self.packet, other.packet);
        let network = match self.transport {
            V4_BYTES => {
                let has_number = own[6] & DONT_FRAGMENT == 0;
                let number = word(own, 4).wrapping_add(index) & 0xffff;
                own[..2] == its[..2]
                    && own[6..10] == its[6..10]
                    && own[12..20] == its[12..20]
                    && (!has_number || word(its, 4) == number)
            }
            _ => own[..4] == its[..4] && own[6..40] == its[6..40],
        };
        let (own, its) = (self.header(), other.header());
        network
            && self.payload == other.payload
            && self.protocol == other.protocol
            && own[..4] == its[..4]
            && match self.protocol {
                Protocol::Udp => true,
                Protocol::Tcp => {
                    own[8..13] == its[8..13] && own[14..16] == its[14..16] && {
                        own[18..] == its[18..]
                    }
                }
            }
    }
}

/// Segments that are joined so far.
struct Run<'a> {
    first: Segment<'a>,
    /// Whether the first has a right checksum, once somebody asked.
    is_intact: Option<bool>,
    count: usize,
    /// Bytes of the whole.
    length: usize,
    /// No segment fits behind the last.
    is_full: bool,
    is_pushed: bool,
}

impl<'a> Run<'a> {
    fn new(first: Segment<'a>) -> Self {
        Self {
            first,
            is_intact: None,
            count: 1,
            length: first.packet.len(),
            is_full: first.is_pushed(),
            is_pushed: first.is_pushed(),
        }
    }

    fn takes(&mut self, packet: &[u8]) -> bool {
        let Some(next) = Segment::read(packet, true).filter(|_| !self.is_full) else {
            return false;
        };
        let (size, bytes) = (self.first.payload_bytes(), next.payload_bytes());
        let sent = (self.length - self.first.payload) as u32;
        let follows = match next.protocol {
            Protocol::Udp => true,
            Protocol::Tcp => next.number() == self.first.number().wrapping_add(sent),
        };
        let fits = follows
            && bytes <= size
            && self.length + bytes <= PACKET_BYTES_MAX
            && self.first.is_alike(&next, self.count)
            && *self.is_intact.get_or_insert_with(|| self.first.is_intact())
            && next.is_intact();
        if fits {
            self.count += 1;
            self.length += bytes;
            self.is_pushed = next.is_pushed();
            self.is_full = bytes < size || self.is_pushed;
        }
        fits
    }

    /// The headers of the whole.
    fn whole(&self) -> Whole {
        let first = &self.first;
        let mut headers = [0; HEADERS_MAX];
        headers[..first.payload].copy_from_slice(&first.packet[..first.payload]);
        let is_v6 = first.transport == V6_BYTES;
        let message = self.length - first.transport;
        match is_v6 {
            true => set(&mut headers, 4, message as u16),
            false => {
                set(&mut headers, 2, self.length as u16);
                set(&mut headers, 10, 0);
                let sum = checksum(&[&headers[..V4_BYTES]]);
                set(&mut headers, 10, sum);
            }
        }
        let transport = &mut headers[first.transport..];
        match first.protocol {
            Protocol::Udp => set(transport, 4, message as u16),
            Protocol::Tcp if self.is_pushed => transport[13] |= PSH,
            Protocol::Tcp => {}
        }
        // The kernel adds the rest where it is needed.
        let sum = IpPacket::ends(first.packet).map_or(0, |ends| {
            sum_between(ends, first.protocol.number(), message)
        });
        set(transport, first.protocol.checksum_at(), sum);
        let segmented = Segmented {
            protocol: first.protocol,
            is_v6,
            size: first.payload_bytes() as u16,
        };
        Whole {
            vnet: VnetHeader::write(segmented, first.transport, first.payload),
            headers,
            length: first.payload,
        }
    }
}

fn word(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]))
}
