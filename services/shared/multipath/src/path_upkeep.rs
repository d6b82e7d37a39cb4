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

mod alive;
mod copies;
mod detour;
mod dialogue;
mod fastest;
mod late;
mod mute;
mod opening;
mod patience;
mod ranks;
mod release;
mod rest;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

pub use dialogue::{Command, Event, InterfaceId, OpenFailure, PathSnapshot, Side, UpkeepConfig};
use noq_proto::{PathId, PathStatus};

use crate::agreement::KeepaliveTerms;
use crate::liveness::Liveness;
use crate::path_scheduler::PathScheduler;
use crate::steering_rules::PathSchedule;
use alive::{REROUTE_MIN, VALIDATION_HEARD};
use copies::Copies;
use detour::Detour;
use fastest::{Brought, Fastest, Living};
use opening::reopen_after;
use release::Closing;
use rest::{Activity, Resting};

/// Maximum number of tracked paths; only the library's timers watch the others.
const PATHS_MAX: usize = 32;
/// The peer issues connection ids for a path right after the handshake, so the next request follows
/// soon.
const RETRY_CIDS: Duration = Duration::from_millis(20);
/// Time after the last backlog until a sender counts as application-limited.
const BULK_ENDS_AFTER: Duration = Duration::from_millis(300);

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
pub struct PathUpkeep {
    config: UpkeepConfig,
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

impl PathUpkeep {
    pub fn new(config: UpkeepConfig, scheduler: Arc<PathScheduler>) -> Self {
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
