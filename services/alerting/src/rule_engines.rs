//! Rule engines of the patients whose partitions this member holds. Sans-IO: takes records and
//! time, returns a batch to store.
//!
//! A batch is an attempt. Until [`RuleEngines::keep`] each touched engine has a copy from before.
//! If the write loses against another writer, the attempt is undone, the engines adopt the stored
//! rows ([`RuleEngines::adopt`]), and the attempt is repeated. Changes of a kept attempt are
//! unstored until [`RuleEngines::stored`].

mod beside;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use bus::Topic;
use calendar::Zone;
use contracts::{
    alerts::Alert,
    vitals::{EdgeAlert, Sample, VitalsRecord},
};
use store::RuleState;
use vitals::{Engine, Origin, PRESENT_US, Profile, RuleSet};

use crate::{
    canary, lateness,
    rules_in_force::DocumentsInForce,
    unheard::{self, Unheard},
    watermark::{LATE_US_MIN, Watermark},
};
use beside::Beside;

/// Patients of one member. Beyond it the patient silent for longest without an open alert is
/// dropped. The rules of a patient that returns start afresh.
const PATIENTS_MAX: usize = 50_000;
/// Devices of one patient whose clocks are tracked. Beyond it all are learned again.
const CLOCKS_MAX: usize = 64;
/// Age from which a profile is asked for again. A change of the register takes hold within this
/// time and the ticks until the patient's turn. That is within two minutes, even with
/// [`PATIENTS_MAX`] patients, while the register answers a thousand questions a second.
const PROFILE_AGE_MAX_US: i64 = 60_000_000;
/// By patient, a profile counts as older by up to this time, so that patients loaded together do
/// not expire together.
const PROFILE_SPREAD_US: u64 = 15_000_000;

#[derive(Clone)]
struct Patient {
    engine: Engine,
    partition: u32,
    beside: Beside,
    /// The notes of a backlog have changed.
    is_changed: bool,
    watermark: Watermark,
    /// Last reading, by the core's clock.
    seen_us: i64,
    /// When the profile was asked for, less the patient's share of [`PROFILE_SPREAD_US`]. 0: never
    /// answered, so tenant and rules are unknown.
    profile_us: i64,
    /// Empty: no tenant.
    tenant: String,
    /// Discharged, dead or merged: readings are not judged.
    has_departed: bool,
}

pub(crate) struct RuleEngines {
    /// Rules of patients without a rule set of their own.
    rules: Arc<RuleSet>,
    in_force: Arc<DocumentsInForce>,
    backfill_after_us: i64,
    /// Time zone of messages about a tenant whose team names none.
    zone: Zone,
    patients: HashMap<String, Patient>,
    /// Patients touched by the running attempt, as they were before. `None`: the patient was not
    /// there.
    before: HashMap<String, Option<Patient>>,
    /// Patients whose state the running attempt changed.
    changed: BTreeSet<String>,
    /// Patients whose state kept attempts changed and which is not stored yet.
    unstored: BTreeSet<String>,
    /// By alert: its newest revision in the running attempt. The store would refuse a batch with
    /// two rows of one key.
    newest_revisions: BTreeMap<String, u32>,
    /// By patient without an engine: stored alerts to adopt in the next attempt.
    found: BTreeMap<String, Vec<Alert>>,
}

/// Result of evaluating records.
#[derive(Debug, Default)]
pub(crate) struct Evaluation {
    pub transitions: Vec<Alert>,
    /// Acknowledgements of people at gateways among the transitions, each with its tenant.
    pub acknowledged: Vec<(String, Alert)>,
    pub samples: u64,
    pub skipped: u64,
}

impl RuleEngines {
    pub(crate) fn new(rules: Arc<RuleSet>, backfill_after_us: i64) -> RuleEngines {
        RuleEngines {
            rules,
            in_force: Arc::default(),
            backfill_after_us,
            zone: Zone::default(),
            patients: HashMap::new(),
            before: HashMap::new(),
            changed: BTreeSet::new(),
            unstored: BTreeSet::new(),
            newest_revisions: BTreeMap::new(),
            found: BTreeMap::new(),
        }
    }

    pub(crate) fn with_zone(self, zone: Zone) -> RuleEngines {
        RuleEngines { zone, ..self }
    }

    /// Restores the stored states of a partition. An unreadable state is logged and dropped,
    /// because fresh rules are better than none.
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
                tracing::error!(patient = state.key, %error, "the stored state is unreadable; the rules of this patient start afresh");
                fresh(&self.rules, &state.key)
            });
            let mut patient = Patient::new(engine, partition);
            patient.beside = Beside::of(&state.state);
            // A pending notice must not wait for a reading that may never come. A clock further off
            // does not make a patient present. Time passes from here on, so no alert is raised
            // early.
            if now_us.abs_diff(patient.engine.clock_us()) < PRESENT_US.unsigned_abs() {
                patient.seen_us = now_us;
            }
            patient.watermark = Watermark::taken_over(patient.engine.rhythms(), now_us);
            self.patients.insert(state.key, patient);
        }
    }

    /// The partition moved to another member.
    pub(crate) fn release(&mut self, partition: u32) {
        self.patients
            .retain(|_, patient| patient.partition != partition);
        self.before.retain(|key, before| {
            before.as_ref().map_or_else(
                || self.patients.contains_key(key),
                |patient| patient.partition != partition,
            )
        });
        self.unstored.retain(|key| self.patients.contains_key(key));
    }

    /// Patients, without the canaries.
    pub(crate) fn len(&self) -> usize {
        let names = self.patients.keys();
        names.filter(|name| !canary::is_canary(name)).count()
    }

    /// Patients in these records whose profile is unknown, with their partition.
    pub(crate) fn without_profile(
        &self,
        records: &[(u32, String, VitalsRecord)],
    ) -> BTreeMap<String, u32> {
        let mut without = BTreeMap::new();
        for (partition, key, record) in records {
            let of_edge = record.alerts.iter().map(|edge| &edge.patient);
            let of_samples = record.samples.iter().map(|sample| &sample.patient);
            for patient in of_edge.chain(of_samples) {
                let patient = subject(patient, key);
                if !self.has_profile(patient) && !without.contains_key(patient) {
                    without.insert(patient.to_owned(), *partition);
                }
            }
        }
        without
    }

    pub(crate) fn has_profile(&self, patient: &str) -> bool {
        let known = self.patients.get(patient);
        known.is_some_and(|known| known.profile_us != 0)
    }

    /// Patients whose known profile is too old, at most `max`, the oldest first. Those that send
    /// nothing count too, so that none returns with an old profile.
    pub(crate) fn with_old_profile(&self, now_us: i64, max: usize) -> Vec<String> {
        let known = self.patients.iter().filter(|(_, it)| it.profile_us > 0);
        let aged = known.map(|(key, patient)| (now_us.abs_diff(patient.profile_us), key));
        let mut old: Vec<(u64, &String)> = aged
            .filter(|(age_us, _)| *age_us > PROFILE_AGE_MAX_US.unsigned_abs())
            .collect();
        old.sort_unstable_by(|one, other| other.cmp(one));
        let oldest = old.into_iter().take(max);
        oldest.map(|(_, key)| key.clone()).collect()
    }

    /// Present patients that were taken over and wait for time to pass, but whose profile is still
    /// unknown.
    pub(crate) fn waiting_without_profile(&self, now_us: i64) -> BTreeMap<String, u32> {
        let waiting = self.patients.iter().filter(|(_, patient)| {
            patient.profile_us == 0
                && patient.engine.is_waiting()
                && now_us - patient.seen_us < PRESENT_US
        });
        waiting
            .map(|(key, patient)| (key.clone(), patient.partition))
            .collect()
    }

    /// Sets tenant and profile of a patient. Only between attempts.
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
        patient.profile_us = now_us.saturating_sub(spread_us(key));
    }

    /// The register's later answer about a known patient, asked for at `asked_us`. `None`: there
    /// was none, so the known profile stays and is asked for again in its turn. Only between
    /// attempts.
    pub(crate) fn renew_profile(
        &mut self,
        key: &str,
        answer: Option<(&str, Profile)>,
        asked_us: i64,
    ) {
        // The patient may have moved to another member meanwhile, and returned without a profile.
        let known = self.patients.get_mut(key).filter(|it| it.profile_us > 0);
        let Some(patient) = known else {
            return;
        };
        let partition = patient.partition;
        match answer {
            Some((tenant, profile)) => {
                self.set_profile(key, partition, tenant, profile, asked_us);
            }
            None => patient.profile_us = asked_us.saturating_sub(spread_us(key)),
        }
    }

    /// The register says that a known patient has departed, or is present. The rules of a patient
    /// who has departed know nothing any more: the store ended what was open. Only between
    /// attempts.
    pub(crate) fn set_departed(&mut self, key: &str, has_departed: bool) {
        let Some(patient) = self.patients.get_mut(key) else {
            return;
        };
        if has_departed && !patient.has_departed {
            patient.engine = fresh(patient.engine.rules(), key);
            patient.engine.settle();
            patient.beside = Beside::default();
            self.unstored.insert(key.to_owned());
        }
        patient.has_departed = has_departed;
    }

    pub(crate) fn partition_of(&self, key: &str) -> Option<u32> {
        self.patients.get(key).map(|patient| patient.partition)
    }

    /// Applies other documents. Every patient follows them from the next event on. Only between
    /// attempts.
    pub(crate) fn set_documents_in_force(&mut self, in_force: Arc<DocumentsInForce>) {
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

    /// Evaluates records (partition, key, content) as an attempt.
    pub(crate) fn evaluate(
        &mut self,
        records: &[(u32, String, VitalsRecord)],
        now_us: i64,
    ) -> Evaluation {
        let mut evaluation = Evaluation::default();
        for (partition, key, record) in records {
            // Edge alerts come first, because they overtook their samples. The id that they open is
            // kept.
            for edge in &record.alerts {
                let id = subject(&edge.patient, key);
                let backfill_after_us = self.backfill_after_us;
                let patient = self.touch(id, *partition);
                if patient.has_departed {
                    evaluation.skipped += 1;
                    continue;
                }
                let late_us = patient.lateness_of_edge_us(edge, now_us);
                let is_late = late_us > backfill_after_us;
                patient.engine.set_backfill(is_late);
                let alerts = patient.engine.on_edge_alert(edge);
                patient.note(&alerts, is_late, now_us);
                if !edge.acknowledged_by.is_empty() {
                    let by_person = alerts.iter().filter(|it| !it.acknowledged_by.is_empty());
                    let by_person = by_person.map(|it| (patient.tenant.clone(), it.clone()));
                    evaluation.acknowledged.extend(by_person);
                }
                collect(
                    &mut self.newest_revisions,
                    &mut evaluation.transitions,
                    alerts,
                    now_us,
                );
            }
            for sample in &record.samples {
                let backfill_after_us = self.backfill_after_us;
                let patient = self.touch(subject(&sample.patient, key), *partition);
                if patient.has_departed {
                    evaluation.skipped += 1;
                    continue;
                }
                patient.seen_us = now_us;
                let event_us = sample.device_time_us;
                patient
                    .watermark
                    .on_reading(&sample.device, &sample.stream, event_us, now_us);
                let late_us = patient.lateness_us(sample, now_us);
                let is_late = late_us > backfill_after_us;
                patient.engine.set_backfill(is_late);
                let skipped = patient.engine.skipped();
                let alerts = patient.engine.on_sample(sample);
                evaluation.skipped += patient.engine.skipped() - skipped;
                evaluation.samples += 1;
                patient.note(&alerts, is_late, now_us);
                collect(
                    &mut self.newest_revisions,
                    &mut evaluation.transitions,
                    alerts,
                    now_us,
                );
            }
        }
        self.note_changes();
        evaluation
    }

    /// Whether any engine or report waits for time to pass.
    pub(crate) fn is_waiting(&self) -> bool {
        let mut patients = self.patients.values();
        patients.any(|it| it.engine.is_waiting() || !it.beside.unheard.is_empty())
    }

    /// Advances event time of present patients whose rules wait for it. All records published
    /// before `heard_us` have been judged, so a record on the bus may still end a pending
    /// condition.
    pub(crate) fn on_time(&mut self, now_us: i64, heard_us: i64) -> Vec<Alert> {
        for patient in self.patients.values_mut() {
            // After a clock was set back, time would otherwise stand still until it is reached
            // again.
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
            patient.watermark.on_clock(now_us);
            // After a restart time passes from the newest known reading.
            let since_us = heard_us.saturating_sub(patient.seen_us).max(0);
            let known_us = patient.engine.clock_us().saturating_add(since_us);
            let mut alerts = match patient.watermark.before_us(heard_us) {
                Some(before_us) => patient.engine.on_time(before_us),
                // Taken over and nothing received since. There may be an outage, and the next
                // reading of a regular stream may contradict its last one.
                None => {
                    let passed_us = known_us.saturating_sub(LATE_US_MIN);
                    let before_us = patient.watermark.held(passed_us, heard_us);
                    patient.engine.on_time_raising(before_us)
                }
            };
            if let Some(clock_us) = patient.watermark.clock_us(heard_us) {
                alerts.extend(patient.engine.on_time_of_falls(clock_us));
            }
            patient.note(&alerts, false, now_us);
            collect(&mut self.newest_revisions, &mut transitions, alerts, now_us);
        }
        transitions.extend(self.reports(now_us, heard_us.min(now_us)));
        self.note_changes();
        transitions
    }

    /// Reports of patients whose backlog has arrived.
    fn reports(&mut self, now_us: i64, heard_us: i64) -> Vec<Alert> {
        let due = self.patients.iter_mut().filter_map(|(key, patient)| {
            let is_due = patient.beside.unheard.is_due(now_us, heard_us);
            is_due.then(|| (key.clone(), patient.partition))
        });
        let due: Vec<(String, u32)> = due.collect();
        let mut reports = Vec::new();
        for (key, partition) in due {
            let in_force = Arc::clone(&self.in_force);
            let default = self.zone.clone();
            let patient = self.touch(&key, partition);
            let team = in_force.team(&patient.tenant);
            let zone = team.and_then(|team| team.time_zone.clone());
            let zone = zone.unwrap_or(default);
            patient.is_changed = true;
            let report = patient.beside.unheard.take(&key, &zone);
            collect(
                &mut self.newest_revisions,
                &mut reports,
                report.into_iter().collect(),
                now_us,
            );
        }
        reports
    }

    /// Unstored states, of the running attempt and of kept ones.
    pub(crate) fn states(&self) -> Vec<RuleState> {
        let keys = self.unstored.union(&self.changed);
        let known = keys.filter_map(|key| Some((key, self.patients.get(key)?)));
        known
            .map(|(key, patient)| RuleState {
                topic: Topic::Vitals,
                partition: patient.partition,
                key: key.clone(),
                state: patient.beside.join(patient.engine.state()),
            })
            .collect()
    }

    /// Whether there is a state to store.
    pub(crate) fn has_unstored(&self) -> bool {
        !self.unstored.is_empty()
    }

    /// The attempt is stored, with its [`RuleEngines::states`].
    pub(crate) fn stored(&mut self) {
        self.keep();
        self.unstored.clear();
    }

    /// Accepts the attempt. Its changes are stored with a later batch.
    pub(crate) fn keep(&mut self) {
        self.unstored.append(&mut self.changed);
        for (key, _) in self.before.drain() {
            if let Some(patient) = self.patients.get_mut(&key) {
                patient.engine.trim();
            }
        }
        self.newest_revisions.clear();
        self.found.clear();
        while self.patients.len() > PATIENTS_MAX && self.put_away() {}
    }

    /// Undoes the attempt: every engine is as before.
    pub(crate) fn undo(&mut self) {
        self.changed.clear();
        self.newest_revisions.clear();
        for (key, before) in self.before.drain() {
            match before {
                Some(patient) => self.patients.insert(key, patient),
                None => self.patients.remove(&key),
            };
        }
    }

    /// The store has a different row; this is the alert's newest one. The next attempt continues
    /// from it.
    pub(crate) fn adopt(&mut self, stored: &Alert) {
        match self.patients.get_mut(&stored.patient) {
            // Another member has reported the same backlog.
            Some(patient) if unheard::is_report(stored) => {
                patient.beside.unheard = Unheard::default();
                patient.is_changed = true;
            }
            Some(patient) => patient.engine.adopt(stored),
            None => {
                let found = self.found.entry(stored.patient.clone()).or_default();
                found.push(stored.clone());
            }
        }
    }

    /// The store has different rows of this alert that cannot be read. The next attempt continues
    /// after them.
    pub(crate) fn pass_over(&mut self, rows: &[Alert]) {
        let revision = rows.iter().map(|alert| alert.revision).max();
        let (Some(first), Some(revision)) = (rows.first(), revision) else {
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
            if let Some(patient) = self.patients.get_mut(key) {
                let is_changed = std::mem::take(&mut patient.is_changed);
                if patient.engine.take_dirty() || is_changed {
                    self.changed.insert(key.clone());
                }
            }
        }
    }

    /// False: every patient has an open alert and stays, even beyond the bound.
    fn put_away(&mut self) -> bool {
        let silent = self
            .patients
            .iter()
            .filter(|(_, patient)| {
                !patient.engine.has_open_alert() && patient.beside.unheard.is_empty()
            })
            .min_by_key(|(_, patient)| patient.seen_us)
            .map(|(key, _)| key.clone());
        let Some(key) = silent else {
            return false;
        };
        tracing::warn!(
            patient = key,
            PATIENTS_MAX,
            "too many patients for one member; this one is dropped"
        );
        self.patients.remove(&key).is_some()
    }
}

impl Patient {
    fn new(engine: Engine, partition: u32) -> Patient {
        Patient {
            engine,
            partition,
            beside: Beside::default(),
            is_changed: false,
            watermark: Watermark::default(),
            seen_us: 0,
            profile_us: 0,
            tenant: String::new(),
            has_departed: false,
        }
    }

    /// An equal set that was read again changes nothing.
    fn follow(&mut self, rules: Arc<RuleSet>) {
        if **self.engine.rules() != *rules {
            self.engine = self.engine.with_rules(rules);
        }
    }

    fn lateness_us(&mut self, sample: &Sample, now_us: i64) -> i64 {
        let arrived_us = arrived_us(sample.ingest_time_us, now_us);
        let clocks = &mut self.beside.clocks;
        if clocks.len() >= CLOCKS_MAX && !clocks.contains_key(&sample.device) {
            clocks.clear();
        }
        clocks
            .entry(sample.device.clone())
            .or_default()
            .of(sample, arrived_us)
    }

    fn lateness_of_edge_us(&self, edge: &EdgeAlert, now_us: i64) -> i64 {
        let arrived_us = arrived_us(edge.ingest_time_us, now_us);
        let clock = self.beside.clocks.get(&edge.device);
        lateness::of_edge_alert(clock, edge, arrived_us)
    }

    /// Notes what calls nobody on its own.
    fn note(&mut self, alerts: &[Alert], is_late: bool, now_us: i64) {
        let unheard = &mut self.beside.unheard;
        self.is_changed |= unheard.note(alerts, now_us);
        if is_late {
            unheard.on_late(now_us);
        }
    }
}

/// Arrival at ingest counts. An outage of the core makes alerts late, but not a backfill.
fn arrived_us(ingest_us: i64, now_us: i64) -> i64 {
    match ingest_us {
        0 => now_us,
        ingest_us => ingest_us,
    }
}

/// Leaves out a row whose key occurred before in the same attempt, because the store would refuse
/// the whole batch.
fn collect(
    newest_revisions: &mut BTreeMap<String, u32>,
    into: &mut Vec<Alert>,
    alerts: Vec<Alert>,
    now_us: i64,
) {
    into.extend(alerts.into_iter().filter_map(|mut alert| {
        let newest = newest_revisions.entry(alert.id.clone()).or_insert(0);
        if alert.revision <= *newest {
            metrics::counter!("braid_alerting_repeated_revisions_total").increment(1);
            tracing::error!(
                alert = alert.id,
                revision = alert.revision,
                "the rules produced a revision twice"
            );
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

/// The patient's share of the spread, the same in every member.
fn spread_us(key: &str) -> i64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    (hasher.finish() % PROFILE_SPREAD_US).cast_signed()
}

/// The patient of a record's entry.
pub(crate) fn subject<'a>(patient: &'a str, key: &'a str) -> &'a str {
    if patient.is_empty() { key } else { patient }
}

#[cfg(test)]
#[path = "rule_engines_tests.rs"]
mod tests;
