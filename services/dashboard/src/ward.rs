//! The ward: everybody's newest values, scores and open alerts, worst first. Sans-IO: records and time go in, snapshots
//! come out.
//!
//! What comes from the store and from the bus overlaps and is folded idempotently: a value replaces an older one by device
//! time, or one that was of the future when it came itself, an alert one with a lower revision. So a snapshot of the store may be folded in at any moment, which is how the
//! ward starts and how it recovers from anything missed.
//!
//! Order: patients with a high-priority alert that nobody has acknowledged; then by NEWS2, counting stale readings as if they
//! still held (somebody whose sensor fell off must not sink to the bottom of the list); then by the worst alert; then by name.
//! The score that is shown never counts what is stale or missing.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use contracts::alerts::{Alert, AlertState};
use contracts::query::{Patient, Vital};
use contracts::vitals::{Metric, Priority, Sample, sample::Reading};
use store::{DeviceEntry, LatestVital, PatientEntry, SpO2Scale};
use vitals::RuleSet;
use vitals::news2::{self, Observation, Spo2Scale};

/// Patients on one dashboard. When reached, of the tenant with the most patients the one not seen for longest leaves the list (the
/// store keeps everything).
pub const PATIENTS_MAX: usize = 5_000;
/// Open alerts remembered per patient. When reached, the oldest is forgotten here; the alert list still has it.
pub const OPEN_ALERTS_MAX: usize = 64;

/// Further ahead of the core than this no clock is right.
const AHEAD_US_MAX: i64 = 120_000_000;

pub struct Ward {
    rules: RuleSet,
    patients: HashMap<String, Bed>,
    /// Rises with every change that a snapshot would show.
    version: u64,
}

/// Each tenant's patients, worst first.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub version: u64,
    by_tenant: HashMap<String, Arc<Vec<Patient>>>,
}

impl Snapshot {
    pub fn of(&self, tenant: &str) -> Arc<Vec<Patient>> {
        self.by_tenant.get(tenant).cloned().unwrap_or_default()
    }
}

struct Bed {
    /// `None` until the register names it: shown to nobody, because nobody's tenant is known to own it.
    tenant: Option<String>,
    name: String,
    gateway: String,
    spo2_scale: Spo2Scale,
    latest: BTreeMap<i32, Latest>,
    open: BTreeMap<String, Open>,
    last_seen_us: i64,
}

#[derive(Clone, Copy)]
struct Latest {
    value: f64,
    time_us: i64,
}

struct Open {
    priority: Priority,
    awaits: bool,
    revision: u32,
    since_us: i64,
    /// Resolved ones stay as tombstones so that a late, older transition cannot reopen them.
    resolved: bool,
}

impl Ward {
    pub fn new(rules: RuleSet) -> Ward {
        Ward {
            rules,
            patients: HashMap::new(),
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

    /// The register as it is: names, tenants, scales, and which gateway a patient's devices belong to.
    pub fn on_register(&mut self, patients: &[PatientEntry], devices: &[DeviceEntry]) {
        for entry in patients {
            let bed = self.bed(&entry.id);
            bed.tenant = Some(entry.tenant.clone());
            bed.name.clone_from(&entry.name);
            bed.spo2_scale = match entry.spo2_scale {
                SpO2Scale::One => Spo2Scale::One,
                SpO2Scale::Two => Spo2Scale::Two,
            };
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

    /// True when the patient is known to the register; else the caller should read it again.
    pub fn on_sample(&mut self, sample: &Sample) -> bool {
        let bed = self.bed(&sample.patient);
        let (time_us, arrived_us) = (sample.device_time_us, sample.ingest_time_us);
        bed.seen(time_us, arrived_us, &sample.gateway);
        if let Some(Reading::Value(value)) = sample.reading {
            bed.value(sample.metric(), value, time_us, arrived_us);
        }
        let known = bed.tenant.is_some();
        self.version += 1;
        known
    }

    /// Open alerts, by id, as far as is known here.
    pub fn open_alerts(&self) -> Vec<String> {
        let open = self.patients.values().flat_map(|bed| &bed.open);
        let open = open.filter(|(_, open)| !open.resolved);
        open.map(|(id, _)| id.clone()).collect()
    }

    /// False: it is known.
    pub fn on_alert(&mut self, alert: &Alert) -> bool {
        let bed = self.bed(&alert.patient);
        if bed
            .open
            .get(&alert.id)
            .is_some_and(|known| known.revision >= alert.revision)
        {
            return false;
        }
        let state = alert.state();
        bed.open.insert(
            alert.id.clone(),
            Open {
                priority: alert.priority(),
                awaits: awaits(state),
                revision: alert.revision,
                since_us: alert.since_us,
                resolved: matches!(
                    state,
                    AlertState::Resolved | AlertState::Pending | AlertState::Unspecified
                ),
            },
        );
        if bed.open.len() > OPEN_ALERTS_MAX {
            let leaving = bed
                .open
                .iter()
                .min_by_key(|(_, open)| (!open.resolved, open.since_us))
                .map(|(id, _)| id.clone());
            if let Some(id) = leaving {
                bed.open.remove(&id);
            }
        }
        self.version += 1;
        true
    }

    fn bed(&mut self, patient: &str) -> &mut Bed {
        if self.patients.len() >= PATIENTS_MAX
            && !self.patients.contains_key(patient)
            && let Some(id) = self.leaving()
        {
            self.patients.remove(&id);
        }
        self.patients
            .entry(patient.to_owned())
            .or_insert_with(|| Bed {
                tenant: None,
                name: String::new(),
                gateway: String::new(),
                spo2_scale: Spo2Scale::default(),
                latest: BTreeMap::new(),
                open: BTreeMap::new(),
                last_seen_us: 0,
            })
    }

    fn leaving(&self) -> Option<String> {
        let mut counts: BTreeMap<Option<&str>, usize> = BTreeMap::new();
        for bed in self.patients.values() {
            *counts.entry(bed.tenant.as_deref()).or_default() += 1;
        }
        let (crowded, _) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        self.patients
            .iter()
            .filter(|(_, bed)| bed.tenant.as_deref() == crowded)
            .min_by_key(|(id, bed)| (bed.last_seen_us, *id))
            .map(|(id, _)| id.clone())
    }

    pub fn snapshot(&self, now_us: i64) -> Snapshot {
        let mut by_tenant: HashMap<&str, Vec<(Rank, Patient)>> = HashMap::new();
        for (id, bed) in &self.patients {
            if let Some(tenant) = &bed.tenant {
                by_tenant
                    .entry(tenant)
                    .or_default()
                    .push(self.patient(id, bed, now_us));
            }
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
        }
    }

    fn patient(&self, id: &str, bed: &Bed, now_us: i64) -> (Rank, Patient) {
        let observations = bed.latest.iter().filter_map(|(metric, latest)| {
            Some(Observation {
                metric: Metric::try_from(*metric).ok()?,
                value: latest.value,
                time_us: latest.time_us,
            })
        });
        let score = news2::score(
            observations,
            bed.spo2_scale,
            |metric| self.rules.stale_after_us(metric),
            now_us,
        );
        let open = || bed.open.values().filter(|open| !open.resolved);
        let worst = open().map(|open| open.priority as i32).max().unwrap_or(0);
        let high_awaits = open().any(|open| open.awaits && open.priority == Priority::High);
        let rank = Rank {
            calm: !high_awaits,
            score: Reverse(score.aggregate.max(score.with_stale)),
            red: Reverse(!score.red.is_empty()),
            priority: Reverse(worst),
            name: bed.name.clone(),
            id: id.to_owned(),
        };
        let patient = Patient {
            id: id.to_owned(),
            name: bed.name.clone(),
            gateway: bed.gateway.clone(),
            news2: Some(score.to_wire(None)),
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
            worst_priority: worst,
            last_seen_us: bed.last_seen_us,
            unknown: None,
            active_alerts_more: false,
        };
        (rank, patient)
    }
}

/// Ascending: the worst first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    calm: bool,
    score: Reverse<u32>,
    red: Reverse<bool>,
    priority: Reverse<i32>,
    name: String,
    id: String,
}

/// Whether what arrived then replaces what is known. A device whose clock was ahead and is put right sends earlier times: what it said
/// before would stand as the newest until its clock has caught up, for hours.
fn replaces(time_us: i64, known_us: i64, arrived_us: i64) -> bool {
    let was_ahead = arrived_us > 0 && known_us.saturating_sub(arrived_us) > AHEAD_US_MAX;
    time_us >= known_us || was_ahead
}

impl Bed {
    fn seen(&mut self, time_us: i64, arrived_us: i64, gateway: &str) {
        if replaces(time_us, self.last_seen_us, arrived_us) {
            self.last_seen_us = time_us;
            if !gateway.is_empty() && self.gateway != gateway {
                gateway.clone_into(&mut self.gateway);
            }
        }
    }

    fn value(&mut self, metric: Metric, value: f64, time_us: i64, arrived_us: i64) {
        let latest = self
            .latest
            .entry(metric as i32)
            .or_insert(Latest { value, time_us });
        if replaces(time_us, latest.time_us, arrived_us) {
            *latest = Latest { value, time_us };
        }
    }
}

pub fn unit(metric: i32) -> &'static str {
    Metric::try_from(metric)
        .ok()
        .and_then(vitals::entry)
        .map_or("", |entry| entry.unit)
}

fn awaits(state: AlertState) -> bool {
    matches!(state, AlertState::Active | AlertState::Latched)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const NOW: i64 = 1_700_000_000_000_000;

    fn entry(id: &str, tenant: &str) -> PatientEntry {
        PatientEntry {
            id: id.to_owned(),
            tenant: tenant.to_owned(),
            name: format!("name of {id}"),
            spo2_scale: SpO2Scale::One,
        }
    }

    fn sample(patient: &str, metric: Metric, value: f64, time_us: i64) -> Sample {
        Sample {
            patient: patient.to_owned(),
            gateway: "g1".to_owned(),
            metric: metric.into(),
            device_time_us: time_us,
            reading: Some(Reading::Value(value)),
            ..Sample::default()
        }
    }

    fn alert(
        patient: &str,
        id: &str,
        priority: Priority,
        state: AlertState,
        revision: u32,
    ) -> Alert {
        Alert {
            id: id.to_owned(),
            patient: patient.to_owned(),
            priority: priority.into(),
            state: state.into(),
            revision,
            since_us: NOW,
            ..Alert::default()
        }
    }

    fn healthy(ward: &mut Ward, patient: &str) {
        for (metric, value) in [
            (Metric::RespirationRate, 15.0),
            (Metric::Spo2, 98.0),
            (Metric::SupplementalOxygen, 0.0),
            (Metric::SystolicPressure, 125.0),
            (Metric::HeartRate, 70.0),
            (Metric::Consciousness, 0.0),
            (Metric::Temperature, 36.8),
        ] {
            ward.on_sample(&sample(patient, metric, value, NOW));
        }
    }

    fn ward(patients: &[&str]) -> Ward {
        let mut ward = Ward::new(RuleSet::default_set());
        let entries: Vec<_> = patients.iter().map(|id| entry(id, "t")).collect();
        ward.on_register(&entries, &[]);
        ward
    }

    fn order(ward: &Ward, now_us: i64) -> Vec<String> {
        ward.snapshot(now_us)
            .of("t")
            .iter()
            .map(|p| p.id.clone())
            .collect()
    }

    #[test]
    fn worst_first() {
        let mut ward = ward(&["a", "b", "c", "d"]);
        for id in ["a", "b", "c", "d"] {
            healthy(&mut ward, id);
        }
        ward.on_sample(&sample("c", Metric::HeartRate, 135.0, NOW + 1));
        ward.on_alert(&alert("b", "fall", Priority::High, AlertState::Active, 1));
        ward.on_alert(&alert("d", "x", Priority::Low, AlertState::Active, 1));
        assert_eq!(order(&ward, NOW + 1), ["b", "c", "d", "a"]);
        ward.on_alert(&alert(
            "b",
            "fall",
            Priority::High,
            AlertState::Acknowledged,
            2,
        ));
        assert_eq!(order(&ward, NOW + 1), ["c", "b", "d", "a"]);
        ward.on_alert(&alert("b", "fall", Priority::High, AlertState::Resolved, 3));
        assert_eq!(order(&ward, NOW + 1), ["c", "d", "a", "b"]);
    }

    #[test]
    fn a_partial_score_names_what_is_missing_and_counts_nothing_for_it() {
        let mut ward = ward(&["a"]);
        ward.on_sample(&sample("a", Metric::HeartRate, 115.0, NOW));
        let news2 = ward.snapshot(NOW).of("t")[0].news2.clone().unwrap();
        assert!(news2.partial);
        assert_eq!(news2.score, Some(2));
        assert_eq!(news2.missing.len(), 6);
        assert!(!news2.missing.contains(&(Metric::HeartRate as i32)));
    }

    #[test]
    fn somebody_whose_sensors_fell_silent_does_not_sink() {
        let mut ward = ward(&["sick", "well"]);
        healthy(&mut ward, "sick");
        healthy(&mut ward, "well");
        ward.on_sample(&sample("sick", Metric::HeartRate, 135.0, NOW));
        let later = NOW + 86_400_000_000;
        ward.on_sample(&sample("well", Metric::HeartRate, 95.0, later));
        assert_eq!(order(&ward, later), ["sick", "well"]);
        let snapshot = ward.snapshot(later);
        let news2 = snapshot.of("t")[0].news2.clone().unwrap();
        assert_eq!((news2.score, news2.missing.len()), (None, 7));
    }

    #[test]
    fn what_a_clock_that_was_ahead_said_does_not_stand_for_hours() {
        let mut ward = ward(&["a"]);
        let hour_us = 3_600_000_000;
        let arrives = |value, time_us, arrived_us| Sample {
            ingest_time_us: arrived_us,
            ..sample("a", Metric::HeartRate, value, time_us)
        };
        ward.on_sample(&arrives(70.0, NOW + hour_us, NOW));
        // Its clock is put right.
        ward.on_sample(&arrives(140.0, NOW + 1_000_000, NOW + 1_000_000));
        let shown = |ward: &Ward| {
            let patient = ward.snapshot(NOW).of("t")[0].clone();
            (patient.latest[0].value, patient.last_seen_us)
        };
        assert_eq!(shown(&ward), (140.0, NOW + 1_000_000));
        // What a gateway had kept comes after it and changes nothing.
        ward.on_sample(&arrives(60.0, NOW - hour_us, NOW + 2_000_000));
        assert_eq!(shown(&ward), (140.0, NOW + 1_000_000));
    }

    #[test]
    fn the_order_of_arrival_does_not_matter() {
        let events = [
            sample("a", Metric::HeartRate, 60.0, NOW),
            sample("a", Metric::HeartRate, 61.0, NOW + 1),
            sample("a", Metric::HeartRate, 62.0, NOW + 2),
        ];
        let alerts = [
            alert("a", "x", Priority::High, AlertState::Active, 1),
            alert("a", "x", Priority::High, AlertState::Resolved, 3),
            alert("a", "x", Priority::High, AlertState::Acknowledged, 2),
        ];
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]] {
            let mut ward = ward(&["a"]);
            for i in order {
                ward.on_sample(&events[i]);
                ward.on_alert(&alerts[i]);
                ward.on_sample(&events[i]);
            }
            let patient = ward.snapshot(NOW + 2).of("t")[0].clone();
            assert_eq!(patient.latest[0].value, 62.0);
            assert_eq!(patient.last_seen_us, NOW + 2);
            assert_eq!(
                patient.active_alerts, 0,
                "a late transition must not reopen an alert"
            );
        }
    }

    #[test]
    fn a_tenant_sees_its_own_only_and_strangers_are_seen_by_nobody() {
        let mut ward = ward(&["a"]);
        ward.on_register(&[entry("z", "other")], &[]);
        assert!(!ward.on_sample(&sample("stranger", Metric::HeartRate, 60.0, NOW)));
        assert_eq!(order(&ward, NOW), ["a"]);
        assert_eq!(ward.snapshot(NOW).of("other").len(), 1);
        assert!(ward.snapshot(NOW).of("nobody").is_empty());
        ward.on_register(&[entry("stranger", "t")], &[]);
        assert_eq!(order(&ward, NOW), ["a", "stranger"]);
    }

    #[test]
    fn one_tenants_many_patients_push_out_no_others() {
        let mut ward = ward(&[]);
        ward.on_register(&[entry("quiet", "small")], &[]);
        let many: Vec<_> = (0..PATIENTS_MAX + 10)
            .map(|n| entry(&format!("p{n}"), "large"))
            .collect();
        for entry in &many {
            ward.on_sample(&sample(&entry.id, Metric::HeartRate, 60.0, NOW));
            ward.on_register(std::slice::from_ref(entry), &[]);
        }
        assert_eq!(ward.snapshot(NOW).of("small").len(), 1);
        assert_eq!(ward.patients.len(), PATIENTS_MAX);
    }

    #[test]
    fn tables_are_bounded() {
        let mut ward = Ward::new(RuleSet::default_set());
        for n in 0..PATIENTS_MAX + 10 {
            ward.on_sample(&sample(
                &format!("p{n}"),
                Metric::HeartRate,
                60.0,
                NOW + n as i64,
            ));
        }
        assert_eq!(ward.patients.len(), PATIENTS_MAX);
        assert!(
            !ward.patients.contains_key("p0"),
            "the one not seen for longest left"
        );
        for n in 0..OPEN_ALERTS_MAX + 10 {
            ward.on_alert(&alert(
                "p100",
                &format!("a{n}"),
                Priority::Low,
                AlertState::Active,
                1,
            ));
        }
        assert_eq!(ward.patients["p100"].open.len(), OPEN_ALERTS_MAX);
    }
}
