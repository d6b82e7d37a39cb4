//! Which paths are alive: verdicts on silence, the pings that ask, detours, and the closing of dead
//! paths.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use noq_proto::{PathId, PathStatus};

use super::{Command, Path, PathUpkeep, Side};
use crate::liveness::PathState;

/// An opened path is opened again after this time if the peer answered but its challenge was lost.
/// The library repeats a challenge only every second or two. A path without any answer stays open,
/// because its path id would be lost, and is pinged until the peer answers.
pub(super) const VALIDATION_HEARD: Duration = Duration::from_millis(600);

/// Pause between the pings of a path that is not validated: at first, and at most; it grows with
/// the path's age.
const VALIDATION_PING_MIN: Duration = Duration::from_millis(200);

/// Bound on the back-off: a network that returns after hours carries traffic within a second.
const VALIDATION_PING_MAX: Duration = Duration::from_millis(500);

/// Time in which the pause doubles.
const VALIDATION_PING_GROWTH: Duration = Duration::from_secs(60);

/// Extra time before a server closes a path, also after an outage of all paths: the client may
/// still save the data in flight.
pub(super) const SERVER_PATIENCE: u32 = 4;

/// Time beyond two round trips after which a rerouted path with little in flight is closed.
pub(super) const REROUTE_MIN: Duration = Duration::from_millis(50);

/// Time after which a rerouted path is closed, whatever is in flight.
pub(super) const REROUTE_MAX: Duration = Duration::from_secs(2);

/// Bytes in flight that count as little.
const REROUTE_LEFT_BYTES: u64 = 3_000;
/// If a detour died, the interface gets a new path after this time; the old path is closed if any
/// path is alive by then.
const RECALLED_OPENS_AFTER: Duration = Duration::from_millis(500);

impl PathUpkeep {
    pub(super) fn state_of(&self, now: Instant, path: &Path) -> PathState {
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

    pub(super) fn patience(&self) -> u32 {
        match self.config.side {
            Side::Client => 1,
            Side::Server => SERVER_PATIENCE,
        }
    }

    /// Whether data leaves the path to others.
    pub(super) fn is_suspect(&self, now: Instant, path: &Path) -> bool {
        self.seems_lost(now, path) && !self.is_waited_for(now, path)
    }

    /// Whether the path is silent, without interface, or unacknowledged while others are
    /// acknowledged.
    pub(super) fn seems_lost(&self, now: Instant, path: &Path) -> bool {
        self.is_without_interface(path)
            || self.config.liveness
                && (self.is_silent(now, path)
                    || self.judges_by_pings(now, path)
                        && path
                            .slot
                            .and_then(|slot| self.scheduler.stalls_at(slot))
                            .is_some_and(|at| now >= at))
    }

    pub(super) fn is_without_interface(&self, path: &Path) -> bool {
        path.rerouted_at.is_some() || path.detour.is_some() || self.interface_is_down(path)
    }

    pub(super) fn is_dead(&self, now: Instant, path: &Path) -> bool {
        self.interface_is_down(path)
            || self.has_died(now, path)
                && self.closes_from().is_some_and(|at| now >= at)
                && !self.is_waited_for(now, path)
    }

    /// Earliest time at which this end may close a silent path.
    pub(super) fn closes_from(&self) -> Option<Instant> {
        let patience = match self.config.side {
            Side::Client => Duration::ZERO,
            Side::Server => self.terms.judge_by.silence_max() * SERVER_PATIENCE,
        };
        self.lively_since.map(|since| since + patience)
    }

    pub(super) fn interface_is_down(&self, path: &Path) -> bool {
        path.interface
            .and_then(|interface| self.interfaces.get(&interface))
            .is_some_and(|interface| !interface.up)
    }

    pub(super) fn lives(&self, now: Instant, path: &Path) -> bool {
        path.established && !self.is_suspect(now, path)
    }

    pub(super) fn is_heard(&self, now: Instant, path: &Path) -> bool {
        path.established && !(self.config.liveness && self.is_silent(now, path))
    }

    pub(super) fn another_lives(&self, now: Instant, id: PathId) -> bool {
        self.paths
            .iter()
            .any(|(other, path)| *other != id && self.lives(now, path))
    }

    pub(super) fn poll_close(&mut self, now: Instant) -> Option<Command> {
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
    pub(super) fn reroute(&mut self, now: Instant, id: PathId) -> bool {
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
    pub(super) fn recall_reroutes(&mut self, now: Instant) {
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

    /// Whether a detour is complete: both directions had time for their acknowledgements.
    pub(super) fn is_emptied(&self, now: Instant, since: Instant, path: &Path) -> bool {
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

    /// A path on a detour has a window for its former interface. It never shares an interface with
    /// an open path, silent or not.
    pub(super) fn is_second_on_its_way(&self, path: &Path) -> bool {
        path.rerouted_at.is_some()
            && self
                .paths
                .values()
                .any(|other| other.established && other.rerouted_at.is_none())
    }

    /// The answer to a ping may have arrived as an acknowledgement over another path.
    pub(super) fn look_for_answers(&mut self) {
        for path in self.paths.values_mut() {
            if let Some(slot) = path.slot.filter(|_| path.liveness.awaits_answer())
                && let Some(sent) = self.scheduler.acked_sent_at(slot)
            {
                path.liveness.acked(sent);
            }
        }
    }

    /// No later acknowledgement reveals losses at the end of a transfer, and the library's timer
    /// takes two round trips or more. Pings therefore follow until the end is acknowledged.
    pub(super) fn poll_tail(&mut self, now: Instant) -> Option<PathId> {
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

    pub(super) fn poll_ping(&mut self, now: Instant) -> Option<Command> {
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
}
