//! IP for both ends of an IP tunnel: prefixes, sets of addresses, and packet headers. Sans-IO.

mod checksum;
mod echo;
mod flow;
mod gate;
mod packet;
mod prefix;
mod ranges;
mod too_big;

pub use echo::link_echo;
pub use flow::PacketFlow;
pub(crate) use flow::transport;
pub use gate::{IpGate, NotPassed};
pub use packet::{IpPacket, MalformedPacket};
pub use prefix::{IpPrefix, NotAPrefix};
pub use ranges::{IpRange, IpRanges};
pub(crate) use too_big::too_big;
