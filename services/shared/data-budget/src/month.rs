//! The sum of a month. It counts packets as the transport at rest sends them.

use std::time::Duration;

use serde::Serialize;

use crate::exchanges::{Exchange, Gateway};

/// Thirty days.
pub const MONTH_S: f64 = 30.0 * 24.0 * 3600.0;
/// IP and UDP, QUIC's short header, its tag, and the header of a frame.
const PACKET_BYTES: usize = 28 + 30;
/// Payload of a packet on a usual access network.
const PAYLOAD_BYTES: usize = 1_350;
/// Acknowledgement of a message and of its answer, each in a packet of its own.
const ACKS: usize = 2;
const ACK_BYTES: usize = 6;
/// A path is asked when nothing was sent on it for so long.
const ASK_EVERY_S: f64 = 25.0;
/// A question and its answer.
const ASK_BYTES: f64 = 116.0;
/// Acknowledgements of a question to the standby, which travel on the path in use.
const ASK_ACKS_BYTES: f64 = 90.0;

/// Megabytes (1,000,000 bytes) in thirty days, both ways.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Month {
    pub in_use_mb: f64,
    pub standby_mb: f64,
}

impl Month {
    pub fn both_mb(&self) -> f64 {
        self.in_use_mb + self.standby_mb
    }
}

impl Gateway {
    /// Without handshakes and without what a lossy network repeats.
    pub fn month(&self) -> Month {
        let exchanges = self.exchanges();
        let carried: f64 = exchanges.iter().map(bytes_per_s).sum();
        let often = exchanges.iter().map(|it| it.every).min();
        let pause_s = often.unwrap_or(Duration::MAX).as_secs_f64();
        // Questions within a pause between exchanges.
        let asked = (pause_s / ASK_EVERY_S).floor() / pause_s * ASK_BYTES;
        let mb = |bytes_per_s: f64| bytes_per_s * MONTH_S / 1e6;
        Month {
            in_use_mb: mb(carried + asked + ASK_ACKS_BYTES / ASK_EVERY_S),
            standby_mb: mb(ASK_BYTES / ASK_EVERY_S),
        }
    }
}

fn bytes_per_s(exchange: &Exchange) -> f64 {
    let packets = |bytes: usize| bytes.div_ceil(PAYLOAD_BYTES).max(1);
    let headers = (packets(exchange.bytes) + packets(exchange.answer_bytes) + ACKS) * PACKET_BYTES;
    let bytes = exchange.bytes + exchange.answer_bytes + headers + ACKS * ACK_BYTES;
    bytes as f64 / exchange.every.as_secs_f64()
}
