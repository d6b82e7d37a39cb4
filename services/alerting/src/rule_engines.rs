//! The rules of every patient whose partition this member holds. Sans-IO: records and time in, a batch to store out.
//!
//! A batch is tried: until [`RuleEngines::keep`] every engine it touched has a copy of itself from before, so that a write
//! that loses against another one is taken back, learns what the other wrote ([`RuleEngines::adopt`]), and is tried again. What a kept
//! try changed is owed to the store until [`RuleEngines::stored`].

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use bus::Topic;
use bytes::Bytes;
use contracts::{
    alerts::Alert,
    vitals::{Sample, VitalsRecord},
};
use store::RuleState;
use vitals::{Engine, Origin, PRESENT_US, Profile, RuleSet};

use crate::{
    canary,
    lateness::Lateness,
    rules_in_force::RulesInForce,
    watermark::{LATE_US_MIN, Watermark},
};

/// Patients of one member. Past it the one that was silent for longest and has no open alert is put away; when it speaks
/// again its rules begin anew.
const PATIENTS_MAX: usize = 50_000;
/// Devices of one patient whose clocks are watched; past it all are learned anew.
const CLOCKS_MAX: usize = 64;
/// How old what a clinician chose for a patient may be.
const PROFILE_AGE_MAX_US: i64 = 60_000_000;

#[derive(Clone)]
struct Patient {
    engine: Engine,
    partition: u32,
    clocks: BTreeMap<String, Lateness>,
    watermark: Watermark,
    /// By the core's clock.
    seen_us: i64,
    /// 0: whose patient it is, and so which rules hold, has not been asked yet.
    profile_us: i64,
    /// Empty: nobody's.
    tenant: String,
}

pub(crate) struct RuleEngines {
    /// Of whoever has no others.
    rules: Arc<RuleSet>,
    in_force: Arc<RulesInForce>,
    backfill_after_us: i64,
    patients: HashMap<String, Patient>,
    /// What the running try touched, as it was; `None`: was not there.
    before: HashMap<String, Option<Patient>>,
    /// Whose state the running try changed, so that it is worth storing.
    changed: BTreeSet<String>,
    /// The same of kept tries, not stored so far.
    owed: BTreeSet<String>,
    /// By alert: its newest revision in the running try. Of two rows with one key the store would refuse both.
    said: BTreeMap<String, u32>,
    /// By patient whom nobody here knows between two tries: what the store has of their alerts.
    found: BTreeMap<String, Vec<Alert>>,
}

/// What evaluating some records came to.
#[derive(Debug, Default)]
pub(crate) struct Evaluation {
    pub transitions: Vec<Alert>,
    pub samples: u64,
    pub skipped: u64,
}

impl RuleEngines {
    pub(crate) fn new(rules: Arc<RuleSet>, backfill_after_us: i64) -> RuleEngines {
        RuleEngines {
            rules,
            in_force: Arc::default(),
            backfill_after_us,
            patients: HashMap::new(),
            before: HashMap::new(),
            changed: BTreeSet::new(),
            owed: BTreeSet::new(),
            said: BTreeMap::new(),
            found: BTreeMap::new(),
        }
    }

    /// Takes over the stored states of a partition. A state that cannot be read is dropped and said: rules that begin anew are
    /// better than none.
    pub(crate) fn load(&mut self, partition: u32, states: Vec<RuleState>, now_us: i64) {
        self.release(partition);
        for state in states {
            let engine = Engine::restore(
                &state.key,
                Arc::clone(&self.rules),
                Profile::default(),
                Origin::Core,
                &state.state,
            )
            .unwrap_or_else(|error| {
                tracing::error!(patient = state.key, %error, "the rules of this patient begin anew");
                fresh(&self.rules, &state.key)
            });
            let mut patient = Patient::new(engine, partition);
            // What somebody was about to be told may not wait for a reading that does not come any more. By a clock that is further off
            // nobody is taken for present; time passes from now on, so nothing is raised early.
            if now_us.abs_diff(patient.engine.clock_us()) < PRESENT_US.unsigned_abs() {
                patient.seen_us = now_us;
            }
            patient.watermark = Watermark::taken_over(patient.engine.rhythms(), now_us);
            self.patients.insert(state.key, patient);
        }
    }

    /// The partition belongs to somebody else.
    pub(crate) fn release(&mut self, partition: u32) {
        self.patients
            .retain(|_, patient| patient.partition != partition);
        self.before.retain(|key, before| {
            before.as_ref().map_or_else(
                || self.patients.contains_key(key),
                |patient| patient.partition != partition,
            )
        });
        self.owed.retain(|key| self.patients.contains_key(key));
    }

    /// Patients, without the canary.
    pub(crate) fn len(&self) -> usize {
        self.patients.len() - usize::from(self.patients.contains_key(canary::NAME))
    }

    /// Patients among these records whose profile is unknown or old, with their partition.
    pub(crate) fn wanting_profile(
        &self,
        records: &[(u32, String, VitalsRecord)],
        now_us: i64,
    ) -> BTreeMap<String, u32> {
        let mut wanting = BTreeMap::new();
        for (partition, key, record) in records {
            let of_edge = record.alerts.iter().map(|edge| &edge.patient);
            let of_samples = record.samples.iter().map(|sample| &sample.patient);
            for patient in of_edge.chain(of_samples) {
                let patient = subject(patient, key);
                let known = self.patients.get(patient);
                if known.is_none_or(|known| {
                    now_us.abs_diff(known.profile_us) > PROFILE_AGE_MAX_US.unsigned_abs()
                }) && !wanting.contains_key(patient)
                {
                    wanting.insert(patient.to_owned(), *partition);
                }
            }
        }
        wanting
    }

    /// Patients who were taken over, are present and wait for time to pass, but of whom it is not known yet which rules hold.
    pub(crate) fn waiting_strangers(&self, now_us: i64) -> BTreeMap<String, u32> {
        let waiting = self.patients.iter().filter(|(_, patient)| {
            patient.profile_us == 0
                && patient.engine.is_waiting()
                && now_us - patient.seen_us < PRESENT_US
        });
        waiting
            .map(|(key, patient)| (key.clone(), patient.partition))
            .collect()
    }

    /// Whose patient it is and what was chosen for them. Between tries only.
    pub(crate) fn set_profile(
        &mut self,
        key: &str,
        partition: u32,
        tenant: &str,
        profile: Profile,
        now_us: i64,
    ) {
        let rules = self.rules_of(tenant, key);
        let base = &self.rules;
        let patient = self
            .patients
            .entry(key.to_owned())
            .or_insert_with(|| Patient::new(fresh(base, key), partition));
        tenant.clone_into(&mut patient.tenant);
        patient.engine.set_profile(profile);
        patient.follow(rules);
        if patient.profile_us == 0 {
            patient.engine.settle();
        }
        patient.profile_us = now_us;
    }

    pub(crate) fn partition_of(&self, key: &str) -> Option<u32> {
        self.patients.get(key).map(|patient| patient.partition)
    }

    /// Whether nothing may be judged of this patient before a profile is set.
    pub(crate) fn is_stranger(&self, key: &str) -> bool {
        self.patients
            .get(key)
            .is_none_or(|patient| patient.profile_us == 0)
    }

    /// Other decisions are in force: every patient follows them from the next event on. Between tries only.
    pub(crate) fn set_rules_in_force(&mut self, in_force: Arc<RulesInForce>) {
        self.in_force = in_force;
        let known: Vec<(String, Arc<RuleSet>)> = self
            .patients
            .iter()
            .filter(|(_, patient)| patient.profile_us > 0)
            .map(|(key, patient)| (key.clone(), self.rules_of(&patient.tenant, key)))
            .collect();
        for (key, rules) in known {
            if let Some(patient) = self.patients.get_mut(&key) {
                patient.follow(rules);
            }
        }
    }

    fn rules_of(&self, tenant: &str, key: &str) -> Arc<RuleSet> {
        let of_canary = canary::rules(key);
        of_canary
            .unwrap_or_else(|| Arc::clone(self.in_force.rules(tenant, key).unwrap_or(&self.rules)))
    }

    /// Tries records: partition, key, content.
    pub(crate) fn evaluate(
        &mut self,
        records: &[(u32, String, VitalsRecord)],
        now_us: i64,
    ) -> Evaluation {
        let mut evaluation = Evaluation::default();
        for (partition, key, record) in records {
            // Alerts of the edge first: they overtook the samples that raised them, and the id they open is kept.
            for edge in &record.alerts {
                let id = subject(&edge.patient, key);
                let backfill_after_us = self.backfill_after_us;
                let patient = self.touch(id, *partition);
                // A clock that is known to be behind makes no alert a backfill.
                let clock = patient.clocks.get(&edge.device);
                let behind_us = clock.map_or(0, |clock| clock.error_us().max(0));
                // The arrival at ingest counts: an outage of the core makes alerts late, no backfill.
                let arrived_us = match edge.ingest_time_us {
                    0 => now_us,
                    ingest_us => ingest_us,
                };
                let backfill = arrived_us.saturating_sub(edge.time_us)
                    > behind_us.saturating_add(backfill_after_us);
                patient.engine.set_backfill(backfill);
                let alerts = patient.engine.on_edge_alert(edge);
                collect(&mut self.said, &mut evaluation.transitions, alerts, now_us);
            }
            for sample in &record.samples {
                let backfill_after_us = self.backfill_after_us;
                let patient = self.touch(subject(&sample.patient, key), *partition);
                patient.seen_us = now_us;
                let event_us = sample.device_time_us;
                patient
                    .watermark
                    .on_reading(&sample.device, &sample.stream, event_us, now_us);
                let late_us = patient.lateness_us(sample, now_us);
                patient.engine.set_backfill(late_us > backfill_after_us);
                let skipped = patient.engine.skipped();
                let alerts = patient.engine.on_sample(sample);
                evaluation.skipped += patient.engine.skipped() - skipped;
                evaluation.samples += 1;
                collect(&mut self.said, &mut evaluation.transitions, alerts, now_us);
            }
        }
        self.note_changes();
        evaluation
    }

    /// Whether somebody's rules wait for time to pass.
    pub(crate) fn is_waiting(&self) -> bool {
        self.patients.values().any(|it| it.engine.is_waiting())
    }

    /// Lets event time pass for patients who are present and whose rules wait for it. Everything that was published before `heard_us` has
    /// been judged: what waits on the bus may still end a stretch.
    pub(crate) fn on_time(&mut self, now_us: i64, heard_us: i64) -> Vec<Alert> {
        for patient in self.patients.values_mut() {
            // By a clock that has been set back since; time would stand still for so long.
            patient.seen_us = patient.seen_us.min(now_us);
        }
        let waiting: Vec<(String, u32)> = self
            .patients
            .iter()
            .filter(|(_, patient)| {
                patient.profile_us > 0
                    && patient.engine.is_waiting()
                    && now_us - patient.seen_us < PRESENT_US
            })
            .map(|(key, patient)| (key.clone(), patient.partition))
            .collect();
        let mut transitions = Vec::new();
        for (key, partition) in waiting {
            let patient = self.touch(&key, partition);
            let heard_us = heard_us.min(now_us);
            // After a restart time passes from the newest reading that is known.
            let since_us = heard_us.saturating_sub(patient.seen_us).max(0);
            let known_us = patient.engine.clock_us().saturating_add(since_us);
            let mut alerts = match patient.watermark.before_us(heard_us) {
                Some(before_us) => patient.engine.on_time(before_us),
                // Taken over, and nothing heard since: there may be an outage. The next reading of a
                // stream with a rhythm may contradict what its last one began.
                None => {
                    let passed_us = known_us.saturating_sub(LATE_US_MIN);
                    let before_us = patient.watermark.held(passed_us, heard_us);
                    patient.engine.on_time_raising(before_us)
                }
            };
            if let Some(clock_us) = patient.watermark.clock_us(heard_us) {
                alerts.extend(patient.engine.on_time_of_falls(clock_us));
            }
            collect(&mut self.said, &mut transitions, alerts, now_us);
        }
        self.note_changes();
        transitions
    }

    /// The states that are worth storing, of the running try and of those that were kept before it.
    pub(crate) fn states(&self) -> Vec<RuleState> {
        let keys = self.owed.union(&self.changed);
        let known = keys.filter_map(|key| Some((key, self.patients.get(key)?)));
        known
            .map(|(key, patient)| RuleState {
                topic: Topic::Vitals,
                partition: patient.partition,
                key: key.clone(),
                state: Bytes::from(patient.engine.state()),
            })
            .collect()
    }

    /// Whether there is a state to store.
    pub(crate) fn owes(&self) -> bool {
        !self.owed.is_empty()
    }

    /// The try is stored, with its [`RuleEngines::states`].
    pub(crate) fn stored(&mut self) {
        self.keep();
        self.owed.clear();
    }

    /// The try stands. Nobody waits for what it changed: it is stored with what comes next.
    pub(crate) fn keep(&mut self) {
        self.owed.append(&mut self.changed);
        for (key, _) in self.before.drain() {
            if let Some(patient) = self.patients.get_mut(&key) {
                patient.engine.trim();
            }
        }
        self.said.clear();
        self.found.clear();
        while self.patients.len() > PATIENTS_MAX && self.put_away() {}
    }

    /// The try is not stored: everything is as it was before it.
    pub(crate) fn undo(&mut self) {
        self.changed.clear();
        self.said.clear();
        for (key, before) in self.before.drain() {
            match before {
                Some(patient) => self.patients.insert(key, patient),
                None => self.patients.remove(&key),
            };
        }
    }

    /// The store has another row than was to be written, and this is its newest of the alert: the next try goes on from there.
    pub(crate) fn adopt(&mut self, stored: &Alert) {
        match self.patients.get_mut(&stored.patient) {
            Some(patient) => patient.engine.adopt(stored),
            None => {
                let found = self.found.entry(stored.patient.clone()).or_default();
                found.push(stored.clone());
            }
        }
    }

    /// The store has other rows than these transitions of one alert and cannot read them: the next try goes on after them.
    pub(crate) fn pass_over(&mut self, said: &[Alert]) {
        let revision = said.iter().map(|alert| alert.revision).max();
        let (Some(first), Some(revision)) = (said.first(), revision) else {
            return;
        };
        if let Some(patient) = self.patients.get_mut(&first.patient) {
            patient.engine.pass_over(first, revision);
        }
    }

    fn touch(&mut self, key: &str, partition: u32) -> &mut Patient {
        if !self.before.contains_key(key) {
            self.before
                .insert(key.to_owned(), self.patients.get(key).cloned());
        }
        let (rules, found) = (&self.rules, &self.found);
        let patient = self.patients.entry(key.to_owned()).or_insert_with(|| {
            let mut engine = fresh(rules, key);
            let found = found.get(key).into_iter().flatten();
            found.for_each(|stored| engine.adopt(stored));
            Patient::new(engine, partition)
        });
        patient.partition = partition;
        patient
    }

    fn note_changes(&mut self) {
        for key in self.before.keys() {
            if let Some(patient) = self.patients.get_mut(key)
                && patient.engine.take_dirty()
            {
                self.changed.insert(key.clone());
            }
        }
    }

    /// False: every patient has an open alert and stays, bound or not.
    fn put_away(&mut self) -> bool {
        let silent = self
            .patients
            .iter()
            .filter(|(_, patient)| !patient.engine.has_open_alert())
            .min_by_key(|(_, patient)| patient.seen_us)
            .map(|(key, _)| key.clone());
        let Some(key) = silent else {
            return false;
        };
        tracing::warn!(
            patient = key,
            PATIENTS_MAX,
            "too many patients for one member; put away"
        );
        self.patients.remove(&key).is_some()
    }
}

impl Patient {
    fn new(engine: Engine, partition: u32) -> Patient {
        Patient {
            engine,
            partition,
            clocks: BTreeMap::new(),
            watermark: Watermark::default(),
            seen_us: 0,
            profile_us: 0,
            tenant: String::new(),
        }
    }

    /// The same set again, read anew, changes nothing.
    fn follow(&mut self, rules: Arc<RuleSet>) {
        if **self.engine.rules() != *rules {
            self.engine = self.engine.with_rules(rules);
        }
    }

    fn lateness_us(&mut self, sample: &Sample, now_us: i64) -> i64 {
        // Arrival at ingest, not here: an outage of the core makes alerts late, not a backfill.
        let arrived_us = match sample.ingest_time_us {
            0 => now_us,
            ingest_us => ingest_us,
        };
        if self.clocks.len() >= CLOCKS_MAX && !self.clocks.contains_key(&sample.device) {
            self.clocks.clear();
        }
        self.clocks
            .entry(sample.device.clone())
            .or_default()
            .of(sample, arrived_us)
    }
}

/// A row whose key was said before in the same try is left out: the store would refuse the whole batch for it.
fn collect(
    said: &mut BTreeMap<String, u32>,
    into: &mut Vec<Alert>,
    alerts: Vec<Alert>,
    now_us: i64,
) {
    into.extend(alerts.into_iter().filter_map(|mut alert| {
        let newest = said.entry(alert.id.clone()).or_insert(0);
        if alert.revision <= *newest {
            metrics::counter!("braid_alerting_repeated_revisions_total").increment(1);
            tracing::error!(alert = alert.id, revision = alert.revision, "said twice");
            return None;
        }
        *newest = alert.revision;
        alert.recorded_us = now_us;
        Some(alert)
    }));
}

fn fresh(rules: &Arc<RuleSet>, key: &str) -> Engine {
    Engine::new(key, Arc::clone(rules), Profile::default(), Origin::Core)
}

/// Whom an entry of a record is about.
fn subject<'a>(patient: &'a str, key: &'a str) -> &'a str {
    if patient.is_empty() { key } else { patient }
}

#[cfg(test)]
#[path = "rule_engines_tests.rs"]
mod tests;
