//! The filter of packets between an owner of addresses and the networks behind the tunnel. Both
//! ends apply it in both directions, so neither relies on the other.

use std::net::IpAddr;

use super::{IpPacket, IpPrefix, IpRanges, MalformedPacket};

/// The addresses that an owner may exchange packets with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IpGate {
    /// The owner's addresses; bounded by the capsule that assigned them.
    pub owner: Vec<IpPrefix>,
    pub routes: IpRanges,
}

/// Why a packet is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotPassed {
    #[error("{0}")]
    Malformed(#[from] MalformedPacket),
    #[error("its source is not permitted")]
    Source,
    #[error("its destination is not permitted")]
    Destination,
}

impl NotPassed {
    /// A label of metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Malformed(malformed) => malformed.label(),
            Self::Source => "source",
            Self::Destination => "destination",
        }
    }
}

impl IpGate {
    fn owns(&self, address: IpAddr) -> bool {
        self.owner.iter().any(|prefix| prefix.contains(address))
    }

    /// A packet from the owner: its source is the owner's, and its destination permitted.
    pub fn leaving(&self, packet: &[u8]) -> Result<IpPacket, NotPassed> {
        let packet = IpPacket::read(packet)?;
        if !self.owns(packet.source) {
            return Err(NotPassed::Source);
        }
        if !self.routes.contains(packet.destination) {
            return Err(NotPassed::Destination);
        }
        Ok(packet)
    }

    /// A packet to the owner, from a permitted destination. An ICMP error about a packet that the
    /// owner may have sent is admitted from any router.
    pub fn arriving(&self, packet: &[u8]) -> Result<IpPacket, NotPassed> {
        let read = IpPacket::read(packet)?;
        if !self.owns(read.destination) {
            return Err(NotPassed::Destination);
        }
        let is_answer = || {
            let quoted = IpPacket::quoted(packet);
            quoted.is_some_and(|sent| {
                self.owns(sent.source) && self.routes.contains(sent.destination)
            })
        };
        if !self.routes.contains(read.source) && !is_answer() {
            return Err(NotPassed::Source);
        }
        Ok(read)
    }
}

/// The gate of tests: of one owner, with one route of each version.
#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) fn example() -> IpGate {
    let prefix = |text: &str| text.parse::<IpPrefix>().unwrap();
    IpGate {
        owner: vec![prefix("10.64.0.7/32"), prefix("fd00::7/128")],
        routes: [prefix("192.0.2.0/24"), prefix("2001:db8::/32")]
            .map(|prefix| prefix.range())
            .into_iter()
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn packet(protocol: u8, from: &str, to: &str, payload: &[u8]) -> Vec<u8> {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        match (ip(from), ip(to)) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let length = 20 + payload.len() as u8;
                let mut packet = vec![0x45, 0, 0, length, 0, 0, 0, 0, 64, protocol, 0, 0];
                packet.extend(from.octets());
                packet.extend(to.octets());
                packet.extend(payload);
                packet
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let mut packet = vec![0x60, 0, 0, 0, 0, payload.len() as u8, protocol, 64];
                packet.extend(from.octets());
                packet.extend(to.octets());
                packet.extend(payload);
                packet
            }
            _ => unreachable!("of one version"),
        }
    }

    #[test]
    fn packets_pass_only_from_the_owner_and_to_its_routes() {
        let gate = example();
        for (mine, another, there, elsewhere) in [
            ("10.64.0.7", "10.64.0.8", "192.0.2.9", "192.0.3.9"),
            ("fd00::7", "fd00::8", "2001:db8::9", "2001:db9::9"),
        ] {
            let leaving = |from, to| gate.leaving(&packet(6, from, to, b"hello")).map(|_| ());
            assert_eq!(leaving(mine, there), Ok(()));
            assert_eq!(leaving(another, there), Err(NotPassed::Source));
            assert_eq!(leaving(there, mine), Err(NotPassed::Source));
            assert_eq!(leaving(mine, elsewhere), Err(NotPassed::Destination));
            assert_eq!(leaving(mine, mine), Err(NotPassed::Destination));
            let arriving = |from, to| gate.arriving(&packet(6, from, to, b"hello")).map(|_| ());
            assert_eq!(arriving(there, mine), Ok(()));
            assert_eq!(arriving(there, another), Err(NotPassed::Destination));
            assert_eq!(arriving(elsewhere, mine), Err(NotPassed::Source));
            assert_eq!(arriving(another, mine), Err(NotPassed::Source));
        }
        let malformed = gate.leaving(b"E").unwrap_err();
        assert_eq!(malformed, NotPassed::Malformed(MalformedPacket::Short));
    }

    #[test]
    fn a_router_may_report_errors_only_about_packets_of_the_owner() {
        let gate = example();
        let quote = |sent: &[u8], kind: u8| [&[kind, 0, 0, 0, 0, 0, 0, 0], sent].concat();
        for (mine, there, elsewhere, router, (protocol, error, question)) in [
            (
                "10.64.0.7",
                "192.0.2.9",
                "192.0.3.9",
                "10.0.0.1",
                (1, 11, 8),
            ),
            (
                "fd00::7",
                "2001:db8::9",
                "2001:db9::9",
                "fe80::1",
                (58, 2, 128),
            ),
        ] {
            let said = |kind, sent: &[u8]| {
                let packet = packet(protocol, router, mine, &quote(sent, kind));
                gate.arriving(&packet).map(|_| ())
            };
            let sent = packet(17, mine, there, b"12345678");
            assert_eq!(said(error, &sent), Ok(()));
            let refused = Err(NotPassed::Source);
            assert_eq!(said(question, &sent), refused);
            assert_eq!(said(error, &sent[..12]), refused);
            assert_eq!(said(error, &packet(17, there, mine, b"12345678")), refused);
            assert_eq!(
                said(error, &packet(17, mine, elsewhere, b"12345678")),
                refused
            );
            let by_another = packet(17, router, mine, &quote(&sent, error));
            assert_eq!(gate.arriving(&by_another), Err(NotPassed::Source));
        }
    }
}
