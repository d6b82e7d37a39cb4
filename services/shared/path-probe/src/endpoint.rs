//! The two ends of a probed path (4.1, 4.2): the content of a probe, and the measurements from a
//! probe.

use crate::wire::{NO_DELTA, Payload, delta, wrap};

/// Longest round trip in microseconds; a longer value comes from a stepped clock or a forged probe
/// and is dropped.
pub const RTT_US_MAX: u32 = 60_000_000;

/// The measurements of one received probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// `None`: the first request of a client, or an implausible value.
    pub rtt_us: Option<u32>,
    /// Packets that this end had sent when the peer counted, for `OneWayLoss`.
    pub sent: u32,
    pub peer_received: u32,
    /// Packets that the peer had sent, and that this end had received, for the other direction.
    pub peer_sent: u32,
    pub received: u32,
}

/// The end that sends requests. It counts all packets of the tunnel, including probes.
#[derive(Clone, Debug, Default)]
pub struct Client {
    sent: u32,
    received: u32,
    sequence: u32,
    last: Option<LastResponse>,
}

#[derive(Clone, Copy, Debug)]
struct LastResponse {
    t_ss_us: u32,
    t_rc_us: u64,
    sent_s: u32,
    received: u32,
}

impl Client {
    pub fn on_sent(&mut self, packets: u32) {
        self.sent = self.sent.wrapping_add(packets);
    }

    pub fn on_received(&mut self, packets: u32) {
        self.received = self.received.wrapping_add(packets);
    }

    /// The next request. It counts as a sent packet unless a packet carries it (`piggybacked`).
    pub fn request(&mut self, now_us: u64, piggybacked: bool) -> Payload {
        if !piggybacked {
            self.on_sent(1);
        }
        self.sequence = self.sequence.wrapping_add(1);
        let last = self.last;
        Payload {
            t_sc_us: wrap(now_us),
            t_ss_us: last.map_or(0, |last| last.t_ss_us),
            delta_us: last.map_or(NO_DELTA, |last| delta(last.t_rc_us, now_us)),
            sent_c: self.sent,
            sent_s: last.map_or(0, |last| last.sent_s),
            received: last.map_or(0, |last| last.received),
            sequence: self.sequence,
        }
    }

    pub fn on_response(
        &mut self,
        now_us: u64,
        response: &Payload,
        piggybacked: bool,
    ) -> Observation {
        if !piggybacked {
            self.on_received(1);
        }
        self.last = Some(LastResponse {
            t_ss_us: response.t_ss_us,
            t_rc_us: now_us,
            sent_s: response.sent_s,
            received: self.received,
        });
        Observation {
            rtt_us: rtt(now_us, response.t_sc_us, response.delta_us),
            sent: response.sent_c,
            peer_received: response.received,
            peer_sent: response.sent_s,
            received: self.received,
        }
    }
}

/// The end that answers. Between probes it stores only its counters.
#[derive(Clone, Debug, Default)]
pub struct Server {
    sent: u32,
    received: u32,
    pending: Option<Pending>,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    request: Payload,
    t_rs_us: u64,
    received: u32,
}

impl Server {
    pub fn on_sent(&mut self, packets: u32) {
        self.sent = self.sent.wrapping_add(packets);
    }

    pub fn on_received(&mut self, packets: u32) {
        self.received = self.received.wrapping_add(packets);
    }

    /// Takes a request. The response follows at once or with a later packet (`respond`).
    pub fn on_request(&mut self, now_us: u64, request: &Payload, piggybacked: bool) -> Observation {
        if !piggybacked {
            self.on_received(1);
        }
        self.pending = Some(Pending {
            request: *request,
            t_rs_us: now_us,
            received: self.received,
        });
        let rtt_us = match request.delta_us {
            NO_DELTA => None,
            delta_us => rtt(now_us, request.t_ss_us, delta_us),
        };
        Observation {
            rtt_us,
            sent: request.sent_s,
            peer_received: request.received,
            peer_sent: request.sent_c,
            received: self.received,
        }
    }

    /// The response to the last request; `None` if that request was answered.
    pub fn respond(&mut self, now_us: u64, piggybacked: bool) -> Option<Payload> {
        let pending = self.pending.take()?;
        if !piggybacked {
            self.on_sent(1);
        }
        Some(Payload {
            t_sc_us: pending.request.t_sc_us,
            t_ss_us: wrap(now_us),
            delta_us: delta(pending.t_rs_us, now_us),
            sent_c: pending.request.sent_c,
            sent_s: self.sent,
            received: pending.received,
            sequence: pending.request.sequence,
        })
    }
}

/// Time since an echoed timestamp, less the peer's holding time, modulo 2^32.
fn rtt(now_us: u64, echoed_us: u32, held_us: u32) -> Option<u32> {
    if held_us == NO_DELTA {
        return None;
    }
    let rtt_us = wrap(now_us).wrapping_sub(echoed_us).wrapping_sub(held_us);
    (rtt_us <= RTT_US_MAX).then_some(rtt_us)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::OneWayLoss;

    /// The two clocks differ widely, and both wrap during the exchange.
    #[test]
    fn both_ends_measure_the_round_trip_without_a_common_clock() {
        let (mut client, mut server) = (Client::default(), Server::default());
        let server_offset = 3_000_000_000_u64;
        let mut now = u64::from(u32::MAX) - 200_000;
        let (up, down, hold) = (30_000, 50_000, 7_000);
        for round in 0..10 {
            let request = client.request(now, false);
            now += up;
            let seen = server.on_request(now + server_offset, &request, false);
            assert_eq!(seen.rtt_us, (round > 0).then_some(80_000));
            now += hold;
            let response = server.respond(now + server_offset, false).unwrap();
            assert!(server.respond(now + server_offset, false).is_none());
            now += down;
            let seen = client.on_response(now, &response, false);
            assert_eq!(seen.rtt_us, Some(80_000));
            now += 40_000;
        }
    }

    #[test]
    fn a_lost_response_does_not_spoil_the_servers_next_measure() {
        let (mut client, mut server) = (Client::default(), Server::default());
        let request = client.request(0, false);
        server.on_request(10_000, &request, false);
        let response = server.respond(10_000, false).unwrap();
        client.on_response(20_000, &response, false);
        for lost in 1..5 {
            let at = lost * 100_000;
            let request = client.request(at, false);
            assert_eq!(
                server.on_request(at + 10_000, &request, false).rtt_us,
                Some(20_000)
            );
            server.respond(at + 10_000, false).unwrap();
        }
    }

    #[test]
    fn implausible_round_trips_are_dropped() {
        let mut client = Client::default();
        client.request(1000, false);
        let forged = Payload {
            t_sc_us: 5000,
            ..Payload::default()
        };
        assert_eq!(client.on_response(2000, &forged, false).rtt_us, None);
    }

    /// Counters of all packets wrap during the test: 10 % are lost up, 25 % down.
    #[test]
    fn counters_give_the_loss_of_each_direction() {
        let (mut client, mut server) = (Client::default(), Server::default());
        let start = u32::MAX - 150;
        client.on_sent(start);
        client.on_received(start);
        server.on_sent(start);
        server.on_received(start);
        let mut up = OneWayLoss::starting_at(start, start);
        let mut down = OneWayLoss::starting_at(start, start);
        let mut now = 0;
        let mut first = true;
        for _ in 0..4 {
            client.on_sent(99);
            server.on_received(89);
            let request = client.request(now, false);
            let seen = server.on_request(now + 10, &request, false);
            if !first {
                let loss = down.update(seen.sent, seen.peer_received).unwrap();
                assert!((loss - 0.25).abs() < 1e-9, "{loss}");
            }
            server.on_sent(99);
            client.on_received(74);
            let response = server.respond(now + 10, false).unwrap();
            let seen = client.on_response(now + 20, &response, false);
            let loss = up.update(seen.sent, seen.peer_received).unwrap();
            assert!((loss - 0.10).abs() < 1e-9, "{loss}");
            first = false;
            now += 1_000_000;
        }
    }
}
