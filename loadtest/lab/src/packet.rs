//! Sizes of packets on the simulated links.

/// IPv4 and UDP headers: link bytes are those of IP packets.
pub const IP_UDP_HEADER_BYTES: u64 = 28;
/// Largest IP packet on the simulated links.
pub const LINK_MTU_BYTES: u64 = 1500;
/// Goodput that a packet of full size leaves of the link's bytes.
pub(crate) const HEADER_SHARE: f64 = 0.958;
