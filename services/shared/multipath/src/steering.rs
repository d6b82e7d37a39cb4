//! The state machine that keeps the paths of one connection alive, the same at both ends.
//!
//! - Every open path is pinged each keepalive interval, from both ends, so that silence means
//!   something.
//! - A path that is suspect is set to Backup while another lives. Data and, above all,
//!   acknowledgements leave it at once (all of them ride on the lowest available path id). After
//!   all silent intervals it is closed, never the last one.
//! - The client opens a path over every interface that is up. It opens the path again with a
//!   bounded back-off when it was closed or did not validate. The server only closes and sets
//!   statuses.
//! - While this end has little to send, only the fastest path with room is Available, for streams
//!   of little data and acknowledgements. With a backlog every living path is.
//!
//! Circle: one state machine; its parts hold their state in it and add their methods to it.
//!
//! Bounds: `INTERFACES_MAX` interfaces and `PATHS_MAX` open paths; events about more are ignored.

mod copies;
mod detour;
mod dialogue;
mod fastest;
mod late;
mod mute;
mod patience;
mod ranks;
mod release;
mod rest;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

pub use dialogue::{Command, Event, InterfaceId, OpenFailure, PathSnapshot, Side, SteeringConfig};
use noq_proto::{PathId, PathStatus};

use crate::agreement::KeepaliveTerms;
use crate::liveness::{Liveness, PathState};
use crate::path_scheduler::PathScheduler;
use crate::steering_rules::PathSchedule;
use copies::Copies;
use detour::Detour;
use fastest::{Brought, Fastest, Living};
use release::Closing;
use rest::{Activity, Resting};

/// Maximum number of steered interfaces; further ones are ignored.
const INTERFACES_MAX: usize = 16;
/// Maximum number of tracked paths; only the library's timers watch the others.
const PATHS_MAX: usize = 32;
/// The peer issues connection ids for a path right after the handshake, so the next request follows
/// soon.
const RETRY_CIDS: Duration = Duration::from_millis(20);
/// First pause before a path is opened again.
const REOPEN_BACKOFF_MIN: Duration = Duration::from_millis(200);
/// Longest pause before a path is opened again.
const REOPEN_BACKOFF_MAX: Duration = Duration::from_secs(5);
/// Failures in a row before the back-off grows: an interface that soon returns is found soon.
const REOPEN_FAILURES_FREE: u32 = 20;
/// An opened path is opened again after this time if the peer answered but its challenge was lost.
/// The library repeats a challenge only every second or two. A path without any answer stays open,
/// because its path id would be lost, and is pinged until the peer answers.
const VALIDATION_HEARD: Duration = Duration::from_millis(600);
/// Pause between the pings of a path that is not validated: at first, and at most; it grows with
/// the path's age.
const VALIDATION_PING_MIN: Duration = Duration::from_millis(200);
/// Bound on the back-off: a network that returns after hours carries traffic within a second.
const VALIDATION_PING_MAX: Duration = Duration::from_millis(500);
/// Time in which the pause doubles.
const VALIDATION_PING_GROWTH: Duration = Duration::from_secs(60);
/// Time after the last backlog until a sender counts as application-limited.
const BULK_ENDS_AFTER: Duration = Duration::from_millis(300);

/// Extra time before a server closes a path, also after an outage of all paths: the client may
/// still save the data in flight.
const SERVER_PATIENCE: u32 = 4;
/// If a detour died, the interface gets a new path after this time; the old path is closed if any
/// path is alive by then.
const RECALLED_OPENS_AFTER: Duration = Duration::from_millis(500);
/// Time beyond two round trips after which a rerouted path with little in flight is closed.
const REROUTE_MIN: Duration = Duration::from_millis(50);
/// Time after which a rerouted path is closed, whatever is in flight.
const REROUTE_MAX: Duration = Duration::from_secs(2);
/// Bytes in flight that count as little.
const REROUTE_LEFT_BYTES: u64 = 3_000;

/// At the end of a transfer each path is pinged four times a round trip, or more rarely.
const TAIL_PING_MIN: Duration = Duration::from_millis(5);
/// Pings of a path at the end of one transfer.
const TAIL_PINGS_MAX: u32 = 16;

#[derive(Debug)]
struct Path {
    interface: Option<InterfaceId>,
    established: bool,
    /// Time of opening, later of establishment.
    opened_at: Instant,
    status: PathStatus,
    liveness: Liveness,
    /// At least one datagram arrived on the path.
    heard: bool,
    rtt: Duration,
    brought: Brought,
    /// Slot of the path in the scheduler; known at the client only.
    slot: Option<usize>,
    /// Number and last time of pings since the sender became idle with data in flight.
    tail_pings: u32,
    tail_pinged_at: Option<Instant>,
    /// Last time at which no data was in flight.
    emptied_at: Option<Instant>,
    /// Begin of a detour that saves the data in flight.
    rerouted_at: Option<Instant>,
    /// Destination of the path's packets, and whether it belongs to another path; known at the
    /// server only.
    peer: Option<SocketAddr>,
    detour: Option<Detour>,
    schedule: PathSchedule,
    /// The same slot, reported by the shell; at the server it is known in no other way.
    ranked_slot: Option<usize>,
    resting: Resting,
    /// When the path was last no later than what the backlog allows.
    in_time_at: Option<Instant>,
}

impl Path {
    /// Next ping at the end of a transfer, if one is due.
    fn tail_at(&self) -> Option<Instant> {
        if !self.established || self.tail_pings >= TAIL_PINGS_MAX {
            return None;
        }
        let interval = (self.rtt / 4).max(TAIL_PING_MIN);
        Some(
            self.tail_pinged_at
                .map_or(self.opened_at, |at| at + interval),
        )
    }
}

#[derive(Debug)]
struct Interface {
    up: bool,
    path: Option<PathId>,
    /// An `Open` is out and not answered.
    opening: bool,
    /// The last `Open` found no path id.
    waits_for_id: bool,
    open_at: Instant,
    failures: u32,
    /// The interface returned while its path was being closed: the next path is opened without a
    /// pause.
    returned: bool,
    /// Interface that carries the datagrams of this one during a detour.
    via: Option<InterfaceId>,
}

/// See the head of the module.
#[derive(Debug)]
pub struct Steering {
    config: SteeringConfig,
    terms: KeepaliveTerms,
    scheduler: Arc<PathScheduler>,
    connected: bool,
    paths: BTreeMap<PathId, Path>,
    interfaces: BTreeMap<InterfaceId, Interface>,
    fastest: Fastest,
    backlog_at: Option<Instant>,
    /// Begin of the current period with a living path.
    lively_since: Option<Instant>,
    /// When an unacknowledged path was last replaced.
    replaced_at: Option<Instant>,
    closing: Closing,
    /// A small flow stays on the fastest active path.
    gathers: bool,
    copies: Copies,
    /// Time of the last `poll`; everything due before was done or waits for an event.
    polled_at: Option<Instant>,
    activity: Activity,
    /// When this end last used several paths.
    spread_at: Option<Instant>,
    /// Paths that are not established here and that the peer does not use; at most `PATHS_MAX`.
    turned_away_early: BTreeSet<PathId>,
}

impl Steering {
    pub fn new(config: SteeringConfig, scheduler: Arc<PathScheduler>) -> Self {
        Self {
            terms: KeepaliveTerms::from(config.keepalive).with_rest(config.rest),
            config,
            scheduler,
            connected: false,
            paths: BTreeMap::new(),
            interfaces: BTreeMap::new(),
            fastest: Fastest::default(),
            backlog_at: None,
            lively_since: None,
            replaced_at: None,
            closing: Closing::default(),
            gathers: true,
            copies: Copies::default(),
            polled_at: None,
            activity: Activity::default(),
            spread_at: None,
            turned_away_early: BTreeSet::new(),
        }
    }

    pub fn on_event(&mut self, now: Instant, event: Event) {
        match event {
            Event::Connected { interface } => {
                self.connected = true;
                self.add_path(now, PathId::ZERO, interface, true);
            }
            Event::LinkUp { interface } => self.link_up(now, interface),
            Event::LinkDown { interface } => {
                if let Some(entry) = self.interfaces.get_mut(&interface) {
                    entry.up = false;
                }
            }
            Event::Opened { interface, path } => {
                if let Some(entry) = self.interfaces.get_mut(&interface) {
                    entry.opening = false;
                }
                self.add_path(now, path, Some(interface), false);
            }
            Event::OpenFailed { interface, failure } => {
                if let Some(entry) = self.interfaces.get_mut(&interface) {
                    entry.opening = false;
                    entry.waits_for_id = failure == OpenFailure::NoIdYet;
                    entry.open_at = now
                        + match failure {
                            OpenFailure::NoIdYet => RETRY_CIDS,
                            OpenFailure::Refused => {
                                entry.failures += 1;
                                reopen_after(entry.failures)
                            }
                        };
                }
            }
            Event::Established { path } => self.established(now, path),
            Event::Abandoned { path } => {
                self.closing.begin(path);
                self.abandoned(now, path);
            }
            Event::Held { path, rtt } => self.closing.held(path, rtt),
            Event::Discarded { path } => self.closing.discarded(path),
            Event::RemoteStatus { path, status } => {
                self.on_remote_status(now, path, status);
                if !self.is_news_of_copies(now, path) {
                    self.scheduler.rebase();
                }
            }
            Event::Received {
                path,
                datagrams,
                rtt,
            } => {
                if let Some(entry) = self.paths.get_mut(&path) {
                    entry.rtt = rtt;
                    entry.brought.note(now, datagrams);
                    let gap = now.saturating_duration_since(entry.liveness.heard_at());
                    let heard = entry.liveness.received(now, datagrams, rtt);
                    entry.heard |= heard;
                    if heard {
                        let dense = gap <= self.terms.judge_by.interval * 2;
                        entry.resting.on_heard(dense);
                        self.echo(now, path);
                        self.ids_may_have_come(now);
                    }
                }
            }
            Event::PeerAddress { path, address } => self.on_peer_address(now, path, address),
            Event::Backlog { bytes } => {
                if bytes > 0 {
                    self.backlog_at = Some(now);
                }
            }
            Event::Written { bytes } => self.scheduler.written(now, bytes),
            Event::Urgent { bytes } => self.copies.on_urgent(now, bytes),
            Event::Keepalive(terms) if terms != self.terms => {
                self.terms = terms;
                for path in self.paths.values_mut() {
                    path.liveness.set_terms(now, terms);
                }
            }
            Event::Keepalive(_) => {}
            Event::Scheduled { path, schedule } => self.on_schedule(path, schedule),
            Event::Spread { gathers, copies } => self.on_spread(now, gathers, copies),
            Event::Slot { path, slot } => {
                if let Some(entry) = self.paths.get_mut(&path) {
                    entry.ranked_slot = Some(slot);
                }
            }
        }
    }

    /// The received packets may have brought the connection ids that an interface waits for.
    fn ids_may_have_come(&mut self, now: Instant) {
        for interface in self.interfaces.values_mut() {
            if std::mem::take(&mut interface.waits_for_id) {
                interface.open_at = interface.open_at.min(now);
            }
        }
    }

    /// The next command, until there is none.
    pub fn poll(&mut self, now: Instant) -> Option<Command> {
        self.scheduler.tick(now);
        if !self.connected {
            self.polled_at = Some(now);
            return None;
        }
        self.end_detours(now);
        self.look_for_answers();
        self.look_at_rest(now);
        if self.paths.values().any(|path| self.lives(now, path)) {
            self.lively_since = self.lively_since.or(Some(now));
        } else {
            self.lively_since = None;
            self.recall_reroutes(now);
        }
        // A path that is not released may stop all acknowledgements.
        if self.paths.values().any(|path| self.is_heard(now, path)) {
            self.wait_for_release(now);
        }
        self.polled_at = Some(now);
        self.replace_mute(now);
        self.poll_give_up()
            .or_else(|| self.poll_close(now))
            .or_else(|| self.poll_status(now))
            .or_else(|| self.poll_ping(now))
            .or_else(|| self.poll_open(now))
    }

    /// The answer to a ping may have arrived as an acknowledgement over another path.
    fn look_for_answers(&mut self) {
        for path in self.paths.values_mut() {
            if let Some(slot) = path.slot.filter(|_| path.liveness.awaits_answer())
                && let Some(sent) = self.scheduler.acked_sent_at(slot)
            {
                path.liveness.acked(sent);
            }
        }
    }

    /// Ready when a path with nothing in flight has sent a packet: `next_deadline` is then earlier.
    pub fn poll_first_sent(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.scheduler.poll_first_sent(cx)
    }

    /// The next time at which `poll` has work without an event.
    pub fn next_deadline(&self) -> Option<Instant> {
        if !self.connected {
            return None;
        }
        let is_tail = self.config.liveness && self.scheduler.is_tail();
        let paths = self.paths.values().flat_map(|path| {
            let liveness = &path.liveness;
            let judged = if path.established && !self.has_ping_deadlines(path) {
                [liveness.ping_at(); 4]
            } else if path.established {
                [
                    liveness.ping_at(),
                    liveness.ask_at().unwrap_or(liveness.ping_at()),
                    liveness.suspect_at(),
                    liveness.dead_at(),
                ]
            } else {
                let heard = path.opened_at + VALIDATION_HEARD;
                [liveness.ping_at(), heard, heard, heard]
            };
            let tail = if is_tail { path.tail_at() } else { None };
            let stalls = path.slot.and_then(|slot| self.scheduler.stalls_at(slot));
            let emptied = path.rerouted_at.map(|at| at + REROUTE_MIN);
            let detour = path
                .detour
                .map(|detour| detour.ping_at().unwrap_or(detour.ends_at()));
            judged
                .into_iter()
                .chain(stalls)
                .chain(emptied)
                .chain(tail)
                .chain(detour)
                .chain(self.rest_deadlines(path))
                .chain(self.patience_ends_at(path))
        });
        let opens = self
            .interfaces
            .values()
            .filter(|interface| interface.up && interface.path.is_none() && !interface.opening)
            .map(|interface| interface.open_at);
        paths
            .chain(opens)
            .chain(self.closes_from())
            .chain(self.scheduler.copies_until())
            .filter(|at| self.polled_at.is_none_or(|polled| *at > polled))
            .min()
    }

    /// The open paths and their states.
    pub fn snapshot(&self, now: Instant) -> Vec<PathSnapshot> {
        self.paths
            .iter()
            .map(|(id, path)| PathSnapshot {
                path: *id,
                interface: path.interface,
                state: self.state_of(now, path),
                rtt: path.rtt,
                silence: now.saturating_duration_since(path.liveness.heard_at()),
            })
            .collect()
    }

    fn state_of(&self, now: Instant, path: &Path) -> PathState {
        if !path.established {
            PathState::Validating
        } else if self.seems_lost(now, path) {
            PathState::Suspect
        } else if path.status == PathStatus::Backup || self.leaves_all_but_copies(now, path) {
            PathState::Backup
        } else {
            PathState::Available
        }
    }

    fn link_up(&mut self, now: Instant, interface: InterfaceId) {
        if self.config.side == Side::Server {
            return;
        }
        let full = self.interfaces.len() >= INTERFACES_MAX;
        match self.interfaces.get_mut(&interface) {
            Some(entry) => {
                entry.up = true;
                entry.failures = 0;
                entry.open_at = now;
                entry.returned = entry.path.is_some();
                // A living path continues, perhaps from another address: a ping informs both ends.
                let path = entry.path.and_then(|id| self.paths.get_mut(&id));
                if let Some(path) = path {
                    path.liveness.ping_at_once(now);
                }
            }
            None if full => {}
            None => {
                let path = self
                    .paths
                    .iter()
                    .find(|(_, path)| path.interface == Some(interface))
                    .map(|(id, _)| *id);
                self.interfaces.insert(
                    interface,
                    Interface {
                        up: true,
                        path,
                        opening: false,
                        waits_for_id: false,
                        open_at: now,
                        failures: 0,
                        returned: false,
                        via: None,
                    },
                );
            }
        }
    }

    fn add_path(
        &mut self,
        now: Instant,
        id: PathId,
        interface: Option<InterfaceId>,
        established: bool,
    ) {
        if self.paths.len() >= PATHS_MAX {
            return;
        }
        if let Some(entry) = interface.and_then(|interface| self.interfaces.get_mut(&interface)) {
            entry.path = Some(id);
            entry.returned = false;
        }
        // The newest controller belongs to the path opened last. A server does not know this.
        let slot = match self.config.side {
            Side::Client => self.scheduler.newest(),
            Side::Server => None,
        };
        let liveness = Liveness::new(self.terms, self.patience(), slot.is_some(), now);
        let turned_away = self.turned_away_early.remove(&id);
        self.paths.entry(id).or_insert(Path {
            interface,
            established,
            opened_at: now,
            status: PathStatus::Available,
            liveness,
            heard: false,
            rtt: Duration::ZERO,
            brought: Brought::default(),
            slot,
            tail_pings: 0,
            tail_pinged_at: None,
            emptied_at: None,
            rerouted_at: None,
            peer: None,
            detour: None,
            schedule: PathSchedule::FREE,
            ranked_slot: None,
            resting: Resting::of_new(turned_away),
            in_time_at: None,
        });
    }

    fn established(&mut self, now: Instant, id: PathId) {
        // A server learns of a path when the client opens it.
        self.add_path(now, id, None, true);
        let (terms, patience) = (self.terms, self.patience());
        let Some(path) = self.paths.get_mut(&id) else {
            return;
        };
        path.established = true;
        path.opened_at = now;
        path.liveness = Liveness::new(terms, patience, path.slot.is_some(), now);
        path.resting = path.resting.established();
        if let Some(interface) = path
            .interface
            .and_then(|interface| self.interfaces.get_mut(&interface))
        {
            interface.failures = 0;
        }
    }

    fn abandoned(&mut self, now: Instant, id: PathId) {
        self.turned_away_early.remove(&id);
        if let Some(path) = self.paths.remove(&id) {
            self.scheduler.rebase();
            self.release(now, id, &path);
        }
        self.fastest.forget(id);
    }

    /// The interface of a closed path is free for another path.
    fn release(&mut self, now: Instant, id: PathId, path: &Path) {
        let Some(entry) = path
            .interface
            .and_then(|interface| self.interfaces.get_mut(&interface))
        else {
            return;
        };
        if entry.path == Some(id) {
            entry.path = None;
            entry.via = None;
            entry.failures = entry.failures.saturating_add(1);
            entry.open_at = if entry.returned {
                now
            } else {
                now + reopen_after(entry.failures)
            };
            entry.returned = false;
        }
    }

    fn patience(&self) -> u32 {
        match self.config.side {
            Side::Client => 1,
            Side::Server => SERVER_PATIENCE,
        }
    }

    /// Interface for the datagrams of this one: another one during a detour.
    pub fn route_of(&self, interface: InterfaceId) -> InterfaceId {
        self.interfaces
            .get(&interface)
            .and_then(|entry| entry.via)
            .unwrap_or(interface)
    }

    /// Whether data leaves the path to others.
    fn is_suspect(&self, now: Instant, path: &Path) -> bool {
        self.seems_lost(now, path) && !self.is_waited_for(now, path)
    }

    /// Whether the path is silent, without interface, or unacknowledged while others are
    /// acknowledged.
    fn seems_lost(&self, now: Instant, path: &Path) -> bool {
        self.is_without_interface(path)
            || self.config.liveness
                && (self.is_silent(now, path)
                    || self.judges_by_pings(now, path)
                        && path
                            .slot
                            .and_then(|slot| self.scheduler.stalls_at(slot))
                            .is_some_and(|at| now >= at))
    }

    fn is_without_interface(&self, path: &Path) -> bool {
        path.rerouted_at.is_some() || path.detour.is_some() || self.interface_is_down(path)
    }

    fn is_dead(&self, now: Instant, path: &Path) -> bool {
        self.interface_is_down(path)
            || self.has_died(now, path)
                && self.closes_from().is_some_and(|at| now >= at)
                && !self.is_waited_for(now, path)
    }

    /// Earliest time at which this end may close a silent path.
    fn closes_from(&self) -> Option<Instant> {
        let patience = match self.config.side {
            Side::Client => Duration::ZERO,
            Side::Server => self.terms.judge_by.silence_max() * SERVER_PATIENCE,
        };
        self.lively_since.map(|since| since + patience)
    }

    fn interface_is_down(&self, path: &Path) -> bool {
        path.interface
            .and_then(|interface| self.interfaces.get(&interface))
            .is_some_and(|interface| !interface.up)
    }

    fn lives(&self, now: Instant, path: &Path) -> bool {
        path.established && !self.is_suspect(now, path)
    }

    fn is_heard(&self, now: Instant, path: &Path) -> bool {
        path.established && !(self.config.liveness && self.is_silent(now, path))
    }

    fn another_lives(&self, now: Instant, id: PathId) -> bool {
        self.paths
            .iter()
            .any(|(other, path)| *other != id && self.lives(now, path))
    }

    fn poll_close(&mut self, now: Instant) -> Option<Command> {
        if !self.config.liveness {
            return None;
        }
        let id = self.paths.iter().find_map(|(id, path)| {
            let over = if let Some(since) = path.rerouted_at {
                self.is_emptied(now, since, path)
            } else if path.established {
                self.is_dead(now, path)
            } else {
                // A path that never had an answer waits for its interface, because its path id
                // would be lost.
                path.heard
                    && (now >= path.opened_at + VALIDATION_HEARD || self.interface_is_down(path))
            };
            (over && self.another_lives(now, *id)).then_some(*id)
        })?;
        if self.reroute(now, id) {
            return Some(Command::Ping { path: id });
        }
        let path = self.paths.remove(&id)?;
        self.release(now, id, &path);
        self.scheduler.rebase();
        self.fastest.forget(id);
        Some(Command::Close { path: id })
    }

    /// Sends the data of a dead path over the best living interface. The acknowledgement of its
    /// ping reveals the losses.
    fn reroute(&mut self, now: Instant, id: PathId) -> bool {
        if !self.config.reroute {
            return false;
        }
        let Some(path) = self.paths.get(&id) else {
            return false;
        };
        if !path.established || path.rerouted_at.is_some() {
            return false;
        }
        let Some(from) = path.interface else {
            return false;
        };
        let via = self
            .paths
            .values()
            .filter(|path| self.lives(now, path) && path.schedule.rank.is_some())
            .min_by_key(|path| path.rtt)
            .and_then(|path| path.interface);
        let (Some(via), Some(entry)) = (via, self.interfaces.get_mut(&from)) else {
            return false;
        };
        entry.via = Some(via);
        if let Some(path) = self.paths.get_mut(&id) {
            path.rerouted_at = Some(now);
            if let Some(slot) = path.slot {
                self.scheduler.permit(slot);
            }
        }
        true
    }

    /// The detour died too. The library has adopted it as the path's own route, so the path cannot
    /// return to its interface. The interface gets a new path, and the old one is drained and
    /// closed once any path is alive.
    fn recall_reroutes(&mut self, now: Instant) {
        let mut freed = Vec::new();
        for (id, path) in &mut self.paths {
            if let Some(since) = &mut path.rerouted_at {
                *since = now;
                freed.push((*id, path.interface.take()));
            }
        }
        // A new path at the address of a path that is still open needs no validation, so the
        // library would fill it before an answer.
        let open_at = now + RECALLED_OPENS_AFTER;
        for (id, interface) in freed {
            self.free_interface(open_at, id, interface);
        }
    }

    /// The interface of this path gets a new path from now on.
    fn free_interface(&mut self, open_at: Instant, id: PathId, interface: Option<InterfaceId>) {
        let entry = interface.and_then(|interface| self.interfaces.get_mut(&interface));
        if let Some(entry) = entry.filter(|entry| entry.path == Some(id)) {
            entry.path = None;
            entry.via = None;
            entry.returned = false;
            entry.failures = 0;
            entry.open_at = open_at;
        }
    }

    /// Whether a detour is complete: both directions had time for their acknowledgements.
    fn is_emptied(&self, now: Instant, since: Instant, path: &Path) -> bool {
        let rtt = self
            .paths
            .values()
            .filter(|other| other.rerouted_at.is_none())
            .map(|other| other.rtt)
            .max()
            .unwrap_or_default();
        let passed = now.saturating_duration_since(since);
        let in_flight = path.slot.map_or(0, |slot| self.scheduler.in_flight(slot));
        passed >= REROUTE_MAX || passed >= rtt * 2 + REROUTE_MIN && in_flight < REROUTE_LEFT_BYTES
    }

    fn is_bulk(&self, now: Instant) -> bool {
        [self.scheduler.busy_at(), self.backlog_at]
            .into_iter()
            .flatten()
            .any(|at| now < at + BULK_ENDS_AFTER)
    }

    fn poll_status(&mut self, now: Instant) -> Option<Command> {
        self.set_ranks(now);
        self.choose_fastest(now);
        let bulk = self.is_bulk(now);
        let thin = self.config.steer_acknowledgements && self.gathers && !bulk;
        self.look_at_lateness(now);
        self.set_single_path(now, thin);
        self.note_spread(now);
        let (id, status) = self.paths.iter().find_map(|(id, path)| {
            if !path.established {
                return None;
            }
            let aside = if self.lives(now, path) {
                self.stands_by(now, path, bulk) && !self.opens_for_copies(now, path)
                    || self.is_late(now, *id, path)
                    || thin && self.fastest.get().is_some_and(|fastest| fastest != *id)
            } else {
                self.another_lives(now, *id) || self.is_second_on_its_way(path)
            };
            let wanted = if aside {
                PathStatus::Backup
            } else {
                PathStatus::Available
            };
            (wanted != path.status).then_some((*id, wanted))
        })?;
        self.paths.get_mut(&id)?.status = status;
        Some(Command::SetStatus { path: id, status })
    }

    /// A path on a detour has a window for its former interface. It never shares an interface with
    /// an open path, silent or not.
    fn is_second_on_its_way(&self, path: &Path) -> bool {
        path.rerouted_at.is_some()
            && self
                .paths
                .values()
                .any(|other| other.established && other.rerouted_at.is_none())
    }

    fn choose_fastest(&mut self, now: Instant) {
        let living = self
            .paths
            .iter()
            .filter(|(_, path)| self.lives(now, path) && !path.rtt.is_zero())
            .filter(|(_, path)| self.may_gather(now, path) && self.follows_peer_to(now, path))
            .map(|(id, path)| Living {
                path: *id,
                rtt: path.rtt,
                brought: path.brought.recently(),
            });
        let mut fastest = self.fastest;
        fastest.choose(now, living);
        self.fastest = fastest;
    }

    /// No later acknowledgement reveals losses at the end of a transfer, and the library's timer
    /// takes two round trips or more. Pings therefore follow until the end is acknowledged.
    fn poll_tail(&mut self, now: Instant) -> Option<PathId> {
        // At rest a question follows what is overdue, and costs less.
        let is_tail = self.scheduler.is_tail() && self.lingers(now);
        let (id, path) = self.paths.iter_mut().find_map(|(id, path)| {
            if !is_tail {
                path.tail_pings = 0;
                path.tail_pinged_at = None;
            }
            (is_tail && path.tail_at().is_some_and(|at| now >= at)).then_some((*id, path))
        })?;
        path.tail_pings += 1;
        path.tail_pinged_at = Some(now);
        Some(id)
    }

    fn poll_ping(&mut self, now: Instant) -> Option<Command> {
        if !self.config.liveness {
            return None;
        }
        if let Some(path) = self
            .poll_tail(now)
            .or_else(|| self.poll_detour(now))
            .or_else(|| self.poll_rest_ask(now))
        {
            return Some(Command::Ping { path });
        }
        let judged: Vec<PathId> = (self.paths.iter())
            .filter(|(_, path)| path.established && self.judges_by_pings(now, path))
            .map(|(id, _)| *id)
            .collect();
        let asks = self.paths.iter_mut().find_map(|(id, path)| {
            (judged.contains(id) && path.liveness.take_ask(now)).then_some((*id, path.slot))
        });
        if let Some((path, slot)) = asks {
            if let Some(slot) = slot {
                self.scheduler.permit(slot);
            }
            return Some(Command::Ping { path });
        }
        self.put_off_pings(now);
        let rest: BTreeMap<PathId, Option<Duration>> = (self.paths.iter())
            .map(|(id, path)| (*id, self.rest_interval(now, path)))
            .collect();
        let aside = self.slots_aside(now);
        let (id, path) = self.paths.iter_mut().find_map(|(id, path)| {
            let interval = if path.established {
                rest.get(id).copied().flatten()
            } else {
                let age = now.saturating_duration_since(path.opened_at).as_secs_f64();
                let grown = 1.0 + age / VALIDATION_PING_GROWTH.as_secs_f64();
                Some(VALIDATION_PING_MIN.mul_f64(grown).min(VALIDATION_PING_MAX))
            };
            path.liveness
                .take_ping(now, interval)
                .then_some((*id, path))
        })?;
        let silent = now >= path.liveness.heard_at() + self.terms.judge_by.interval;
        let aside = aside.into_iter().find(|it| it.0 == id).map(|it| it.1);
        if let Some(slot) = path.slot.filter(|_| silent).or(aside) {
            self.scheduler.permit(slot);
        }
        Some(Command::Ping { path: id })
    }

    fn poll_open(&mut self, now: Instant) -> Option<Command> {
        if self.config.side == Side::Server || self.paths.len() >= PATHS_MAX {
            return None;
        }
        let (id, entry) = self.interfaces.iter_mut().find(|(_, interface)| {
            interface.up
                && interface.path.is_none()
                && !interface.opening
                && now >= interface.open_at
        })?;
        entry.opening = true;
        Some(Command::Open {
            interface: *id,
            status: PathStatus::Available,
        })
    }
}

fn reopen_after(failures: u32) -> Duration {
    let grown = failures.saturating_sub(REOPEN_FAILURES_FREE).min(8);
    (REOPEN_BACKOFF_MIN * 2u32.pow(grown)).min(REOPEN_BACKOFF_MAX)
}

#[cfg(test)]
mod held_path_tests;
#[cfg(test)]
mod keepalive_plan_tests;
#[cfg(test)]
mod keepalive_tests;
#[cfg(test)]
mod keepalive_world_tests;
#[cfg(test)]
mod rare_pings_tests;
#[cfg(test)]
mod rest_tests;
#[cfg(test)]
mod standby_tests;
#[cfg(test)]
mod zombie_tests;
