//! The traffic of a tunnel: byte streams, datagrams of UDP, and packets of IP.

pub(crate) mod datagram_tunnel;
pub(crate) mod ip_target;
pub(crate) mod ip_tunnel;
pub(crate) mod pieces;
pub(crate) mod splice;
pub(crate) mod tunnel_stream;
pub(crate) mod udp_target;
pub(crate) mod udp_tunnel;
