//! The payload of a probe (figure 14): six 32-bit words and a sequence number, big endian.
//!
//! Timestamps are microseconds modulo 2^32 and wrap after 71.6 minutes; counters wrap after 2^32
//! packets. All arithmetic is modulo 2^32, so a difference is right as long as it is shorter than
//! the wrap.

pub const PAYLOAD_BYTES: usize = 28;
/// Delta of a request that follows no response, or a response that is too old for the field.
pub const NO_DELTA: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    /// Client's clock at the sending of the request.
    pub t_sc_us: u32,
    /// Server's clock at the sending of the response; in a request, that of the last response
    /// received.
    pub t_ss_us: u32,
    /// Time for which the sender held the echoed timestamp.
    pub delta_us: u32,
    /// Packets that the client sent.
    pub sent_c: u32,
    /// Packets that the server sent; in a request, as of the last response received.
    pub sent_s: u32,
    /// Packets that the sender of this payload received; in a request, as of the last response
    /// received.
    pub received: u32,
    pub sequence: u32,
}

impl Payload {
    pub fn encode(&self) -> [u8; PAYLOAD_BYTES] {
        let words = [
            self.t_sc_us,
            self.t_ss_us,
            self.delta_us,
            self.sent_c,
            self.sent_s,
            self.received,
            self.sequence,
        ];
        let mut bytes = [0; PAYLOAD_BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(4).zip(words) {
            chunk.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    pub fn decode(bytes: &[u8; PAYLOAD_BYTES]) -> Payload {
        let word = |index: usize| {
            let at = index * 4;
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Payload {
            t_sc_us: word(0),
            t_ss_us: word(1),
            delta_us: word(2),
            sent_c: word(3),
            sent_s: word(4),
            received: word(5),
            sequence: word(6),
        }
    }
}

/// A clock reading in its form on the wire.
pub(crate) fn wrap(now_us: u64) -> u32 {
    now_us as u32
}

/// A duration in its form on the wire; a duration that does not fit becomes `NO_DELTA`.
pub(crate) fn delta(from_us: u64, to_us: u64) -> u32 {
    u32::try_from(to_us.saturating_sub(from_us)).unwrap_or(NO_DELTA)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_is_seven_big_endian_words() {
        let payload = Payload {
            t_sc_us: 1,
            t_ss_us: 2,
            delta_us: 3,
            sent_c: 4,
            sent_s: 5,
            received: 6,
            sequence: u32::MAX,
        };
        let bytes = payload.encode();
        assert_eq!(bytes.len(), 28);
        assert_eq!(bytes[3], 1);
        assert_eq!(bytes[23], 6);
        assert_eq!(bytes[24..], [255; 4]);
        assert_eq!(Payload::decode(&bytes), payload);
    }
}
