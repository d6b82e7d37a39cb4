//! Sizes of packets on the simulated links.

pub(crate) use access_plan::HEADER_SHARE;

/// IPv4 and UDP headers: link bytes are those of IP packets.
pub const IP_UDP_HEADER_BYTES: u64 = 28;
/// Largest IP packet on the simulated links.
pub const LINK_MTU_BYTES: u64 = 1500;
