//! The manager of one host's paths: the upkeep that ships, or the library alone for the other
//! controllers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use multipath::{
    Command, Event, InterfaceId, PathController, PathScheduler, PathState, PathUpkeep, Side,
    UpkeepConfig,
};
use noq_proto::{Connection, FourTuple, PathError, PathEvent, PathId, PathStatus};

use crate::address::{self, SERVER};
use crate::mechanisms::Mechanisms;
use crate::oracle::Oracle;
use crate::scenario::Scenario;

/// How soon a path is tried again when the library alone opens paths.
const PLAIN_RETRY: Duration = Duration::from_millis(50);

/// The part of a host that opens paths and says which of them may be used.
#[derive(Debug)]
pub(super) enum Manager {
    Ours(Box<PathUpkeep>),
    /// Opens a path per interface after the handshake, and again when one was given up.
    Plain {
        missing: Vec<(usize, Duration)>,
        of_path: Vec<(PathId, usize)>,
    },
}

impl Manager {
    pub(super) fn new(
        client: bool,
        scenario: &Scenario,
        mechanisms: Mechanisms,
        path_scheduler: &Arc<PathScheduler>,
    ) -> Self {
        if !scenario.controller.is_steered() {
            return Self::Plain {
                missing: Vec::new(),
                of_path: Vec::new(),
            };
        }
        let side = if client { Side::Client } else { Side::Server };
        let mut config = UpkeepConfig::new(side);
        config.steer_acknowledgements = mechanisms.steer_acknowledgements;
        config.liveness = mechanisms.liveness;
        config.reroute = mechanisms.reroute;
        config.rest = mechanisms.rest;
        Self::Ours(Box::new(PathUpkeep::new(config, path_scheduler.clone())))
    }

    /// Passes an event to the upkeep.
    pub(super) fn feed(&mut self, at: Instant, event: Event) {
        if let Self::Ours(upkeep) = self {
            upkeep.on_event(at, event);
        }
    }

    pub(super) fn next_command(&mut self, at: Instant) -> Option<Command> {
        match self {
            Self::Ours(upkeep) => upkeep.poll(at),
            Self::Plain { .. } => None,
        }
    }

    pub(super) fn next_deadline(&self, start: Instant) -> Option<Instant> {
        match self {
            Self::Ours(upkeep) => upkeep.next_deadline(),
            Self::Plain { missing, .. } => missing.iter().map(|&(_, at)| start + at).min(),
        }
    }

    pub(super) fn is_suspect(&self, path: PathId, at: Instant) -> bool {
        let Self::Ours(upkeep) = self else {
            return false;
        };
        let paths = upkeep.snapshot(at);
        paths
            .iter()
            .any(|entry| entry.path == path && entry.state == PathState::Suspect)
    }

    /// The handshake was answered over the interface `first`; `now` in the scenario and as an
    /// instant.
    pub(super) fn on_connected(
        &mut self,
        client: bool,
        first: usize,
        conn: &Connection,
        (now, at): (Duration, Instant),
    ) {
        match self {
            Self::Ours(upkeep) => {
                let interface = client.then_some(InterfaceId(first as u16));
                upkeep.on_event(at, Event::Connected { interface });
                if !client {
                    name_controller(conn, upkeep, at, PathId::ZERO);
                }
            }
            Self::Plain { missing, of_path } if client => {
                of_path.push((PathId::ZERO, first));
                missing.retain(|entry| entry.0 != first);
                for (_, at) in missing.iter_mut() {
                    *at = now;
                }
            }
            Self::Plain { .. } => {}
        }
    }

    pub(super) fn on_path_event(
        &mut self,
        client: bool,
        event: &PathEvent,
        conn: &Connection,
        (now, at): (Duration, Instant),
    ) {
        match self {
            Self::Plain { missing, of_path } => {
                if let PathEvent::Abandoned { id, .. } = event
                    && let Some(&(_, interface)) = of_path.iter().find(|(path, _)| path == id)
                {
                    missing.push((interface, now + PLAIN_RETRY));
                }
            }
            Self::Ours(upkeep) => {
                let Some(event) = Event::from_path_event(event) else {
                    return;
                };
                upkeep.on_event(at, event);
                if !client && let Event::Established { path } = event {
                    name_controller(conn, upkeep, at, path);
                }
            }
        }
    }
}

/// Passes the slot of the path's controller to a server's upkeep.
fn name_controller(conn: &Connection, upkeep: &mut PathUpkeep, at: Instant, path: PathId) {
    let controller = conn.congestion_state(path).map(|state| state.clone_box());
    let controller = controller.and_then(|it| it.into_any().downcast::<PathController>().ok());
    if let Some(slot) = controller.map(|it| it.slot()) {
        upkeep.on_event(at, Event::Slot { path, slot });
    }
}

/// Opens the paths that are due; how many came about. The others are tried again later.
pub(super) fn open_missing(
    conn: &mut Connection,
    missing: &mut Vec<(usize, Duration)>,
    of_path: &mut Vec<(PathId, usize)>,
    now: Duration,
    at: Instant,
) -> u32 {
    let due: Vec<usize> = missing
        .iter()
        .filter(|entry| entry.1 <= now)
        .map(|entry| entry.0)
        .collect();
    let mut opened = 0;
    for interface in due {
        missing.retain(|entry| entry.0 != interface);
        match open(conn, None, interface, PathStatus::Available, at) {
            Ok(path) => {
                opened += 1;
                of_path.push((path, interface));
            }
            Err(_) => missing.push((interface, now + PLAIN_RETRY)),
        }
    }
    opened
}

/// Opens a path over an interface of the client.
pub(super) fn open(
    conn: &mut Connection,
    oracle: Option<&Oracle>,
    interface: usize,
    status: PathStatus,
    at: Instant,
) -> Result<PathId, PathError> {
    if let Some(oracle) = oracle {
        oracle.builds_for(interface);
    }
    let local = address::client(interface).ip();
    conn.open_path(FourTuple::new(SERVER, Some(local)), status, at)
}
