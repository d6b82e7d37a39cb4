//! Watches for silence at four levels and for lost paths. Sans-IO: takes the contents of the store
//! and time; returns transitions.
//!
//! | level | silent when | cause |
//! |---|---|---|
//! | signal | a worn sensor's metric is older than the rules' `stale_after_s`, and its device sends others | the patient: the sensor is off or moved |
//! | device | no reading for `silent_after`, or, when no metric of it is worn, for the rules' `stale_after_s` | the device, its battery when that was low, or a wider level that is silent too |
//! | gateway | no reading of any of its devices, and no report of its paths | the path when a path was lost before, else the gateway |
//! | pipeline | no reading of any device, and several gateways fell silent at once, or one whose paths still report | the core |
//!
//! A metric counts as worn if the rules call it stale within ten minutes. A cuff used twice a day
//! is not silent at noon.
//! Readings are attributed to the patient who wears the sensor at present (`worn.rs`). A silence
//! ends when the register says that its sensor changed hands. All ages use the arrival clock. An
//! alert that a wider level explains is still raised, and routing keeps people from a second
//! notice. Only a pipeline that several gateways show to be silent suspends all levels below. The
//! id of an episode follows from the last sign of life, so all members compute the same id and the
//! first to write wins.

mod worn;

use std::collections::{BTreeMap, BTreeSet};

use calendar::duration_text;
use contracts::{
    alerts::{Alert, AlertState},
    paths::{PathReport, PathState},
    vitals::{Metric, Priority},
};
use store::LatestVital;
use vitals::{
    RuleSet, episode_id,
    silence::{self, DEVICE, GATEWAY, PATH, PIPELINE, SIGNAL},
};

pub(crate) use worn::Worn;

/// A device silent for a day was put away by a person. Its open alert stays until the device sends
/// again.
const FORGOTTEN_US: i64 = 86_400_000_000;
/// Lost paths that a summary names. The rest is counted.
const PATHS_NAMED_MAX: usize = 4;
/// A device that fell silent below this charge, in percent, has an empty battery.
const BATTERY_LOW: f64 = 10.0;

/// Input of one round.
pub(crate) struct Known<'a> {
    /// Readings, attributed by `worn`.
    pub latest: &'a [LatestVital],
    pub worn: &'a Worn,
    pub reports: &'a [PathReport],
    /// Open alerts of every rule.
    pub open: &'a [Alert],
    /// Rules with the maximum age of each metric.
    pub rules: &'a RuleSet,
    pub silent_after_us: i64,
    pub now_us: i64,
}

impl Known<'_> {
    fn is_old(&self, time_us: i64) -> bool {
        self.now_us - time_us > self.silent_after_us
    }
}

/// Key by which an open alert is matched.
type Key = (String, String, String, String, i32);

#[derive(Clone, Debug, Default)]
struct Finding {
    rule: &'static str,
    priority: Priority,
    patient: String,
    device: String,
    gateway: String,
    metric: Metric,
    /// Last sign of life.
    since_us: i64,
    summary: String,
}

struct Device<'a> {
    gateway: &'a str,
    patients: BTreeSet<&'a str>,
    heard_us: i64,
    /// Longest pause between readings before the device is silent.
    pause_us: i64,
    battery: Option<f64>,
}

impl Device<'_> {
    fn is_silent(&self, now_us: i64) -> bool {
        now_us - self.heard_us > self.pause_us
    }
}

/// The transitions of this round. `told`: ids of silences that the store has but that are not among
/// the open alerts read.
pub(crate) fn assess(known: &Known<'_>, told: &BTreeSet<String>) -> Vec<Alert> {
    let devices = devices(known);
    let findings = findings(known, &devices);
    let open: BTreeMap<Key, &Alert> = known
        .open
        .iter()
        .filter(|alert| silence::ALL.contains(&alert.rule.as_str()))
        .map(|alert| (key_of(alert), alert))
        .collect();
    let nothing_is_known = matches!(findings.as_slice(), [only] if only.rule == PIPELINE);
    let mut wanted = BTreeSet::new();
    let mut transitions = Vec::new();
    for finding in findings {
        let alert = raised(&finding, known.now_us);
        let key = key_of(&alert);
        let is_new = !open.contains_key(&key) && !told.contains(&alert.id);
        wanted.insert(key);
        if is_new {
            transitions.push(alert);
        }
    }
    if nothing_is_known {
        return transitions;
    }
    let knows_gateway = |id: &str| devices.values().any(|device| device.gateway == id);
    for (key, alert) in open {
        let is_forgotten = match alert.rule.as_str() {
            SIGNAL | DEVICE => !devices.contains_key(alert.device.as_str()),
            GATEWAY => !knows_gateway(&alert.gateway),
            _ => false,
        };
        if !wanted.contains(&key) && (!is_forgotten || known.worn.has_ended(alert)) {
            transitions.push(ended(alert, known.now_us));
        }
    }
    transitions
}

fn devices<'a>(known: &Known<'a>) -> BTreeMap<&'a str, Device<'a>> {
    let mut devices: BTreeMap<&str, Device<'_>> = BTreeMap::new();
    for latest in known.latest {
        if known.now_us - latest.ingest_time_us > FORGOTTEN_US {
            continue;
        }
        let device = devices.entry(&latest.device).or_insert_with(|| Device {
            gateway: "",
            patients: BTreeSet::new(),
            heard_us: 0,
            pause_us: i64::MAX,
            battery: None,
        });
        let stale_us = known.rules.stale_after_us(latest.metric);
        let pause_us = if silence::is_worn(stale_us) {
            known.silent_after_us
        } else {
            stale_us.max(known.silent_after_us)
        };
        device.pause_us = device.pause_us.min(pause_us);
        if latest.ingest_time_us >= device.heard_us {
            device.heard_us = latest.ingest_time_us;
            device.gateway = &latest.gateway;
        }
        device.patients.insert(&latest.patient);
        if latest.metric == Metric::Battery {
            device.battery = Some(latest.value);
        }
    }
    devices
}

fn findings<'a>(known: &Known<'a>, devices: &BTreeMap<&'a str, Device<'a>>) -> Vec<Finding> {
    let gateways = Gateways::of(known, devices);
    let mut findings = Vec::new();
    if let Some((pipeline, is_certain)) = silent_pipeline(known, devices, &gateways) {
        findings.push(pipeline);
        if is_certain {
            return findings;
        }
    }
    findings.extend(silent_gateways(known, devices, &gateways));
    findings.extend(silent_devices(known, devices, &gateways));
    findings.extend(silent_signals(known, devices));
    let paths = gateways.paths.iter();
    findings.extend(paths.filter_map(|(gateway, reports)| lost_path(known, gateway, reports)));
    findings
}

/// Signs of life by gateway.
struct Gateways<'a> {
    /// When any of its devices was last received.
    heard: BTreeMap<&'a str, i64>,
    paths: BTreeMap<&'a str, Vec<&'a PathReport>>,
}

impl<'a> Gateways<'a> {
    fn of(known: &Known<'a>, devices: &BTreeMap<&'a str, Device<'a>>) -> Gateways<'a> {
        let mut heard: BTreeMap<&str, i64> = BTreeMap::new();
        for device in devices.values() {
            let newest = heard.entry(device.gateway).or_default();
            *newest = (*newest).max(device.heard_us);
        }
        let mut paths: BTreeMap<&str, Vec<&PathReport>> = BTreeMap::new();
        for report in known.reports {
            if known.now_us - report.time_us <= FORGOTTEN_US {
                paths.entry(&report.gateway).or_default().push(report);
            }
        }
        Gateways { heard, paths }
    }

    /// When one of its paths was last well.
    fn reported(&self, gateway: &str) -> i64 {
        let reports = self.paths.get(gateway).into_iter().flatten();
        let well = reports.filter(|report| !is_lost(report));
        well.map(|report| report.time_us).max().unwrap_or_default()
    }

    /// The last sign of life if the gateway is silent. A gateway that reports paths is silent once
    /// it reports none. Any other is silent once all its devices are.
    fn gone_since(
        &self,
        gateway: &str,
        known: &Known<'_>,
        devices: &BTreeMap<&str, Device<'_>>,
    ) -> Option<i64> {
        let heard_us = self.heard.get(gateway).copied().unwrap_or_default();
        let last_us = heard_us.max(self.reported(gateway));
        let mut own = devices.values().filter(|device| device.gateway == gateway);
        let is_gone = known.is_old(last_us)
            && (self.paths.contains_key(gateway)
                || own.all(|device| device.is_silent(known.now_us)));
        is_gone.then_some(last_us)
    }
}

/// The pipeline, if no device is heard and several gateways fell silent at once; this is certain.
/// With a single gateway that reports its paths, its devices may be the cause, so both are raised.
/// Gateways that fell silent earlier had other causes.
fn silent_pipeline(
    known: &Known<'_>,
    devices: &BTreeMap<&str, Device<'_>>,
    gateways: &Gateways<'_>,
) -> Option<(Finding, bool)> {
    let newest_us = *gateways.heard.values().max()?;
    let silent = || devices.values().filter(|it| it.is_silent(known.now_us));
    let last_us = silent().map(|device| device.heard_us).max()?;
    let at_once: BTreeSet<&str> = silent()
        .filter(|device| last_us - device.heard_us <= known.silent_after_us)
        .map(|device| device.gateway)
        .collect();
    let is_certain = at_once.len() > 1;
    let reports = |gateway: &&str| !known.is_old(gateways.reported(gateway));
    if !known.is_old(newest_us) || !(is_certain || at_once.iter().any(reports)) {
        return None;
    }
    let summary = format!(
        "Nothing from any of {} gateways for {}: no patient is monitored; the cause is the core (ingest, bus or store){}",
        gateways.heard.len(),
        duration_text(known.now_us - newest_us),
        if is_certain { "" } else { " or the devices" },
    );
    let finding = Finding {
        rule: PIPELINE,
        priority: Priority::Medium,
        since_us: newest_us,
        summary,
        ..Finding::default()
    };
    Some((finding, is_certain))
}

fn silent_gateways(
    known: &Known<'_>,
    devices: &BTreeMap<&str, Device<'_>>,
    gateways: &Gateways<'_>,
) -> Vec<Finding> {
    let of_gateway = |gateway: &str| {
        let since_us = gateways.gone_since(gateway, known, devices)?;
        let reports = gateways.paths.get(gateway).into_iter().flatten();
        let lost = reports.filter(|report| is_lost(report));
        let lost: Vec<&str> = lost.map(|report| report.path.as_str()).collect();
        let cause = if lost.is_empty() {
            "the cause is the gateway itself (power, or gone)".to_owned()
        } else {
            format!("the cause is the path: {} lost before", unique(&lost))
        };
        Some(Finding {
            rule: GATEWAY,
            priority: Priority::Medium,
            gateway: gateway.to_owned(),
            since_us,
            summary: format!(
                "Gateway {gateway} is silent for {}; {cause}",
                duration_text(known.now_us - since_us)
            ),
            ..Finding::default()
        })
    };
    let all = gateways.heard.keys();
    all.filter_map(|gateway| of_gateway(gateway)).collect()
}

fn silent_devices(
    known: &Known<'_>,
    devices: &BTreeMap<&str, Device<'_>>,
    gateways: &Gateways<'_>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (id, device) in devices {
        if !device.is_silent(known.now_us) {
            continue;
        }
        let gateway = gateways.gone_since(device.gateway, known, devices);
        let cause = match device.battery {
            _ if gateway.is_some() => "the cause is the path or the gateway".to_owned(),
            Some(charge) if charge <= BATTERY_LOW => {
                format!("the cause is the device: its battery was at {charge} %")
            }
            _ => "the cause is the device (off, out of reach of its gateway, or broken)".to_owned(),
        };
        let of_patient = |patient: &&str| Finding {
            rule: DEVICE,
            priority: Priority::Medium,
            patient: (*patient).to_owned(),
            device: (*id).to_owned(),
            gateway: device.gateway.to_owned(),
            since_us: device.heard_us,
            summary: format!(
                "Device {id} is silent for {}; {cause}",
                duration_text(known.now_us - device.heard_us)
            ),
            ..Finding::default()
        };
        findings.extend(device.patients.iter().map(of_patient));
    }
    findings
}

fn silent_signals(known: &Known<'_>, devices: &BTreeMap<&str, Device<'_>>) -> Vec<Finding> {
    let of_signal = |latest: &LatestVital| {
        let device = devices.get(latest.device.as_str())?;
        let age_us = known.now_us - latest.ingest_time_us;
        let stale_us = known.rules.stale_after_us(latest.metric);
        let is_stale = silence::is_worn(stale_us) && age_us > stale_us && age_us <= FORGOTTEN_US;
        let is_silent = is_stale && !device.is_silent(known.now_us);
        is_silent.then(|| Finding {
            rule: SIGNAL,
            priority: Priority::Low,
            patient: latest.patient.clone(),
            device: latest.device.clone(),
            gateway: latest.gateway.clone(),
            metric: latest.metric,
            since_us: latest.ingest_time_us,
            summary: format!(
                "No {} from {} for {} while it sends other readings; the cause is the person: the sensor is off or moved",
                vitals::name(latest.metric),
                latest.device,
                duration_text(age_us)
            ),
        })
    };
    known.latest.iter().filter_map(of_signal).collect()
}

/// A gateway that still reports one path and has lost another for `silent_after`.
fn lost_path(known: &Known<'_>, gateway: &str, reports: &[&PathReport]) -> Option<Finding> {
    // The newest report of either end for each path.
    let mut newest: BTreeMap<&str, &PathReport> = BTreeMap::new();
    for report in reports.iter().copied() {
        let there = newest.entry(&report.path).or_insert(report);
        if report.time_us > there.time_us {
            *there = report;
        }
    }
    let latest_us = newest.values().map(|report| report.time_us).max()?;
    let is_well = |report: &PathReport| {
        !is_lost(report) && latest_us - report.time_us <= known.silent_after_us
    };
    if known.is_old(latest_us) || !newest.values().any(|report| is_well(report)) {
        return None;
    }
    let lost: Vec<&&PathReport> = newest
        .values()
        .filter(|report| !is_well(report) && known.is_old(report.time_us))
        .collect();
    let first_us = lost.iter().map(|report| report.time_us).min()?;
    let names: Vec<&str> = lost.iter().map(|report| report.path.as_str()).collect();
    Some(Finding {
        rule: PATH,
        priority: Priority::Low,
        gateway: gateway.to_owned(),
        since_us: first_us,
        summary: format!(
            "Gateway {gateway} has lost {} for {} and continues over the others; the cause is the path",
            unique(&names),
            duration_text(known.now_us - first_us)
        ),
        ..Finding::default()
    })
}

fn is_lost(report: &PathReport) -> bool {
    matches!(report.state(), PathState::Suspect | PathState::Closed)
}

fn unique(names: &[&str]) -> String {
    let names: BTreeSet<&str> = names.iter().copied().collect();
    let others = names.len().saturating_sub(PATHS_NAMED_MAX);
    let named: Vec<&str> = names.into_iter().take(PATHS_NAMED_MAX).collect();
    match others {
        0 => named.join(", "),
        others => format!("{} and {others} others", named.join(", ")),
    }
}

fn key_of(alert: &Alert) -> Key {
    // A device that moves to another gateway, or returns to one, stays the same device.
    let gateway = if alert.device.is_empty() {
        alert.gateway.clone()
    } else {
        String::new()
    };
    (
        alert.rule.clone(),
        alert.patient.clone(),
        alert.device.clone(),
        gateway,
        alert.metric,
    )
}

fn raised(finding: &Finding, now_us: i64) -> Alert {
    let subject = format!("{}/{}/{}", finding.patient, finding.device, finding.gateway);
    let rule = format!("{}/{}", finding.rule, vitals::name(finding.metric));
    Alert {
        id: episode_id(&subject, &rule, finding.since_us),
        patient: finding.patient.clone(),
        device: finding.device.clone(),
        gateway: finding.gateway.clone(),
        rule: finding.rule.to_owned(),
        metric: finding.metric.into(),
        priority: finding.priority.into(),
        state: AlertState::Active.into(),
        summary: finding.summary.clone(),
        since_us: finding.since_us,
        changed_us: now_us,
        recorded_us: now_us,
        revision: 1,
        from_core: true,
        ..Alert::default()
    }
}

fn ended(alert: &Alert, now_us: i64) -> Alert {
    Alert {
        state: AlertState::Resolved.into(),
        changed_us: now_us.max(alert.changed_us),
        recorded_us: now_us,
        revision: alert.revision + 1,
        ..alert.clone()
    }
}

#[cfg(test)]
#[path = "silence_watch_tests.rs"]
mod tests;
