//! IP for gateways and proxies: prefixes, sets of addresses, and packet headers. Sans-IO.

mod checksum;
mod echo;
mod flow;
mod gate;
mod packet;
mod prefix;
mod range;
mod ranges;
mod too_big;

pub use checksum::{checksum, checksum_between, sum_between};
pub use echo::link_echo;
pub use flow::PacketFlow;
pub use flow::transport;
pub use gate::{IpGate, NotPassed};
pub use packet::{IpPacket, MalformedPacket, PACKET_BYTES_MIN};
pub use prefix::{IpPrefix, NotAPrefix};
pub use range::IpRange;
pub use ranges::IpRanges;
pub use too_big::too_big;
