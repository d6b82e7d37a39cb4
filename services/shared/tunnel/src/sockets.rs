//! The sockets of both ends: UDP for QUIC, one for each access network, and TCP for the fallback.

pub(crate) mod counted;
pub(crate) mod datagrams;
pub(crate) mod fan_out;
mod icmp;
pub(crate) mod interface;
pub(crate) mod tcp;
pub(crate) mod udp;
