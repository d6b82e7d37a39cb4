//! Joined packets are cut into the same packets, and only segments of one flow are joined.

#![allow(clippy::unwrap_used)]

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{
    joined::Joined,
    received::{V4_BYTES, V6_BYTES, set},
    vnet::HEADER_BYTES,
    *,
};
use ip_packets::{IpPacket, checksum, checksum_between};

const TCP: u8 = 6;
const UDP: u8 = 17;
const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
const FIN: u8 = 0x01;
const CWR: u8 = 0x80;

/// Every kind of flow.
const FLOWS: [Flow; 4] = [
    Flow::new(false, TCP),
    Flow::new(true, TCP),
    Flow::new(false, UDP),
    Flow::new(true, UDP),
];

#[derive(Debug, Clone, Copy)]
struct Flow {
    is_v6: bool,
    protocol: u8,
    port: u16,
    /// Number of the first byte, and of the first packet of IPv4.
    number: u32,
    id: u16,
}

impl Flow {
    const fn new(is_v6: bool, protocol: u8) -> Self {
        Self {
            is_v6,
            protocol,
            port: 443,
            number: u32::MAX - 1_000,
            id: u16::MAX,
        }
    }

    /// A packet with these flags, if it is one of TCP.
    fn packet(&mut self, payload: &[u8], flags: u8) -> Vec<u8> {
        let mut transport = [&self.port.to_be_bytes()[..], &[0x30, 0x39]].concat();
        match self.protocol {
            TCP => {
                transport.extend(self.number.to_be_bytes());
                transport.extend([0, 0, 0, 9, 0x80, flags, 1, 0, 0, 0, 0, 0]);
                // Timestamps.
                transport.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
                self.number = self.number.wrapping_add(payload.len() as u32);
            }
            _ => {
                transport.extend((8 + payload.len() as u16).to_be_bytes());
                transport.extend([0, 0]);
            }
        }
        transport.extend(payload);
        let mut packet = match self.is_v6 {
            true => {
                let mut header = vec![0x60, 0, 0, 7, 0, 0, self.protocol, 64];
                header.extend([0xfd; 16]);
                header.extend([0xfc; 16]);
                set(&mut header, 4, transport.len() as u16);
                header
            }
            false => {
                let mut header = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, self.protocol, 0, 0];
                header.extend([10, 64, 0, 2, 192, 0, 2, 9]);
                set(&mut header, 2, (V4_BYTES + transport.len()) as u16);
                set(&mut header, 4, self.id);
                let sum = checksum(&[&header]);
                set(&mut header, 10, sum);
                self.id = self.id.wrapping_add(1);
                header
            }
        };
        let ends = IpPacket::ends(&packet).unwrap();
        let (at, from) = (self.checksum_at(), packet.len());
        packet.extend(&transport);
        let sum = checksum_between(ends.source, ends.destination, self.protocol, &transport);
        set(&mut packet[from..], at, sum);
        packet
    }

    fn checksum_at(&self) -> usize {
        if self.protocol == TCP { 16 } else { 6 }
    }

    fn transport(&self) -> usize {
        if self.is_v6 { V6_BYTES } else { V4_BYTES }
    }
}

/// The writes of a batch, which are as many reads of a device.
fn written(batch: &[Bytes], with_udp: bool) -> Vec<Vec<u8>> {
    let mut rest = batch;
    let mut written = Vec::new();
    while let Some((joined, others)) = Joined::first_of(rest, with_udp) {
        let mut pieces = Vec::new();
        joined.pieces(&mut pieces);
        written.push(pieces.iter().flat_map(|piece| piece.to_vec()).collect());
        rest = others;
    }
    written
}

fn cut(read: &[u8]) -> Vec<Vec<u8>> {
    let mut read = read.to_vec();
    let mut received = Received::with_header(&mut read).unwrap();
    let mut packets = Vec::new();
    while let Some(packet) = received.next() {
        packets.push(packet.to_vec());
    }
    packets
}

fn noise(bytes: usize, random: &mut ChaCha8Rng) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    random.fill_bytes(&mut noise);
    noise
}

#[test]
fn joined_packets_are_cut_into_the_same_packets() {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    for mut flow in FLOWS {
        for size in [1, 2, 536, 1_201, 1_448] {
            for last in [1, size / 2 + 1, size] {
                let mut payloads = vec![size; 17];
                payloads.push(last);
                let packets: Vec<Bytes> = payloads
                    .iter()
                    .map(|bytes| flow.packet(&noise(*bytes, &mut random), ACK).into())
                    .collect();
                let written = written(&packets, true);
                assert_eq!(written.len(), 1, "{flow:?} {size} {last}");
                assert_eq!(cut(&written[0]), packets, "{flow:?} {size} {last}");
            }
        }
    }
}

#[test]
fn packets_of_mixed_flows_keep_their_order() {
    let mut random = ChaCha8Rng::seed_from_u64(2);
    let mut flows = FLOWS;
    let mut joined = 0;
    for _ in 0..200 {
        let mut batch: Vec<Bytes> = Vec::new();
        while batch.len() < 64 {
            let flow = &mut flows[random.random_range(0..4)];
            let size = random.random_range(0..1_400);
            for _ in 0..random.random_range(1..9) {
                let flags = [ACK, ACK, ACK, ACK | PSH, ACK | FIN][random.random_range(0..5)];
                let bytes = size - usize::from(random.random_range(0..4) == 0).min(size);
                batch.push(flow.packet(&noise(bytes, &mut random), flags).into());
            }
        }
        let written = written(&batch, true);
        joined += batch.len() - written.len();
        let cut: Vec<Vec<u8>> = written.iter().flat_map(|read| cut(read)).collect();
        assert_eq!(cut, batch);
    }
    assert!(joined > 2_000, "only {joined}");
}

#[test]
fn only_segments_of_one_flow_are_joined() {
    let segments = |change: &dyn Fn(&mut Flow, usize) -> (usize, u8)| {
        FLOWS.map(|mut flow| {
            let mut packet = |index| -> Bytes {
                let (bytes, flags) = change(&mut flow, index);
                flow.packet(&vec![7; bytes], flags).into()
            };
            let batch: Vec<Bytes> = (0..4).map(&mut packet).collect();
            written(&batch, true).len()
        })
    };
    assert_eq!(segments(&|_, _| (100, ACK)), [1, 1, 1, 1]);
    // Another port, a gap, a larger segment, an empty one.
    let other_port = |flow: &mut Flow, index| {
        flow.port = 443 + index as u16 / 2;
        (100, ACK)
    };
    assert_eq!(segments(&other_port), [2, 2, 2, 2]);
    let gap = |flow: &mut Flow, index| {
        flow.number = flow.number.wrapping_add(index as u32 / 2);
        (100, ACK)
    };
    assert_eq!(segments(&gap), [3, 3, 1, 1]);
    assert_eq!(segments(&|_, index| (100 + index, ACK)), [4, 4, 4, 4]);
    assert_eq!(segments(&|_, _| (0, ACK)), [4, 4, 4, 4]);
    // PSH ends a run of TCP; other flags are never joined.
    assert_eq!(segments(&|_, _| (100, ACK | PSH)), [4, 4, 1, 1]);
    assert_eq!(segments(&|_, _| (100, ACK | FIN)), [4, 4, 1, 1]);
    // A number of IPv4 that another packet of the host has taken.
    let other_id = |flow: &mut Flow, index| {
        flow.id = flow.id.wrapping_add(index as u16 / 3);
        (100, ACK)
    };
    assert_eq!(segments(&other_id), [2, 1, 2, 1]);
}

#[test]
fn damaged_packets_stay_alone_and_unchanged() {
    for mut flow in FLOWS {
        let mut batch: Vec<Vec<u8>> = (0..4).map(|_| flow.packet(&[7; 100], ACK)).collect();
        let last = batch[2].len() - 1;
        batch[2][last] ^= 1;
        let batch: Vec<Bytes> = batch.into_iter().map(Bytes::from).collect();
        let written = written(&batch, true);
        assert_eq!(written.len(), 3, "{flow:?}");
        assert_eq!(written[1][HEADER_BYTES..], batch[2]);
    }
    // Without a checksum there is none to verify.
    let mut flow = Flow::new(false, UDP);
    let bare = |mut packet: Vec<u8>| -> Bytes {
        set(&mut packet, V4_BYTES + 6, 0);
        packet.into()
    };
    let batch = [0, 1].map(|_| bare(flow.packet(&[7; 100], 0)));
    assert_eq!(written(&batch, true).len(), 2);
}

#[test]
fn a_kernel_that_does_not_cut_udp_gets_single_datagrams() {
    let mut flow = Flow::new(false, UDP);
    let batch: Vec<Bytes> = (0..4).map(|_| flow.packet(&[7; 9], 0).into()).collect();
    assert_eq!(written(&batch, false).len(), 4);
}

#[test]
fn a_batch_is_joined_up_to_the_bounds() {
    let mut flow = Flow::new(false, TCP);
    let mut lengths = |count, bytes| {
        let packet = |_| -> Bytes { flow.packet(&vec![7; bytes], ACK).into() };
        let batch: Vec<Bytes> = (0..count).map(packet).collect();
        let written = written(&batch, true);
        written
            .iter()
            .map(|read| cut(read).len())
            .collect::<Vec<_>>()
    };
    assert_eq!(lengths(100, 100), [64, 36]);
    assert_eq!(lengths(50, 1_400), [46, 4]);
}

#[test]
fn flags_of_the_whole_go_to_the_first_or_the_last_segment() {
    for mut flow in [FLOWS[0], FLOWS[1]] {
        let batch: Vec<Bytes> = (0..3).map(|_| flow.packet(&[7; 100], ACK).into()).collect();
        let mut read = written(&batch, true).remove(0);
        let flags_at = HEADER_BYTES + flow.transport() + 13;
        read[flags_at] = ACK | PSH | FIN | CWR;
        // The kind "with ECN".
        read[1] |= 0x80;
        let flags = cut(&read)
            .iter()
            .map(|packet| packet[flow.transport() + 13])
            .collect::<Vec<_>>();
        assert_eq!(flags, [ACK | CWR, ACK, ACK | PSH | FIN]);
    }
}

#[test]
fn a_checksum_that_the_kernel_has_begun_is_completed() {
    for mut flow in FLOWS {
        let packet = flow.packet(b"odd", ACK);
        let (transport, at) = (flow.transport(), flow.checksum_at());
        let ends = IpPacket::ends(&packet).unwrap();
        let mut begun = packet.clone();
        let length = packet.len() - transport;
        let sum = ip_packets::sum_between(ends, flow.protocol, length);
        set(&mut begun[transport..], at, sum);
        let mut read = vec![0; HEADER_BYTES];
        read[0] = 1;
        read[6..8].copy_from_slice(&(transport as u16).to_ne_bytes());
        read[8..10].copy_from_slice(&(at as u16).to_ne_bytes());
        read.extend(begun);
        assert_eq!(cut(&read), [packet], "{flow:?}");
    }
}

#[test]
fn malformed_headers_are_refused_and_never_panic() {
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let (mut refused, mut packets) = (0, 0);
    for round in 0..200_000 {
        let mut flow = FLOWS[round % 4];
        let payload = noise(random.random_range(0..300), &mut random);
        let mut read = noise(HEADER_BYTES, &mut random);
        read[1] = [0, 1, 3, 4, 5, 0x81, 0x84, 9][random.random_range(0..8)];
        if random.random() {
            // Nearly right.
            read[0] = 1;
            read[4..6].copy_from_slice(&random.random_range(0..9_u16).to_ne_bytes());
            let transport = flow.transport() as u16;
            read[6..8].copy_from_slice(&transport.to_ne_bytes());
        }
        read.extend(flow.packet(&payload, ACK));
        for _ in 0..random.random_range(0..4) {
            let at = random.random_range(HEADER_BYTES..read.len());
            read[at] = random.random();
        }
        read.truncate(random.random_range(0..=read.len()));
        let length = read.len();
        match Received::with_header(&mut read) {
            Err(_) => refused += 1,
            Ok(mut received) => {
                let mut count = 0;
                while let Some(packet) = received.next() {
                    assert!(packet.len() <= length);
                    count += 1;
                }
                assert!(count <= length);
                assert!(received.next().is_none());
                packets += count;
            }
        }
    }
    println!("{refused} refused, {packets} packets");
    assert!(refused > 10_000 && packets > 10_000);
}

#[test]
fn malformed_packets_are_joined_with_none() {
    let mut random = ChaCha8Rng::seed_from_u64(4);
    for round in 0..50_000 {
        let mut flow = FLOWS[round % 4];
        let batch = [0; 3].map(|_| {
            let mut packet = flow.packet(&[7; 20], ACK);
            if random.random() {
                let at = random.random_range(0..packet.len());
                packet[at] = random.random();
                packet.truncate(random.random_range(0..=packet.len()));
            }
            Bytes::from(packet)
        });
        let written = written(&batch, true);
        let mut packets = batch.iter();
        for read in written {
            for packet in cut(&read) {
                assert_eq!(Some(&packet[..]), packets.next().map(|it| &it[..]));
            }
        }
        assert!(packets.next().is_none());
    }
}
