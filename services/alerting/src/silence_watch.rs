//! Watches for silence at four levels and for lost paths. Sans-IO: takes the contents of the store
//! and time; returns transitions.
//!
//! | level | silent when | cause |
//! |---|---|---|
//! | signal | a worn sensor's metric is overdue by its own rhythm (three intervals, at least 30 s), at most by the rules' `stale_after_s`, and its device sends others | the patient: the sensor is off or moved |
//! | device | no reading for `silent_after`, or, when no metric of it is worn, for the rules' `stale_after_s` | the device, its battery when that was low, or a wider level that is silent too |
//! | gateway | no reading of any of its devices, and no report of its paths | the path when a path was lost before, else the gateway |
//! | pipeline | no reading of any device, and several gateways fell silent at once, or one whose paths still report | the core while paths still report, else unknown: network, proxy or core |
//!
//! A metric counts as worn if the rules call it stale within ten minutes. A cuff used twice a day
//! is not silent at noon. A sensor that was assigned and never sent is silent one `silent_after`
//! after the assignment began.
//! Readings are attributed to the patient who wears the sensor at present (`worn.rs`). All ages use
//! the arrival clock. An alert that a wider level explains is still raised, and routing keeps
//! people from a second notice. While the pipeline is silent each silent gateway has its alert. So
//! has each device whose gateway is heard; the devices behind a silent gateway wait.
//!
//! A silence survives its observer. The store has each open one with its evidence: the newest
//! arrivals when it began. It ends only by
//! - a reading (of a gateway also a report of a path that is well) that came after the evidence,
//! - the end of the assignment, as the register has it, or
//! - a person.
//!
//! No clock, age, restart or other member ends it. A subject that was heard between and is silent
//! again gets a new episode with an id of its own. The store keeps one open silence of a subject,
//! so of two members that find the same, the first to write wins.

mod findings;
mod from_store;
mod known;
mod lost_path;
mod signals;
mod worn;

use std::collections::{BTreeMap, BTreeSet};

use contracts::alerts::{Alert, AlertState};
use store::{Silent, SilentBatch};
use vitals::{
    episode_id,
    silence::{DEVICE, GATEWAY, PATH, PIPELINE, SIGNAL},
};

use crate::signs_of_life::Sign;
use findings::{Device, Finding, Gateways, devices, findings};

pub(crate) use from_store::{SilenceWatch, run};
pub(crate) use known::{Known, Open, Report};
pub(crate) use signals::Signals;
pub(crate) use worn::{Arrival, Worn, has_ended};

/// Between the parts of a subject. No identifier contains it.
const SEPARATOR: &str = "\u{1f}";

/// The silences that begin and end in this round.
pub(crate) fn assess(known: &Known<'_>) -> SilentBatch {
    let devices = devices(known);
    let gateways = Gateways::of(known, &devices);
    let open: BTreeMap<String, &Open> = known
        .open
        .iter()
        .map(|open| (subject_of(&open.silent.alert), open))
        .collect();
    let mut wanted = BTreeSet::new();
    let mut batch = SilentBatch::default();
    for finding in findings(known, &devices, &gateways) {
        let silent = begun(&finding, known.now_us);
        match open.get(&silent.subject) {
            None => batch.begun.push(silent.clone()),
            Some(open) if is_another(known, &finding, open) => {
                batch.ended.push(ended(&open.silent.alert, known.now_us));
                batch.begun.push(silent.clone());
            }
            Some(_) => {}
        }
        wanted.insert(silent.subject);
    }
    for (subject, open) in open {
        let is_over = || open.has_ended && !reports_paths(known, &gateways, &open.silent.alert);
        let is_heard = || has_life(known, &devices, &gateways, open);
        if !wanted.contains(&subject) && (is_over() || is_heard()) {
            batch.ended.push(ended(&open.silent.alert, known.now_us));
        }
    }
    batch
}

/// Whether the subject was heard after the silence began, and is silent for another full interval.
/// While readings still come, late as they are, it is the same silence.
fn is_another(known: &Known<'_>, finding: &Finding, open: &Open) -> bool {
    let heard = is_heard(known, open, finding.readings)
        || finding.rule == GATEWAY
            && (finding.reports).is_after(open.silent.report_us, open.known_us);
    let seen_us = finding.readings.seen_us.max(finding.reports.seen_us);
    let is_later = finding.since_us > open.silent.alert.since_us + known.silent_after_us / 2;
    heard && is_later && known.monotonic_us.saturating_sub(seen_us) >= known.silent_after_us
}

/// Whether the alert is about paths of a gateway that still reports them, assigned or not.
fn reports_paths(known: &Known<'_>, gateways: &Gateways<'_>, alert: &Alert) -> bool {
    let paths = || gateways.paths_of(known, &alert.gateway);
    alert.rule == PATH && paths().is_some_and(|paths| !known.is_old(paths.latest_us()))
}

/// Whether this reading came after the silence began. The store may be late. So a reading
/// of about that time is no sign of life if it is as old as a silence.
fn is_heard(known: &Known<'_>, open: &Open, reading: Sign) -> bool {
    let (since_us, interval_us) = (open.silent.alert.since_us, known.silent_after_us);
    let of_about_then = since_us - interval_us..=since_us + 2 * interval_us;
    let is_old = reading.stored_us <= since_us.max(known.now_us - interval_us);
    let is_stored_late = is_old && of_about_then.contains(&reading.stored_us);
    reading.is_after(open.silent.reading_us, open.known_us) && !is_stored_late
}

/// Whether a sign of life came after the silence began.
fn has_life(
    known: &Known<'_>,
    devices: &BTreeMap<&str, Device<'_>>,
    gateways: &Gateways<'_>,
    open: &Open,
) -> bool {
    let alert = &open.silent.alert;
    let reading = |sign: Sign| is_heard(known, open, sign);
    match alert.rule.as_str() {
        SIGNAL => devices
            .get(alert.device.as_str())
            .filter(|device| device.patients.contains(alert.patient.as_str()))
            .and_then(|device| device.signals.get(&alert.metric))
            .is_some_and(|sign| reading(*sign)),
        DEVICE => devices
            .get(alert.device.as_str())
            .filter(|device| device.patients.contains(alert.patient.as_str()))
            .is_some_and(|device| reading(device.sign)),
        GATEWAY => {
            let reported = gateways.reported(&alert.gateway);
            reading(gateways.delivered(&alert.gateway))
                || reported.is_after(open.silent.report_us, open.known_us)
        }
        PIPELINE => reading(gateways.anything()),
        // The gateway reports again, and every path that it reports is well.
        PATH => gateways
            .paths_of(known, &alert.gateway)
            .is_some_and(|paths| {
                !known.is_old(paths.latest_us())
                    && paths.is_one_well()
                    && paths.lost().next().is_none()
            }),
        _ => false,
    }
}

/// Names what is silent.
pub(crate) fn subject_of(alert: &Alert) -> String {
    // A device that moves to another gateway, or returns to one, stays the same device.
    let gateway = if alert.device.is_empty() {
        alert.gateway.as_str()
    } else {
        ""
    };
    let metric = alert.metric.to_string();
    let parts: [&str; 5] = [&alert.rule, &alert.patient, &alert.device, gateway, &metric];
    parts.join(SEPARATOR)
}

/// The id of an episode follows from the subject, its last sign of life, and the round. So the next
/// silence after the same reading has another id.
fn begun(finding: &Finding, now_us: i64) -> Silent {
    let subject = format!("{}/{}/{}", finding.patient, finding.device, finding.gateway);
    let rule = format!("{}/{}/{now_us}", finding.rule, vitals::name(finding.metric));
    let alert = Alert {
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
    };
    Silent {
        subject: subject_of(&alert),
        alert,
        reading_us: finding.readings.stored_us,
        report_us: finding.reports.stored_us,
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
