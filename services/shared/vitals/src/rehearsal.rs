//! A rule set tried on samples that were taken before: what it would have said, and what it would have kept silent about.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use contracts::{
    alerts::{Alert, AlertState},
    vitals::{Priority, Sample},
};

use crate::{
    PRESENT_US,
    engine::{Engine, Profile},
    machine::Origin,
    rules::RuleSet,
};

const HOUR_US: i64 = 3_600_000_000;

/// One alert from its beginning to its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Raised {
    pub patient: String,
    pub rule: String,
    pub priority: Priority,
    pub summary: String,
    /// Of the alert that edge and core make of the same readings.
    pub id: String,
    pub since_us: i64,
    /// When somebody was told.
    pub raised_us: i64,
    /// None: still open when the samples ended.
    pub ended_us: Option<i64>,
}

/// One patient's samples through one rule set.
#[derive(Debug)]
pub struct Rehearsal {
    engine: Engine,
    raised: Vec<Raised>,
    /// Place in `raised` of what is open, by alert id.
    open: BTreeMap<String, usize>,
    hours: BTreeSet<i64>,
}

impl Rehearsal {
    pub fn new(patient: impl Into<String>, rules: Arc<RuleSet>, profile: Profile) -> Rehearsal {
        Rehearsal {
            engine: Engine::new(patient, rules, profile, Origin::Core),
            raised: Vec::new(),
            open: BTreeMap::new(),
            hours: BTreeSet::new(),
        }
    }

    /// Other rules are in force from the next sample on, as when a document is put. The same set again changes nothing.
    pub fn judge_by(&mut self, rules: &Arc<RuleSet>) {
        let present = self.engine.rules();
        if !Arc::ptr_eq(present, rules) && **present != **rules {
            self.engine = self.engine.with_rules(Arc::clone(rules));
        }
    }

    /// The profile that holds from the next sample on.
    pub fn set_profile(&mut self, profile: Profile) {
        self.engine.set_profile(profile);
    }

    /// Samples in order of time.
    pub fn feed(&mut self, sample: &Sample) {
        self.hours.insert(sample.device_time_us.div_euclid(HOUR_US));
        let alerts = self.engine.on_sample(sample);
        self.note(alerts);
        self.engine.trim();
    }

    /// Every alert is acknowledged when it is raised, so that the next stretch of a rule that
    /// latches is an episode of its own, as at the edge.
    fn note(&mut self, alerts: Vec<Alert>) {
        for alert in alerts {
            match alert.state() {
                AlertState::Active => {
                    if let Some(again) = self.open.get(&alert.id) {
                        self.raised[*again].ended_us = None;
                        continue;
                    }
                    let at_us = alert.changed_us;
                    self.engine.acknowledge(&alert.id, "rehearsal", "", at_us);
                    self.open.insert(alert.id.clone(), self.raised.len());
                    self.raised.push(Raised {
                        priority: alert.priority(),
                        patient: alert.patient,
                        rule: alert.rule,
                        summary: alert.summary,
                        id: alert.id,
                        since_us: alert.since_us,
                        raised_us: alert.changed_us,
                        ended_us: None,
                    });
                }
                AlertState::Latched | AlertState::Resolved => {
                    if let Some(open) = self.open.remove(&alert.id) {
                        self.raised[open].ended_us = Some(alert.changed_us);
                    }
                }
                AlertState::Unspecified | AlertState::Pending | AlertState::Acknowledged => {}
            }
        }
    }

    /// What was raised, and in how many hours there were samples.
    pub fn finish(mut self) -> (Vec<Raised>, u64) {
        let until_us = self.engine.clock_us().saturating_add(PRESENT_US);
        let alerts = self.engine.on_time(until_us);
        self.note(alerts);
        (self.raised, self.hours.len() as u64)
    }
}

/// Alerts of the present rules that no alert of the proposed ones stands for: of the same patient, at least as urgent, and open or raised
/// between `slack_us` before the present one was raised and its end.
pub fn missed<'a>(present: &'a [Raised], proposed: &[Raised], slack_us: i64) -> Vec<&'a Raised> {
    let stands_for = |old: &Raised, new: &Raised| {
        let ended_us = old
            .ended_us
            .unwrap_or(i64::MAX)
            .max(old.raised_us.saturating_add(slack_us));
        new.patient == old.patient
            && new.priority >= old.priority
            && new.raised_us <= ended_us
            && new.ended_us.unwrap_or(i64::MAX) >= old.raised_us - slack_us
    };
    present
        .iter()
        .filter(|old| !proposed.iter().any(|new| stands_for(old, new)))
        .collect()
}
