//! Runs the upkeep of one connection: passes events and time to it, executes its commands, and
//! keeps the record of the paths. Both ends use it; the server has no interfaces and opens no path.

mod scheduled;

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{FutureExt, StreamExt};
use multipath::{
    Command, Event, InterfaceId, KeepaliveTerms, OpenFailure, PathController, PathState, PathUpkeep,
};
use noq::{Connection, FourTuple, PathError, PathEvent, PathId};
use tokio::sync::watch;

use crate::{
    http::{codes::PATH_NOT_RELEASED, h3_over_noq::SendHandles},
    paths::{
        Paths, Reading, number,
        orders::Order,
        routes::Routes,
        slots::{SlotState, Slots, label},
    },
};
pub(crate) use scheduled::Scheduled;

/// Longest pause between two readings of the counters; bounds the delay of noticing an answer or
/// its absence.
const TURN_MAX: Duration = Duration::from_millis(50);

/// The same while data flows, so that the rhythm of arrivals is visible.
const TURN_BUSY_MAX: Duration = Duration::from_millis(10);

/// The same while no answer is awaited. The pause doubles up to it, and ends when a packet is
/// sent.
const TURN_CALM_MAX: Duration = Duration::from_millis(500);

/// Datagrams received in one turn from which on data counts as flowing; pings alone stay far below.
const BUSY_DATAGRAMS: u64 = 8;

/// Unsent bytes from which on there is a backlog: more than three packets.
const BACKLOG_BYTES_MIN: u64 = 4_096;

/// Shortest pause, so that an overdue deadline cannot spin the task.
const TURN_MIN: Duration = Duration::from_millis(2);

/// Commands executed in one turn; further commands wait for the next turn.
const COMMANDS_PER_TURN_MAX: usize = 256;

/// A path became usable or ceased to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Up(PathId),
    /// The path carries data and has been silent for longer than usual; it may still answer.
    Silent(PathId),
    Down {
        path: PathId,
        carried: bool,
    },
}

/// The client's access networks in one connection's view.
pub(crate) struct Ways {
    slots: Arc<Slots>,
    changes: watch::Receiver<u64>,
    /// The states that were last published to the upkeep.
    published: Vec<SlotState>,
    /// The route of each interface's datagrams, for the fan-out.
    routes: Routes,
    schedule: watch::Receiver<Order>,
}

impl Ways {
    pub(crate) fn new(slots: Arc<Slots>, routes: Routes, schedule: watch::Receiver<Order>) -> Self {
        Self {
            changes: slots.watch(),
            slots,
            published: Vec::new(),
            routes,
            schedule,
        }
    }
}

/// The upkeep of one connection.
pub(crate) struct UpkeepTask {
    pub(crate) connection: Connection,
    pub(crate) upkeep: PathUpkeep,
    pub(crate) paths: Arc<Paths>,
    pub(crate) handles: SendHandles,
    /// `None` at the server.
    pub(crate) ways: Option<Ways>,
    /// The interface of path zero; `None` at the server.
    pub(crate) first: Option<usize>,
    pub(crate) remote: SocketAddr,
    /// The terms of probing and judging paths, as agreed with the peer (`names`).
    pub(crate) terms: watch::Receiver<KeepaliveTerms>,
    /// As of the last turn, over all open paths.
    pub(crate) received_datagrams: u64,
    pub(crate) scheduled: Scheduled,
}

impl UpkeepTask {
    /// Runs until the connection is closed.
    pub(crate) async fn run(mut self, mut changed: impl FnMut(Change)) {
        let mut events = self.connection.path_events();
        let closed = self.connection.on_closed();
        tokio::pin!(closed);
        let mut schedule_of_peer = self.paths.orders.watch_received();
        self.start(&mut changed);
        let mut pause = TURN_MAX;
        loop {
            let (received, calm) = self.turn(&mut changed);
            let now = Instant::now();
            pause = pause_after(pause, received, calm);
            let wake = self
                .upkeep
                .next_deadline()
                .map_or(now + pause, |at| at.clamp(now + TURN_MIN, now + pause));
            tokio::select! {
                _ = &mut closed => break,
                event = events.next() => match event {
                    Some(Ok(event)) => self.on_path_event(&event, &mut changed),
                    Some(Err(lagged)) => {
                        tracing::warn!(lost = lagged.0, "path events were lost: they came too fast");
                    }
                    None => break,
                },
                () = terms_changed(&mut self.terms) => {}
                () = ways_changed(&mut self.ways) => self.look_at_ways(),
                // Never an error: `paths` has the sender.
                _ = schedule_of_peer.changed() => {}
                () = copy_waits(&self.upkeep) => {}
                () = first_sent(&self.upkeep), if pause > TURN_MAX => pause = Duration::ZERO,
                () = tokio::time::sleep_until(wake.into()) => {}
            }
        }
        // A connection that ended while it was calm is silent from now on.
        self.paths.set_calm(false, Instant::now());
        for id in self.paths.open_ids() {
            self.set_state(id, PathState::Closed, &mut changed);
        }
    }

    fn start(&mut self, changed: &mut impl FnMut(Change)) {
        let now = Instant::now();
        let interface = self.first.and_then(interface_id);
        if let Some(path) = self.connection.path(PathId::ZERO) {
            self.paths.add(&path);
        }
        self.upkeep.on_event(now, Event::Connected { interface });
        self.find_slot(now, PathId::ZERO);
        self.look_at_ways();
        self.name(PathId::ZERO, self.first);
        self.set_state(PathId::ZERO, PathState::Available, changed);
    }

    /// Reports to the upkeep which access networks have come or gone since the last look.
    fn look_at_ways(&mut self) {
        let Some(ways) = &mut self.ways else {
            return;
        };
        let states = ways.slots.states();
        let now = Instant::now();
        for (index, state) in states.iter().enumerate() {
            let Some(interface) = interface_id(index) else {
                continue;
            };
            let before = ways.published.get(index);
            let was_up = before.is_some_and(|before| before.up);
            if state.up && before.is_none_or(|before| before.arrivals != state.arrivals) {
                self.upkeep.on_event(now, Event::LinkUp { interface });
            } else if was_up && !state.up {
                tracing::info!(name = &*state.name, "access network lost");
                self.upkeep.on_event(now, Event::LinkDown { interface });
            }
        }
        ways.published = states;
    }

    fn name(&self, id: PathId, way: Option<usize>) {
        let ways = self.ways.as_ref();
        let known = ways
            .zip(way)
            .and_then(|(ways, index)| ways.published.get(index));
        if let Some(way) = known {
            self.paths.set_name(number(id), &way.name);
        }
    }

    /// Returns the number of datagrams since the last turn, and whether the connection is calm.
    fn turn(&mut self, changed: &mut impl FnMut(Change)) -> (u64, bool) {
        let now = Instant::now();
        // Before any verdict: the agreed terms hold, however late this task runs.
        let terms = *self.terms.borrow_and_update();
        self.upkeep.on_event(now, Event::Keepalive(terms));
        let mut sum = 0;
        for reading in self.paths.refresh(now) {
            let Reading {
                path,
                datagrams,
                rtt,
                peer,
            } = reading;
            sum += datagrams;
            let received = Event::Received {
                path,
                datagrams,
                rtt,
            };
            self.upkeep.on_event(now, received);
            if let Some(address) = peer {
                let event = Event::PeerAddress { path, address };
                self.upkeep.on_event(now, event);
            }
        }
        self.look_at_closing(now);
        // An upload that is seen between its writing and its sending is no backlog.
        let bytes = self.handles.pending_bytes() as u64;
        if bytes >= BACKLOG_BYTES_MIN {
            self.upkeep.on_event(now, Event::Backlog { bytes });
        }
        let bytes = self.handles.written_bytes();
        self.upkeep.on_event(now, Event::Written { bytes });
        let bytes = self.handles.urgent_bytes();
        self.upkeep.on_event(now, Event::Urgent { bytes });
        let order = self.obey_schedule(now);
        for _ in 0..COMMANDS_PER_TURN_MAX {
            let Some(command) = self.upkeep.poll(now) else {
                break;
            };
            self.apply(now, command, changed);
        }
        // A path that was opened just now has its schedule before it can carry data.
        self.obey_schedule(now);
        self.paths.orders.obey(order);
        for path in self.upkeep.snapshot(now) {
            self.set_state(path.path, path.state, changed);
        }
        let calm = self.upkeep.is_calm(now);
        self.paths.set_calm(calm, now);
        self.set_routes();
        let before = std::mem::replace(&mut self.received_datagrams, sum);
        (sum.saturating_sub(before), calm)
    }

    /// An event of a release may be lost, when events come too fast.
    fn look_at_closing(&mut self, now: Instant) {
        for path in self.upkeep.closing() {
            let event = match self.connection.path(path) {
                Some(held) => Event::Held {
                    path,
                    rtt: held.stats().rtt,
                },
                None => Event::Discarded { path },
            };
            self.upkeep.on_event(now, event);
        }
    }

    /// Returns the number of the order, which holds once the upkeep was polled.
    fn obey_schedule(&mut self, now: Instant) -> u64 {
        let order = match &self.ways {
            Some(ways) => ways.schedule.borrow().clone(),
            None => self.paths.orders.received(),
        };
        self.scheduled
            .feed(now, order.schedule, &self.paths, &mut self.upkeep);
        order.number
    }

    /// A server learns only here which controller belongs to a path, once the path is established.
    fn find_slot(&mut self, now: Instant, path: PathId) {
        if self.ways.is_some() {
            return;
        }
        let controller = self.connection.congestion_state(path);
        let controller = controller.and_then(|it| it.into_any().downcast::<PathController>().ok());
        if let Some(slot) = controller.map(|it| it.slot()) {
            self.upkeep.on_event(now, Event::Slot { path, slot });
        }
    }

    fn set_routes(&self) {
        let Some(ways) = &self.ways else {
            return;
        };
        for index in 0..ways.published.len() {
            if let Some(interface) = interface_id(index) {
                let via = self.upkeep.route_of(interface);
                let session = self.paths.session();
                ways.routes.set(session, index, usize::from(via.0));
            }
        }
    }

    fn apply(&mut self, now: Instant, command: Command, changed: &mut impl FnMut(Change)) {
        match command {
            Command::Ping { path } => {
                // Fails for a path that is gone, which the next event reports.
                let _ = self.connection.path(path).map(|path| path.ping());
            }
            Command::SetStatus { path, status } => {
                let _ = self
                    .connection
                    .path(path)
                    .map(|path| path.set_status(status));
            }
            Command::Close { path } => {
                tracing::info!(%path, name = self.paths.name(path).as_deref(), "closing a silent path");
                if let Some(Err(error)) = self.connection.path(path).map(|path| path.close()) {
                    tracing::debug!(%path, %error, "path not closed");
                }
                self.set_state(path, PathState::Closed, changed);
            }
            Command::GiveUp { path } => {
                tracing::warn!(%path, "a closed path is not released; the session is given up");
                let code = noq::VarInt::from_u32(PATH_NOT_RELEASED);
                self.connection
                    .close(code, b"a closed path is not released");
            }
            Command::Open { interface, status } => {
                let index = usize::from(interface.0);
                let tuple = FourTuple::new(self.remote, Some(label(index)));
                let opening = self.connection.open_path(tuple, status);
                let opened = opening
                    .path_id()
                    .and_then(|id| self.connection.path(id))
                    .map(|path| {
                        self.paths.add(&path);
                        path.id()
                    });
                let event = match opened {
                    Some(path) => {
                        self.name(path, Some(index));
                        Event::Opened { interface, path }
                    }
                    None => {
                        let failure = match opening.now_or_never() {
                            Some(Err(
                                PathError::RemoteCidsExhausted | PathError::MaxPathIdReached,
                            )) => OpenFailure::NoIdYet,
                            Some(Err(error)) => {
                                tracing::debug!(slot = index, %error, "path not opened");
                                OpenFailure::Refused
                            }
                            _ => OpenFailure::Refused,
                        };
                        Event::OpenFailed { interface, failure }
                    }
                };
                self.upkeep.on_event(now, event);
            }
        }
    }

    fn on_path_event(&mut self, event: &PathEvent, changed: &mut impl FnMut(Change)) {
        match event {
            PathEvent::Established { id, .. } => {
                if let Some(path) = self.connection.path(*id) {
                    self.paths.add_unless_known(&path);
                }
            }
            PathEvent::Abandoned { id, reason, .. } => {
                tracing::debug!(path = %id, ?reason, "path abandoned");
                self.set_state(*id, PathState::Closed, changed);
            }
            PathEvent::Discarded { id, path_stats, .. } => {
                self.paths.set_last(*id, path_stats.clone());
            }
            _ => {}
        }
        if let Some(event) = Event::from_path_event(event) {
            let now = Instant::now();
            self.upkeep.on_event(now, event);
            if let Event::Established { path } = event {
                self.find_slot(now, path);
            }
        }
    }

    fn set_state(&self, id: PathId, state: PathState, changed: &mut impl FnMut(Change)) {
        let Some((before, carries)) = self.paths.set_state(id, state) else {
            return;
        };
        match (is_up(before), is_up(state)) {
            (false, true) => changed(Change::Up(id)),
            (true, false) => changed(Change::Down {
                path: id,
                carried: carries,
            }),
            (true, true)
                if state == PathState::Suspect && before != PathState::Suspect && carries =>
            {
                changed(Change::Silent(id));
            }
            _ => {}
        }
    }
}

/// The longest pause after a turn that read this number of new datagrams.
fn pause_after(before: Duration, received: u64, calm: bool) -> Duration {
    match received {
        0 if calm => (2 * before).clamp(TURN_MAX, TURN_CALM_MAX),
        BUSY_DATAGRAMS.. => TURN_BUSY_MAX,
        _ => TURN_MAX,
    }
}

/// Ready when a copy waits until its path is open.
async fn copy_waits(upkeep: &PathUpkeep) {
    std::future::poll_fn(|cx| upkeep.poll_copy_waits(cx)).await;
}

/// Ready when a path with nothing in flight has sent a packet, whose answer is now awaited.
async fn first_sent(upkeep: &PathUpkeep) {
    std::future::poll_fn(|cx| upkeep.poll_first_sent(cx)).await;
}

/// Pending at the server.
async fn ways_changed(ways: &mut Option<Ways>) {
    if let Some(ways) = ways {
        // Also a schedule, which must hold for the data that is about to be sent.
        let changed = tokio::select! {
            changed = ways.changes.changed() => changed,
            changed = ways.schedule.changed() => changed,
        };
        if changed.is_ok() {
            return;
        }
    }
    std::future::pending().await
}

/// Pending once the sender of terms is gone.
async fn terms_changed(terms: &mut watch::Receiver<KeepaliveTerms>) {
    if terms.changed().await.is_err() {
        std::future::pending().await
    }
}

/// A suspect path still counts: it may answer.
fn is_up(state: PathState) -> bool {
    matches!(
        state,
        PathState::Available | PathState::Backup | PathState::Suspect
    )
}

pub(crate) fn interface_id(index: usize) -> Option<InterfaceId> {
    u16::try_from(index).ok().map(InterfaceId)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_calm_connection_pauses_long() {
        let mut pause = TURN_MAX;
        let mut turns = 0;
        while pause < TURN_CALM_MAX {
            pause = pause_after(pause, 0, true);
            turns += 1;
        }
        assert_eq!(turns, 4);
        assert_eq!(pause_after(pause, 0, true), TURN_CALM_MAX);
        assert_eq!(pause_after(pause, 0, false), TURN_MAX);
        assert_eq!(pause_after(pause, 1, true), TURN_MAX);
        assert_eq!(pause_after(pause, BUSY_DATAGRAMS, true), TURN_BUSY_MAX);
        assert_eq!(pause_after(Duration::ZERO, 0, true), TURN_MAX);
    }
}
