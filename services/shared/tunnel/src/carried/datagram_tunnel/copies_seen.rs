//! Flows whose packets come twice, by two paths. An end that answers copies with copies asks here.
//!
//! The client follows the steering rules, and the server follows the client. So only one end needs
//! to know the rules, and a change of them holds in both directions after some packets.

use std::hash::{DefaultHasher, Hash, Hasher};

use ip_packets::transport;

use super::kind::Kind;

/// Packets without a copy after which a flow counts as not copied: a second of a call.
const SINGLE_MAX: u8 = 64;

/// By a hash of the flow. Flows that share a place are copied together.
const PLACES: usize = 256;

#[derive(Debug)]
pub(super) struct CopiesSeen {
    /// Packets since the last one that came twice, if any did.
    since_copy: [Option<u8>; PLACES],
    /// Places that hold a number.
    copied: usize,
}

impl Default for CopiesSeen {
    fn default() -> Self {
        Self {
            since_copy: [None; PLACES],
            copied: 0,
        }
    }
}

impl CopiesSeen {
    /// A packet has come, or come again.
    pub(super) fn note(&mut self, kind: Kind, packet: &[u8], is_copy: bool) {
        // Without copies no packet is looked at.
        if self.copied == 0 && !is_copy {
            return;
        }
        let Some(place) = self.since_copy.get_mut(place(kind, packet, false)) else {
            return;
        };
        let after = match (is_copy, *place) {
            (true, _) => Some(0),
            (false, since) => since.map(|since| since + 1).filter(|it| *it <= SINGLE_MAX),
        };
        let before = std::mem::replace(place, after);
        self.copied = self.copied + usize::from(after.is_some()) - usize::from(before.is_some());
    }

    /// Whether the packets come twice that this one answers.
    pub(super) fn has_copies(&self, kind: Kind, answer: &[u8]) -> bool {
        self.copied > 0
            && self
                .since_copy
                .get(place(kind, answer, true))
                .is_some_and(Option::is_some)
    }
}

/// The place of a packet's flow; with `answered` the one of the flow that the packet answers. All
/// datagrams of a UDP tunnel are one flow.
fn place(kind: Kind, packet: &[u8], answered: bool) -> usize {
    if kind == Kind::Udp {
        return 0;
    }
    let ends = match packet.first().map(|first| first >> 4) {
        Some(4) => packet.get(12..16).zip(packet.get(16..20)),
        Some(6) => packet.get(8..24).zip(packet.get(24..40)),
        _ => None,
    };
    let (protocol, ports) = transport(packet);
    let ports = ports.map(|[a, b, c, d]| ([*a, *b], [*c, *d])).unzip();
    let (source, destination) = (ends.map(|it| it.0), ends.map(|it| it.1));
    let mut hasher = DefaultHasher::new();
    match answered {
        false => (protocol, source, ports.0, destination, ports.1).hash(&mut hasher),
        true => (protocol, destination, ports.1, source, ports.0).hash(&mut hasher),
    }
    hasher.finish() as usize % PLACES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn udp(source: u8, destination: u8, ports: [u8; 4]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0];
        packet.extend([10, 0, 0, source, 10, 0, 0, destination]);
        packet.extend(ports);
        packet.extend([0, 8, 0, 0]);
        packet
    }

    #[test]
    fn the_answers_of_a_copied_flow_are_copied_and_no_others() {
        let mut seen = CopiesSeen::default();
        let (question, answer) = (udp(1, 2, [0, 5, 0, 9]), udp(2, 1, [0, 9, 0, 5]));
        seen.note(Kind::Ip, &question, false);
        assert!(!seen.has_copies(Kind::Ip, &answer));
        seen.note(Kind::Ip, &question, true);
        assert!(seen.has_copies(Kind::Ip, &answer));
        assert!(!seen.has_copies(Kind::Ip, &udp(3, 1, [0, 9, 0, 5])));
        // Another flow is none of it, and losses of copies neither.
        for _ in 0..200 {
            seen.note(Kind::Ip, &udp(1, 3, [0, 5, 0, 9]), false);
        }
        for _ in 0..SINGLE_MAX {
            seen.note(Kind::Ip, &question, false);
        }
        assert!(seen.has_copies(Kind::Ip, &answer));
        seen.note(Kind::Ip, &question, false);
        assert!(!seen.has_copies(Kind::Ip, &answer));
        assert_eq!(seen.copied, 0);
    }

    #[test]
    fn datagrams_of_a_udp_tunnel_are_one_flow_and_torn_packets_do_no_harm() {
        let mut seen = CopiesSeen::default();
        seen.note(Kind::Udp, b"question", true);
        assert!(seen.has_copies(Kind::Udp, b"answer"));
        let whole = udp(1, 2, [0, 5, 0, 9]);
        for length in 0..whole.len() {
            seen.note(Kind::Ip, &whole[..length], true);
            seen.has_copies(Kind::Ip, &whole[..length]);
        }
    }
}
