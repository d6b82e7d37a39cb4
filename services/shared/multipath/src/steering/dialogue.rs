//! What the steering of a connection is told, and what it says: its settings, events, commands and reports.

use std::net::SocketAddr;
use std::time::Duration;

use noq_proto::{PathEvent, PathId, PathStatus};

use crate::agreement::KeepaliveTerms;
use crate::liveness::{Keepalive, PathState};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}

/// A network interface of the client, numbered by the IO shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceId(pub u16);

/// Settings of one connection's steering.
#[derive(Debug, Clone)]
pub struct SteeringConfig {
    pub side: Side,
    /// Of both ends, until another one is agreed.
    pub keepalive: Keepalive,
    /// Close silent paths. Without it only the library's timers do.
    pub liveness: bool,
    /// Keep only the fastest path Available while there is little to send.
    pub steer_acknowledgements: bool,
    /// The IO shell obeys [`route_of`](crate::Steering::route_of): a dead path's datagrams are sent over a living interface, so that the
    /// peer's acknowledgements tell at once what was lost, instead of after the library's drain.
    pub reroute: bool,
}

impl SteeringConfig {
    pub fn new(side: Side) -> Self {
        Self {
            side,
            keepalive: Keepalive::default(),
            liveness: true,
            steer_acknowledgements: true,
            reroute: false,
        }
    }
}

/// Why a path could not be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenFailure {
    /// `PathError::RemoteCidsExhausted` or `MaxPathIdReached`: the peer has not yet granted an id.
    NoIdYet,
    /// Anything else.
    Refused,
}

/// What the steering is told.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Event {
    /// The handshake is done; path zero runs over this interface (none at a server).
    Connected { interface: Option<InterfaceId> },
    /// The interface exists, has an address and a carrier. Said again when there is reason to try it at once: it has
    /// returned, or has another address.
    LinkUp { interface: InterfaceId },
    /// Its address is gone or its carrier lost.
    LinkDown { interface: InterfaceId },
    /// Answer to [`Command::Open`].
    Opened {
        interface: InterfaceId,
        path: PathId,
    },
    /// Answer to [`Command::Open`].
    OpenFailed {
        interface: InterfaceId,
        failure: OpenFailure,
    },
    /// The library validated the path.
    Established { path: PathId },
    /// The library, this end or the peer gave the path up.
    Abandoned { path: PathId },
    /// The library has released a path that was given up, and declared lost what was in flight there.
    Discarded { path: PathId },
    /// The peer changed its status of the path.
    RemoteStatus { path: PathId, status: PathStatus },
    /// Datagrams received on the path so far (`PathStats::udp_rx.datagrams`), and its round trip (`PathStats::rtt`).
    Received {
        path: PathId,
        datagrams: u64,
        rtt: Duration,
    },
    /// Where a server's library sends this path's packets (`Connection::network_path`): a path that has come to another one's address
    /// carries nothing more. Needed from servers only.
    PeerAddress { path: PathId, address: SocketAddr },
    /// Bytes that the streams of this end hold and the connection has not sent, as far as the shell knows.
    Backlog { bytes: u64 },
    /// How all paths are probed and judged from now on, as agreed with the peer.
    Keepalive(KeepaliveTerms),
}

impl Event {
    /// The event for what the library says of a path; none for what does not matter here.
    pub fn from_path_event(event: &PathEvent) -> Option<Self> {
        match event {
            PathEvent::Established { id, .. } => Some(Self::Established { path: *id }),
            PathEvent::Abandoned { id, .. } => Some(Self::Abandoned { path: *id }),
            PathEvent::Discarded { id, .. } => Some(Self::Discarded { path: *id }),
            PathEvent::RemoteStatus { id, status, .. } => Some(Self::RemoteStatus {
                path: *id,
                status: *status,
            }),
            _ => None,
        }
    }
}

/// What the connection is to do. A command for a path that is gone by then may be ignored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Command {
    /// `Connection::ping_path`
    Ping { path: PathId },
    /// `Connection::set_path_status`
    SetStatus { path: PathId, status: PathStatus },
    /// `Connection::close_path`
    Close { path: PathId },
    /// `Connection::close`: this path was given up and cannot be released, so that its bytes are lost to the streams.
    GiveUp { path: PathId },
    /// `Connection::open_path` from this interface's address; answer with `Opened` or `OpenFailed`.
    Open {
        interface: InterfaceId,
        status: PathStatus,
    },
}

/// A path as reported to people and to telemetry.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PathSnapshot {
    pub path: PathId,
    pub interface: Option<InterfaceId>,
    pub state: PathState,
    pub rtt: Duration,
    /// Time since the path was last heard of.
    pub silence: Duration,
}
