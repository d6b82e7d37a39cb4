//! Runs a rule set over the samples of one patient, on event time.
//!
//! The engine reads no clock: a sample carries its time, and `on_time` advances time without a
//! sample. The same samples in the same order give the same transitions. This holds wherever the
//! engine runs, and however often it is stored and restored. A sample that is not newer than its
//! stream in sequence or time is ignored, so duplicates and late samples are harmless. A sample
//! that is newer in either counts. So neither a clock that steps back nor a restarted sequence
//! blocks the rules.

mod sensors;
mod stored;

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use contracts::{
    alerts::Alert,
    vitals::{EdgeAlert, Metric, Priority, Sample, sample},
};
use serde::{Deserialize, Serialize};

pub use stored::RestoreError;

use crate::{
    PRESENT_US,
    condition::Condition,
    episodes::{Episodes, Source, Subject},
    frozen::Frozen,
    machine::{Evidence, Fact, Frame, Machine, Origin, Phase, Verdict, delay_us, is_set_back},
    memory::Memory,
    news2::{self, Observation, Score, Spo2Scale},
    rules::{Rule, RuleSet},
    validate::own_value,
    verdict,
};

/// Streams of one patient whose order is remembered. Beyond it the one silent for longest is
/// dropped, and its late samples would count as new.
pub const STREAMS_MAX: usize = 64;
/// Rules of one patient that only the edge has. Beyond it the one with the oldest episode is
/// dropped. A late report of it then costs one query to the store.
const FOREIGN_RULES_MAX: usize = 32;
/// Event time after which a state is due for storing without a phase change. Each patient has
/// another phase, so that states do not all fall due at once.
const PERSIST_EVERY_US: i64 = 5_000_000;

/// Choices of a clinician for the patient.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    pub spo2_scale: Spo2Scale,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Engine {
    patient: String,
    rules: Arc<RuleSet>,
    profile: Profile,
    origin: Origin,
    /// One per rule, in the set's order.
    rule_states: Vec<RuleState>,
    /// Rules that the set no longer has. The next event ends their open episodes.
    retired: Vec<(Rule, RuleState)>,
    /// Rules that only the edge has, by id.
    foreign: BTreeMap<String, Foreign>,
    latest: BTreeMap<i32, Latest>,
    streams: BTreeMap<String, Stream>,
    /// Last impact seen by each fall rule, one per such rule.
    impacts: BTreeMap<String, i64>,
    /// By fall rule: impacts up to this time do not count, because a person cancelled the alarm.
    cancelled: BTreeMap<String, i64>,
    /// Memories of change rules, one per such rule.
    memories: BTreeMap<String, Memory>,
    /// Memories of rules about frozen sensors, one per such rule.
    frozen: BTreeMap<String, Frozen>,
    clock_us: i64,
    /// The last interval in which the state was due, counted from the epoch.
    persisted_turn: i64,
    persist_phase_us: i64,
    dirty: bool,
    skipped: u64,
    backfill: bool,
}

/// One rule's machine, and the episodes that all observers report for the rule.
#[derive(Clone, Debug, Default, PartialEq)]
struct RuleState {
    machine: Machine,
    episodes: Episodes,
    look: Look,
}

/// This engine's own view of a rule. It is not stored: a restored engine looks anew.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Look {
    has_judged: bool,
    /// The first verdict began the present stretch.
    is_first: bool,
}

/// Episodes of a rule that only the edge has, with the edge's description of the rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Foreign {
    rule_version: u32,
    metric: i32,
    priority: i32,
    episodes: Episodes,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Latest {
    #[serde(with = "crate::machine::exact")]
    value: f64,
    time_us: i64,
    device: String,
    #[serde(default)]
    gateway: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Stream {
    sequence: u64,
    time_us: i64,
    /// Between the newest two samples; 0: not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    interval_us: i64,
}

/// A stream whose samples come at a regular interval, so that its next sample can be expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rhythm<'a> {
    pub device: &'a str,
    pub stream: &'a str,
    /// Event time of the newest sample.
    pub newest_us: i64,
    pub interval_us: i64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(interval_us: &i64) -> bool {
    *interval_us == 0
}

impl RuleState {
    /// Before the machine takes the verdict.
    fn look(&mut self, verdict: Verdict) {
        let look = &mut self.look;
        if self.machine.phase == Phase::Normal && verdict == Verdict::Holds {
            look.is_first = !look.has_judged;
        }
        look.has_judged |= verdict != Verdict::Unknown;
    }
}

impl<'a> Subject<'a> {
    fn of(patient: &'a str, rule: &'a Rule, rule_version: u32, origin: Origin) -> Subject<'a> {
        Subject {
            patient,
            rule: &rule.id,
            rule_version,
            metric: rule.condition.metric().into(),
            priority: rule.priority,
            origin,
        }
    }
}

impl Foreign {
    fn subject<'a>(&self, patient: &'a str, rule: &'a str, origin: Origin) -> Subject<'a> {
        Subject {
            patient,
            rule,
            rule_version: self.rule_version,
            metric: self.metric,
            priority: Priority::try_from(self.priority).unwrap_or_default(),
            origin,
        }
    }
}

impl Engine {
    pub fn new(
        patient: impl Into<String>,
        rules: Arc<RuleSet>,
        profile: Profile,
        origin: Origin,
    ) -> Engine {
        let patient = patient.into();
        Engine {
            persist_phase_us: persist_phase_us(&patient),
            patient,
            rule_states: vec![RuleState::default(); rules.rules.len()],
            retired: Vec::new(),
            foreign: BTreeMap::new(),
            rules,
            profile,
            origin,
            latest: BTreeMap::new(),
            streams: BTreeMap::new(),
            impacts: BTreeMap::new(),
            cancelled: BTreeMap::new(),
            memories: BTreeMap::new(),
            frozen: BTreeMap::new(),
            clock_us: 0,
            persisted_turn: 0,
            dirty: false,
            skipped: 0,
            backfill: false,
        }
    }

    /// Whether the state must be stored. A second call returns false until the next change.
    pub fn take_dirty(&mut self) -> bool {
        let turn = self.persist_turn();
        let due = self.dirty || turn != self.persisted_turn;
        if due {
            self.persisted_turn = turn;
            self.dirty = false;
        }
        due
    }

    fn persist_turn(&self) -> i64 {
        let phased_us = self.clock_us.saturating_add(self.persist_phase_us);
        phased_us.div_euclid(PERSIST_EVERY_US)
    }

    /// Marks samples from here on as a backfill. Their alerts are marked until a live reading
    /// confirms them, except those of high priority, which call people at once.
    pub fn set_backfill(&mut self, backfill: bool) {
        self.backfill = backfill;
    }

    pub fn set_profile(&mut self, profile: Profile) {
        self.profile = profile;
    }

    /// Whether `on_time` could change anything.
    pub fn is_waiting(&self) -> bool {
        self.rule_states.iter().any(|it| it.machine.is_waiting())
    }

    pub fn rules(&self) -> &Arc<RuleSet> {
        &self.rules
    }

    pub fn patient(&self) -> &str {
        &self.patient
    }

    /// Whether the present stretch of the rule began with the first reading that this engine judged
    /// by it. The stretch may have begun before, under another engine or before a restart.
    pub fn is_first_look(&self, rule: &str) -> bool {
        let index = self.index(rule);
        index.is_some_and(|index| self.rule_states[index].look.is_first)
    }

    /// Event time of the newest sample.
    pub fn clock_us(&self) -> i64 {
        self.clock_us
    }

    /// Duplicates and late samples since the engine was created.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Device, stream, newest sequence and newest time of each stream.
    pub fn streams(&self) -> impl Iterator<Item = (&str, &str, u64, i64)> {
        self.streams.iter().filter_map(|(key, newest)| {
            let (device, stream) = key.split_once('/')?;
            Some((device, stream, newest.sequence, newest.time_us))
        })
    }

    /// The streams that have a rhythm and a sample within [`PRESENT_US`] of the newest one.
    pub fn rhythms(&self) -> impl Iterator<Item = Rhythm<'_>> {
        let oldest_us = self.clock_us.saturating_sub(PRESENT_US);
        self.streams.iter().filter_map(move |(key, newest)| {
            let (device, stream) = key.split_once('/')?;
            let is_expected = newest.interval_us > 0 && newest.time_us >= oldest_us;
            is_expected.then_some(Rhythm {
                device,
                stream,
                newest_us: newest.time_us,
                interval_us: newest.interval_us,
            })
        })
    }

    /// The episodes whose condition holds, each as its newest transition.
    pub fn active_alerts(&self) -> Vec<Alert> {
        let version = self.rules.version;
        let own = self.rule_states.iter().zip(&self.rules.rules);
        let own = own.flat_map(|(rule_state, rule)| {
            let subject = Subject::of(&self.patient, rule, version, self.origin);
            rule_state.episodes.active(subject)
        });
        own.collect()
    }

    pub fn has_open_alert(&self) -> bool {
        self.rule_states.iter().any(|it| it.episodes.has_open())
    }

    /// Drops ended episodes above the bounds. Call it only when all returned transitions are stored
    /// or never will be.
    pub fn trim(&mut self) {
        let now_us = self.clock_us;
        for rule_state in &mut self.rule_states {
            rule_state.episodes.trim(now_us);
        }
        self.foreign.retain(|_, foreign| {
            foreign.episodes.trim(now_us);
            !foreign.episodes.is_empty()
        });
        while self.foreign.len() > FOREIGN_RULES_MAX {
            let newest_us = |it: &(&String, &Foreign)| it.1.episodes.newest_us();
            let oldest = self.foreign.iter().min_by_key(newest_us);
            let Some(oldest) = oldest.map(|(rule, _)| rule.clone()) else {
                return;
            };
            self.foreign.remove(&oldest);
        }
    }

    pub fn news2(&self, now_us: i64) -> Score {
        score_of(&self.latest, &self.rules, self.profile, now_us)
    }

    pub fn on_sample(&mut self, sample: &Sample) -> Vec<Alert> {
        let metric = sample.metric();
        if let Some(sample::Reading::Waveform(_)) = sample.reading {
            return self.on_waveform(sample);
        }
        // A gateway has readings in the unit in which they came.
        let Some(value) = own_value(sample).filter(|value| value.is_finite()) else {
            return Vec::new();
        };
        let Some(before_us) = self.advance_stream(sample) else {
            self.skipped += 1;
            return Vec::new();
        };
        let now_us = sample.device_time_us;
        if self.steps_back(before_us, now_us) {
            self.set_back(metric, now_us);
        }
        self.clock_us = now_us;
        self.note_latest(sample, value);
        let mut alerts = self.end_retired(now_us);
        let rules = Arc::clone(&self.rules);
        let mut score = None;
        for (index, rule) in rules.rules.iter().enumerate() {
            if !self.judges(rule, metric) {
                continue;
            }
            if let Condition::News2 { .. } | Condition::News2Red = rule.condition {
                score.get_or_insert_with(|| self.news2(now_us));
            }
            alerts.extend(self.apply(&rules, index, sample, value, score.as_ref()));
        }
        if self.origin == Origin::Edge {
            self.trim();
        }
        self.note(alerts)
    }

    /// Whether the clock of a stream was set back between two readings. The edge counts the steps
    /// in its sequences.
    fn steps_back(&self, before_us: i64, now_us: i64) -> bool {
        match self.origin {
            Origin::Edge => now_us < before_us,
            Origin::Core => is_set_back(before_us, now_us, self.origin, self.backfill),
        }
    }

    /// Times of the metric that are in the future by the new clock count from now.
    /// Otherwise an episode would stay, or take in the next one. Beginnings stay as reported.
    fn set_back(&mut self, metric: Metric, now_us: i64) {
        self.dirty = true;
        for (rule, rule_state) in self.rules.rules.iter().zip(&mut self.rule_states) {
            if rule.condition.depends_on(metric) {
                rule_state.machine.set_back(now_us);
                rule_state.episodes.set_back(now_us);
                for times in [&mut self.impacts, &mut self.cancelled] {
                    if let Some(time_us) = times.get_mut(&rule.id) {
                        *time_us = now_us.min(*time_us);
                    }
                }
            }
        }
    }

    /// Keeps the reading if it is the newest of its metric.
    fn note_latest(&mut self, sample: &Sample, value: f64) {
        let now_us = sample.device_time_us;
        let newest = self
            .latest
            .get(&sample.metric)
            .is_none_or(|known| known.device == sample.device || known.time_us <= now_us);
        if newest {
            self.latest.insert(
                sample.metric,
                Latest {
                    value,
                    time_us: now_us,
                    device: sample.device.clone(),
                    gateway: sample.gateway.clone(),
                },
            );
        }
    }

    /// Applies one rule to a reading of a metric that the rule depends on.
    fn apply(
        &mut self,
        rules: &RuleSet,
        index: usize,
        sample: &Sample,
        value: f64,
        score: Option<&Score>,
    ) -> Vec<Alert> {
        let (rule, now_us) = (&rules.rules[index], sample.device_time_us);
        let frame = self.frame(rules, index);
        let fact = self.rule_states[index].machine.pass(frame, now_us);
        let mut alerts = self.merge(rules, index, fact);
        let verdict = self.judge(rule, index, sample, value, score);
        let frame = self.frame(rules, index);
        self.rule_states[index].look(verdict);
        let rule_state = &self.rule_states[index];
        let is_idle = rule_state.machine.phase == Phase::Normal
            && verdict != Verdict::Holds
            && !rule_state.episodes.has_open()
            && !rule_state.machine.is_waiting();
        if is_idle {
            return alerts;
        }
        let evidence = Evidence {
            time_us: now_us,
            value: score
                .filter(|_| rule.condition.metric() == Metric::Unspecified)
                .map_or(value, |score| f64::from(score.aggregate)),
            device: sample.device.clone(),
            gateway: sample.gateway.clone(),
            summary: verdict::describe(rule, value, score),
            traceparent: sample.traceparent.clone(),
            backfill: self.backfill,
        };
        let machine = &mut self.rule_states[index].machine;
        let before = (machine.phase, machine.since_us, machine.ended_since_us);
        let fact = machine.step(frame, verdict, &evidence);
        self.dirty |= before != (machine.phase, machine.since_us, machine.ended_since_us);
        if let Some(Fact::Lasts { since_us }) = fact {
            let subject = Subject::of(&self.patient, rule, rules.version, self.origin);
            let episodes = &mut self.rule_states[index].episodes;
            alerts.extend(episodes.lasts(subject, since_us, &evidence));
        } else {
            alerts.extend(self.merge(rules, index, fact));
        }
        let rule_state = &mut self.rule_states[index];
        if verdict == Verdict::Holds && rule_state.machine.phase == Phase::Pending {
            let subject = Subject::of(&self.patient, rule, rules.version, self.origin);
            alerts.extend(rule_state.episodes.returns(subject, &evidence));
        }
        alerts
    }

    /// The verdict of a rule's condition on a reading.
    fn judge(
        &mut self,
        rule: &Rule,
        index: usize,
        sample: &Sample,
        value: f64,
        score: Option<&Score>,
    ) -> Verdict {
        let now_us = sample.device_time_us;
        match rule.condition {
            Condition::Frozen { unchanged_ms, .. } => {
                self.judge_frozen(rule, delay_us(unchanged_ms), sample)
            }
            Condition::Fall {
                impact_g,
                still_g,
                within_ms,
            } => {
                let cancelled = self.cancelled.get(&rule.id).copied();
                let counts_from_us = cancelled
                    .filter(|until_us| !is_set_back(*until_us, now_us, self.origin, self.backfill));
                if value >= impact_g && counts_from_us.is_none_or(|until_us| now_us > until_us) {
                    self.impacts.insert(rule.id.clone(), now_us);
                    self.dirty = true;
                }
                let impact_us = self.impacts.get(&rule.id).copied();
                let since_us = impact_us.map(|impact_us| now_us - impact_us);
                let is_recent =
                    since_us.is_some_and(|since_us| (0..=delay_us(within_ms)).contains(&since_us));
                let is_normal = self.rule_states[index].machine.phase == Phase::Normal;
                verdict::fall(value, still_g, is_recent || !is_normal)
            }
            Condition::Change { .. } | Condition::Deviation { .. } | Condition::Trend { .. } => {
                if !self.memories.contains_key(&rule.id) {
                    let fresh = Memory::of(&rule.condition);
                    self.memories
                        .extend(fresh.map(|memory| (rule.id.clone(), memory)));
                }
                self.memories
                    .get_mut(&rule.id)
                    .map_or(Verdict::Unknown, |memory| {
                        memory.judge(&rule.condition, now_us, value)
                    })
            }
            _ => verdict::of(&rule.condition, value, score),
        }
    }

    /// Advances event time for waiting rules: no reading from before `before_us` will come. A
    /// transition carries the time at which the delay of its rule ended.
    pub fn on_time(&mut self, before_us: i64) -> Vec<Alert> {
        self.pass(before_us, |_| true)
    }

    /// Advances time but ends no alert, for a caller that cannot exclude readings under way. An
    /// extra alert is safer than one resolved while its condition lasts.
    pub fn on_time_raising(&mut self, before_us: i64) -> Vec<Alert> {
        self.pass(before_us, |phase| phase == Phase::Pending)
    }

    fn pass(&mut self, before_us: i64, waits: impl Fn(Phase) -> bool) -> Vec<Alert> {
        let mut alerts = self.end_retired(before_us);
        let rules = Arc::clone(&self.rules);
        for index in 0..rules.rules.len() {
            if !waits(self.rule_states[index].machine.phase) {
                continue;
            }
            let frame = self.frame(&rules, index);
            let fact = self.rule_states[index].machine.pass(frame, before_us);
            alerts.extend(self.merge(&rules, index, fact));
        }
        self.note(alerts)
    }

    /// Advances time for pending falls only. The impact may have broken the sensor, so a pending
    /// fall does not wait for a reading that would end it.
    pub fn on_time_of_falls(&mut self, before_us: i64) -> Vec<Alert> {
        let mut alerts = Vec::new();
        let rules = Arc::clone(&self.rules);
        for (index, rule) in rules.rules.iter().enumerate() {
            let is_pending = self.rule_states[index].machine.phase == Phase::Pending;
            if !is_pending || !matches!(rule.condition, Condition::Fall { .. }) {
                continue;
            }
            let frame = self.frame(&rules, index);
            let fact = self.rule_states[index].machine.pass(frame, before_us);
            alerts.extend(self.merge(&rules, index, fact));
        }
        self.note(alerts)
    }

    fn frame<'a>(&self, rules: &'a RuleSet, index: usize) -> Frame<'a> {
        let rule = &rules.rules[index];
        Frame {
            rule,
            hold_us: rules.stale_after_us(rule.condition.metric()),
            origin: self.origin,
            unseen_until_us: self.rule_states[index].episodes.unseen_until_us(),
        }
    }

    /// Merges a fact of the rule's own machine into its episodes.
    fn merge(&mut self, rules: &RuleSet, index: usize, fact: Option<Fact>) -> Vec<Alert> {
        let subject = Subject::of(
            &self.patient,
            &rules.rules[index],
            rules.version,
            self.origin,
        );
        let episodes = &mut self.rule_states[index].episodes;
        match fact {
            Some(Fact::Began { since_us, evidence }) => {
                let alert = episodes.began(subject, Source::Own, since_us, &evidence);
                alert.into_iter().collect()
            }
            Some(Fact::Ended { at_us }) => episodes.ended(subject, at_us),
            Some(Fact::Lasts { .. }) | None => Vec::new(),
        }
    }

    /// Merges a report of the edge into the same episodes. Episodes of a rule that this set lacks
    /// depend on the edge alone.
    pub fn on_edge_alert(&mut self, edge: &EdgeAlert) -> Vec<Alert> {
        let rules = Arc::clone(&self.rules);
        if edge.cancelled {
            self.cancel_fall(&edge.rule, edge.time_us);
            return Vec::new();
        }
        let (index, rule) = (self.index(&edge.rule), &edge.rule);
        let (subject, episodes, for_us) = match index {
            Some(index) => {
                let own = &rules.rules[index];
                let subject = Subject::of(&self.patient, own, rules.version, self.origin);
                let episodes = &mut self.rule_states[index].episodes;
                (subject, episodes, delay_us(own.for_ms))
            }
            None => {
                let foreign = self.foreign.entry(rule.clone()).or_insert(Foreign {
                    rule_version: 0,
                    metric: 0,
                    priority: 0,
                    episodes: Episodes::default(),
                });
                foreign.rule_version = edge.rule_version;
                foreign.metric = edge.metric;
                foreign.priority = edge.priority;
                (
                    foreign.subject(&self.patient, rule, self.origin),
                    &mut foreign.episodes,
                    0,
                )
            }
        };
        // A gateway of an older version does not report the beginning.
        let since_us = match (edge.since_us, edge.resolved) {
            (0, false) => edge.time_us.saturating_sub(for_us),
            (since_us, _) => since_us,
        };
        let began_us = match edge.resolved {
            true => since_us.saturating_add(for_us).min(edge.time_us),
            false => edge.time_us,
        };
        let evidence = Evidence {
            time_us: began_us,
            value: edge.value,
            device: edge.device.clone(),
            gateway: edge.gateway.clone(),
            summary: edge.summary.clone(),
            traceparent: edge.traceparent.clone(),
            backfill: self.backfill,
        };
        let mut alerts: Vec<Alert> = if edge.resolved {
            episodes.ended_at_edge(subject, since_us, edge.time_us, &evidence)
        } else {
            let source = Source::Edge {
                first_look: edge.first_look,
            };
            let alert = episodes.began(subject, source, since_us, &evidence);
            alert.into_iter().collect()
        };
        if !edge.acknowledged_by.is_empty() {
            alerts.extend(episodes.acknowledge_at_edge(subject, since_us, edge));
        }
        self.note(alerts)
    }

    /// Cancels falls that are not raised yet: an impact was seen, possibly followed by stillness.
    /// Returns the rules and resets their state.
    pub fn cancel_falls(&mut self, now_us: i64) -> Vec<Rule> {
        let rules = Arc::clone(&self.rules);
        let may_cancel = |rule: &Rule, machine: &Machine| {
            let Condition::Fall { within_ms, .. } = rule.condition else {
                return false;
            };
            let is_recent = self
                .impacts
                .get(&rule.id)
                .is_some_and(|impact_us| (0..=delay_us(within_ms)).contains(&(now_us - impact_us)));
            machine.phase == Phase::Pending || (machine.phase == Phase::Normal && is_recent)
        };
        let falls: Vec<Rule> = rules
            .rules
            .iter()
            .zip(&self.rule_states)
            .filter(|(rule, rule_state)| may_cancel(rule, &rule_state.machine))
            .map(|(rule, _)| rule.clone())
            .collect();
        for rule in &falls {
            self.cancel_fall(&rule.id, now_us);
        }
        falls
    }

    /// A raised alert stays, because people were notified and one of them must acknowledge it.
    fn cancel_fall(&mut self, rule: &str, until_us: i64) {
        let Some(index) = self.index(rule) else {
            return;
        };
        if !matches!(self.rules.rules[index].condition, Condition::Fall { .. }) {
            return;
        }
        let cancelled = self.cancelled.entry(rule.to_owned()).or_insert(until_us);
        *cancelled = until_us.max(*cancelled);
        if self
            .impacts
            .get(rule)
            .is_some_and(|impact_us| *impact_us <= until_us)
        {
            self.impacts.remove(rule);
        }
        let machine = &mut self.rule_states[index].machine;
        if machine.phase == Phase::Pending {
            machine.phase = Phase::Normal;
            machine.evidence = None;
        }
        self.dirty = true;
    }

    /// Acknowledges the open episode with this id.
    pub fn acknowledge(&mut self, id: &str, by: &str, note: &str, now_us: i64) -> Vec<Alert> {
        let rules = Arc::clone(&self.rules);
        let own = self.rule_states.iter_mut().zip(&rules.rules);
        let own = own.map(|(rule_state, rule)| {
            let subject = Subject::of(&self.patient, rule, rules.version, self.origin);
            (subject, &mut rule_state.episodes)
        });
        let foreign = self.foreign.iter_mut().map(|(rule, foreign)| {
            let subject = foreign.subject(&self.patient, rule, self.origin);
            (subject, &mut foreign.episodes)
        });
        let alert = own
            .chain(foreign)
            .find_map(|(subject, episodes)| episodes.acknowledge(subject, id, by, note, now_us));
        self.note(alert.into_iter().collect())
    }

    /// Adopts the stored row of an episode, known here or not. The next transition is the following
    /// revision.
    pub fn adopt(&mut self, stored: &Alert) {
        self.episodes_of(stored).adopt(stored);
    }

    /// The store has different rows of the episode of `unwritten` that cannot be read. The next
    /// transition follows this revision.
    pub fn pass_over(&mut self, unwritten: &Alert, revision: u32) {
        self.episodes_of(unwritten).pass_over(unwritten, revision);
    }

    fn episodes_of(&mut self, alert: &Alert) -> &mut Episodes {
        self.dirty = true;
        if let Some(index) = self.index(&alert.rule) {
            return &mut self.rule_states[index].episodes;
        }
        let retired = self
            .retired
            .iter()
            .position(|(rule, _)| rule.id == alert.rule);
        if let Some(index) = retired {
            return &mut self.retired[index].1.episodes;
        }
        let foreign = self.foreign.entry(alert.rule.clone());
        let foreign = foreign.or_insert_with(|| Foreign {
            rule_version: alert.rule_version,
            metric: alert.metric,
            priority: alert.priority,
            episodes: Episodes::default(),
        });
        &mut foreign.episodes
    }

    fn note(&mut self, alerts: Vec<Alert>) -> Vec<Alert> {
        self.dirty |= !alerts.is_empty();
        alerts
    }

    fn index(&self, rule: &str) -> Option<usize> {
        self.rules.rules.iter().position(|own| own.id == rule)
    }

    fn end_retired(&mut self, now_us: i64) -> Vec<Alert> {
        let (version, origin) = (self.rules.version, self.origin);
        let retired = std::mem::take(&mut self.retired).into_iter();
        let ended = retired.flat_map(|(rule, mut rule_state)| {
            let subject = Subject::of(&self.patient, &rule, version, origin);
            rule_state.episodes.retire(subject, now_us)
        });
        ended.collect()
    }

    /// Time of the sample before in its stream, or its own as the first. `None`: it is not the
    /// next one.
    fn advance_stream(&mut self, sample: &Sample) -> Option<i64> {
        let key = stream_key(sample);
        if let Some(stream) = self.streams.get_mut(&key) {
            // A sample older in both is late. A lower sequence at a later time comes from a gateway
            // that lost its journal. An earlier time at a higher sequence comes from a clock that
            // stepped back. The rules must see both.
            let is_later = sample.device_time_us > stream.time_us;
            let is_next = is_later || (stream.sequence > 0 && sample.sequence > stream.sequence);
            let before_us = stream.time_us;
            if is_next {
                let interval_us = sample.device_time_us.saturating_sub(stream.time_us);
                *stream = Stream {
                    sequence: sample.sequence,
                    time_us: sample.device_time_us,
                    interval_us: interval_us.max(0),
                };
            }
            return is_next.then_some(before_us);
        }
        if self.streams.len() >= STREAMS_MAX {
            let oldest = self
                .streams
                .iter()
                .min_by_key(|(_, stream)| stream.time_us)
                .map(|(key, _)| key.clone());
            if let Some(oldest) = oldest {
                self.streams.remove(&oldest);
            }
        }
        self.streams.insert(
            key,
            Stream {
                sequence: sample.sequence,
                time_us: sample.device_time_us,
                interval_us: 0,
            },
        );
        Some(sample.device_time_us)
    }
}

/// An identifier contains no slash.
fn stream_key(sample: &Sample) -> String {
    format!("{}/{}", sample.device, sample.stream)
}

fn persist_phase_us(patient: &str) -> i64 {
    let mut hasher = DefaultHasher::new();
    patient.hash(&mut hasher);
    (hasher.finish() % PERSIST_EVERY_US.unsigned_abs()).cast_signed()
}

fn score_of(
    latest: &BTreeMap<i32, Latest>,
    rules: &RuleSet,
    profile: Profile,
    now_us: i64,
) -> Score {
    let observations = latest.iter().map(|(metric, latest)| Observation {
        metric: Metric::from_number(*metric),
        value: latest.value,
        time_us: latest.time_us,
    });
    news2::score(
        observations,
        profile.spo2_scale,
        |metric| rules.stale_after_us(metric),
        now_us,
    )
}
