//! Multipath transport without a socket and without a clock.
//!
//! One [`Gate`] belongs to one connection. The [`ControllerFactory`](noq_proto::congestion::ControllerFactory)
//! made from it ([`Controllers`]) builds one congestion controller per path; they share the gate, which
//! decides whose turn it is. One [`Steering`] per connection and end keeps the paths alive: it is fed events and
//! time, and returns commands for the connection.
//!
//! ```text
//!              events, now                        commands
//!   connection ------------> Steering ---------------------------> connection (ping, status, close, open)
//!        |                      | tick, rebase, bulk?
//!        | acks, losses         v
//!        +--> PathController -> Gate -> PathController::window(): how much of the path may be used
//! ```
//!
//! How an IO shell uses it:
//! 1. Per connection: `let gate = Gate::new(); transport.congestion_controller_factory(Controllers::new(gate.clone(), ControllerConfig::default()))`.
//!    A server needs a transport configuration per connection, since the gate is per connection.
//! 2. `Steering::new(SteeringConfig::new(side), gate)`; feed [`Event`]s (path events of the library convert by
//!    [`Event::from_path_event`]); after each turn of the connection's loop call [`Steering::poll`] until it returns `None`,
//!    and arrange to be called again at [`Steering::next_deadline`].
//! 3. Before `poll` report what each open path has received ([`Event::Received`], cumulative datagrams from the path's statistics),
//!    and at a server where its packets go ([`Event::PeerAddress`]).
//! 4. Apply the commands; answer [`Command::Open`] with [`Event::Opened`] or [`Event::OpenFailed`].

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use noq_proto::{TransportConfig, VarInt};

mod agreement;
mod answers;
mod compete;
mod controller;
#[cfg(test)]
mod controller_tests;
mod coupling;
mod filter;
mod gate;
mod liveness;
mod sampler;
mod steering;
mod swing;

pub use agreement::{KeepaliveAcceptor, KeepaliveProposer, KeepaliveTerms};
pub use answers::Answers;
pub use controller::{ControllerConfig, Controllers, PathController};
pub use coupling::Coupling;
pub use gate::{Gate, PathModel};
pub use liveness::{Keepalive, PathState};
pub use steering::{
    Command, Event, InterfaceId, OpenFailure, PathSnapshot, Side, Steering, SteeringConfig,
};

/// Round trip assumed before one is measured: a lost packet of the handshake, or of a path's challenge, is repeated after three of
/// it, and then after twice the pause before.
const INITIAL_RTT: Duration = Duration::from_millis(50);
/// What one stream may hold that nobody has read, or nobody can read for a gap. The library ends the whole connection over more than 2,048
/// chunks of one stream (1.4), and each packet's part stays a chunk of its own: 1,158 bytes of the smallest packet.
pub const STREAM_WINDOW_BYTES: u32 = 2_300_000;

/// Settings of the library that multipath relies on, at both ends: quick repeats in the handshake, the bound on the
/// reassembly, and no idle timer of the library's own on paths that the steering judges.
pub fn tune(transport: &mut TransportConfig) {
    transport
        .initial_rtt(INITIAL_RTT)
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
        .default_path_max_idle_timeout(None);
}

/// The address of a client as a server has to tell it to the library: always one of IPv6. When such a one changes, the library begins the path's
/// state anew. When one of IPv4 only changes its port, it goes on with a copy of the state, and with it with the probe of the path's size that is
/// under way; if a second change fails, 1.4 takes that copy back, and panics when the path ends, since the probe was settled long ago.
pub fn mapped(client: SocketAddr) -> SocketAddr {
    match client.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), client.port()),
        IpAddr::V6(_) => client,
    }
}

/// The reverse of [`mapped`], for sending and for people.
pub fn unmapped(client: SocketAddr) -> SocketAddr {
    SocketAddr::new(client.ip().to_canonical(), client.port())
}
