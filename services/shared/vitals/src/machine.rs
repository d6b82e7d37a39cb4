//! The life of one rule for one patient: normal -> pending -> active -> (latched) -> resolved.
//!
//! Invariants:
//! - At most one episode is open; its id follows from patient, rule and the event time that began it.
//! - The revision rises by 1 with every transition that leaves the machine.
//! - A high priority never resolves before somebody acknowledged it: it latches, and becomes active again
//!   within the same episode when its condition returns.
//! - An episode that another observer (the edge) reported is the same episode, not a second one.

use contracts::{
    alerts::{Alert, AlertState},
    vitals::Priority,
};
use serde::{Deserialize, Serialize};

use crate::rules::Rule;

/// Far beyond the time after which a reading is a backfill.
const SET_BACK_US: i64 = 1_800_000_000;

/// Whether the core's clock was set back since `before_us`: what is live is not from so long before. The edge does not tell what is live,
/// and counts the steps of its clock.
pub(crate) fn is_set_back(before_us: i64, now_us: i64, origin: Origin, backfill: bool) -> bool {
    origin == Origin::Core && !backfill && before_us.saturating_sub(now_us) >= SET_BACK_US
}

/// What a condition says at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Holds,
    Ended,
    /// Between the two limits, or the readings that decide it are stale: everything stays as it is.
    Unknown,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    #[default]
    Normal,
    Pending,
    Active,
    /// Ended, high priority, not acknowledged.
    Latched,
}

/// Where a verdict comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Edge,
    Core,
}

/// What goes into the alert beside the machine's own state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evidence {
    pub time_us: i64,
    pub value: f64,
    pub device: String,
    pub gateway: String,
    pub summary: String,
    pub traceparent: String,
    /// The reading came long after its time.
    pub backfill: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub phase: Phase,
    /// Event time at which the open or last episode (or the pending stretch) began.
    pub since_us: i64,
    /// Of the newest verdict.
    pub last_us: i64,
    /// Since when the condition of an active episode has been ended.
    pub ended_since_us: Option<i64>,
    /// Of the open or last episode; none when it never alerted.
    pub episode: Option<Episode>,
}

/// What was last said of an episode; kept after its end to recognise a late report of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Episode {
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
    /// Raised from a backfill, and no live reading has confirmed it.
    #[serde(default)]
    pub backfill: bool,
}

/// Subject and rule of a machine: what it needs to name its alerts.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    pub patient: &'a str,
    pub rule: &'a Rule,
    pub rule_version: u32,
    /// A longer silence breaks a pending stretch.
    pub hold_us: i64,
}

impl Machine {
    /// Applies a verdict. At most one transition comes of it.
    pub fn step(
        &mut self,
        frame: Frame<'_>,
        verdict: Verdict,
        origin: Origin,
        evidence: &Evidence,
    ) -> Option<Alert> {
        let t = evidence.time_us;
        let transition = match (self.phase, verdict) {
            (Phase::Latched, Verdict::Ended | Verdict::Unknown) => {
                self.confirm_live(frame, evidence)
            }
            (_, Verdict::Unknown) | (Phase::Normal, Verdict::Ended) => None,
            (Phase::Normal, Verdict::Holds) => {
                self.phase = Phase::Pending;
                self.since_us = t;
                self.activate_when_due(frame, t, origin, evidence)
            }
            (Phase::Pending, Verdict::Ended) => {
                self.phase = Phase::Normal;
                None
            }
            (Phase::Pending, Verdict::Holds) => {
                // A clock that stepped back, or a silence in between: the stretch begins anew.
                if t < self.since_us || t - self.last_us > frame.hold_us {
                    self.since_us = t;
                }
                self.activate_when_due(frame, t, origin, evidence)
            }
            (Phase::Active, Verdict::Holds) => {
                self.ended_since_us = None;
                self.confirm(frame, origin, t)
                    .or_else(|| self.confirm_live(frame, evidence))
            }
            // Readings from before the episode began, when the edge reported it first: they do not end it. But for an episode that never ends
            // nobody is called a second time.
            (Phase::Active, Verdict::Ended)
                if t < self.since_us
                    && !is_set_back(self.since_us, t, origin, evidence.backfill) =>
            {
                None
            }
            (Phase::Active, Verdict::Ended) => {
                let ended = self.ended_since_us.get_or_insert(t);
                *ended = (*ended).min(t);
                self.end_when_due(frame, t)
            }
            (Phase::Latched, Verdict::Holds) => {
                self.phase = Phase::Active;
                self.ended_since_us = None;
                self.say(frame, AlertState::Active, t, Some(evidence))
            }
        };
        self.last_us = t;
        transition
    }

    /// Lets event time pass without a reading.
    pub fn on_time(&mut self, frame: Frame<'_>, now_us: i64, evidence: &Evidence) -> Option<Alert> {
        match self.phase {
            Phase::Pending if now_us - self.last_us <= frame.hold_us => {
                self.activate_when_due(frame, now_us, Origin::Core, evidence)
            }
            Phase::Active if self.ended_since_us.is_some() => self.end_when_due(frame, now_us),
            _ => None,
        }
    }

    /// Somebody has seen it. `None` when there is nothing to acknowledge (any more).
    pub fn acknowledge(
        &mut self,
        frame: Frame<'_>,
        by: &str,
        note: &str,
        now_us: i64,
    ) -> Option<Alert> {
        let episode = self.episode.as_mut()?;
        if !episode.acknowledged_by.is_empty() {
            return None;
        }
        let state = match self.phase {
            Phase::Active => AlertState::Acknowledged,
            Phase::Latched => AlertState::Resolved,
            Phase::Normal | Phase::Pending => return None,
        };
        by.clone_into(&mut episode.acknowledged_by);
        note.clone_into(&mut episode.note);
        if state == AlertState::Resolved {
            self.phase = Phase::Normal;
        }
        self.say(frame, state, now_us.max(self.since_us), None)
    }

    /// Takes over what somebody else stored of the episode: an acknowledgement, a later revision.
    pub fn adopt(&mut self, stored: &Alert) {
        let Some(episode) = self
            .episode
            .as_mut()
            .filter(|episode| episode.id == stored.id)
        else {
            return;
        };
        episode.revision = stored.revision;
        episode.changed_us = stored.changed_us;
        episode.state = stored.state;
        episode.acknowledged_by.clone_from(&stored.acknowledged_by);
        episode.note.clone_from(&stored.note);
        episode.from_edge |= stored.from_edge;
        episode.from_core |= stored.from_core;
        match stored.state() {
            AlertState::Resolved if matches!(self.phase, Phase::Active | Phase::Latched) => {
                self.phase = Phase::Normal;
                self.ended_since_us = None;
            }
            AlertState::Latched if self.phase == Phase::Active => self.phase = Phase::Latched,
            _ => {}
        }
    }

    /// The edge reports that its own machine became active at `evidence.time_us`.
    pub fn on_edge_raised(
        &mut self,
        frame: Frame<'_>,
        origin: Origin,
        evidence: &Evidence,
    ) -> Option<Alert> {
        let t = evidence.time_us;
        match self.phase {
            Phase::Active | Phase::Latched => self.confirm(frame, origin, t),
            Phase::Pending => self.activate(frame, origin, evidence),
            Phase::Normal if self.covers(t, frame.hold_us) => self.confirm(frame, origin, t),
            Phase::Normal => {
                self.since_us = t;
                self.last_us = t;
                self.activate(frame, origin, evidence)
            }
        }
    }

    /// The edge reports the end; it counts only while nobody else has seen the condition.
    pub fn on_edge_resolved(&mut self, frame: Frame<'_>, time_us: i64) -> Option<Alert> {
        let core_saw_it = self
            .episode
            .as_ref()
            .is_some_and(|episode| episode.from_core);
        if self.phase != Phase::Active || core_saw_it || time_us < self.since_us {
            return None;
        }
        self.end(frame, time_us)
    }

    /// The rule exists no more: an open episode ends, whatever its priority.
    pub fn retire(&mut self, frame: Frame<'_>, now_us: i64) -> Option<Alert> {
        let was = std::mem::take(&mut self.phase);
        match was {
            Phase::Active | Phase::Latched => self.say(frame, AlertState::Resolved, now_us, None),
            Phase::Normal | Phase::Pending => None,
        }
    }

    fn covers(&self, time_us: i64, slack_us: i64) -> bool {
        self.episode.as_ref().is_some_and(|episode| {
            (episode.since_us - slack_us..=episode.changed_us).contains(&time_us)
        })
    }

    fn activate_when_due(
        &mut self,
        frame: Frame<'_>,
        now_us: i64,
        origin: Origin,
        evidence: &Evidence,
    ) -> Option<Alert> {
        if now_us - self.since_us < delay_us(frame.rule.for_ms) {
            return None;
        }
        self.activate(frame, origin, evidence)
    }

    fn activate(&mut self, frame: Frame<'_>, origin: Origin, evidence: &Evidence) -> Option<Alert> {
        self.phase = Phase::Active;
        self.ended_since_us = None;
        self.episode = Some(Episode {
            id: episode_id(frame.patient, &frame.rule.id, self.since_us),
            since_us: self.since_us,
            changed_us: evidence.time_us,
            revision: 0,
            value: 0.0,
            device: String::new(),
            gateway: String::new(),
            summary: String::new(),
            traceparent: String::new(),
            acknowledged_by: String::new(),
            note: String::new(),
            from_edge: origin == Origin::Edge,
            from_core: origin == Origin::Core,
            state: AlertState::Pending.into(),
            backfill: evidence.backfill,
        });
        self.say(frame, AlertState::Active, evidence.time_us, Some(evidence))
    }

    /// The second observer has seen the episode, too: said once.
    fn confirm(&mut self, frame: Frame<'_>, origin: Origin, time_us: i64) -> Option<Alert> {
        let episode = self.episode.as_mut()?;
        let seen = match origin {
            Origin::Edge => &mut episode.from_edge,
            Origin::Core => &mut episode.from_core,
        };
        if std::mem::replace(seen, true) {
            return None;
        }
        let state = AlertState::try_from(episode.state).unwrap_or(AlertState::Active);
        let changed_us = episode.changed_us.max(time_us);
        self.say(frame, state, changed_us, None)
    }

    /// An episode from a backfill that lasts into the present is news: said again, once, so that somebody is called.
    fn confirm_live(&mut self, frame: Frame<'_>, evidence: &Evidence) -> Option<Alert> {
        let episode = self.episode.as_mut()?;
        if evidence.backfill || !std::mem::take(&mut episode.backfill) {
            return None;
        }
        let state = AlertState::try_from(episode.state).unwrap_or(AlertState::Active);
        self.say(frame, state, evidence.time_us, None)
    }

    fn end_when_due(&mut self, frame: Frame<'_>, now_us: i64) -> Option<Alert> {
        let ended_us = self.ended_since_us?;
        if now_us - ended_us < delay_us(frame.rule.clear_for_ms) {
            return None;
        }
        self.end(frame, now_us)
    }

    fn end(&mut self, frame: Frame<'_>, now_us: i64) -> Option<Alert> {
        self.ended_since_us = None;
        let acknowledged = self
            .episode
            .as_ref()
            .is_some_and(|episode| !episode.acknowledged_by.is_empty());
        let (phase, state) = if frame.rule.priority == Priority::High && !acknowledged {
            (Phase::Latched, AlertState::Latched)
        } else {
            (Phase::Normal, AlertState::Resolved)
        };
        self.phase = phase;
        self.say(frame, state, now_us.max(self.since_us), None)
    }

    fn say(
        &mut self,
        frame: Frame<'_>,
        state: AlertState,
        changed_us: i64,
        evidence: Option<&Evidence>,
    ) -> Option<Alert> {
        let episode = self.episode.as_mut()?;
        if let Some(evidence) = evidence {
            episode.backfill &= evidence.backfill;
            episode.value = evidence.value;
            episode.device.clone_from(&evidence.device);
            episode.gateway.clone_from(&evidence.gateway);
            episode.summary.clone_from(&evidence.summary);
            episode.traceparent.clone_from(&evidence.traceparent);
        }
        episode.revision += 1;
        episode.changed_us = changed_us;
        episode.state = state.into();
        Some(Alert {
            id: episode.id.clone(),
            patient: frame.patient.to_owned(),
            device: episode.device.clone(),
            gateway: episode.gateway.clone(),
            rule: frame.rule.id.clone(),
            rule_version: frame.rule_version,
            metric: frame.rule.condition.metric().into(),
            priority: frame.rule.priority.into(),
            state: state.into(),
            summary: episode.summary.clone(),
            value: episode.value,
            since_us: episode.since_us,
            changed_us,
            recorded_us: 0,
            acknowledged_by: episode.acknowledged_by.clone(),
            note: episode.note.clone(),
            revision: episode.revision,
            from_edge: episode.from_edge,
            from_core: episode.from_core,
            traceparent: episode.traceparent.clone(),
            backfill: episode.backfill,
        })
    }
}

/// The same for every observer of the episode: 128-bit FNV-1a over patient, rule and beginning, in hexadecimal.
pub fn episode_id(patient: &str, rule: &str, since_us: i64) -> String {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    // A separator that no identifier contains keeps ("a", "bc") apart from ("ab", "c").
    let bytes = patient
        .bytes()
        .chain([0])
        .chain(rule.bytes())
        .chain([0])
        .chain(since_us.to_be_bytes());
    let hash = bytes.fold(OFFSET, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(PRIME)
    });
    format!("{hash:032x}")
}

/// Numbers as their shortest exact text: reading JSON numbers back may be off by the last bit.
pub(crate) mod exact {
    use serde::Deserialize;

    pub(crate) fn serialize<S: serde::Serializer>(value: &f64, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(value)
    }

    pub(crate) fn deserialize<'de, D: serde::Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

pub(crate) fn delay_us(delay_ms: u64) -> i64 {
    i64::try_from(delay_ms.saturating_mul(1000)).unwrap_or(i64::MAX)
}
