//! The answering end of `braid probe`; sans-IO, in microseconds of any monotonic clock.

use std::collections::HashMap;
use std::net::SocketAddr;

use path_probe::{Ewma, NO_DELTA, OneWayLoss, Payload, Server};
use serde::Serialize;

/// Clients at once; further ones get no answer until one of these has been silent for `IDLE_US`.
const CLIENTS_MAX: usize = 10_000;
const IDLE_US: u64 = 60_000_000;
const RTT_TAU_S: f64 = 1.0;

/// One client in one report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ClientRow {
    pub client: SocketAddr,
    /// Probes since the client began.
    pub received: u64,
    pub rtt_ms: Option<f64>,
    /// Loss in the interval: client to here, and here to client.
    pub loss_up: Option<f64>,
    pub loss_down: Option<f64>,
    /// Since the client began.
    pub loss_up_all: Option<f64>,
    pub loss_down_all: Option<f64>,
}

struct Peer {
    server: Server,
    received: u64,
    heard_us: u64,
    rtt: Ewma,
    sequence: u32,
    /// Counters of the newest request: sent by the client and received here, sent from here and
    /// received by the client.
    up: (u32, u32),
    down: (u32, u32),
    up_loss: OneWayLoss,
    down_loss: OneWayLoss,
    is_reported: bool,
}

impl Peer {
    fn new() -> Self {
        Self {
            server: Server::default(),
            received: 0,
            heard_us: 0,
            rtt: Ewma::new(RTT_TAU_S),
            sequence: 0,
            up: (0, 0),
            down: (0, 0),
            up_loss: OneWayLoss::default(),
            down_loss: OneWayLoss::default(),
            is_reported: false,
        }
    }
}

#[derive(Default)]
pub(super) struct Responder {
    clients: HashMap<SocketAddr, Peer>,
}

impl Responder {
    /// The answer, which is as long as the request: it amplifies nothing.
    pub(super) fn on_request(
        &mut self,
        now_us: u64,
        from: SocketAddr,
        request: &Payload,
    ) -> Option<Payload> {
        // A client that begins anew at the same port counts from zero.
        let begins = request.sequence == 1 && request.delta_us == NO_DELTA;
        if begins && self.clients.get(&from).is_some_and(|it| it.sequence > 1) {
            self.clients.remove(&from);
        }
        if !self.clients.contains_key(&from) && self.clients.len() >= CLIENTS_MAX {
            return None;
        }
        let peer = self.clients.entry(from).or_insert_with(Peer::new);
        peer.received += 1;
        peer.heard_us = now_us;
        peer.is_reported = false;
        let seen = peer.server.on_request(now_us, request, false);
        if let Some(rtt_us) = seen.rtt_us {
            let rtt_ms = f64::from(rtt_us) / 1e3;
            peer.rtt.update(now_us as f64 / 1e6, rtt_ms);
        }
        let is_newer = request.sequence.wrapping_sub(peer.sequence) < u32::MAX / 2;
        if is_newer {
            peer.sequence = request.sequence;
            peer.up = (seen.peer_sent, seen.received);
            // Zero until the client has had an answer.
            if request.delta_us != NO_DELTA {
                peer.down = (seen.sent, seen.peer_received);
            }
        }
        peer.server.respond(now_us, false)
    }

    /// Drops clients that are silent.
    pub(super) fn forget(&mut self, now_us: u64) {
        self.clients
            .retain(|_, peer| now_us.saturating_sub(peer.heard_us) < IDLE_US);
    }

    /// The clients that were heard since the last report, by address.
    pub(super) fn report(&mut self) -> Vec<ClientRow> {
        let mut rows = Vec::new();
        for (client, peer) in &mut self.clients {
            if std::mem::replace(&mut peer.is_reported, true) {
                continue;
            }
            let whole = |counted: (u32, u32)| OneWayLoss::default().update(counted.0, counted.1);
            rows.push(ClientRow {
                client: *client,
                received: peer.received,
                rtt_ms: peer.rtt.value(),
                loss_up: peer.up_loss.update(peer.up.0, peer.up.1),
                loss_down: peer.down_loss.update(peer.down.0, peer.down.1),
                loss_up_all: whole(peer.up),
                loss_down_all: whole(peer.down),
            });
        }
        rows.sort_by_key(|row| row.client);
        rows
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use path_probe::Client;

    use super::*;

    #[test]
    fn the_table_of_clients_is_bounded_and_idle_ones_leave_it() {
        let mut responder = Responder::default();
        let address = |port: usize| {
            let [high, low] = u16::try_from(port % 60_000).unwrap().to_be_bytes();
            SocketAddr::from(([127, 0, high, low], 1))
        };
        let request = Client::default().request(0, false);
        for port in 0..CLIENTS_MAX {
            assert!(
                responder
                    .on_request(port as u64, address(port), &request)
                    .is_some()
            );
        }
        let newcomer = address(CLIENTS_MAX);
        assert!(responder.on_request(20_000, newcomer, &request).is_none());
        assert!(responder.on_request(20_000, address(7), &request).is_some());
        responder.forget(IDLE_US + 1);
        assert!(
            responder
                .on_request(IDLE_US + 1, newcomer, &request)
                .is_some()
        );
    }

    #[test]
    fn a_client_that_begins_anew_at_the_same_port_is_measured_anew() {
        let mut responder = Responder::default();
        let from: SocketAddr = "192.0.2.1:4".parse().unwrap();
        for received in [1, 2] {
            let mut client = Client::default();
            for turn in 0..10 {
                let request = client.request(turn * 1_000, false);
                let answer = responder
                    .on_request(turn * 1_000 + 5, from, &request)
                    .unwrap();
                client.on_response(turn * 1_000 + 10, &answer, false);
            }
            let rows = responder.report();
            assert_eq!(rows.len(), 1, "{received}");
            assert_eq!(rows[0].received, 10);
            assert_eq!((rows[0].loss_up, rows[0].loss_down), (Some(0.0), Some(0.0)));
            assert_eq!(rows[0].rtt_ms, Some(0.01));
            assert!(responder.report().is_empty(), "heard nothing since");
        }
    }
}
