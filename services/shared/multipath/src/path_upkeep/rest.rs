//! Rest: the paths of a connection that carries little are asked as rarely as the networks allow.
//!
//! Both ends ping every path densely while the connection is active: this end or the peer has a
//! backlog, or data flows. The peer's backlog shows in its statuses: it then uses several paths.
//! Several paths are also used for copies (`copies`), which are no activity: each copy asks its
//! path. Dense pings last a while longer, so that the news of rest is with the peer before they
//! end. A path that was opened just now is pinged densely as well.
//!
//! At rest the client pings a path that nothing was sent on for [`REST_INTERVAL`], which keeps the
//! bindings of address translators. The server answers on the path where its acknowledgements take
//! another one, so each direction of each path is asked.
//!
//! At rest silence alone is no verdict. A path is doubted when
//! - an acknowledgement is overdue, whether of a ping or of data,
//! - the peer turns away from the path that this end uses,
//! - the server misses the client's ping, so that a gateway that is off is noticed, or
//! - it was silent when the activity ended.
//!
//! A doubted path is asked at once, and often. Anything received on it, or the acknowledgement of
//! what was sent since, ends the doubt. Overdue data makes the path suspect at once, so what
//! follows takes another path. The path is dead when the answers to all questions are overdue.

use std::time::{Duration, Instant};

use noq_proto::{PathId, PathStatus};

use super::alive::SERVER_PATIENCE;
use super::{PATHS_MAX, Path, PathUpkeep, Side};

/// Shorter than the binding of a UDP flow in any usual address translator (30 s).
const REST_INTERVAL: Duration = Duration::from_secs(25);
/// The client's ping is late by less, also when it is lost and repeated.
const REST_SLACK: Duration = Duration::from_secs(3);
/// The server asks by itself only where the client has long been silent.
const SERVER_REST_INTERVAL: Duration = Duration::from_secs(100);
/// Dense pings go on for so long after the activity, which covers the loss of the statuses that
/// tell the peer of its end.
const LINGER: Duration = Duration::from_secs(2);
/// Both ends ping a new path densely for so long; silence on it is judged for less.
const NEW_PATH: Duration = Duration::from_secs(3);
const NEW_PATH_JUDGED: Duration = Duration::from_secs(2);
/// Datagrams a second that show a flow: more than the pings and acknowledgements of two active
/// ends bring, ten each on a path.
const FLOWING_DATAGRAMS: f64 = 30.0;
const PINGED_DATAGRAMS: f64 = 20.0;
/// Arrivals in dense sequence after which the peer's dense pings are relied on.
const DENSE_ARRIVALS: u32 = 3;
/// Questions before the verdict, and the pause between them.
const ASKS: u32 = 4;
const ASK_GAP: Duration = Duration::from_millis(50);
/// An answer is overdue after so many round trips, the peer's delay of acknowledgements (25 ms) and
/// its and our pauses.
const ANSWER_ROUND_TRIPS: u32 = 2;
const ANSWER_SLACK: Duration = Duration::from_millis(85);
/// A server with data leaves the client's path for one that is quicker by this part and this time.
const QUICKER_PART: u32 = 8;
const QUICKER_MIN: Duration = Duration::from_millis(5);
/// The server answers no more often on a path.
const ECHO_GAP: Duration = Duration::from_millis(40);

/// When an answer to what was sent at `sent` is overdue.
fn overdue_at(sent: Instant, rtt: Duration) -> Instant {
    sent + rtt * ANSWER_ROUND_TRIPS + ANSWER_SLACK
}

/// The activity of the connection, as this end sees it.
#[derive(Debug, Default)]
pub(super) struct Activity {
    since: Option<Instant>,
    last: Option<Instant>,
}

/// State of rest of one path.
#[derive(Debug)]
pub(super) struct Resting {
    /// The peer asked not to be sent data on the path.
    pub(super) peer_turned_away: bool,
    /// The peer has pinged densely ever since the path was established.
    dense_from_birth: bool,
    /// Arrivals in dense sequence within this activity.
    dense_arrivals: u32,
    /// Since when the path is doubted, and from when on it is suspect.
    doubted: Option<(Instant, Instant)>,
    asks: u32,
    asked_at: Option<Instant>,
    /// When the last of [`ASKS`] was sent.
    all_asked_at: Option<Instant>,
    /// When an acknowledgement last ended a doubt.
    trusted_at: Option<Instant>,
    echoed_at: Option<Instant>,
}

impl Default for Resting {
    fn default() -> Self {
        Self {
            peer_turned_away: false,
            dense_from_birth: true,
            dense_arrivals: 0,
            doubted: None,
            asks: 0,
            asked_at: None,
            all_asked_at: None,
            trusted_at: None,
            echoed_at: None,
        }
    }
}

impl Resting {
    pub(super) fn of_new(peer_turned_away: bool) -> Self {
        Self {
            peer_turned_away,
            ..Self::default()
        }
    }

    /// The same path, now that it is established.
    pub(super) fn established(&self) -> Self {
        Self {
            peer_turned_away: self.peer_turned_away,
            ..Self::default()
        }
    }

    pub(super) fn on_heard(&mut self, is_dense: bool) {
        if is_dense {
            self.dense_arrivals = self.dense_arrivals.saturating_add(1);
        }
        self.trust();
    }

    fn doubt(&mut self, now: Instant, suspect_from: Instant) {
        let (since, before) = self.doubted.unwrap_or((now, suspect_from));
        self.doubted = Some((since, before.min(suspect_from)));
    }

    fn trust(&mut self) {
        self.doubted = None;
        self.asks = 0;
        self.asked_at = None;
        self.all_asked_at = None;
    }

    fn ask_at(&self, interval: Duration) -> Option<Instant> {
        let (since, _) = self.doubted?;
        let gap = if self.asks < ASKS { ASK_GAP } else { interval };
        Some(self.asked_at.map_or(since, |at| at + gap))
    }

    fn is_suspect(&self, now: Instant) -> bool {
        self.doubted.is_some_and(|(_, from)| now >= from)
    }
}

impl Path {
    /// The controller of the path in the scheduler, as far as this end knows it.
    pub(super) fn any_slot(&self) -> Option<usize> {
        self.slot.or(self.ranked_slot)
    }
}

impl PathUpkeep {
    /// To be called first in each poll.
    pub(super) fn look_at_rest(&mut self, now: Instant) {
        if !self.config.liveness || !self.terms.rest.tolerates {
            return;
        }
        self.note_activity(now);
        let judged: Vec<_> = (self.paths.iter())
            .filter(|(_, path)| path.established && !self.judges_by_pings(now, path))
            .map(|(id, path)| {
                let slot = path.any_slot();
                let acked_sent_at = slot.and_then(|slot| self.scheduler.acked_sent_at(slot));
                let (overdue, missed) = (self.path_overdue_at(path), self.missed_at(path));
                (*id, acked_sent_at, overdue, missed)
            })
            .collect();
        for (id, acked_sent_at, overdue, missed) in judged {
            let Some(path) = self.paths.get_mut(&id) else {
                continue;
            };
            if let Some((since, _)) = path.resting.doubted
                && acked_sent_at.is_some_and(|sent| sent >= since)
            {
                path.resting.trust();
                path.resting.trusted_at = Some(now);
            } else if overdue.is_some_and(|at| now >= at) {
                path.resting.doubt(now, now);
            } else if missed.is_some_and(|at| now >= at) {
                path.resting.doubt(now, overdue_at(now, path.rtt));
            }
        }
    }

    fn note_activity(&mut self, now: Instant) {
        if self.copies_have_ended(now) {
            // The peer may have rested until now, and what came meanwhile shows no dense pings.
            for path in self.paths.values_mut() {
                path.resting.dense_arrivals = 0;
                path.resting.dense_from_birth = false;
            }
        }
        let backlog = self.is_bulk(now) || self.peer_spreads() && !self.copies(now);
        let urgent = self.copies_are_news(now) || self.alerts_flow(now);
        let active = backlog || urgent || self.is_flowing(now);
        if active {
            self.activity.last = Some(now);
            if self.activity.since.is_none() {
                self.activity.since = Some(now);
                let soon = now + self.terms.send_interval;
                for path in self.paths.values_mut() {
                    path.resting.dense_arrivals = 0;
                    if path.liveness.ping_at() > soon {
                        path.liveness.ping_at_once(now);
                    }
                }
            }
        } else if self.activity.since.take().is_some() {
            for path in self.paths.values_mut().filter(|path| path.established) {
                if path.liveness.is_suspect(now) {
                    path.resting.doubt(now, overdue_at(now, path.rtt));
                }
            }
        }
        for path in self.paths.values_mut().filter(|path| path.established) {
            let resting = &mut path.resting;
            resting.dense_from_birth &= active || now < path.opened_at + NEW_PATH_JUDGED;
        }
    }

    /// The peer uses several paths, as it does with a backlog.
    fn peer_spreads(&self) -> bool {
        let used = |path: &&Path| path.established && !path.resting.peer_turned_away;
        self.paths.values().filter(used).count() > 1
    }

    fn is_flowing(&self, now: Instant) -> bool {
        let open = self.paths.values().filter(|path| path.established);
        let (brought, pinged) = open.fold((0.0, 0.0), |(brought, pinged), path| {
            let recently = path.brought.recently_at(now);
            (brought + recently, pinged + PINGED_DATAGRAMS)
        });
        brought >= FLOWING_DATAGRAMS + pinged
    }

    /// Whether this end pings the path at the interval of the keepalive.
    fn pings_densely(&self, now: Instant, path: &Path) -> bool {
        !self.terms.rest.rests
            || !path.established
            || now < path.opened_at + NEW_PATH
            || self.lingers(now)
    }

    /// The connection is active, or was so a moment ago.
    pub(super) fn lingers(&self, now: Instant) -> bool {
        !self.terms.rest.rests || self.activity.last.is_some_and(|last| now < last + LINGER)
    }

    /// Whether the peer's pings are dense, so that silence on the path is a verdict.
    pub(super) fn judges_by_pings(&self, now: Instant, path: &Path) -> bool {
        if !self.terms.rest.tolerates {
            return true;
        }
        if self.terms.rest.foreign {
            return false;
        }
        let resting = &path.resting;
        let dense = resting.dense_from_birth || resting.dense_arrivals >= DENSE_ARRIVALS;
        let others = self.paths.values().filter(|other| other.established);
        // The peer knows of the activity: by the statuses of this end, by its own backlog, or
        // because data flows. The only path carries all acknowledgements.
        let is_known = || {
            others.clone().count() < 2
                || !self.copies(now) && (self.spreads(now) || self.peer_spreads())
                || self.alerts_flow(now)
                || self.is_flowing(now)
        };
        self.activity.since.is_some() && dense && is_known()
    }

    /// Whether this end uses several paths, or did a moment ago.
    fn spreads(&self, now: Instant) -> bool {
        self.spread_at
            .is_some_and(|at| now < at + LINGER - ANSWER_SLACK * 4)
    }

    /// Whether silence on all paths means nothing, because the connection rests and no answer is
    /// awaited in vain.
    pub fn is_calm(&self, now: Instant) -> bool {
        let trusted = |path: &Path| path.established && path.resting.doubted.is_none();
        self.config.liveness
            && self.terms.rest.tolerates
            && self.activity.since.is_none()
            && !self.lingers(now)
            && self.paths.values().any(trusted)
    }

    /// To be called when the statuses stand.
    pub(super) fn note_spread(&mut self, now: Instant) {
        let used = |path: &&Path| path.established && path.status == PathStatus::Available;
        if self.paths.values().filter(used).count() > 1 {
            self.spread_at = Some(now);
        }
    }

    pub(super) fn is_silent(&self, now: Instant, path: &Path) -> bool {
        if self.judges_by_pings(now, path) {
            path.liveness.is_suspect(now)
        } else {
            path.resting.is_suspect(now)
        }
    }

    pub(super) fn has_died(&self, now: Instant, path: &Path) -> bool {
        if self.judges_by_pings(now, path) {
            path.liveness.is_dead(now)
        } else {
            self.unanswered_at(path).is_some_and(|at| now >= at)
        }
    }

    /// When the path is dead for want of answers. An end that sees no acknowledgements of the path
    /// hears only what the peer sends on it.
    fn unanswered_at(&self, path: &Path) -> Option<Instant> {
        if path.any_slot().is_none() {
            return Some(path.liveness.heard_at() + SERVER_REST_INTERVAL * SERVER_PATIENCE);
        }
        let overdue = overdue_at(path.resting.all_asked_at?, self.answer_rtt(path));
        Some(match self.config.side {
            Side::Client => overdue,
            Side::Server => overdue + self.terms.judge_by.silence_max() * SERVER_PATIENCE,
        })
    }

    /// When the server misses the ping that the client sends on the path at rest.
    fn missed_at(&self, path: &Path) -> Option<Instant> {
        let rests = self.config.side == Side::Server && self.terms.rest.rests;
        let heard_at = path
            .resting
            .trusted_at
            .max(Some(path.liveness.heard_at()))?;
        rests.then_some(heard_at + REST_INTERVAL + REST_SLACK)
    }

    /// The longest round trip of an answer. A peer that turned away from the path acknowledges over
    /// another one.
    fn answer_rtt(&self, path: &Path) -> Duration {
        let others = self.paths.values().filter(|other| other.established);
        let turned_away = path.resting.peer_turned_away;
        let elsewhere = others.map(|other| other.rtt).max();
        path.rtt
            .max(elsewhere.filter(|_| turned_away).unwrap_or_default())
    }

    /// When the acknowledgement of what is in flight is overdue.
    fn path_overdue_at(&self, path: &Path) -> Option<Instant> {
        let since = self.scheduler.waits_since(path.any_slot()?)?;
        let since = since.max(path.liveness.heard_at());
        Some(overdue_at(since, self.answer_rtt(path)))
    }

    /// The deadlines of an established path that is judged by answers.
    pub(super) fn rest_deadlines(&self, path: &Path) -> impl Iterator<Item = Instant> {
        let tolerates = self.config.liveness && self.terms.rest.tolerates && path.established;
        let ask_at = path.resting.ask_at(self.terms.send_interval);
        let suspect = path.resting.doubted.map(|(_, from)| from);
        let activity_ends = self.activity.since.and(self.activity.last);
        [
            ask_at,
            suspect,
            self.unanswered_at(path),
            self.path_overdue_at(path),
            self.missed_at(path),
            activity_ends.map(|last| last + super::BULK_ENDS_AFTER),
        ]
        .into_iter()
        .flatten()
        .filter(move |_| tolerates)
    }

    /// Whether the deadlines of the keepalive hold for the path.
    pub(super) fn has_ping_deadlines(&self, path: &Path) -> bool {
        !self.terms.rest.tolerates || self.activity.since.is_some() || !path.established
    }

    /// The peer set its status of the path.
    pub(super) fn on_remote_status(&mut self, now: Instant, id: PathId, status: PathStatus) {
        let turned_away = status == PathStatus::Backup;
        let Some(path) = self.paths.get_mut(&id) else {
            // The status may come before the path is established.
            if turned_away && self.turned_away_early.len() < PATHS_MAX {
                self.turned_away_early.insert(id);
            } else {
                self.turned_away_early.remove(&id);
            }
            return;
        };
        path.resting.peer_turned_away = turned_away;
        let uses = path.established && path.status == PathStatus::Available;
        if uses && path.resting.peer_turned_away && self.activity.since.is_none() {
            path.resting.doubt(now, overdue_at(now, path.rtt));
        }
    }

    /// A server at rest follows the client: its acknowledgements take the path that the client
    /// uses. Data that the server wrote lately takes a clearly quicker one, since the client does
    /// not see the queues on the way to it.
    pub(super) fn follows_peer_to(&self, now: Instant, path: &Path) -> bool {
        let follows = self.config.side == Side::Server
            && self.terms.rest.tolerates
            && self.activity.since.is_none();
        if !follows || !path.resting.peer_turned_away {
            return true;
        }
        let used = (self.paths.values())
            .filter(|other| !other.resting.peer_turned_away && self.lives(now, other));
        let Some(rtt) = used.map(|other| other.rtt).min() else {
            return true;
        };
        let written_at = self.scheduler.written_at();
        let writes = written_at.is_some_and(|at| now < at + LINGER);
        writes && rtt > path.rtt + path.rtt / QUICKER_PART + QUICKER_MIN
    }

    /// The server's answer on a path that its acknowledgements do not take.
    pub(super) fn echo(&mut self, now: Instant, id: PathId) {
        let rests = self.config.side == Side::Server
            && self.terms.rest.rests
            && self.activity.since.is_none();
        let Some(path) = self
            .paths
            .get_mut(&id)
            .filter(|path| rests && path.established)
        else {
            return;
        };
        let recently = (path.resting.echoed_at).is_some_and(|at| now < at + ECHO_GAP);
        if path.status == PathStatus::Backup && !recently {
            path.resting.echoed_at = Some(now);
            path.liveness.ping_at_once(now);
        }
    }

    /// A ping of a path in doubt that is due. It counts as sent.
    pub(super) fn poll_rest_ask(&mut self, now: Instant) -> Option<PathId> {
        if !self.terms.rest.tolerates {
            return None;
        }
        let interval = self.terms.send_interval;
        let due = self.paths.iter().find(|(_, path)| {
            path.established
                && !self.judges_by_pings(now, path)
                && path.resting.ask_at(interval).is_some_and(|at| now >= at)
        });
        let id = due.map(|(id, _)| *id)?;
        let path = self.paths.get_mut(&id)?;
        path.resting.asks = path.resting.asks.saturating_add(1);
        path.resting.asked_at = Some(now);
        if path.resting.asks == ASKS {
            path.resting.all_asked_at = Some(now);
        }
        if let Some(slot) = path.any_slot() {
            self.scheduler.permit(slot);
        }
        Some(id)
    }

    /// Pause between pings of a path at rest. `None`: the keepalive sets the pause.
    pub(super) fn rest_interval(&self, now: Instant, path: &Path) -> Option<Duration> {
        if self.pings_densely(now, path) {
            return None;
        }
        Some(match self.config.side {
            Side::Client => REST_INTERVAL,
            Side::Server => SERVER_REST_INTERVAL,
        })
    }

    /// A due ping is put off if other data on the path was sent and acknowledged meanwhile.
    pub(super) fn put_off_pings(&mut self, now: Instant) {
        let due = |path: &Path| path.established && now >= path.liveness.ping_at();
        let put_off: Vec<(PathId, Instant)> = (self.paths.iter())
            .filter(|(_, path)| due(path))
            .filter_map(|(id, path)| {
                let interval = self.rest_interval(now, path)?;
                let acked = self.scheduler.acked_sent_at(path.any_slot()?)?;
                Some((*id, acked + interval))
            })
            .collect();
        for (id, at) in put_off {
            if let Some(path) = self.paths.get_mut(&id) {
                path.liveness.put_off_ping(at);
            }
        }
    }
}
