//! Tunnels over multipath QUIC. The client keeps one session with a proxy alive over several access
//! networks and opens HTTP/3 CONNECT streams in it; the server accepts them. A tunnel carries a
//! byte stream to a TCP destination, datagrams to a UDP destination
//! (carried/datagram_tunnel.rs), or IP packets.
//!
//! ```text
//!   Tunnel (client.rs) -- Keeper --> Session (client/session.rs) == paths ==> ServerSession
//!      | open_tcp                       |                                  |  <-- TunnelServer
//!      v                                v                                  v
//!   TunnelStream                     UpkeepTask (paths/upkeep.rs): the     ConnectRequest
//!   (carried/tunnel_stream.rs)          |  IO shell of `multipath`         |
//!   FanOut (sockets/fan_out.rs): one UDP socket per access network     TunnelStream
//! ```
//!
//! `http` holds requests and streams at both ends, and `carried` the traffic in them. `paths` holds
//! the record and the upkeep of paths, `resume` the resumption, `sockets` the sockets beneath.
//!
//! A path's death does not end the connection: the upkeep closes the path while another lives.
//! The loss of all paths, or of the connection, does not end a tunnel that both ends have agreed to
//! resume (resume.rs). The tunnel goes on over the next session, which the client makes by itself.

// The bench of the integration tests uses the name `tunnel`, and some unit tests use it too.
#[cfg(test)]
extern crate self as tunnel;

#[cfg(test)]
#[path = "../tests/support/bench.rs"]
mod bench;

mod carried;
mod client;
mod http;
mod paths;
mod resume;
mod server;
mod session_numbers;
mod sockets;

pub use ::http::{StatusCode, uri::Authority};
pub use carried::{
    datagram_tunnel::ended::TunnelEnded,
    ip_tunnel::{
        IpTunnel,
        capsule::{IpAddressEntry, IpCapsule},
    },
    splice::{SpliceError, Traffic, splice},
    tunnel_stream::TunnelStream,
    udp_tunnel::UdpTunnel,
};
pub use client::{
    OpenError, StartError, Tunnel,
    access::{AccessRule, Family},
    setup::{TunnelConfig, TunnelEvent},
};
pub use http::{
    copy_number::CopyNumber,
    request::Urgency,
    transport::{ALPN, Transport},
};
pub use multipath::{Keepalive, PathState, steering_rules};
pub use paths::{name::is_name, slots::AttachError, snapshot::PathSnapshot};
pub use resume::{ResumeLimits, StreamSwitch};
pub use server::{
    BindError, ServerConfig, TunnelServer,
    places::{Place, Places},
    requests::ConnectRequest,
    reset_key::ResetKey,
    server_id::{ServerId, ServerIdError},
    session::ServerSession,
    session_handle::SessionHandle,
};
pub use sockets::{
    datagrams::DatagramCounts,
    interface::{Interface, enlarge_buffers},
};
