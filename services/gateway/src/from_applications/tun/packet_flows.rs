//! The steering rules' view of packets. A flow is open from its first packet on until it has been
//! quiet for a while. Meanwhile the rules for it hold for the session.

use std::{
    collections::HashMap,
    convert::Infallible,
    time::{Duration, Instant},
};

use ip_packets::PacketFlow;
use parking_lot::Mutex;
use tunnel::steering_rules::{Flow, Protocol, Urgency};

use crate::steering::{FlowGuard, Flows, QUIET_MAX};

/// Flows that rules see one by one. Packets of further ones pass, and no rule sees them.
const FLOWS_MAX: usize = 256;

/// A flow that the rules leave no access is asked for again after so long.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Interval of looks for flows that have ended. With `QUIET_MAX` and the rules' own pause no
/// decision outlives the last packet by 10 s.
const FORGET_EVERY: Duration = Duration::from_secs(1);

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
}

struct Seen {
    last: Instant,
    /// `None`: the rules left it no access when they were asked.
    guard: Option<FlowGuard>,
    asked: Instant,
}

impl PacketFlows {
    pub(super) fn new(flows: Flows) -> Self {
        Self {
            flows,
            open: HashMap::new(),
        }
    }

    /// Notes a packet; returns how it goes on, and whether the schedule has changed with it.
    pub(super) fn note(&mut self, now: Instant, flow: PacketFlow) -> (Passage, bool) {
        let begins = !self.open.contains_key(&flow);
        let guard = self.guard_of(now, flow);
        let is_news = begins && guard.flatten().is_some_and(FlowGuard::is_news);
        let passage = match guard {
            Some(Some(guard)) if guard.may_not_send() => Passage::None,
            Some(Some(guard)) if guard.copied().get() => Passage::Twice,
            Some(Some(_)) | None => Passage::Once,
            Some(None) => Passage::None,
        };
        (passage, is_news)
    }

    /// Ends the flows that have been quiet for `QUIET_MAX`, also while no packet comes.
    pub(super) fn forget(&mut self, now: Instant) {
        self.open.retain(|_, seen| now < seen.last + QUIET_MAX);
    }

    /// The guard of the packet's flow, if the rules left the flow an access; `None` for a flow that
    /// no rule sees.
    fn guard_of(&mut self, now: Instant, flow: PacketFlow) -> Option<Option<&FlowGuard>> {
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

/// Ends flows by time; never returns.
pub(super) async fn end_quiet_flows(flows: &Mutex<PacketFlows>) -> Infallible {
    loop {
        tokio::time::sleep(FORGET_EVERY).await;
        flows.lock().forget(Instant::now());
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
    use proptest::prelude::*;

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
        let mut packets = PacketFlows::new(flows.clone());
        for second in 0..30 {
            let now = start + Duration::from_secs(second);
            assert_eq!(packets.note(now, flow(1)).0, Passage::Once);
            packets.forget(now);
            assert_eq!(flows.open(), 1);
        }
        packets.forget(start + Duration::from_secs(29) + QUIET_MAX);
        assert_eq!(flows.open(), 0, "no other packet is needed");
        assert_eq!(packets.note(start, flow(1)).0, Passage::Once);
        drop(packets);
        assert_eq!(flows.open(), 0);
    }

    #[test]
    fn flows_have_a_bound_beyond_which_packets_pass() {
        let (flows, now) = (Flows::default(), Instant::now());
        let mut packets = PacketFlows::new(flows.clone());
        for port in 0..1_000 {
            let mut flow = flow(1);
            flow.port = Some(port);
            assert_eq!(packets.note(now, flow).0, Passage::Once);
        }
        assert_eq!(flows.open(), FLOWS_MAX);
    }

    /// As the documents say.
    const OUTLIVES_MAX: Duration = Duration::from_secs(10);

    proptest! {
        /// Packets of random flows after random pauses, with the looks that run beside them. Ports
        /// of even numbers are of the rule that keeps flows off lte.
        #[test]
        fn no_decision_outlives_its_flow(
            packets in prop::collection::vec((0..6_u16, 0..15_000_u64), 1..40),
            shift in 0..1_000_u64,
        ) {
            let flows = crate::steering::tests::ruled();
            let (start, mut seen) = (Instant::now(), PacketFlows::new(flows.clone()));
            let mut now = Duration::from_millis(shift);
            let mut last = None;
            for (port, pause) in packets {
                let until = now + Duration::from_millis(pause);
                while now < until {
                    now += Duration::from_millis(250);
                    if now.as_millis() as u64 % 1_000 < 250 {
                        seen.forget(start + now);
                    }
                    let is_free = crate::steering::tests::look(&flows, start + now);
                    let is_over = last.is_none_or(|last| now >= last + OUTLIVES_MAX);
                    prop_assert!(is_free || !is_over, "{now:?} {last:?}");
                }
                let mut flow = flow(1);
                flow.port = Some(9_000 + port);
                seen.note(start + now, flow);
                if port % 2 == 0 {
                    last = Some(now);
                    let is_free = crate::steering::tests::is_free(&flows);
                    prop_assert!(!is_free, "before its first packet");
                }
            }
        }
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
