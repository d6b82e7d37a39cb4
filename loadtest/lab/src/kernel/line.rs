//! A link and the packets that it holds: what the emulator asks when it has read a packet, and when
//! a packet is due. Knows no device and no clock; times are since the run's start.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::network::COMPETITOR_PORT;
use crate::bounds::COMPETITORS_MAX;
use crate::wire::Wire;

/// Packets that one direction holds at most (about 100 MB); further ones are lost and counted, and
/// the run is not to be believed.
const HELD_PACKETS_MAX: usize = 65_536;
/// Buffers kept for the next packets; more are given back to the allocator.
const SPARE_BUFFERS_MAX: usize = 4_096;

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    due: Duration,
    order: u64,
    packet: Vec<u8>,
}

pub(crate) struct Line {
    pub(crate) wire: Wire,
    held: BinaryHeap<Reverse<Held>>,
    order: u64,
    spare: Vec<Vec<u8>>,
    /// Bytes of IP packets that were offered, but those of flows beside the measured one.
    pub(crate) own_bytes: u64,
    /// Packets for which there was no room.
    pub(crate) overflowed: u64,
}

impl Line {
    pub(crate) fn new(wire: Wire) -> Self {
        Self {
            wire,
            held: BinaryHeap::new(),
            order: 0,
            spare: Vec::new(),
            own_bytes: 0,
            overflowed: 0,
        }
    }

    /// An IP packet has entered the link.
    pub(crate) fn offer(&mut self, now: Duration, packet: &mut [u8]) {
        if !is_beside(packet) {
            self.own_bytes += packet.len() as u64;
        }
        let Some(passed) = self.wire.pass(now, 0, packet) else {
            return;
        };
        for _ in 0..=u8::from(passed.twice) {
            if self.held.len() >= HELD_PACKETS_MAX {
                self.overflowed += 1;
                return;
            }
            let mut buffer = self.spare.pop().unwrap_or_default();
            buffer.clear();
            buffer.extend_from_slice(packet);
            self.order += 1;
            self.held.push(Reverse(Held {
                due: passed.at,
                order: self.order,
                packet: buffer,
            }));
        }
    }

    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.held.peek().map(|Reverse(held)| held.due)
    }

    /// The next packet that is due by `now`, and when it was.
    pub(crate) fn take_due(&mut self, now: Duration) -> Option<(Duration, Vec<u8>)> {
        if self.next_due()? > now {
            return None;
        }
        self.held.pop().map(|Reverse(held)| (held.due, held.packet))
    }

    /// Passes a packet of other traffic, which nobody waits for.
    pub(crate) fn offer_other(&mut self, now: Duration, bytes: u64) {
        self.wire.pass_other(now, bytes);
    }

    /// Gives a buffer back.
    pub(crate) fn recycle(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARE_BUFFERS_MAX {
            self.spare.push(buffer);
        }
    }
}

/// Whether an IPv4 packet is of a bulk flow beside the measured one.
fn is_beside(packet: &[u8]) -> bool {
    let header = usize::from(packet.first().copied().unwrap_or_default() & 0xf) * 4;
    let port = |at: usize| {
        let bytes = packet.get(header + at..header + at + 2)?;
        Some(u16::from_be_bytes([bytes[0], bytes[1]]))
    };
    let theirs = COMPETITOR_PORT..COMPETITOR_PORT + COMPETITORS_MAX as u16;
    let is_tcp = packet.get(9) == Some(&6);
    is_tcp
        && [0, 2]
            .into_iter()
            .filter_map(port)
            .any(|port| theirs.contains(&port))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::scenario::{Interface, RateSpec};

    fn line(change: impl FnOnce(&mut Interface)) -> Line {
        let mut interface = Interface::symmetric("wan", 12.0, 20.0, 0.0);
        change(&mut interface);
        let [to_server, _] = Wire::pair(&interface, 1, 0).unwrap();
        Line::new(to_server)
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn packets_leave_when_due_and_in_order() {
        let mut line = line(|_| {});
        for number in 0..3 {
            line.offer(ms(0), &mut [number; 1500]);
        }
        assert_eq!(line.next_due(), Some(ms(11)));
        assert!(line.take_due(ms(10)).is_none());
        for number in 0..3 {
            let (due, packet) = line.take_due(ms(13)).unwrap();
            assert_eq!((due, packet[0]), (ms(11 + u64::from(number)), number));
            line.recycle(packet);
        }
        assert!(line.take_due(ms(100)).is_none());
    }

    #[test]
    fn packets_of_competitors_are_not_counted_as_own() {
        let mut line = line(|_| {});
        let packet = |protocol: u8, from: u16, to: u16| {
            let mut packet = vec![0; 100];
            (packet[0], packet[9]) = (0x45, protocol);
            packet[20..22].copy_from_slice(&from.to_be_bytes());
            packet[22..24].copy_from_slice(&to.to_be_bytes());
            packet
        };
        for (protocol, from, to, own) in [
            (6, 5201, 40_000, 100),
            (6, COMPETITOR_PORT, 40_000, 100),
            (6, 40_000, COMPETITOR_PORT + 1, 100),
            (17, COMPETITOR_PORT, 40_000, 200),
            (6, COMPETITOR_PORT + COMPETITORS_MAX as u16, 40_000, 300),
        ] {
            line.offer(ms(0), &mut packet(protocol, from, to));
            assert_eq!(line.own_bytes, own, "{protocol} {from} {to}");
        }
        line.offer(ms(0), &mut [0x45; 3]);
        assert_eq!(line.own_bytes, 303);
    }

    #[test]
    fn a_duplicate_arrives_twice_and_a_cut_takes_everything() {
        let mut twice = line(|interface| interface.to_server.duplicate = 1.0);
        twice.offer(ms(0), &mut [7; 100]);
        assert_eq!(std::iter::from_fn(|| twice.take_due(ms(50))).count(), 2);
        let mut cut = line(|interface| interface.to_server.changes = vec![(0.005, false)]);
        cut.offer(ms(0), &mut [7; 100]);
        cut.offer(ms(6), &mut [7; 100]);
        assert_eq!(cut.next_due(), None);
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let mut line = line(|interface| {
            interface.to_server.rate = RateSpec::Mbit(1e6);
            interface.to_server.delay_ms = 10_000.0;
            interface.to_server.queue_bytes = Some(u64::MAX / 2);
        });
        for _ in 0..HELD_PACKETS_MAX + 3 {
            line.offer(ms(0), &mut [0; 40]);
        }
        assert_eq!(line.overflowed, 3);
    }
}
