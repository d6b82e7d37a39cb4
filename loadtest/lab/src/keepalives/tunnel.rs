//! A probed tunnel in virtual time: the prober that ships at both ends, its bytes over two
//! emulated links.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use emulated_link::link::{Link, LinkConfig, Loss, Verdict};
use path_probe::{
    Check, Client, Command, Connectivity, Observation, PAYLOAD_BYTES, Payload, Server,
};

use crate::packet::IP_UDP_HEADER_BYTES;
use crate::seed::derive_seed;

const RATE_BIT_S: f64 = 10e6;
/// The server's clock is ahead of the client's; nothing may depend on it.
const CLOCK_OFFSET_US: u64 = 3_000_000_000;
/// Data packets beside the probes, where there are any.
const DATA_BYTES: u64 = 1200;

/// Event that an end saw.
#[derive(Debug, Clone, Copy)]
pub(super) enum Seen {
    AtClient(Observation),
    AtServer,
    Down,
    Up,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Packet {
    Request([u8; PAYLOAD_BYTES]),
    Response([u8; PAYLOAD_BYTES]),
    DataUp,
    DataDown,
}

pub(super) struct Tunnel {
    client: Client,
    server: Server,
    connectivity: Connectivity,
    links: [Link; 2],
    /// Arrival, order, offer, packet.
    under_way: BinaryHeap<Reverse<(u64, u64, u64, Packet)>>,
    order: u64,
    /// Microseconds between data packets in each direction.
    data_us: Option<u64>,
    next_data_us: u64,
}

impl Tunnel {
    pub(super) fn new(seed: u64, check: Check, rtt_ms: f64) -> Self {
        let link = |number: u64| {
            let delay = Duration::from_secs_f64(rtt_ms / 2e3);
            Link::new(
                LinkConfig::new(RATE_BIT_S, delay),
                derive_seed(seed, 5000 + number),
            )
        };
        Self {
            client: Client::default(),
            server: Server::default(),
            connectivity: Connectivity::new(check, 0),
            links: [link(0), link(1)],
            under_way: BinaryHeap::new(),
            order: 0,
            data_us: None,
            next_data_us: u64::MAX,
        }
    }

    /// Packets in both directions beside the probes, so many a second each.
    pub(super) fn with_data(mut self, per_second: u64) -> Self {
        self.data_us = Some(1_000_000 / per_second.max(1));
        self.next_data_us = 0;
        self
    }

    /// Round trip from now on; jitter in each direction up to so much more.
    pub(super) fn set_rtt(&mut self, rtt_ms: f64, jitter_ms: f64) {
        for link in &mut self.links {
            let millis = |ms: f64| Duration::from_secs_f64(ms / 1e3);
            link.set_delay(millis(rtt_ms / 2.0), millis(jitter_ms));
        }
    }

    pub(super) fn set_loss(&mut self, to_server: f64, to_client: f64) {
        for (link, loss) in self.links.iter_mut().zip([to_server, to_client]) {
            link.set_loss(if loss > 0.0 {
                Loss::Bernoulli(loss)
            } else {
                Loss::None
            });
        }
    }

    pub(super) fn set_up(&mut self, now_us: u64, up: bool) {
        for link in &mut self.links {
            link.set_up(Duration::from_micros(now_us), up);
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.connectivity.is_up()
    }

    /// Runs until `end_us`, not included.
    pub(super) fn run_until(&mut self, end_us: u64, mut on: impl FnMut(u64, Seen)) {
        loop {
            let arrival = self.under_way.peek().map_or(u64::MAX, |it| it.0.0);
            let deadline = self.connectivity.next_deadline_us();
            let now_us = arrival.min(deadline).min(self.next_data_us);
            if now_us >= end_us {
                return;
            }
            if now_us == arrival {
                self.arrive(now_us, &mut on);
            }
            if now_us == self.next_data_us {
                self.client.on_sent(1);
                self.server.on_sent(1);
                self.offer(now_us, 0, Packet::DataUp);
                self.offer(now_us, 1, Packet::DataDown);
                self.next_data_us += self.data_us.unwrap_or(u64::MAX / 2);
            }
            while let Some(command) = self.connectivity.poll(now_us) {
                match command {
                    Command::Probe => {
                        let request = self.client.request(now_us, false).encode();
                        self.offer(now_us, 0, Packet::Request(request));
                    }
                    Command::Down => on(now_us, Seen::Down),
                    Command::Up => on(now_us, Seen::Up),
                }
            }
        }
    }

    fn offer(&mut self, now_us: u64, link: usize, packet: Packet) {
        let bytes = match packet {
            Packet::DataUp | Packet::DataDown => DATA_BYTES,
            Packet::Request(_) | Packet::Response(_) => PAYLOAD_BYTES as u64 + IP_UDP_HEADER_BYTES,
        };
        let now = Duration::from_micros(now_us);
        if let Verdict::DeliverAt(at) = self.links[link].offer(now, bytes) {
            self.order += 1;
            let at_us = (at.as_micros() as u64).max(now_us);
            self.under_way
                .push(Reverse((at_us, self.order, now_us, packet)));
        }
    }

    fn arrive(&mut self, now_us: u64, on: &mut impl FnMut(u64, Seen)) {
        let Some(Reverse((_, _, offered_us, packet))) = self.under_way.pop() else {
            return;
        };
        let link = usize::from(matches!(packet, Packet::Response(_) | Packet::DataDown));
        let (offered, due) = (
            Duration::from_micros(offered_us),
            Duration::from_micros(now_us),
        );
        if self.links[link].was_cut(offered, due) {
            return;
        }
        match packet {
            Packet::DataUp => self.server.on_received(1),
            Packet::DataDown => self.client.on_received(1),
            Packet::Request(bytes) => {
                let at_server_us = now_us + CLOCK_OFFSET_US;
                let request = Payload::decode(&bytes);
                self.server.on_request(at_server_us, &request, false);
                on(now_us, Seen::AtServer);
                if let Some(response) = self.server.respond(at_server_us, false) {
                    self.offer(now_us, 1, Packet::Response(response.encode()));
                }
            }
            Packet::Response(bytes) => {
                let response = Payload::decode(&bytes);
                let seen = self.client.on_response(now_us, &response, false);
                self.connectivity.on_response(now_us);
                on(now_us, Seen::AtClient(seen));
            }
        }
    }
}
