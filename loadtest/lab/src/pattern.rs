//! The known pattern that bulk streams carry, and how its receiver may find it broken.

use std::sync::OnceLock;

use bytes::Bytes;

/// Length of the repeated pattern; prime, so that a chunk at a wrong offset differs.
const PATTERN_BYTES: usize = 65_521;

/// The peers' data did not arrive as it was sent: a bug of the transport.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrafficError {
    #[error("stream {0} delivered wrong bytes at offset {1}")]
    WrongBytes(u64, u64),
    #[error("stream {0} ended at {1} instead of {2}")]
    WrongLength(u64, u64, u64),
    #[error("stream {0} was reset")]
    Reset(u64),
}

fn pattern() -> &'static Bytes {
    static PATTERN: OnceLock<Bytes> = OnceLock::new();
    PATTERN.get_or_init(|| {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let bytes: Vec<u8> = (0..PATTERN_BYTES)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect();
        Bytes::from(bytes)
    })
}

/// The next bytes of a stream of `total` bytes at `offset`; some, not all.
pub(crate) fn pattern_from(offset: u64, total: u64) -> Bytes {
    let from = (offset % PATTERN_BYTES as u64) as usize;
    let left = usize::try_from(total.saturating_sub(offset)).unwrap_or(usize::MAX);
    pattern().slice(from..from + left.min(PATTERN_BYTES - from))
}

/// Whether the bytes are those of a stream at `offset`.
pub(crate) fn matches_pattern(offset: u64, bytes: &[u8]) -> bool {
    let mut from = (offset % PATTERN_BYTES as u64) as usize;
    let mut rest = bytes;
    while !rest.is_empty() {
        let len = rest.len().min(PATTERN_BYTES - from);
        if rest[..len] != pattern()[from..from + len] {
            return false;
        }
        rest = &rest[len..];
        from = 0;
    }
    true
}
