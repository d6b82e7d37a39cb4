//! Silences of one round, by level, with the last sign of life and the probable cause.

use std::collections::{BTreeMap, BTreeSet};

use calendar::duration_text;
use contracts::vitals::{Metric, Priority};
use vitals::silence::{self, DEVICE, GATEWAY, PATH, PIPELINE, SIGNAL};

use super::{
    known::{Known, Report},
    lost_path::{Paths, is_lost},
    worn::Arrival,
};
use crate::signs_of_life::Sign;

/// Lost paths that a summary names. The rest is counted.
const PATHS_NAMED_MAX: usize = 4;
/// A device that fell silent below this charge, in percent, has an empty battery.
const BATTERY_LOW: f64 = 10.0;
/// A gateway without a report for a day does not report its paths, so its devices decide.
const REPORTS_US: i64 = 86_400_000_000;
/// Reports of paths that go on for this long after the last reading show that gateways are
/// connected.
const REPORTS_OUTLAST_US: i64 = 30_000_000;

#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub rule: &'static str,
    pub priority: Priority,
    pub patient: String,
    pub device: String,
    pub gateway: String,
    pub metric: Metric,
    /// Last sign of life.
    pub since_us: i64,
    pub readings: Sign,
    pub reports: Sign,
    pub summary: String,
}

impl Finding {
    fn of(rule: &'static str, priority: Priority) -> Finding {
        Finding {
            rule,
            priority,
            patient: String::new(),
            device: String::new(),
            gateway: String::new(),
            metric: Metric::default(),
            since_us: 0,
            readings: Sign::NONE,
            reports: Sign::NONE,
            summary: String::new(),
        }
    }
}

pub(super) struct Device<'a> {
    gateway: &'a str,
    pub patients: BTreeSet<&'a str>,
    /// Its newest reading.
    pub sign: Sign,
    /// The same by metric.
    pub signals: BTreeMap<i32, Sign>,
    /// The newest reading, or the beginning of the assignment.
    since_us: i64,
    /// Longest pause between readings before the device is silent.
    pause_us: i64,
    battery: Option<f64>,
}

impl Device<'_> {
    fn is_silent(&self, now_us: i64) -> bool {
        now_us.saturating_sub(self.since_us) > self.pause_us
    }
}

pub(super) fn devices<'a>(known: &Known<'a>) -> BTreeMap<&'a str, Device<'a>> {
    let mut devices: BTreeMap<&str, Device<'_>> = BTreeMap::new();
    for latest in known.latest {
        let device = devices.entry(&latest.device).or_insert_with(|| Device {
            gateway: &latest.gateway,
            patients: BTreeSet::new(),
            sign: Sign::NONE,
            signals: BTreeMap::new(),
            since_us: i64::MIN,
            pause_us: i64::MAX,
            battery: None,
        });
        let stale_us = known.rules.stale_after_us(latest.metric);
        let pause_us = if silence::is_worn(stale_us) || latest.is_unheard() {
            known.silent_after_us
        } else {
            stale_us.max(known.silent_after_us)
        };
        device.pause_us = device.pause_us.min(pause_us);
        device.sign = device.sign.or(latest.sign);
        let signal = device.signals.entry(latest.metric.into());
        let signal = signal.or_insert(Sign::NONE);
        *signal = signal.or(latest.sign);
        device.since_us = device.since_us.max(latest.since_us());
        device.patients.insert(&latest.patient);
        if latest.metric == Metric::Battery {
            device.battery = Some(latest.value);
        }
    }
    devices
}

pub(super) fn findings<'a>(
    known: &Known<'a>,
    devices: &BTreeMap<&'a str, Device<'a>>,
    gateways: &Gateways<'a>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let pipeline = silent_pipeline(known, devices, gateways);
    let is_certain = matches!(pipeline, Some((_, true)));
    findings.extend(pipeline.map(|(finding, _)| finding));
    findings.extend(silent_gateways(known, gateways));
    findings.extend(silent_devices(known, devices, gateways, is_certain));
    if !is_certain {
        findings.extend(silent_signals(known, devices));
    }
    let paths = gateways.reports.keys();
    findings.extend(paths.filter_map(|gateway| lost_path(known, gateways, gateway)));
    findings
}

/// Signs of life by gateway.
pub(super) struct Gateways<'a> {
    /// When any of its devices was last received, or assigned to it.
    heard: BTreeMap<&'a str, i64>,
    /// Gateways of which no device is heard.
    quiet: BTreeSet<&'a str>,
    /// The newest reading that it delivered.
    delivered: BTreeMap<&'a str, Sign>,
    reports: BTreeMap<&'a str, Vec<&'a Report>>,
}

impl<'a> Gateways<'a> {
    pub(super) fn of(known: &Known<'a>, devices: &BTreeMap<&'a str, Device<'a>>) -> Gateways<'a> {
        let mut heard: BTreeMap<&str, i64> = BTreeMap::new();
        for device in devices.values() {
            let newest = heard.entry(device.gateway).or_insert(i64::MIN);
            *newest = (*newest).max(device.since_us);
        }
        let mut quiet: BTreeSet<&str> = heard.keys().copied().collect();
        for device in devices.values() {
            if !device.is_silent(known.now_us) {
                quiet.remove(device.gateway);
            }
        }
        let mut delivered: BTreeMap<&str, Sign> = BTreeMap::new();
        for arrival in known.latest {
            let sign = delivered.entry(&arrival.via).or_insert(Sign::NONE);
            *sign = sign.or(arrival.sign);
        }
        let mut reports: BTreeMap<&str, Vec<&Report>> = BTreeMap::new();
        for report in known.reports {
            let of_gateway = reports.entry(&report.report.gateway).or_default();
            of_gateway.push(report);
        }
        Gateways {
            heard,
            quiet,
            delivered,
            reports,
        }
    }

    /// The newest reading of all.
    pub(super) fn anything(&self) -> Sign {
        let signs = self.delivered.values().copied();
        signs.reduce(Sign::or).unwrap_or(Sign::NONE)
    }

    pub(super) fn delivered(&self, gateway: &str) -> Sign {
        self.delivered.get(gateway).copied().unwrap_or(Sign::NONE)
    }

    /// When one of its paths was last well.
    pub(super) fn reported(&self, gateway: &str) -> Sign {
        let reports = self.reports.get(gateway).into_iter().flatten();
        let well = reports.filter(|report| !is_lost(&report.report));
        well.fold(Sign::NONE, |sign, report| sign.or(report.sign))
    }

    pub(super) fn paths_of(&self, known: &Known<'_>, gateway: &str) -> Option<Paths<'a>> {
        Paths::new(self.reports.get(gateway)?, known.silent_after_us)
    }

    /// The last sign of life if the gateway is silent. A gateway that reports paths is silent once
    /// it reports none. Any other is silent once all its devices are.
    fn gone_since(&self, gateway: &str, known: &Known<'_>) -> Option<i64> {
        let heard_us = self.heard.get(gateway).copied().unwrap_or(i64::MIN);
        let last_us = heard_us.max(self.reported(gateway).at_us);
        let is_recent = |report: &&Report| known.age_us(report.sign.at_us) <= REPORTS_US;
        let mut reports = self.reports.get(gateway).into_iter().flatten().copied();
        let is_gone = known.is_old(last_us)
            && (reports.any(|report| is_recent(&report)) || self.quiet.contains(gateway));
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
    let readings = devices.values().map(|device| device.sign);
    let readings = readings.reduce(Sign::or)?;
    let newest_us = readings.at_us;
    let silent = || devices.values().filter(|it| it.is_silent(known.now_us));
    let last_us = silent().map(|device| device.since_us).max()?;
    let at_once: BTreeSet<&str> = silent()
        .filter(|device| last_us.saturating_sub(device.since_us) <= known.silent_after_us)
        .map(|device| device.gateway)
        .collect();
    let is_certain = at_once.len() > 1;
    let reports = |gateway: &&str| !known.is_old(gateways.reported(gateway).at_us);
    let is_nothing_heard = newest_us > i64::MIN && known.is_old(newest_us);
    if !is_nothing_heard || !(is_certain || at_once.iter().any(reports)) {
        return None;
    }
    // A cause is stated only with its evidence: reports of paths came through the proxy and the bus
    // after the readings had ended.
    let outlasts = |gateway: &&str| {
        let reported_us = gateways.reported(gateway).at_us;
        reported_us.saturating_sub(newest_us) > REPORTS_OUTLAST_US
    };
    let is_connected = gateways.heard.keys().any(outlasts);
    let cause = match (is_connected, is_certain) {
        (true, true) => "the core (ingest, bus or store): gateways still report their paths",
        (true, false) => "the core (ingest, bus or store) or the devices",
        (false, _) => "unknown: network, proxy or core",
    };
    let summary = format!(
        "Nothing from any of {} gateways for {}: no patient is monitored; the cause is {cause}",
        gateways.heard.len(),
        duration_text(known.age_us(newest_us)),
    );
    let finding = Finding {
        since_us: newest_us,
        readings,
        summary,
        ..Finding::of(PIPELINE, Priority::Medium)
    };
    Some((finding, is_certain))
}

fn silent_gateways(known: &Known<'_>, gateways: &Gateways<'_>) -> Vec<Finding> {
    let of_gateway = |gateway: &str| {
        let since_us = gateways.gone_since(gateway, known)?;
        let reports = gateways.reports.get(gateway).into_iter().flatten();
        let lost = reports.filter(|report| is_lost(&report.report));
        let lost: Vec<&str> = lost.map(|report| report.report.path.as_str()).collect();
        let cause = if lost.is_empty() {
            "the cause is the gateway itself (power, or gone)".to_owned()
        } else {
            format!("the cause is the path: {} lost before", unique(&lost))
        };
        Some(Finding {
            gateway: gateway.to_owned(),
            since_us,
            readings: gateways.delivered(gateway),
            reports: gateways.reported(gateway),
            summary: format!(
                "Gateway {gateway} is silent for {}; {cause}",
                duration_text(known.age_us(since_us))
            ),
            ..Finding::of(GATEWAY, Priority::Medium)
        })
    };
    let all = gateways.heard.keys();
    all.filter_map(|gateway| of_gateway(gateway)).collect()
}

/// `is_pipeline`: the devices behind a silent gateway wait, because the gateway's alert has them.
fn silent_devices(
    known: &Known<'_>,
    devices: &BTreeMap<&str, Device<'_>>,
    gateways: &Gateways<'_>,
    is_pipeline: bool,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (id, device) in devices {
        if !device.is_silent(known.now_us) {
            continue;
        }
        let gateway = gateways.gone_since(device.gateway, known);
        if is_pipeline && gateway.is_some() {
            continue;
        }
        let cause = match device.battery {
            _ if gateway.is_some() => "the cause is the path or the gateway".to_owned(),
            Some(charge) if charge <= BATTERY_LOW => {
                format!("the cause is the device: its battery was at {charge} %")
            }
            _ => "the cause is the device (off, out of reach of its gateway, or broken)".to_owned(),
        };
        let age = duration_text(known.age_us(device.since_us));
        let summary = if device.sign == Sign::NONE {
            format!("Device {id} has sent nothing since it was assigned {age} ago; {cause}")
        } else {
            format!("Device {id} is silent for {age}; {cause}")
        };
        let of_patient = |patient: &&str| Finding {
            patient: (*patient).to_owned(),
            device: (*id).to_owned(),
            gateway: device.gateway.to_owned(),
            since_us: device.since_us,
            readings: device.sign,
            summary: summary.clone(),
            ..Finding::of(DEVICE, Priority::Medium)
        };
        findings.extend(device.patients.iter().map(of_patient));
    }
    findings
}

fn silent_signals(known: &Known<'_>, devices: &BTreeMap<&str, Device<'_>>) -> Vec<Finding> {
    let of_signal = |latest: &Arrival| {
        let device = devices.get(latest.device.as_str())?;
        let age_us = known.age_us(latest.since_us());
        let stale_us = known.rules.stale_after_us(latest.metric);
        let is_missing = age_us > stale_us || known.signals.is_overdue(latest, stale_us);
        let is_stale = silence::is_worn(stale_us) && is_missing && !latest.is_unheard();
        let is_silent = is_stale && !device.is_silent(known.now_us);
        is_silent.then(|| Finding {
            patient: latest.patient.clone(),
            device: latest.device.clone(),
            gateway: latest.gateway.clone(),
            metric: latest.metric,
            since_us: latest.since_us(),
            readings: latest.sign,
            summary: format!(
                "No {} from {} for {} while it sends other readings; the cause is the person: the sensor is off or moved",
                vitals::name(latest.metric),
                latest.device,
                duration_text(age_us)
            ),
            ..Finding::of(SIGNAL, Priority::Low)
        })
    };
    known.latest.iter().filter_map(of_signal).collect()
}

/// A gateway that still reports one path and has lost another for `silent_after`.
fn lost_path(known: &Known<'_>, gateways: &Gateways<'_>, gateway: &str) -> Option<Finding> {
    let paths = gateways.paths_of(known, gateway)?;
    if known.is_old(paths.latest_us()) || !paths.is_one_well() {
        return None;
    }
    let lost: Vec<&Report> = paths
        .lost()
        .filter(|report| known.is_old(report.sign.at_us))
        .collect();
    let first_us = lost.iter().map(|report| report.sign.at_us).min()?;
    let names: Vec<&str> = lost.iter().map(|it| it.report.path.as_str()).collect();
    Some(Finding {
        gateway: gateway.to_owned(),
        since_us: first_us,
        summary: format!(
            "Gateway {gateway} has lost {} for {} and continues over the others; the cause is the path",
            unique(&names),
            duration_text(known.age_us(first_us))
        ),
        ..Finding::of(PATH, Priority::Low)
    })
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
