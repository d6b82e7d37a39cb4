//! Runs a rule set on recorded samples and returns the alerts that it would have raised.

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

/// One alert from beginning to end.
#[derive(Clone, Debug, PartialEq)]
pub struct Raised {
    pub patient: String,
    pub rule: String,
    pub priority: Priority,
    pub summary: String,
    /// Id of the alert that edge and core raise from the same readings.
    pub id: String,
    pub since_us: i64,
    /// Time at which the alert was raised.
    pub raised_us: i64,
    /// `None`: still open after the last sample.
    pub ended_us: Option<i64>,
}

/// One patient's samples through one rule set.
#[derive(Debug)]
pub struct Rehearsal {
    engine: Engine,
    raised: Vec<Raised>,
    /// Index in `raised` of each open alert, by alert id.
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

    /// Changes the rules from the next sample on, as a new document does. An equal set changes
    /// nothing.
    pub fn judge_by(&mut self, rules: &Arc<RuleSet>) {
        let present = self.engine.rules();
        if !Arc::ptr_eq(present, rules) && **present != **rules {
            self.engine = self.engine.with_rules(Arc::clone(rules));
        }
    }

    /// Changes the profile from the next sample on.
    pub fn set_profile(&mut self, profile: Profile) {
        self.engine.set_profile(profile);
    }

    /// Samples must come in order of time.
    pub fn feed(&mut self, sample: &Sample) {
        self.hours.insert(sample.device_time_us.div_euclid(HOUR_US));
        let alerts = self.engine.on_sample(sample);
        self.note(alerts);
        self.engine.trim();
    }

    /// Acknowledges every alert when it is raised, so that the next stretch of a latching rule is a
    /// new episode, as at the edge.
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

    /// The raised alerts, and the number of hours with samples.
    pub fn finish(mut self) -> (Vec<Raised>, u64) {
        let until_us = self.engine.clock_us().saturating_add(PRESENT_US);
        let alerts = self.engine.on_time(until_us);
        self.note(alerts);
        (self.raised, self.hours.len() as u64)
    }
}

/// Alerts of the present rules without a counterpart among the proposed ones. A counterpart is of
/// the same patient and at least as urgent. It is open or raised between `slack_us` before the
/// present alert was raised and its end.
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
