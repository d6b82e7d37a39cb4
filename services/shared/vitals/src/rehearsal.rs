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
    engine::{Engine, Profile},
    machine::Origin,
    rules::RuleSet,
};

const HOUR_US: i64 = 3_600_000_000;
/// For so long after a patient's last sample rules that wait go on waiting, as they do in the core.
const PRESENT_US: i64 = 60_000_000;
const STEP_US: i64 = 1_000_000;

/// One alert from its beginning to its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Raised {
    pub patient: String,
    pub rule: String,
    pub priority: Priority,
    pub summary: String,
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

    /// Samples in order of time.
    pub fn feed(&mut self, sample: &Sample) {
        self.pass_time(sample.device_time_us);
        self.hours.insert(sample.device_time_us.div_euclid(HOUR_US));
        let alerts = self.engine.on_sample(sample);
        self.note(alerts);
    }

    fn pass_time(&mut self, until_us: i64) {
        let from_us = self.engine.clock_us();
        if from_us == 0 || !self.engine.is_waiting() {
            return;
        }
        let until_us = until_us.min(from_us + PRESENT_US);
        let mut now_us = from_us + STEP_US;
        while now_us < until_us && self.engine.is_waiting() {
            let alerts = self.engine.on_time(now_us);
            self.note(alerts);
            now_us += STEP_US;
        }
    }

    fn note(&mut self, alerts: Vec<Alert>) {
        for alert in alerts {
            match alert.state() {
                AlertState::Active => {
                    if let Some(again) = self.open.get(&alert.id) {
                        self.raised[*again].ended_us = None;
                        continue;
                    }
                    self.open.insert(alert.id.clone(), self.raised.len());
                    self.raised.push(Raised {
                        priority: alert.priority(),
                        patient: alert.patient,
                        rule: alert.rule,
                        summary: alert.summary,
                        raised_us: alert.changed_us,
                        ended_us: None,
                    });
                }
                AlertState::Latched | AlertState::Resolved => {
                    if let Some(open) = self.open.get(&alert.id) {
                        self.raised[*open].ended_us = Some(alert.changed_us);
                    }
                    // Nobody acknowledges in a rehearsal: the next episode of a latched rule is one of its own.
                    if alert.state() == AlertState::Latched {
                        let alerts =
                            self.engine
                                .acknowledge(&alert.id, "rehearsal", "", alert.changed_us);
                        self.open.remove(&alert.id);
                        self.note(alerts);
                    }
                }
                AlertState::Unspecified | AlertState::Pending | AlertState::Acknowledged => {}
            }
        }
    }

    /// What was raised, and in how many hours there were samples.
    pub fn finish(mut self) -> (Vec<Raised>, u64) {
        self.pass_time(i64::MAX);
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
