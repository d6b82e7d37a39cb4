//! When an interface gets a path, and gets one again: its record, the back-off, and the release of
//! an interface whose path was closed.

use std::time::{Duration, Instant};

use noq_proto::{PathId, PathStatus};

use super::fastest::Brought;
use super::rest::Resting;
use super::{Command, Interface, InterfaceId, PATHS_MAX, Path, PathUpkeep, Side};
use crate::liveness::Liveness;
use crate::steering_rules::PathSchedule;

/// Maximum number of steered interfaces; further ones are ignored.
const INTERFACES_MAX: usize = 16;

/// First pause before a path is opened again.
const REOPEN_BACKOFF_MIN: Duration = Duration::from_millis(200);

/// Longest pause before a path is opened again.
const REOPEN_BACKOFF_MAX: Duration = Duration::from_secs(5);

/// Failures in a row before the back-off grows: an interface that soon returns is found soon.
const REOPEN_FAILURES_FREE: u32 = 20;

impl PathUpkeep {
    /// The received packets may have brought the connection ids that an interface waits for.
    pub(super) fn ids_may_have_come(&mut self, now: Instant) {
        for interface in self.interfaces.values_mut() {
            if std::mem::take(&mut interface.waits_for_id) {
                interface.open_at = interface.open_at.min(now);
            }
        }
    }

    pub(super) fn link_up(&mut self, now: Instant, interface: InterfaceId) {
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

    pub(super) fn add_path(
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

    pub(super) fn established(&mut self, now: Instant, id: PathId) {
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

    pub(super) fn abandoned(&mut self, now: Instant, id: PathId) {
        self.turned_away_early.remove(&id);
        if let Some(path) = self.paths.remove(&id) {
            self.scheduler.rebase();
            self.release(now, id, &path);
        }
        self.fastest.forget(id);
    }

    /// The interface of a closed path is free for another path.
    pub(super) fn release(&mut self, now: Instant, id: PathId, path: &Path) {
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

    /// The interface of this path gets a new path from now on.
    pub(super) fn free_interface(
        &mut self,
        open_at: Instant,
        id: PathId,
        interface: Option<InterfaceId>,
    ) {
        let entry = interface.and_then(|interface| self.interfaces.get_mut(&interface));
        if let Some(entry) = entry.filter(|entry| entry.path == Some(id)) {
            entry.path = None;
            entry.via = None;
            entry.returned = false;
            entry.failures = 0;
            entry.open_at = open_at;
        }
    }

    pub(super) fn poll_open(&mut self, now: Instant) -> Option<Command> {
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

    /// Interface for the datagrams of this one: another one during a detour.
    pub fn route_of(&self, interface: InterfaceId) -> InterfaceId {
        self.interfaces
            .get(&interface)
            .and_then(|entry| entry.via)
            .unwrap_or(interface)
    }
}

pub(super) fn reopen_after(failures: u32) -> Duration {
    let grown = failures.saturating_sub(REOPEN_FAILURES_FREE).min(8);
    (REOPEN_BACKOFF_MIN * 2u32.pow(grown)).min(REOPEN_BACKOFF_MAX)
}
