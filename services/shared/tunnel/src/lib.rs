//! Tunnels over multipath QUIC: the client keeps one session with a proxy up over several access networks and opens CONNECT
//! streams of HTTP/3 in it; the server takes them. Streams of bytes go to TCP destinations, datagrams
//! (datagram_tunnel.rs) to UDP ones, or they are packets of IP.
//!
//! ```text
//!   Tunnel (client.rs) -- Keeper --> Session (session.rs) == paths ==> ServerSession (server.rs) <-- TunnelServer
//!      | open_tcp                       |                                  |                          ConnectRequest
//!      v                                v                                  v                                |
//!   TunnelStream (stream.rs)         Steered (steer.rs): IO shell of `multipath` on both ends          TunnelStream
//!                                       |
//!   FanOut (interfaces.rs): one UDP socket per access network
//! ```
//!
//! A path's death costs no connection: the steering closes it while another lives. The loss of all paths, or of the connection, costs no
//! tunnel that both ends have agreed to resume (resume.rs): it goes on over the next session, which the client makes by itself.

// The bench of the integration tests, which some unit tests use too, says `tunnel`.
#[cfg(test)]
extern crate self as tunnel;

#[cfg(test)]
#[path = "../tests/support/bench.rs"]
mod bench;

mod access;
mod carrier;
mod client;
mod datagram_tunnel;
mod datagrams;
mod exchange;
mod fallback;
mod h2_over_tcp;
mod h3_over_noq;
mod http_datagrams;
mod interfaces;
mod ip;
mod ip_target;
mod ip_tunnel;
mod keeper;
mod masquerade;
mod mptcp_endpoints;
mod names;
mod netlink;
mod netlink_wire;
mod opening;
mod paths;
mod pieces;
mod places;
mod proxy_address;
mod request;
mod requests;
mod resume;
mod routes;
mod server;
mod server_id;
mod session;
mod slots;
mod splice;
mod steer;
mod stream;
mod tcp;
mod transport;
mod tun;
mod tunnel_stream;
mod udp;
mod udp_target;
mod udp_tunnel;
mod varint;

pub use access::{AccessRule, Family};
pub use client::{OpenError, StartError, Tunnel, TunnelConfig, TunnelEvent};
pub use datagram_tunnel::TunnelEnded;
pub use datagrams::DatagramCounts;
pub use http::{StatusCode, uri::Authority};
pub use interfaces::Interface;
pub use ip::{
    IpGate, IpPacket, IpPrefix, IpRange, IpRanges, MalformedPacket, NotAPrefix, NotPassed,
    link_echo,
};
pub use ip_tunnel::{IpAddressEntry, IpCapsule, IpTunnel};
pub use masquerade::{MasqueradeError, masquerade};
pub use multipath::{Keepalive, PathState};
pub use names::is_name;
pub use netlink::{FollowError, local_addresses};
pub use paths::PathSnapshot;
pub use places::{Place, Places};
pub use request::Urgency;
pub use requests::ConnectRequest;
pub use resume::ResumeLimits;
pub use server::{BindError, ServerConfig, ServerSession, SessionHandle, TunnelServer};
pub use server_id::{ServerId, ServerIdError};
pub use slots::AttachError;
pub use splice::{SpliceError, Traffic, splice};
pub use transport::{ALPN, Transport};
pub use tun::{PACKET_BYTES_MAX, TunDevice, TunError, is_device};
pub use tunnel_stream::TunnelStream;
pub use udp_tunnel::UdpTunnel;
