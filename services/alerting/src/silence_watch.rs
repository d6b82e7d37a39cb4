//! Watches for silence at four levels and for lost paths. Sans-IO: what the store knows and time in, transitions out.
//!
//! | level | silent when | cause |
//! |---|---|---|
//! | signal | a worn sensor's metric is older than the rules' `stale_after_s`, and its device sends others | the person: the sensor is off or moved |
//! | device | nothing of it for `silent_after`, or, when nothing it measures is worn, for the rules' `stale_after_s` | the device; its battery when that was low; what is wider when that is silent, too |
//! | gateway | nothing of any of its devices, and no report of its paths | the path when a path was lost before, else the gateway |
//! | pipeline | nothing of anybody, while paths report or several gateways fell silent at once | the core |
//!
//! A metric counts as worn when the rules call it stale within [`WORN_STALE_US`]: a cuff used twice a day is not silent at noon.
//! By the clock of arrival. What a wider level explains is raised all the same, and routing keeps people from being told twice;
//! only a silent pipeline stops the judging of everything below it, because nothing is known then. An episode's id follows from
//! the last sign of life, so every member comes to the same one and the first to write it has it.

use std::collections::{BTreeMap, BTreeSet};

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

/// What was not heard of for a day was put away by somebody; an open alert of it stays until it is heard again.
const FORGOTTEN_US: i64 = 86_400_000_000;
/// Alerts raised in one round; more come in the next.
const RAISED_MAX: usize = 256;
/// Metrics that are stale this soon come from sensors that are worn and never pause.
const WORN_STALE_US: i64 = 600_000_000;
/// A device that fell silent below this charge, in percent, is empty.
const BATTERY_LOW: f64 = 10.0;
const SECOND_US: i64 = 1_000_000;

/// What one round knows.
pub(crate) struct Known<'a> {
    pub latest: &'a [LatestVital],
    pub reports: &'a [PathReport],
    /// Open alerts of every rule.
    pub open: &'a [Alert],
    /// Ids of silences that are raised although they are not among these.
    pub told: &'a BTreeSet<String>,
    /// How old a metric may be.
    pub rules: &'a RuleSet,
    pub silent_after_us: i64,
    pub now_us: i64,
}

/// What an open alert is recognised by.
type Key = (String, String, String, String, i32);

#[derive(Clone, Debug)]
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
    /// How long it may say nothing.
    pause_us: i64,
    battery: Option<f64>,
}

impl Device<'_> {
    fn is_silent(&self, now_us: i64) -> bool {
        now_us - self.heard_us > self.pause_us
    }
}

/// The transitions of this round.
pub(crate) fn assess(known: &Known<'_>) -> Vec<Alert> {
    let devices = devices(known);
    let findings = findings(known, &devices);
    let open: BTreeMap<Key, &Alert> = known
        .open
        .iter()
        .filter(|alert| silence::ALL.contains(&alert.rule.as_str()))
        .map(|alert| (key_of(alert), alert))
        .collect();
    let pipeline_is_silent = findings.iter().any(|finding| finding.rule == PIPELINE);
    let mut wanted = BTreeSet::new();
    let mut transitions = Vec::new();
    for finding in findings {
        let alert = raised(&finding, known.now_us);
        let key = key_of(&alert);
        let is_new = !open.contains_key(&key) && !known.told.contains(&alert.id);
        wanted.insert(key);
        if is_new && transitions.len() < RAISED_MAX {
            transitions.push(alert);
        }
    }
    if pipeline_is_silent {
        return transitions;
    }
    let knows_gateway = |id: &str| devices.values().any(|device| device.gateway == id);
    for (key, alert) in open {
        let is_forgotten = match alert.rule.as_str() {
            SIGNAL | DEVICE => !devices.contains_key(alert.device.as_str()),
            GATEWAY => !knows_gateway(&alert.gateway),
            _ => false,
        };
        if !wanted.contains(&key) && !is_forgotten {
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
        let pause_us = if stale_us <= WORN_STALE_US {
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

fn findings(known: &Known<'_>, devices: &BTreeMap<&str, Device<'_>>) -> Vec<Finding> {
    let is_old = |time_us: i64| known.now_us - time_us > known.silent_after_us;
    let mut findings = Vec::new();
    // By gateway: when any of its devices was heard, and when one of its paths.
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
    let reported = |gateway: &str| {
        paths
            .get(gateway)
            .and_then(|reports| {
                reports
                    .iter()
                    .filter(|report| !is_lost(report))
                    .map(|report| report.time_us)
                    .max()
            })
            .unwrap_or_default()
    };
    let everybody_is_silent = devices
        .values()
        .all(|device| device.is_silent(known.now_us));
    if let Some(newest_us) = heard.values().copied().max()
        && everybody_is_silent
    {
        let paths_report = heard.keys().any(|gateway| !is_old(reported(gateway)));
        if paths_report || heard.len() > 1 {
            findings.push(Finding {
                rule: PIPELINE,
                priority: Priority::Medium,
                patient: String::new(),
                device: String::new(),
                gateway: String::new(),
                metric: Metric::Unspecified,
                since_us: newest_us,
                summary: format!(
                    "Nothing from any of {} gateways for {}: nobody is watched; the cause is the core (ingest, bus or store)",
                    heard.len(),
                    lasting(known.now_us - newest_us)
                ),
            });
            return findings;
        }
    }
    // One that reports paths is gone as soon as it reports none; of any other its devices must tell.
    let is_gone = |gateway: &str, heard_us: i64| {
        is_old(heard_us)
            && is_old(reported(gateway))
            && (paths.contains_key(gateway)
                || devices
                    .values()
                    .filter(|device| device.gateway == gateway)
                    .all(|device| device.is_silent(known.now_us)))
    };
    for (gateway, heard_us) in &heard {
        if is_gone(gateway, *heard_us) {
            let last_paths = paths.get(gateway).map(Vec::as_slice).unwrap_or_default();
            let lost: Vec<&str> = last_paths
                .iter()
                .filter(|report| is_lost(report))
                .map(|report| report.path.as_str())
                .collect();
            let cause = if lost.is_empty() {
                "the cause is the gateway itself (power, or gone)".to_owned()
            } else {
                format!("the cause is the path: {} lost before", unique(&lost))
            };
            findings.push(Finding {
                rule: GATEWAY,
                priority: Priority::Medium,
                patient: String::new(),
                device: String::new(),
                gateway: (*gateway).to_owned(),
                metric: Metric::Unspecified,
                since_us: reported(gateway).max(*heard_us),
                summary: format!(
                    "Gateway {gateway} is silent for {}; {cause}",
                    lasting(known.now_us - reported(gateway).max(*heard_us))
                ),
            });
        }
    }
    for (id, device) in devices {
        if device.is_silent(known.now_us) {
            let gateway_is_silent = is_gone(
                device.gateway,
                heard.get(device.gateway).copied().unwrap_or_default(),
            );
            let cause = match device.battery {
                _ if gateway_is_silent => "the cause is the path or the gateway".to_owned(),
                Some(charge) if charge <= BATTERY_LOW => {
                    format!("the cause is the device: its battery was at {charge} %")
                }
                _ => "the cause is the device (off, out of reach of its gateway, or broken)"
                    .to_owned(),
            };
            for patient in &device.patients {
                findings.push(Finding {
                    rule: DEVICE,
                    priority: Priority::Medium,
                    patient: (*patient).to_owned(),
                    device: (*id).to_owned(),
                    gateway: device.gateway.to_owned(),
                    metric: Metric::Unspecified,
                    since_us: device.heard_us,
                    summary: format!(
                        "Device {id} is silent for {}; {cause}",
                        lasting(known.now_us - device.heard_us)
                    ),
                });
            }
        }
    }
    for latest in known.latest {
        let Some(device) = devices.get(latest.device.as_str()) else {
            continue;
        };
        let age_us = known.now_us - latest.ingest_time_us;
        let stale_us = known.rules.stale_after_us(latest.metric);
        let is_stale = stale_us <= WORN_STALE_US && age_us > stale_us && age_us <= FORGOTTEN_US;
        if is_stale && !device.is_silent(known.now_us) {
            findings.push(Finding {
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
                    lasting(age_us)
                ),
            });
        }
    }
    for (gateway, reports) in &paths {
        findings.extend(lost_path(known, gateway, reports));
    }
    findings
}

/// A gateway that still reports one path and has lost another for `silent_after`.
fn lost_path(known: &Known<'_>, gateway: &str, reports: &[&PathReport]) -> Option<Finding> {
    // Each path by the newest report of either end, and since when it was last well.
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
    if known.now_us - latest_us > known.silent_after_us
        || !newest.values().any(|report| is_well(report))
    {
        return None;
    }
    let lost: Vec<&&PathReport> = newest
        .values()
        .filter(|report| !is_well(report) && known.now_us - report.time_us > known.silent_after_us)
        .collect();
    let first_us = lost.iter().map(|report| report.time_us).min()?;
    let names: Vec<&str> = lost.iter().map(|report| report.path.as_str()).collect();
    Some(Finding {
        rule: PATH,
        priority: Priority::Low,
        patient: String::new(),
        device: String::new(),
        gateway: gateway.to_owned(),
        metric: Metric::Unspecified,
        since_us: first_us,
        summary: format!(
            "Gateway {gateway} has lost {} for {} and goes on over what is left; the cause is the path",
            unique(&names),
            lasting(known.now_us - first_us)
        ),
    })
}

fn is_lost(report: &PathReport) -> bool {
    matches!(report.state(), PathState::Suspect | PathState::Closed)
}

fn unique(names: &[&str]) -> String {
    let names: BTreeSet<&str> = names.iter().copied().collect();
    names.into_iter().collect::<Vec<_>>().join(", ")
}

fn lasting(us: i64) -> String {
    match us / SECOND_US {
        seconds @ ..600 => format!("{seconds} s"),
        seconds => format!("{} min", seconds / 60),
    }
}

fn key_of(alert: &Alert) -> Key {
    // A device that moves to another gateway, or is heard by one again, is the same device.
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
