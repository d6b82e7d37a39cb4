//! The ward: everybody's newest values, scores and open alerts, in the order of [`rank`]. Sans-IO: records and time go in, snapshots
//! come out.
//!
//! What comes from the store and from the bus overlaps and is folded idempotently: a value replaces an older one by device
//! time, or one that was of the future when it came itself, an alert one with a lower revision. So a snapshot of the store may be
//! folded in at any moment, which is how the ward starts and how it recovers from anything missed.
//!
//! A snapshot depends on the time: from whom nothing arrives has no score ([`watched`]), and neither has anybody of whom a reading
//! that the score needs has become too old. So snapshots are taken at intervals, whether or not anything arrives.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use contracts::alerts::Alert;
use contracts::paths::{PathReport, PathState};
use contracts::query::{News2, Patient, Unknown, UnknownCause, Vital};
use contracts::vitals::{Metric, Priority, Sample, sample::Reading};
<<<<<<< HEAD:services/dashboard/src/ward.rs
use store::{DeviceEntry, LatestVital, PatientEntry};
use vitals::news2::{self, Observation, Score};
use vitals::{RuleSet, silence};
=======
use store::{DeviceEntry, LatestVital, PatientEntry, SpO2Scale};
use vitals::news2::{self, Observation, Score, Spo2Scale};
use vitals::{RuleSet, RulesInForce, silence};
>>>>>>> 8c80f73 (dashboard, ingest: judge by the rules in force, show readings of no patient, open linked alerts):services/dashboard/src/ward_view.rs

use bed::{Bed, Open};
use rank::{Rank, Standing};
use watched::{Around, Reports, Silences};

mod bed;
mod rank;
mod watched;

/// Patients on one dashboard. When reached, a registered patient takes the place of somebody whom the register does not name, else of
/// somebody without open alerts of the tenant with the most patients. Who finds no place is counted as omitted; the store keeps
/// everything.
pub const PATIENTS_MAX: usize = 5_000;
/// Alerts remembered per patient. When reached, the one that matters least is forgotten here: resolved before open, then the lowest
/// priority, acknowledged before unacknowledged, then the oldest. The patient's number of alerts then reads "at least".
pub const OPEN_ALERTS_MAX: usize = 64;
/// Gateways whose path reports and silence alerts are remembered. Of more, those that come later are not, and causes are vaguer.
const GATEWAYS_MAX: usize = 5_000;

pub struct WardView {
    /// What holds for a patient for whom the documents say nothing.
    built_in: RuleSet,
    rules: RulesInForce<RuleSet>,
    patients: HashMap<String, Bed>,
    gateways: HashMap<String, Gateway>,
    /// Silence of the core itself, with the alert's id.
    pipeline: Option<(String, Open)>,
    /// Patients of each tenant in the register.
    registered: HashMap<String, usize>,
    /// Rises with every change that a snapshot would show.
    version: u64,
}

/// Each tenant's patients in the order of [`rank`].
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub version: u64,
    by_tenant: HashMap<String, Arc<Vec<Patient>>>,
    omitted: HashMap<String, u32>,
}

impl Snapshot {
    pub fn of(&self, tenant: &str) -> Arc<Vec<Patient>> {
        self.by_tenant.get(tenant).cloned().unwrap_or_default()
    }

    /// Registered patients of a tenant for whom there was no room.
    pub fn omitted(&self, tenant: &str) -> u32 {
        self.omitted.get(tenant).copied().unwrap_or_default()
    }
}

#[derive(Default)]
struct Gateway {
    reports: Reports,
    /// With the alert's id.
    silent: Option<(String, Open)>,
}

impl WardView {
    pub fn new(built_in: RuleSet) -> WardView {
        WardView {
            built_in,
            rules: RulesInForce::default(),
            patients: HashMap::new(),
            gateways: HashMap::new(),
            pipeline: None,
            registered: HashMap::new(),
            version: 1,
        }
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    /// The tenant that may see a patient; `None` while the register has not told.
    pub fn tenant_of(&self, patient: &str) -> Option<&str> {
        self.patients.get(patient)?.tenant.as_deref()
    }

    /// The rules in force from here on: they say when a reading of a patient is too old.
    pub fn on_rules(&mut self, rules: RulesInForce<RuleSet>) {
        self.rules = rules;
        self.version += 1;
    }

    fn rules(&self, id: &str, bed: &Bed) -> &RuleSet {
        let tenant = bed.tenant.as_deref().unwrap_or_default();
        self.rules.of(tenant, id).unwrap_or(&self.built_in)
    }

    /// The register as it is: names, tenants, scales, and which gateway a patient's devices belong to.
    pub fn on_register(&mut self, patients: &[PatientEntry], devices: &[DeviceEntry]) {
        self.registered.clear();
        for entry in patients {
            *self.registered.entry(entry.tenant.clone()).or_default() += 1;
            if !self.make_room(&entry.id, Some(&entry.tenant), false) {
                continue;
            }
            let bed = self.bed(&entry.id);
            bed.tenant = Some(entry.tenant.clone());
            bed.name.clone_from(&entry.name);
            bed.spo2_scale = entry.spo2_scale;
        }
        for device in devices {
            if let Some(bed) = self.patients.get_mut(&device.patient)
                && bed.gateway.is_empty()
            {
                bed.gateway.clone_from(&device.gateway);
            }
        }
        self.version += 1;
    }

    pub fn on_latest(&mut self, latest: &LatestVital) {
        if !self.make_room(&latest.patient, None, false) {
            return;
        }
        let bed = self.bed(&latest.patient);
        let arrived_us = latest.ingest_time_us;
        bed.seen(latest.device_time_us, arrived_us, &latest.gateway);
        bed.value(
            latest.metric,
            latest.value,
            latest.device_time_us,
            arrived_us,
        );
        self.version += 1;
    }

    /// True when the register need not be read again for it.
    pub fn on_sample(&mut self, sample: &Sample) -> bool {
        if !self.make_room(&sample.patient, None, false) {
            return true;
        }
        let bed = self.bed(&sample.patient);
        let (time_us, arrived_us) = (sample.device_time_us, sample.ingest_time_us);
        bed.seen(time_us, arrived_us, &sample.gateway);
        match sample.reading {
            Some(Reading::Value(value)) => bed.value(sample.metric(), value, time_us, arrived_us),
            Some(Reading::Waveform(_)) => bed.has_waveform = true,
            None => {}
        }
        let known = bed.tenant.is_some();
        self.version += 1;
        known
    }

    /// Reports of a gateway's paths: they tell a silent sensor from a silent gateway.
    pub fn on_paths(&mut self, gateway: &str, reports: &[PathReport]) {
        let Some(known) = self.gateway(gateway) else {
            return;
        };
        for report in reports {
            let is_lost = matches!(report.state(), PathState::Suspect | PathState::Closed);
            if !is_lost {
                known.reports.well_us = known.reports.well_us.max(report.time_us);
            }
            known.reports.lost = is_lost;
        }
    }

    /// Open alerts by id, as far as is known here.
    pub fn open_alerts(&self) -> Vec<String> {
        let wide = self.gateways.values().filter_map(|it| it.silent.as_ref());
        let wide = wide.chain(&self.pipeline).map(|(id, open)| (id, open));
        let open = self.patients.values().flat_map(|bed| &bed.open).chain(wide);
        let open = open.filter(|(_, open)| !open.resolved);
        open.map(|(id, _)| id.clone()).collect()
    }

    /// False: it is known. An alert without a patient is of a gateway or of the core, and counts for causes only.
    pub fn on_alert(&mut self, alert: &Alert) -> bool {
        if alert.patient.is_empty() {
            self.on_wide_alert(alert);
            return true;
        }
        let priority = alert.priority();
        if !self.make_room(&alert.patient, None, priority == Priority::High) {
            return true;
        }
        let bed = self.bed(&alert.patient);
        if bed
            .open
            .get(&alert.id)
            .is_some_and(|known| known.revision >= alert.revision)
        {
            return false;
        }
        bed.open.insert(alert.id.clone(), Open::of(alert));
        if bed.open.len() > OPEN_ALERTS_MAX {
            let leaving = bed
                .open
                .iter()
                .min_by_key(|(_, open)| {
                    let matters = (!open.resolved, open.priority as i32, open.awaits);
                    (matters, open.since_us)
                })
                .map(|(id, open)| (id.clone(), !open.resolved));
            if let Some((id, was_open)) = leaving {
                bed.open.remove(&id);
                bed.has_more_alerts |= was_open;
            }
        }
        self.version += 1;
        true
    }

    fn on_wide_alert(&mut self, alert: &Alert) {
        let known = match alert.rule.as_str() {
            silence::PIPELINE => &mut self.pipeline,
            silence::GATEWAY => match self.gateway(&alert.gateway) {
                Some(gateway) => &mut gateway.silent,
                None => return,
            },
            _ => return,
        };
        // Of two episodes the later one holds.
        let newer = known.as_ref().is_none_or(|(_, known)| {
            (alert.since_us, alert.revision) > (known.since_us, known.revision)
        });
        if newer {
            *known = Some((alert.id.clone(), Open::of(alert)));
            self.version += 1;
        }
    }

    fn gateway(&mut self, id: &str) -> Option<&mut Gateway> {
        if id.is_empty() || (self.gateways.len() >= GATEWAYS_MAX && !self.gateways.contains_key(id))
        {
            return None;
        }
        Some(self.gateways.entry(id.to_owned()).or_default())
    }

    fn bed(&mut self, patient: &str) -> &mut Bed {
        self.patients.entry(patient.to_owned()).or_default()
    }

    /// False: the table is full, and nobody leaves it for this patient. `urgent`: there is an alert of high priority.
    fn make_room(&mut self, patient: &str, tenant: Option<&str>, urgent: bool) -> bool {
        if self.patients.len() < PATIENTS_MAX || self.patients.contains_key(patient) {
            return true;
        }
        let Some(id) = self.leaving(tenant, urgent) else {
            return false;
        };
        self.patients.remove(&id);
        true
    }

    /// Among those without open alerts: strangers first. Registered patients leave only for somebody of a smaller tenant or for an
    /// urgent alert, since somebody who left and came back with every reading would have no score.
    fn leaving(&self, tenant: Option<&str>, urgent: bool) -> Option<String> {
        let mut counts: BTreeMap<Option<&str>, usize> = BTreeMap::new();
        let calm = |bed: &&Bed| bed.open().next().is_none();
        for bed in self.patients.values().filter(calm) {
            *counts.entry(bed.tenant.as_deref()).or_default() += 1;
        }
        let crowded = if counts.contains_key(&None) {
            None
        } else {
            let (largest, _) = counts.into_iter().max_by_key(|(_, count)| *count)?;
            let is_smaller = tenant.is_some() && tenant != largest;
            if !is_smaller && !urgent {
                return None;
            }
            largest
        };
        self.patients
            .iter()
            .filter(|(_, bed)| bed.tenant.as_deref() == crowded)
            .filter(|(_, bed)| calm(bed))
            .min_by_key(|(id, bed)| (bed.heard_us, *id))
            .map(|(id, _)| id.clone())
    }

    pub fn snapshot(&self, now_us: i64) -> Snapshot {
        let mut heard: HashMap<&str, i64> = HashMap::new();
        for bed in self.patients.values().filter(|bed| bed.heard_us > 0) {
            let newest = heard.entry(&bed.gateway).or_default();
            *newest = (*newest).max(bed.heard_us);
        }
        let mut by_tenant: HashMap<&str, Vec<(Rank, Patient)>> = HashMap::new();
        for (id, bed) in &self.patients {
            if let Some(tenant) = &bed.tenant {
                by_tenant
                    .entry(tenant)
                    .or_default()
                    .push(self.patient(id, bed, &heard, now_us));
            }
        }
        let omitted = self.registered.iter().filter_map(|(tenant, registered)| {
            let shown = by_tenant.get(tenant.as_str()).map_or(0, Vec::len);
            let omitted = u32::try_from(registered.saturating_sub(shown)).unwrap_or(u32::MAX);
            (omitted > 0).then(|| (tenant.clone(), omitted))
        });
        let omitted = omitted.collect();
        let by_tenant = by_tenant
            .into_iter()
            .map(|(tenant, mut ranked)| {
                ranked.sort_by(|a, b| a.0.cmp(&b.0));
                let patients = ranked.into_iter().map(|(_, patient)| patient).collect();
                (tenant.to_owned(), Arc::new(patients))
            })
            .collect();
        Snapshot {
            version: self.version,
            by_tenant,
            omitted,
        }
    }

    /// `None`: readings arrive.
    fn unwatched(
        &self,
        bed: &Bed,
        rules: &RuleSet,
        heard: &HashMap<&str, i64>,
        now_us: i64,
    ) -> Option<Unknown> {
        if bed.heard_us == 0 {
            return Some(Unknown {
                cause: UnknownCause::NeverMeasured.into(),
                since_us: 0,
                because: "no reading has ever arrived".to_owned(),
            });
        }
        let measured = bed
            .latest
            .iter()
            .filter_map(|(metric, latest)| Some((Metric::try_from(*metric).ok()?, latest.time_us)));
        let pause_us = watched::pause_us(rules, measured, bed.has_waveform, bed.last_seen_us);
        if now_us - bed.heard_us <= pause_us {
            return None;
        }
        let gateway = self.gateways.get(&bed.gateway);
        let around = Around {
            gateway: &bed.gateway,
            gateway_heard_us: heard.get(bed.gateway.as_str()).copied().unwrap_or_default(),
            reports: gateway.map(|gateway| gateway.reports).unwrap_or_default(),
            anybody_heard_us: heard.values().copied().max().unwrap_or_default(),
            gateways: heard.len(),
        };
        let of_gateway = gateway.and_then(|gateway| gateway.silent.as_ref());
        let wide = self.pipeline.iter().chain(of_gateway);
        let silences: Silences<'_> = wide
            .map(|(_, open)| open)
            .chain(bed.open.values())
            .filter(|open| !open.resolved && !open.rule.is_empty())
            .map(|open| (open.rule, open.summary.as_str()))
            .collect();
        Some(watched::why(bed.heard_us, now_us, &around, &silences))
    }

    fn score(bed: &Bed, rules: &RuleSet, now_us: i64) -> Score {
        let observations = bed.latest.iter().filter_map(|(metric, latest)| {
            Some(Observation {
                metric: Metric::try_from(*metric).ok()?,
                value: latest.value,
                time_us: latest.time_us,
            })
        });
        news2::score(
            observations,
            bed.spo2_scale,
            |metric| rules.stale_after_us(metric),
            now_us,
        )
    }

    fn patient(
        &self,
        id: &str,
        bed: &Bed,
        heard: &HashMap<&str, i64>,
        now_us: i64,
    ) -> (Rank, Patient) {
        let rules = self.rules(id, bed);
        let unknown = self.unwatched(bed, rules, heard, now_us);
        let score = Self::score(bed, rules, now_us);
        let wire: News2 = score.to_wire(unknown.clone().filter(|it| it.since_us > 0));
        let is_worn = |metric: &Metric| silence::is_worn(rules.stale_after_us(*metric));
        let open = || bed.open();
        let priority = |open: &Open| open.priority;
        let worst = open().map(priority).max().unwrap_or_default();
        let awaiting = open().filter(|open| open.awaits).map(priority).max();
        let rank = Rank::of(&Standing {
            unwatched_since_us: unknown
                .as_ref()
                .map(|unknown| unknown.since_us)
                .filter(|since_us| *since_us > 0),
            has_no_score: wire.unknown.is_some()
                && (score.stale.is_empty() || score.stale.iter().any(is_worn)),
            awaiting: awaiting.unwrap_or_default(),
            worst,
            score: score.aggregate.max(score.with_stale),
            is_red: !score.red.is_empty(),
            name: &bed.name,
            id,
        });
        let patient = Patient {
            id: id.to_owned(),
            name: bed.name.clone(),
            gateway: bed.gateway.clone(),
            news2: Some(wire),
            latest: bed
                .latest
                .iter()
                .map(|(metric, latest)| Vital {
                    metric: *metric,
                    value: latest.value,
                    unit: unit(*metric).to_owned(),
                    time_us: latest.time_us,
                })
                .collect(),
            active_alerts: open().count() as u32,
            worst_priority: worst.into(),
            last_seen_us: bed.last_seen_us,
            unknown,
            active_alerts_more: bed.has_more_alerts,
        };
        (rank, patient)
    }
}

pub fn unit(metric: i32) -> &'static str {
    Metric::try_from(metric)
        .ok()
        .and_then(vitals::entry)
        .map_or("", |entry| entry.unit)
}

#[cfg(test)]
#[path = "ward_view_tests.rs"]
mod tests;
