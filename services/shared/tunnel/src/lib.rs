//! Tunnels over multipath QUIC. The client keeps one session with a proxy alive over several access
//! networks and opens HTTP/3 CONNECT streams in it; the server accepts them. A tunnel carries a
//! byte stream to a TCP destination, datagrams to a UDP destination (datagram_tunnel.rs), or IP
//! packets.
//!
//! ```text
//!   Tunnel (client.rs) -- Keeper --> Session (session.rs) == paths ==> ServerSession (server.rs)
//!      | open_tcp                       |                                  |  <-- TunnelServer
//!      v                                v                                  v
//!   TunnelStream (stream.rs)         Steered (steer.rs): IO shell      ConnectRequest
//!                                       |  of `multipath`, both ends       |
//!   FanOut (interfaces.rs): one UDP socket per access network          TunnelStream
//! ```
//!
//! A path's death does not end the connection: the steering closes the path while another lives.
//! The loss of all paths, or of the connection, does not end a tunnel that both ends have agreed to
//! resume (resume.rs). The tunnel goes on over the next session, which the client makes by itself.

// The bench of the integration tests uses the name `tunnel`, and some unit tests use it too.
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
mod dns_redirect;
mod exchange;
mod fallback;
mod h2_over_tcp;
mod h3_over_noq;
mod http_datagrams;
mod icmp;
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
mod nftables;
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
mod tcp_redirect;
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
pub use dns_redirect::{Asked, DnsRedirect, QuerySocket};
pub use http::{StatusCode, uri::Authority};
pub use interfaces::Interface;
pub use ip::{
    IpGate, IpPacket, IpPrefix, IpRange, IpRanges, MalformedPacket, NotAPrefix, NotPassed,
    PacketFlow, link_echo,
};
pub use ip_tunnel::{IpAddressEntry, IpCapsule, IpTunnel};
pub use masquerade::{MasqueradeError, masquerade};
pub use multipath::{Keepalive, PathState, steering_rules};
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
pub use tcp_redirect::{TcpRedirect, original_destination, reset};
pub use transport::{ALPN, Transport};
pub use tun::{PACKET_BYTES_MAX, TunDevice, TunError, is_device};
pub use tunnel_stream::TunnelStream;
pub use udp_tunnel::UdpTunnel;
