//! Settings, events, commands and reports of the steering of a connection.

use std::net::SocketAddr;
use std::time::Duration;

use noq_proto::{PathEvent, PathId, PathStatus};

use crate::agreement::{KeepaliveTerms, Rest};
use crate::keepalive::Keepalive;
use crate::liveness::PathState;
use crate::steering_rules::PathSchedule;

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
pub struct UpkeepConfig {
    pub side: Side,
    /// Keepalive of both ends until another one is agreed.
    pub keepalive: Keepalive,
    /// The agreement about rest before the first event.
    pub rest: Rest,
    /// Close silent paths. Otherwise only the library's timers do.
    pub liveness: bool,
    /// Keep only the fastest path Available while there is little to send.
    pub steer_acknowledgements: bool,
    /// The IO shell follows [`route_of`](crate::PathUpkeep::route_of): datagrams of a dead path
    /// take a living interface. The acknowledgements of the peer then reveal the losses at once.
    pub reroute: bool,
}

impl UpkeepConfig {
    pub fn new(side: Side) -> Self {
        Self {
            side,
            keepalive: Keepalive::default(),
            rest: Rest::default(),
            liveness: true,
            steer_acknowledgements: true,
            reroute: false,
        }
    }
}

/// Cause of a failed opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenFailure {
    /// `PathError::RemoteCidsExhausted` or `MaxPathIdReached`: the peer has not yet granted an id.
    NoIdYet,
    /// Any other cause.
    Refused,
}

/// Input of the steering.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Event {
    /// The handshake is complete; path zero uses this interface (none at a server).
    Connected { interface: Option<InterfaceId> },
    /// The interface exists, has an address and a carrier. Repeated when the interface should be
    /// tried at once: it returned, or has another address.
    LinkUp { interface: InterfaceId },
    /// The address is gone or the carrier lost.
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
    /// The library, this end or the peer closed the path.
    Abandoned { path: PathId },
    /// The library holds a path of [`closing`](crate::PathUpkeep::closing) still, with this
    /// smoothed round trip.
    Held { path: PathId, rtt: Duration },
    /// The library released a closed path and declared its data in flight lost.
    Discarded { path: PathId },
    /// The peer changed its status of the path.
    RemoteStatus { path: PathId, status: PathStatus },
    /// Cumulative datagrams received on the path (`PathStats::udp_rx.datagrams`), and its round
    /// trip (`PathStats::rtt`).
    Received {
        path: PathId,
        datagrams: u64,
        rtt: Duration,
    },
    /// Destination of this path's packets at a server (`Connection::network_path`). A path that
    /// moved to another path's address carries no more data.
    PeerAddress { path: PathId, address: SocketAddr },
    /// Bytes in the streams of this end that the connection has not sent, as far as the shell
    /// knows.
    Backlog { bytes: u64 },
    /// Bytes that the application has written to the streams of this end since the beginning.
    Written { bytes: u64 },
    /// The same to urgent streams. An alert or its answer is under way.
    Urgent { bytes: u64 },
    /// The agreed keepalive of all paths from now on.
    Keepalive(KeepaliveTerms),
    /// The session's schedule for this path. Without one a path is free.
    Scheduled {
        path: PathId,
        schedule: PathSchedule,
    },
    /// The schedule of the session as a whole.
    Spread { gathers: bool, copies: u8 },
    /// The controller of this path ([`PathController::slot`](crate::PathController::slot)). Needed
    /// from servers only: a client knows it by the order of opening.
    Slot { path: PathId, slot: usize },
}

impl Event {
    /// Converts an event of the library; none for events without relevance here.
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

/// Output of the steering. A command for a closed path may be ignored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Command {
    /// `Connection::ping_path`
    Ping { path: PathId },
    /// `Connection::set_path_status`
    SetStatus { path: PathId, status: PathStatus },
    /// `Connection::close_path`
    Close { path: PathId },
    /// `Connection::close`: a closed path cannot be released, so its bytes are lost to the streams.
    GiveUp { path: PathId },
    /// `Connection::open_path` from the address of this interface; the answer is `Opened` or
    /// `OpenFailed`.
    Open {
        interface: InterfaceId,
        status: PathStatus,
    },
}

/// Report of a path for people and telemetry.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PathSnapshot {
    pub path: PathId,
    pub interface: Option<InterfaceId>,
    pub state: PathState,
    pub rtt: Duration,
    /// Time since the last datagram on the path.
    pub silence: Duration,
}
