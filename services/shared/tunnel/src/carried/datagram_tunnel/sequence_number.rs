//! The place of a packet among those of its flow.

/// The number of a packet within its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SequenceNumber {
    pub(crate) lane: u8,
    pub(crate) number: u32,
}
