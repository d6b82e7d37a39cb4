//! The steering rules' view of packets. A flow is open from its first packet on until it has been
//! quiet for a while. Meanwhile the rules for it hold for the session.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use ip_packets::PacketFlow;
use tunnel::steering_rules::{Flow, Protocol, Urgency};

use crate::steering::{FlowGuard, Flows};

/// Flows that rules see one by one. Packets of further ones pass, and no rule sees them.
const FLOWS_MAX: usize = 256;

/// A flow without a packet for so long has ended.
const QUIET_MAX: Duration = Duration::from_secs(10);

/// A flow that the rules leave no access is asked for again after so long.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Interval of looks for flows that have ended.
const FORGET_EVERY: Duration = Duration::from_secs(2);

/// How a packet goes on, by the rules for its flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Passage {
    /// The rules leave the flow no access.
    None,
    Once,
    /// By two paths at once.
    Twice,
}

pub(super) struct PacketFlows {
    flows: Flows,
    open: HashMap<PacketFlow, Seen>,
    forget_at: Instant,
}

struct Seen {
    last: Instant,
    /// `None`: the rules left it no access when they were asked.
    guard: Option<FlowGuard>,
    asked: Instant,
}

impl PacketFlows {
    pub(super) fn new(flows: Flows, now: Instant) -> Self {
        Self {
            flows,
            open: HashMap::new(),
            forget_at: now + FORGET_EVERY,
        }
    }

    /// Notes a packet; returns how it goes on.
    pub(super) fn note(&mut self, now: Instant, flow: PacketFlow) -> Passage {
        match self.guard_of(now, flow) {
            Some(Some(guard)) if guard.has_been_cut() => Passage::None,
            Some(Some(guard)) if guard.copied().get() => Passage::Twice,
            Some(Some(_)) | None => Passage::Once,
            Some(None) => Passage::None,
        }
    }

    /// The guard of the packet's flow, if the rules left the flow an access; `None` for a flow that
    /// no rule sees.
    fn guard_of(&mut self, now: Instant, flow: PacketFlow) -> Option<Option<&FlowGuard>> {
        if now >= self.forget_at {
            self.forget_at = now + FORGET_EVERY;
            let is_open = |seen: &Seen| now < seen.last + QUIET_MAX;
            self.open.retain(|_, seen| is_open(seen));
        }
        if !self.open.contains_key(&flow) && self.open.len() >= FLOWS_MAX {
            return None;
        }
        let flows = &self.flows;
        let enter = |flow: &PacketFlow| flows.enter(steered(flow)).ok();
        let seen = self.open.entry(flow).or_insert_with_key(|flow| Seen {
            last: now,
            guard: enter(flow),
            asked: now,
        });
        seen.last = now;
        let is_cut = seen.guard.as_ref().is_none_or(FlowGuard::has_been_cut);
        if is_cut && now >= seen.asked + ASK_EVERY {
            seen.asked = now;
            seen.guard = enter(&flow);
        }
        Some(seen.guard.as_ref())
    }
}

/// The flow as rules name it.
fn steered(packet: &PacketFlow) -> Flow {
    let mut flow = Flow::new("tun", Urgency::Bulk).to(&packet.destination.to_string());
    flow.port = packet.port;
    flow.protocol = match packet {
        it if it.is_tcp() => Protocol::Tcp,
        it if it.is_udp() => Protocol::Udp,
        _ => Protocol::Ip,
    };
    flow
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(last: u8) -> PacketFlow {
        PacketFlow {
            destination: [192, 0, 2, last].into(),
            protocol: 17,
            port: Some(9_000),
        }
    }

    #[test]
    fn a_flow_is_open_while_it_has_packets() {
        let (flows, start) = (Flows::default(), Instant::now());
        let mut packets = PacketFlows::new(flows.clone(), start);
        for second in 0..30 {
            let now = start + Duration::from_secs(second);
            assert_eq!(packets.note(now, flow(1)), Passage::Once);
            assert_eq!(flows.open(), 1);
        }
        let quiet = start + Duration::from_secs(30) + QUIET_MAX;
        assert_eq!(packets.note(quiet, flow(2)), Passage::Once);
        assert_eq!(flows.open(), 1);
        drop(packets);
        assert_eq!(flows.open(), 0);
    }

    #[test]
    fn flows_have_a_bound_beyond_which_packets_pass() {
        let (flows, now) = (Flows::default(), Instant::now());
        let mut packets = PacketFlows::new(flows.clone(), now);
        for port in 0..1_000 {
            let mut flow = flow(1);
            flow.port = Some(port);
            assert_eq!(packets.note(now, flow), Passage::Once);
        }
        assert_eq!(flows.open(), FLOWS_MAX);
    }

    #[test]
    fn rules_see_destination_port_and_protocol() {
        let steered = steered(&flow(9));
        assert_eq!(steered.application, "tun");
        assert_eq!(steered.destination.as_deref(), Some("192.0.2.9"));
        assert_eq!(
            (steered.port, steered.protocol),
            (Some(9_000), Protocol::Udp)
        );
        let mut ping = flow(9);
        (ping.protocol, ping.port) = (1, None);
        assert_eq!(super::steered(&ping).protocol, Protocol::Ip);
    }
}
