//! Merges the reports of two observers of one rule (edge and core) into episodes.
//!
//! Observers report facts in event time: a stretch from `since` had lasted long enough at `at`, or
//! it ended at `at`. A fact changes the ledger only if it adds something. The merge has these
//! properties:
//! - Total: every fact in every state gives a valid ledger and at most one transition of one
//!   episode.
//! - Idempotent: a known fact gives nothing.
//! - Independent of order: two histories of the same stretches give the same rows, however they are
//!   mixed. The edge's history may come in any order, because uploads overtake each other. A
//!   stretch is found by its beginning, also after its end, and the latest fact in event time
//!   decides.
//! - Each revision is issued once and rises by 1 with every transition. The store knows an episode
//!   that was dropped here, and [`Episodes::adopt`] takes over its answer.
//!
//! Observers that disagree about the beginning still make one episode while their stretches
//! overlap. The earliest beginning counts, because the rules at the edge restart a stretch with the
//! gateway. The first report gives the id. The end that the edge reports counts, unless a later
//! reading has shown the condition to the core.
//!
//! Two stretches of the edge never overlap. So a later beginning is a new episode, even if the end
//! of the stretch before has not arrived. There are two exceptions: a stretch that the core's own
//! readings show as one, and a stretch whose beginning the edge may not have seen. A gateway that
//! lost its state, or that takes over a sensor, looks for the first time. A stretch that it finds
//! belongs to the episode that is active.
//!
//! A report of the edge can overtake the readings from before it. The core then raises no earlier
//! beginning until its own readings have reached the known one, or the end of their stretch.

use std::collections::VecDeque;

use contracts::{
    alerts::{Alert, AlertState},
    vitals::{EdgeAlert, Priority},
};
use serde::{Deserialize, Serialize};

use crate::{
    machine::{Evidence, Origin, episode_id, exact},
    past::Past,
};

/// Ended episodes that one rule remembers. Beyond it the oldest is dropped, and its late report
/// costs one query to the store.
const ENDED_MAX: usize = 16;
/// Event time for which an ended episode is remembered. Reports of the two observers rarely differ
/// by more.
const ENDED_FOR_US: i64 = 600_000_000;
/// Open episodes of one rule. Beyond it another report counts for the newest of them.
const OPEN_MAX: usize = 16;
/// Two stretches that begin within this time are the same one.
const SINCE_SLACK_US: i64 = 2_000_000;

/// Stands behind the name of a person who acknowledged an alert at the gateway. The core has not
/// signed that person in.
const AT_THE_GATEWAY: &str = "at the gateway";

/// The reporter of a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The engine that keeps the ledger.
    Own,
    /// The rules at the edge, reporting to an engine in the core. `first_look`: they may not have
    /// seen the beginning.
    Edge { first_look: bool },
}

impl Source {
    /// The edge has seen the beginning or the end of the stretch.
    const EDGE: Source = Source::Edge { first_look: false };

    fn is_edge(self) -> bool {
        matches!(self, Source::Edge { .. })
    }

    fn is_first_look(self) -> bool {
        matches!(self, Source::Edge { first_look: true })
    }

    /// Readings from before a stretch may have come by another way.
    fn has_seen_beginning(self) -> bool {
        matches!(self, Source::Edge { first_look: false })
    }
}

/// Fields that an episode needs for its alerts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    pub patient: &'a str,
    pub rule: &'a str,
    pub rule_version: u32,
    pub metric: i32,
    pub priority: Priority,
    /// Where the engine runs. Only the core waits for acknowledgements.
    pub origin: Origin,
}

impl Subject<'_> {
    fn latches(&self) -> bool {
        self.priority == Priority::High && self.origin == Origin::Core
    }
}

/// The newest transition of one episode, and the fields that later facts are compared with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Episode {
    pub id: String,
    pub since_us: i64,
    pub changed_us: i64,
    pub revision: u32,
    #[serde(with = "exact")]
    pub value: f64,
    pub device: String,
    pub gateway: String,
    pub summary: String,
    pub traceparent: String,
    pub acknowledged_by: String,
    pub note: String,
    pub from_edge: bool,
    pub from_core: bool,
    pub state: i32,
    /// Raised from a backfill and not confirmed by a live reading. False if it latches.
    #[serde(default)]
    pub backfill: bool,
    /// Event time of the newest fact that began or ended a stretch.
    #[serde(default)]
    pub until_us: i64,
    /// The engine's own machine is in a stretch of this episode.
    #[serde(default)]
    pub own_open: bool,
    /// Event time of the newest reading that showed the condition to the engine's own machine.
    #[serde(default)]
    pub own_seen_us: i64,
    /// Beginning of the newest stretch that the edge reported; 0: none is known.
    #[serde(default)]
    pub edge_since_us: i64,
    /// The edge that reported the episode first may not have seen its beginning.
    #[serde(default)]
    pub first_look: bool,
    /// Empty once the own readings have reached `since_us` or the end of their stretch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    earlier: Option<Box<Earlier>>,
}

/// A stretch of the engine's own readings that may be the beginning of a known episode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Earlier {
    since_us: i64,
    /// As of the end of the rule's delay.
    evidence: Evidence,
}

/// Episodes of one rule. Stored as a sequence of those that are known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "VecDeque<Episode>", into = "VecDeque<Episode>")]
pub(crate) struct Episodes {
    /// In order of beginning.
    known: VecDeque<Episode>,
    /// Those that were dropped.
    pub past: Past,
}

impl From<VecDeque<Episode>> for Episodes {
    fn from(known: VecDeque<Episode>) -> Self {
        let past = Past::default();
        Episodes { known, past }
    }
}

impl From<Episodes> for VecDeque<Episode> {
    fn from(episodes: Episodes) -> Self {
        episodes.known
    }
}

impl Episode {
    fn state(&self) -> AlertState {
        AlertState::try_from(self.state).unwrap_or(AlertState::Active)
    }

    /// Whether the condition still holds, as far as known.
    pub(crate) fn is_active(&self) -> bool {
        matches!(self.state(), AlertState::Active | AlertState::Acknowledged)
    }

    fn is_resolved(&self) -> bool {
        self.state() == AlertState::Resolved
    }

    /// Whether a stretch that lasted until `at_us` outlasts the known end of the episode.
    fn is_outlived(&self, at_us: i64) -> bool {
        self.is_resolved() && at_us > self.until_us
    }

    fn see(&mut self, source: Source, origin: Origin) -> bool {
        let seen = match (source, origin) {
            (Source::Own, Origin::Core) => &mut self.from_core,
            (Source::Own, Origin::Edge) | (Source::Edge { .. }, _) => &mut self.from_edge,
        };
        !std::mem::replace(seen, true)
    }

    /// Whether a stretch of this observer, from `since_us` to `at_us` or longer, overlaps the
    /// episode.
    fn overlaps(&self, subject: Subject<'_>, source: Source, since_us: i64, at_us: i64) -> bool {
        // An edge that may not have seen the beginning reports a stretch that is known already,
        // whichever of its two reports comes first.
        let is_later = source.is_first_look() && self.since_us <= at_us;
        let is_earlier = source.is_edge() && self.first_look && since_us <= self.since_us;
        if self.is_active() && (is_later || is_earlier) {
            return true;
        }
        if self.since_us > at_us || (self.is_resolved() && since_us >= self.until_us) {
            return false;
        }
        // Until somebody acknowledges it, every later stretch belongs to it.
        let absorbs = subject.latches() && self.acknowledged_by.is_empty() && !self.is_resolved();
        match source {
            Source::Own => true,
            Source::Edge { .. } if absorbs => true,
            Source::Edge { .. } if self.edge_since_us != 0 => since_us <= self.own_seen_us,
            Source::Edge { .. } => since_us <= self.own_seen_us.max(self.until_us),
        }
    }

    fn show(&mut self, evidence: &Evidence) {
        self.value = evidence.value;
        self.device.clone_from(&evidence.device);
        self.gateway.clone_from(&evidence.gateway);
        self.summary.clone_from(&evidence.summary);
        self.traceparent.clone_from(&evidence.traceparent);
    }

    fn next_revision(&mut self, subject: Subject<'_>) -> Alert {
        self.revision = self.revision.saturating_add(1);
        self.newest(subject)
    }

    fn newest(&self, subject: Subject<'_>) -> Alert {
        Alert {
            id: self.id.clone(),
            patient: subject.patient.to_owned(),
            device: self.device.clone(),
            gateway: self.gateway.clone(),
            rule: subject.rule.to_owned(),
            rule_version: subject.rule_version,
            metric: subject.metric,
            priority: subject.priority.into(),
            state: self.state,
            summary: self.summary.clone(),
            value: self.value,
            since_us: self.since_us,
            changed_us: self.changed_us,
            recorded_us: 0,
            acknowledged_by: self.acknowledged_by.clone(),
            note: self.note.clone(),
            revision: self.revision,
            from_edge: self.from_edge,
            from_core: self.from_core,
            traceparent: self.traceparent.clone(),
            backfill: self.backfill,
        }
    }

    fn end(&mut self, subject: Subject<'_>, at_us: i64) -> Alert {
        let state = if subject.latches() && self.acknowledged_by.is_empty() {
            AlertState::Latched
        } else {
            AlertState::Resolved
        };
        self.state = state.into();
        self.until_us = self.until_us.max(at_us);
        self.changed_us = at_us.max(self.since_us);
        self.next_revision(subject)
    }
}

impl Episodes {
    /// A stretch that began at `since_us` had lasted long enough at the time of the evidence.
    pub(crate) fn began(
        &mut self,
        subject: Subject<'_>,
        source: Source,
        since_us: i64,
        evidence: &Evidence,
    ) -> Option<Alert> {
        let at_us = evidence.time_us;
        let since_us = since_us.min(at_us);
        let lives = |it: &Episode| !it.is_outlived(at_us);
        let Some(place) = self.place(subject, source, since_us, at_us, lives) else {
            if source == Source::Own && self.keep_earlier(since_us, evidence)
                || !source.has_seen_beginning() && self.past.has(since_us, at_us)
            {
                return None;
            }
            return self.open(subject, source, since_us, evidence);
        };
        if source == Source::Own {
            self.known.iter_mut().for_each(|it| it.earlier = None);
        }
        self.join(place, subject, source, since_us, evidence)
    }

    /// The stretch belongs to the episode at this place.
    fn join(
        &mut self,
        place: usize,
        subject: Subject<'_>,
        source: Source,
        since_us: i64,
        evidence: &Evidence,
    ) -> Option<Alert> {
        let at_us = evidence.time_us;
        let episode = &mut self.known[place];
        if source.is_edge() {
            episode.edge_since_us = episode.edge_since_us.max(since_us);
        }
        let is_news = episode.see(source, subject.origin);
        if source == Source::Own {
            episode.own_open = true;
            episode.own_seen_us = episode.own_seen_us.max(at_us);
        }
        let is_earlier = since_us < episode.since_us;
        episode.since_us = episode.since_us.min(since_us);
        let is_confirmed = episode.backfill && !evidence.backfill;
        episode.backfill &= evidence.backfill;
        let is_back = episode.state() == AlertState::Latched && at_us > episode.until_us;
        if is_back {
            // As if every reading of the stretch had been seen, see `returns`.
            episode.state = AlertState::Active.into();
            episode.changed_us = since_us.max(episode.until_us);
            episode.show(evidence);
        }
        if !episode.is_resolved() {
            episode.until_us = episode.until_us.max(at_us);
        }
        let alert = (is_news || is_earlier || is_confirmed || is_back)
            .then(|| episode.next_revision(subject));
        self.known.make_contiguous().sort_by_key(|it| it.since_us);
        alert
    }

    /// Keeps an own stretch with a later episode that it may be the beginning of. An edge that lost
    /// its state has reported that episode, and the own readings have not reached it. `false`: no
    /// episode is like this.
    fn keep_earlier(&mut self, since_us: i64, evidence: &Evidence) -> bool {
        let is_ahead = |it: &&mut Episode| {
            let ahead_us = it.since_us.saturating_sub(evidence.time_us);
            let calls_people = !it.is_resolved() && it.acknowledged_by.is_empty();
            it.edge_since_us != 0 && ahead_us > 0 && (calls_people || ahead_us <= ENDED_FOR_US)
        };
        let Some(next) = self.known.iter_mut().find(is_ahead) else {
            return false;
        };
        next.earlier.get_or_insert_with(|| {
            let evidence = evidence.clone();
            Box::new(Earlier { since_us, evidence })
        });
        true
    }

    /// The kept stretch ended at `at_us`. It is the beginning of the known episode if it lasted
    /// until that one began.
    fn end_earlier(&mut self, subject: Subject<'_>, at_us: i64) -> Option<Alert> {
        let next = self.known.iter_mut().find(|it| it.earlier.is_some())?;
        let Earlier {
            since_us,
            mut evidence,
        } = *next.earlier.take()?;
        if next.since_us <= at_us {
            evidence.time_us = next.since_us;
        }
        let lives = |it: &Episode| !it.is_outlived(evidence.time_us);
        match self.place(subject, Source::Own, since_us, evidence.time_us, lives) {
            Some(place) => self.join(place, subject, Source::Own, since_us, &evidence),
            None => self.open(subject, Source::Own, since_us, &evidence),
        }
    }

    /// A reading of the engine itself shows the condition, but the delay of the rule has not ended.
    /// A latched episode is active again at once. It still waits for a person, who must not read
    /// that the condition is over. Normal readings latch it again.
    pub(crate) fn returns(&mut self, subject: Subject<'_>, evidence: &Evidence) -> Option<Alert> {
        let at_us = evidence.time_us;
        let is_latched = |it: &&mut Episode| it.state() == AlertState::Latched;
        let episode = self.known.iter_mut().rfind(is_latched)?;
        if at_us <= episode.until_us {
            return None;
        }
        episode.state = AlertState::Active.into();
        episode.changed_us = at_us;
        episode.until_us = at_us;
        episode.own_seen_us = episode.own_seen_us.max(at_us);
        episode.backfill &= evidence.backfill;
        episode.show(evidence);
        Some(episode.next_revision(subject))
    }

    /// A reading of the engine itself shows that the stretch continues.
    pub(crate) fn lasts(
        &mut self,
        subject: Subject<'_>,
        since_us: i64,
        evidence: &Evidence,
    ) -> Option<Alert> {
        let own = self
            .known
            .iter_mut()
            .rfind(|episode| episode.own_open && episode.is_active());
        match own {
            Some(episode) => {
                episode.own_seen_us = episode.own_seen_us.max(evidence.time_us);
                if !episode.backfill || evidence.backfill {
                    return None;
                }
                episode.backfill = false;
                episode.changed_us = evidence.time_us;
                Some(episode.next_revision(subject))
            }
            None => self.began(subject, Source::Own, since_us, evidence),
        }
    }

    /// A stretch of the engine's own readings ended.
    pub(crate) fn ended(&mut self, subject: Subject<'_>, at_us: i64) -> Vec<Alert> {
        let mut alerts: Vec<Alert> = self.end_earlier(subject, at_us).into_iter().collect();
        // A stretch that the edge saw begin at this very time is a different one.
        let over = self.known.iter_mut().filter(|it| {
            it.is_active() && (it.until_us < at_us || (it.own_open && it.until_us == at_us))
        });
        alerts.extend(over.map(|it| it.end(subject, at_us)));
        for episode in &mut self.known {
            episode.own_open = false;
        }
        alerts
    }

    /// The edge reports the end of the stretch that began at `since_us`; 0: the edge does not
    /// report which. `evidence`: as of the beginning, for a stretch whose beginning did not arrive.
    pub(crate) fn ended_at_edge(
        &mut self,
        subject: Subject<'_>,
        since_us: i64,
        at_us: i64,
        evidence: &Evidence,
    ) -> Vec<Alert> {
        let is_over =
            |it: &Episode| it.is_active() && it.until_us <= at_us && it.own_seen_us <= at_us;
        let place = if since_us == 0 {
            self.known.iter().rposition(is_over)
        } else {
            self.place(subject, Source::EDGE, since_us, at_us, |_| true)
        };
        let Some(place) = place else {
            return match since_us {
                0 => Vec::new(),
                _ => self.open_ended(subject, since_us, at_us, evidence),
            };
        };
        let episode = &mut self.known[place];
        episode.edge_since_us = episode.edge_since_us.max(since_us);
        match is_over(episode) {
            true => vec![episode.end(subject, at_us)],
            false => Vec::new(),
        }
    }

    /// A stretch of the edge whose end arrived before its beginning.
    fn open_ended(
        &mut self,
        subject: Subject<'_>,
        since_us: i64,
        at_us: i64,
        evidence: &Evidence,
    ) -> Vec<Alert> {
        let Some(began) = self.open(subject, Source::EDGE, since_us, evidence) else {
            return Vec::new();
        };
        let is_new = |it: &&mut Episode| it.id == began.id && it.revision == 1 && it.is_active();
        let episode = self.known.iter_mut().find(is_new);
        let ended = episode.map(|it| it.end(subject, at_us));
        [began].into_iter().chain(ended).collect()
    }

    /// Time from which the engine's own readings may end an episode that only the edge has seen.
    pub(crate) fn unseen_until_us(&self) -> Option<i64> {
        let unseen = self
            .known
            .iter()
            .filter(|episode| episode.is_active() && !episode.own_open);
        unseen.map(|episode| episode.until_us).max()
    }

    /// A person acknowledged the episode. `None`: it is already acknowledged or resolved.
    pub(crate) fn acknowledge(
        &mut self,
        subject: Subject<'_>,
        id: &str,
        by: &str,
        note: &str,
        now_us: i64,
    ) -> Option<Alert> {
        let episode = self.known.iter_mut().find(|it| it.id == id)?;
        if !episode.acknowledged_by.is_empty() {
            return None;
        }
        let state = match episode.state() {
            AlertState::Active => AlertState::Acknowledged,
            AlertState::Latched => AlertState::Resolved,
            _ => return None,
        };
        by.clone_into(&mut episode.acknowledged_by);
        note.clone_into(&mut episode.note);
        episode.state = state.into();
        episode.changed_us = now_us.max(episode.since_us);
        Some(episode.next_revision(subject))
    }

    /// A person at the gateway acknowledged the episode that the edge saw begin at `since_us`. The
    /// report repeats the beginning, so the episode is known by now.
    pub(crate) fn acknowledge_at_edge(
        &mut self,
        subject: Subject<'_>,
        since_us: i64,
        edge: &EdgeAlert,
    ) -> Option<Alert> {
        let source = Source::Edge {
            first_look: edge.first_look,
        };
        let place = self.place(subject, source, since_us, edge.time_us, |_| true)?;
        let id = self.known[place].id.clone();
        let by = format!("{}, {AT_THE_GATEWAY}", edge.acknowledged_by);
        let note = format!("acknowledged at the gateway {}", edge.gateway);
        self.acknowledge(subject, &id, &by, &note, edge.acknowledged_us)
    }

    /// Adopts the last stored revision of an episode.
    pub(crate) fn adopt(&mut self, stored: &Alert) {
        if let Some(known) = self.known.iter_mut().find(|it| it.id == stored.id) {
            known.revision = stored.revision;
            known.changed_us = stored.changed_us;
            known.state = stored.state;
            known.acknowledged_by.clone_from(&stored.acknowledged_by);
            known.note.clone_from(&stored.note);
            known.from_edge |= stored.from_edge;
            known.from_core |= stored.from_core;
            return;
        }
        self.insert(Episode {
            id: stored.id.clone(),
            since_us: stored.since_us,
            changed_us: stored.changed_us,
            revision: stored.revision,
            value: stored.value,
            device: stored.device.clone(),
            gateway: stored.gateway.clone(),
            summary: stored.summary.clone(),
            traceparent: stored.traceparent.clone(),
            acknowledged_by: stored.acknowledged_by.clone(),
            note: stored.note.clone(),
            from_edge: stored.from_edge,
            from_core: stored.from_core,
            state: stored.state,
            backfill: stored.backfill,
            until_us: stored.changed_us.max(stored.since_us),
            own_open: false,
            own_seen_us: 0,
            edge_since_us: 0,
            first_look: false,
            earlier: None,
        });
    }

    /// The store has different rows of this episode up to this revision, which cannot be read. The
    /// next transition follows them.
    pub(crate) fn pass_over(&mut self, unwritten: &Alert, revision: u32) {
        if !self.known.iter().any(|it| it.id == unwritten.id) {
            // No observer has seen the episode yet, so it starts fresh.
            self.adopt(&Alert {
                from_edge: false,
                from_core: false,
                ..unwritten.clone()
            });
        }
        for known in self.known.iter_mut().filter(|it| it.id == unwritten.id) {
            known.revision = known.revision.max(revision);
        }
    }

    /// The rule was removed: open episodes end, whatever their priority.
    pub(crate) fn retire(&mut self, subject: Subject<'_>, now_us: i64) -> Vec<Alert> {
        let open = self.known.iter_mut().filter(|it| !it.is_resolved());
        open.map(|episode| {
            episode.state = AlertState::Resolved.into();
            episode.own_open = false;
            episode.changed_us = now_us.max(episode.since_us);
            episode.until_us = episode.until_us.max(now_us);
            episode.next_revision(subject)
        })
        .collect()
    }

    /// The clock was set back to `now_us`.
    pub(crate) fn set_back(&mut self, now_us: i64) {
        for episode in &mut self.known {
            episode.until_us = episode.until_us.min(now_us);
            episode.own_seen_us = episode.own_seen_us.min(now_us);
        }
    }

    /// The newest transition of each episode whose condition holds.
    pub(crate) fn active(&self, subject: Subject<'_>) -> Vec<Alert> {
        let active = self.known.iter().filter(|episode| episode.is_active());
        active.map(|episode| episode.newest(subject)).collect()
    }

    pub(crate) fn has_open(&self) -> bool {
        self.known.iter().any(|episode| !episode.is_resolved())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Event time of the newest fact.
    pub(crate) fn newest_us(&self) -> i64 {
        self.known.back().map_or(0, |episode| episode.until_us)
    }

    /// Drops ended episodes above the bounds. Not between the facts of one batch, because a dropped
    /// episode must be stored.
    pub(crate) fn trim(&mut self, now_us: i64) {
        let ended = self.known.iter().filter(|it| it.is_resolved()).count();
        let mut surplus = ended.saturating_sub(ENDED_MAX);
        self.past.trim(now_us);
        let past = &mut self.past;
        self.known.retain(|episode| {
            let is_old = now_us.saturating_sub(episode.until_us) > ENDED_FOR_US;
            let is_over = episode.is_resolved() && episode.earlier.is_none();
            let is_forgotten = is_over && (surplus > 0 || is_old);
            surplus = surplus.saturating_sub(usize::from(is_forgotten));
            if is_forgotten {
                past.add(episode.since_us, episode.until_us);
            }
            !is_forgotten
        });
    }

    pub(crate) fn trimmed(&self, now_us: i64) -> Episodes {
        let mut trimmed = self.clone();
        trimmed.trim(now_us);
        trimmed
    }

    /// The episode of version 1 of the stored state, which had no `until_us`.
    pub(crate) fn of_version_1(mut episode: Episode, is_active: bool) -> Episodes {
        episode.until_us = episode.changed_us.max(episode.since_us);
        episode.own_open = is_active && episode.from_core;
        VecDeque::from([episode]).into()
    }

    /// Index of the episode that a stretch belongs to, of those that count. `None`: it starts a new
    /// one.
    fn place(
        &self,
        subject: Subject<'_>,
        source: Source,
        since_us: i64,
        at_us: i64,
        counts: impl Fn(&Episode) -> bool,
    ) -> Option<usize> {
        let counts = |place: &usize| counts(&self.known[*place]);
        let of_edge = |it: &Episode| source.is_edge() && it.edge_since_us == since_us;
        let is_named = |it: &Episode| it.since_us == since_us || of_edge(it);
        let named = self.known.iter().position(is_named);
        let overlapping = || {
            let overlaps = |it: &Episode| it.overlaps(subject, source, since_us, at_us);
            self.known.iter().rposition(overlaps).filter(counts)
        };
        let close = || {
            let is_close = |it: &Episode| {
                let slack = at_us..=at_us.saturating_add(SINCE_SLACK_US);
                slack.contains(&it.since_us) && it.edge_since_us == 0
            };
            self.known.iter().position(is_close).filter(counts)
        };
        named.filter(counts).or_else(overlapping).or_else(close)
    }

    fn open(
        &mut self,
        subject: Subject<'_>,
        source: Source,
        since_us: i64,
        evidence: &Evidence,
    ) -> Option<Alert> {
        let is_open = |it: &Episode| !it.is_resolved();
        if self.known.iter().filter(|it| is_open(it)).count() >= OPEN_MAX {
            let newest = self.known.iter_mut().rfind(|it| is_open(it))?;
            newest.own_open |= source == Source::Own;
            let is_news = newest.see(source, subject.origin);
            return is_news.then(|| newest.next_revision(subject));
        }
        // A stretch that outlasts the end reported by another observer restarts there, because an
        // ended episode stays ended.
        let is_taken = |it: &Episode| {
            it.since_us == since_us || (it.since_us..it.until_us).contains(&since_us)
        };
        let since_us = if self.known.iter().any(|it| it.is_resolved() && is_taken(it)) {
            evidence.time_us
        } else {
            since_us
        };
        let id = episode_id(subject.patient, subject.rule, since_us);
        // An id is issued once. The beginning of its episode may have moved since.
        if let Some(known) = self.known.iter_mut().find(|it| it.id == id) {
            let is_news = known.see(source, subject.origin);
            return is_news.then(|| known.next_revision(subject));
        }
        let mut episode = Episode {
            id,
            since_us,
            changed_us: evidence.time_us,
            revision: 0,
            value: 0.0,
            device: String::new(),
            gateway: String::new(),
            summary: String::new(),
            traceparent: String::new(),
            acknowledged_by: String::new(),
            note: String::new(),
            from_edge: false,
            from_core: false,
            state: AlertState::Active.into(),
            // An alert that waits for a person calls people whenever it comes.
            backfill: evidence.backfill && !subject.latches(),
            until_us: evidence.time_us,
            own_open: source == Source::Own,
            own_seen_us: 0,
            edge_since_us: if source.is_edge() { since_us } else { 0 },
            first_look: source.is_first_look(),
            earlier: None,
        };
        episode.see(source, subject.origin);
        episode.show(evidence);
        let alert = episode.next_revision(subject);
        self.insert(episode);
        Some(alert)
    }

    fn insert(&mut self, episode: Episode) {
        let place = self
            .known
            .partition_point(|it| it.since_us <= episode.since_us);
        self.known.insert(place, episode);
    }
}
