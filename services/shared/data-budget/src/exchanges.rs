//! The messages of a gateway that come again and again, each with an answer.

use std::time::Duration;

use crate::messages::{report_bytes, upload_answer_bytes, upload_bytes};

/// HTTP/2 frame, prefix of gRPC, TLS record and its tag: around each message.
pub const FRAMES_BYTES: usize = 9 + 5 + 22;
const REPORT_ANSWER_BYTES: usize = 3;
/// A question for the policy, with its header, and the answer.
const POLICY_EVERY: Duration = Duration::from_secs(120);
const POLICY_BYTES: usize = 60;
const POLICY_ANSWER_BYTES: usize = 90;
/// Each of the gateway's connections to the core is asked whether it lives.
const LINKS: usize = 7;
const LINKS_EVERY: Duration = Duration::from_secs(900);
const PING_BYTES: usize = 17 + 22;

/// A message at one interval, and its answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exchange {
    pub every: Duration,
    pub bytes: usize,
    pub answer_bytes: usize,
}

impl Exchange {
    fn framed(every: Duration, bytes: usize, answer_bytes: usize) -> Self {
        Self {
            every,
            bytes: bytes + FRAMES_BYTES,
            answer_bytes: answer_bytes + FRAMES_BYTES,
        }
    }
}

/// Load of a gateway with two paths.
#[derive(Debug, Clone, PartialEq)]
pub struct Gateway {
    /// Streams of one value a second.
    pub streams: usize,
    /// An electrocardiogram: 250 readings a second of 16 bits.
    pub electrocardiogram: bool,
    /// Age of readings when they are uploaded, in seconds; 0 counts as 1.
    pub freshness_s: u64,
    /// Between two reports of paths that do not change.
    pub report_every: Duration,
}

impl Default for Gateway {
    /// Without sensors, with the defaults of the program.
    fn default() -> Self {
        Self {
            streams: 0,
            electrocardiogram: false,
            freshness_s: 1,
            report_every: Duration::from_secs(300),
        }
    }
}

impl Gateway {
    pub fn exchanges(&self) -> Vec<Exchange> {
        let mut exchanges = Vec::new();
        if self.streams > 0 || self.electrocardiogram {
            let seconds = self.freshness_s.max(1);
            exchanges.push(Exchange::framed(
                Duration::from_secs(seconds),
                upload_bytes(self.streams, self.electrocardiogram, seconds),
                upload_answer_bytes(),
            ));
        }
        exchanges.push(Exchange::framed(
            self.report_every,
            report_bytes(),
            REPORT_ANSWER_BYTES,
        ));
        exchanges.push(Exchange::framed(
            POLICY_EVERY,
            POLICY_BYTES,
            POLICY_ANSWER_BYTES,
        ));
        let ping = Exchange {
            every: LINKS_EVERY,
            bytes: PING_BYTES,
            answer_bytes: PING_BYTES,
        };
        exchanges.extend([ping; LINKS]);
        exchanges
    }
}
