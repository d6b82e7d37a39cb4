//! The ward view: every patient's newest values, score and open alerts, in the order of [`rank`].
//! Sans-IO: records and time go in, snapshots come out.
//!
//! Data of the store and of the bus overlap and are folded idempotently. A value replaces an older
//! one by event time, or one that lay in the future when it arrived. An alert replaces a lower
//! revision. So a snapshot of the store may be folded in at any moment, at the start and for
//! repair.
//!
//! A snapshot depends on the time. A patient has no score if no reading arrives ([`watched`]), or
//! if a needed reading is too old. The rhythm of its stream decides, and at most the rules. So
//! snapshots are taken at intervals, with or without new data.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use contracts::alerts::Alert;
use contracts::paths::{PathReport, PathState};
use contracts::patients::PatientStatus;
use contracts::query::{News2, Patient, Unknown, UnknownCause, Vital};
use contracts::vitals::{Metric, Priority, Sample, sample::Reading};
use store::{DeviceEntry, LatestVital, PatientEntry};
use vitals::news2::{self, Observation, Score};
use vitals::{RuleSet, RulesInForce, silence};

use bed::{Bed, Open};
use rank::{Rank, RankCriteria};
use watched::{Around, Reports, Silences};

mod bed;
mod rank;
mod room;
mod watched;

/// Patients on one dashboard. At the bound a patient with a sensor replaces another, see
/// `room.rs`. Patients without a place are counted as omitted; the store keeps all data.
pub(crate) const PATIENTS_MAX: usize = 5_000;
/// Alerts remembered for one patient. At the bound the least important is forgotten here: resolved
/// before open, then by priority, acknowledged before ended before active, then the oldest. The
/// number of alerts then reads "at least".
pub(crate) const OPEN_ALERTS_MAX: usize = 64;
/// Gateways whose path reports and silence alerts are remembered. Beyond it later ones are ignored,
/// and causes are less exact.
const GATEWAYS_MAX: usize = 5_000;

pub(crate) struct WardView {
    /// The rules for a patient without a rule set in force.
    built_in: RuleSet,
    rules: RulesInForce<RuleSet>,
    patients: HashMap<String, Bed>,
    gateways: HashMap<String, Gateway>,
    /// Id and state of the alert that the core itself is silent.
    pipeline: Option<(String, Open)>,
    /// Registered patients by tenant: those who wear a sensor, and the others.
    registered: HashMap<String, (usize, usize)>,
    /// Rises with every change that a snapshot would show.
    version: u64,
}

/// Each tenant's patients in the order of [`rank`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub version: u64,
    by_tenant: HashMap<String, Arc<Vec<Patient>>>,
    omitted: HashMap<String, u32>,
    unassigned: HashMap<String, u32>,
}

impl Snapshot {
    pub(crate) fn of(&self, tenant: &str) -> Arc<Vec<Patient>> {
        self.by_tenant.get(tenant).cloned().unwrap_or_default()
    }

    /// Patients of a tenant who wear a sensor, and for whom there was no room.
    pub(crate) fn omitted(&self, tenant: &str) -> u32 {
        self.omitted.get(tenant).copied().unwrap_or_default()
    }

    /// Registered patients of a tenant who are not listed, because no sensor is assigned to them.
    pub(crate) fn unassigned(&self, tenant: &str) -> u32 {
        self.unassigned.get(tenant).copied().unwrap_or_default()
    }
}

#[derive(Default)]
struct Gateway {
    reports: Reports,
    /// Id and state of the alert.
    silent: Option<(String, Open)>,
}

impl WardView {
    pub(crate) fn new(built_in: RuleSet) -> WardView {
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

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// The tenant that may see a patient; `None` while the register has not named it.
    pub(crate) fn tenant_of(&self, patient: &str) -> Option<&str> {
        self.patients.get(patient)?.tenant.as_deref()
    }

    /// Takes the rules in force: they decide when a patient's reading is too old.
    pub(crate) fn on_rules(&mut self, rules: RulesInForce<RuleSet>) {
        self.rules = rules;
        self.version += 1;
    }

    fn rules(&self, id: &str, bed: &Bed) -> &RuleSet {
        let tenant = bed.tenant.as_deref().unwrap_or_default();
        self.rules.of(tenant, id).unwrap_or(&self.built_in)
    }

    /// Takes the register: names, tenants, scales and stays of the patients who are present, and
    /// the devices that are assigned now. A patient who is not among them any more has departed.
    pub(crate) fn on_register(&mut self, patients: &[PatientEntry], devices: &[DeviceEntry]) {
        let mut assigned: HashMap<&str, i64> = HashMap::new();
        for device in devices {
            let since_us = assigned.entry(&device.patient).or_default();
            *since_us = (*since_us).max(device.registered_us);
        }
        let present: HashSet<&str> = patients.iter().map(|entry| entry.id.as_str()).collect();
        self.patients
            .retain(|id, bed| bed.tenant.is_none() || present.contains(id.as_str()));
        // Before anybody leaves for others.
        for (id, bed) in &mut self.patients {
            bed.assigned_us = assigned.get(id.as_str()).copied();
        }
        metrics::gauge!("braid_dashboard_patients_assigned").set(assigned.len() as f64);
        self.registered.clear();
        let (worn, others): (Vec<_>, Vec<_>) = patients
            .iter()
            .partition(|entry| assigned.contains_key(entry.id.as_str()));
        for entry in worn {
            self.registered.entry(entry.tenant.clone()).or_default().0 += 1;
            if self.make_room(&entry.id, Some(&entry.tenant), false) {
                self.enter(entry, assigned.get(entry.id.as_str()).copied());
            }
        }
        for entry in others {
            self.registered.entry(entry.tenant.clone()).or_default().1 += 1;
            // A patient without a sensor replaces no other.
            if self.patients.len() < PATIENTS_MAX || self.patients.contains_key(&entry.id) {
                self.enter(entry, None);
            }
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

    fn enter(&mut self, entry: &PatientEntry, assigned_us: Option<i64>) {
        let bed = self.bed(&entry.id);
        bed.tenant = Some(entry.tenant.clone());
        bed.name.clone_from(&entry.name);
        bed.spo2_scale = entry.spo2_scale;
        bed.status = entry.status;
        bed.assigned_us = assigned_us;
    }

    pub(crate) fn on_latest(&mut self, latest: &LatestVital) {
        if !self.make_room(&latest.patient, None, false) {
            return;
        }
        let bed = self.bed(&latest.patient);
        let arrived_us = latest.ingest_time_us;
        bed.seen(latest.device_time_us, arrived_us, &latest.gateway);
        bed.stored(
            latest.metric,
            latest.value,
            latest.device_time_us,
            arrived_us,
        );
        self.version += 1;
    }

    /// True when the register need not be read again for the sample.
    pub(crate) fn on_sample(&mut self, sample: &Sample) -> bool {
        if !self.make_room(&sample.patient, None, false) {
            return true;
        }
        let bed = self.bed(&sample.patient);
        let (time_us, arrived_us) = (sample.device_time_us, sample.ingest_time_us);
        bed.seen(time_us, arrived_us, &sample.gateway);
        match sample.reading {
            Some(Reading::Value(_)) => {
                // A reading that cannot be shown in its metric's own unit is not shown.
                if let Some(value) = vitals::own_value(sample) {
                    bed.value(sample.metric(), value, time_us, arrived_us);
                }
            }
            Some(Reading::Waveform(_)) => bed.has_waveform = true,
            None => {}
        }
        let known = bed.tenant.is_some();
        self.version += 1;
        known
    }

    /// Reports of a gateway's paths, which distinguish a silent sensor from a silent gateway.
    pub(crate) fn on_paths(&mut self, gateway: &str, reports: &[PathReport]) {
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

    /// Ids of the open alerts, as far as is known here.
    pub(crate) fn open_alerts(&self) -> Vec<String> {
        let wide = self.gateways.values().filter_map(|it| it.silent.as_ref());
        let wide = wide.chain(&self.pipeline).map(|(id, open)| (id, open));
        let open = self.patients.values().flat_map(|bed| &bed.open).chain(wide);
        let open = open.filter(|(_, open)| !open.resolved);
        open.map(|(id, _)| id.clone()).collect()
    }

    /// False: the alert is known already. An alert without a patient concerns a gateway or the
    /// core, and counts for causes only.
    pub(crate) fn on_alert(&mut self, alert: &Alert) -> bool {
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
                    let matters = (!open.resolved, open.priority as i32, open.stage);
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
        // The later of two episodes counts.
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

    pub(crate) fn snapshot(&self, now_us: i64) -> Snapshot {
        let mut heard: HashMap<&str, i64> = HashMap::new();
        for bed in self.patients.values().filter(|bed| bed.heard_us > 0) {
            let newest = heard.entry(&bed.gateway).or_default();
            *newest = (*newest).max(bed.heard_us);
        }
        let mut by_tenant: HashMap<&str, Vec<(Rank, Patient)>> = HashMap::new();
        let mut shown: HashMap<&str, (usize, usize)> = HashMap::new();
        for (id, bed) in &self.patients {
            let Some(tenant) = &bed.tenant else {
                continue;
            };
            if !bed.is_listed(now_us) {
                continue;
            }
            let (worn, others) = shown.entry(tenant).or_default();
            *(if bed.assigned_us.is_some() {
                worn
            } else {
                others
            }) += 1;
            by_tenant
                .entry(tenant)
                .or_default()
                .push(self.patient(id, bed, &heard, now_us));
        }
        let missing = |registered: usize, shown: usize| {
            u32::try_from(registered.saturating_sub(shown)).unwrap_or(u32::MAX)
        };
        let (mut omitted, mut unassigned) = (HashMap::new(), HashMap::new());
        for (tenant, (worn, others)) in &self.registered {
            let shown = shown.get(tenant.as_str()).copied().unwrap_or_default();
            omitted.insert(tenant.clone(), missing(*worn, shown.0));
            unassigned.insert(tenant.clone(), missing(*others, shown.1));
        }
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
            unassigned,
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
            .map(|(metric, latest)| (Metric::from_number(*metric), latest.time_us));
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
            anybody_well_us: self
                .gateways
                .values()
                .map(|gateway| gateway.reports.well_us)
                .max()
                .unwrap_or_default(),
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
        let observations = bed.latest.iter().map(|(metric, latest)| Observation {
            metric: Metric::from_number(*metric),
            value: latest.value,
            time_us: latest.heard_us,
        });
        let stale_after_us = |metric: Metric| {
            let limit_us = rules.stale_after_us(metric);
            bed.latest
                .get(&metric.number())
                .map_or(limit_us, |latest| latest.stale_after_us(limit_us))
        };
        news2::score(observations, bed.spo2_scale, stale_after_us, now_us)
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
        let awaiting = open()
            .filter(|open| open.stage.awaits())
            .map(priority)
            .max();
        let is_high = |open: &&Open| open.priority == Priority::High;
        let fresh_us = bed
            .assigned_us
            .filter(|since_us| now_us - since_us <= rank::NEVER_WORN_AFTER_US);
        let rank = Rank::of(&RankCriteria {
            high: open().filter(is_high).map(|open| open.stage).max(),
            unwatched_since_us: unknown
                .as_ref()
                .map(|unknown| unknown.since_us)
                .filter(|since_us| *since_us > 0)
                .or(fresh_us.filter(|_| bed.heard_us == 0)),
            is_never_worn: bed.heard_us == 0 && fresh_us.is_none(),
            rests: matches!(bed.status, PatientStatus::Expected | PatientStatus::Paused),
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
            status: bed.status.into(),
        };
        (rank, patient)
    }
}

pub(crate) fn unit(metric: i32) -> &'static str {
    vitals::entry(Metric::from_number(metric)).map_or("", |entry| entry.unit)
}

#[cfg(test)]
#[path = "ward_view_tests.rs"]
mod tests;
