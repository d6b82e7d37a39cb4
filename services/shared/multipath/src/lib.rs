//! Multipath transport without a socket and without a clock.
//!
//! One [`PathScheduler`] belongs to one connection. The
//! [`ControllerFactory`](noq_proto::congestion::ControllerFactory) made from it ([`Controllers`])
//! builds one congestion controller per path. The controllers share the scheduler, which decides
//! which path sends the next packet. One [`PathUpkeep`] per connection and end keeps the paths
//! alive: it takes events and time, and returns commands for the connection.
//!
//! ```text
//!              events, now                        commands
//!   connection ------------> PathUpkeep ---------------------> connection (ping, status, close, open)
//!        |                      | tick, rebase, bulk?
//!        | acks, losses         v
//!        +--> PathController -> PathScheduler -> PathController::window()
//! ```
//!
//! Use by an IO shell:
//! 1. Per connection: make a [`PathScheduler`] and give `Controllers::new` to the transport
//!    configuration. A server needs one configuration per connection, because the scheduler is per
//!    connection.
//! 2. `PathUpkeep::new(UpkeepConfig::new(side), scheduler)`. Feed [`Event`]s; path events of the
//!    library convert by [`Event::from_path_event`]. After each turn of the connection's loop call
//!    [`PathUpkeep::poll`] until it returns `None`, and again at [`PathUpkeep::next_deadline`].
//! 3. Before `poll` report the received datagrams of each open path ([`Event::Received`],
//!    cumulative), and at a server the destination of its packets ([`Event::PeerAddress`]). Report
//!    also whether the library still holds each path of [`PathUpkeep::closing`].
//! 4. Apply the commands; answer [`Command::Open`] with [`Event::Opened`] or [`Event::OpenFailed`].

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use noq_proto::{TransportConfig, VarInt};

mod agreement;
mod answer_timers;
mod burstiness;
mod controller;
#[cfg(test)]
mod controller_tests;
mod coupling;
mod cubic;
mod filter;
mod keepalive;
mod liveness;
mod path_scheduler;
mod path_upkeep;
mod sampler;
pub mod steering_rules;

pub use agreement::{KeepaliveAcceptor, KeepaliveProposer, KeepaliveTerms, Rest};
pub use answer_timers::AnswerTimers;
pub use controller::{ControllerConfig, Controllers, PathController};
pub use coupling::Coupling;
pub use keepalive::Keepalive;
pub use liveness::PathState;
pub use path_scheduler::{CopyWrite, PathModel, PathScheduler, RESERVED_MAX};
pub use path_upkeep::{
    Command, Event, InterfaceId, OpenFailure, PathSnapshot, PathUpkeep, Side, UpkeepConfig,
};

/// Round trip assumed before a measurement. A lost handshake packet or path challenge is repeated
/// after three times this value, then after twice the former pause.
const INITIAL_RTT: Duration = Duration::from_millis(50);
/// Flow-control window of a stream. The library ends a connection with more than 2,048 chunks in a
/// stream, and every packet is a chunk of at least 1,158 bytes.
pub const STREAM_WINDOW_BYTES: u32 = 2_300_000;

/// Settings of the library that multipath needs at both ends: quick handshake repeats and the bound
/// on reassembly. Paths that steering judges have no idle timer.
pub fn tune(transport: &mut TransportConfig) {
    transport
        .initial_rtt(INITIAL_RTT)
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
        .default_path_max_idle_timeout(None);
}

/// The IPv6 form of a client's address, which a server must give to the library. Decision 0052 has
/// the reason.
pub fn mapped(client: SocketAddr) -> SocketAddr {
    match client.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), client.port()),
        IpAddr::V6(_) => client,
    }
}

/// The reverse of [`mapped`], for sending and for display.
pub fn unmapped(client: SocketAddr) -> SocketAddr {
    SocketAddr::new(client.ip().to_canonical(), client.port())
}
