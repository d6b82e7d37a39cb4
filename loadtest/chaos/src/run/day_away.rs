//! The last scene: a gateway is away for a day and an hour. Its patient is ill in the first
//! seconds, then every process is stopped, and starts again 25 h later.
//!
//! Silences outlast the day, nobody hears of them twice, and what the gateway kept is stored and
//! told when its network is back.

use std::time::{Duration, Instant};

use super::{LOOK, RunError, Stage, afterwards, clock, http, sensors};
use crate::{
    facts::{Call, Found, Reading},
    plan::AWAY_FOR_A_DAY,
    scenario::{LINKS, METRICS, RULES, SERVICES, device_of},
};

/// Patients of that gateway whose devices keep their wearers.
const PATIENTS: [&str; 2] = ["dan", "eva"];
/// Number of the first reading of each metric; no series of a run is that long.
const FIRST_NUMBER: u64 = 2_000_000;
/// Seconds of the illness, and of the time before and after it, longer than every delay of [`ILL`].
const ILL_S: i64 = 6;
const WELL_S: i64 = 6;
/// Metric, rule and value of the illness.
const ILL: [(&str, usize, f64); 2] = [("heart-rate", 0, 125.0), ("respiration-rate", 4, 35.0)];
const REPORT: &str = "while-unheard";
/// Time in which the gateway judges the readings that it took.
const JUDGED_WITHIN: Duration = Duration::from_secs(3);
const ANSWER_WITHIN: Duration = Duration::from_secs(8);
/// Time from the return of the network until everything is stored and told.
const TOLD_WITHIN: Duration = Duration::from_secs(120);

impl Stage {
    pub(super) fn day_away(&mut self, ended: &mut Vec<String>) -> Result<(), RunError> {
        eprintln!("chaos: {AWAY_FOR_A_DAY} is away, and everything stands still for 25 h");
        let silences = |found: &Found| -> Vec<String> {
            let of_all = found
                .alerts
                .iter()
                .filter(|it| afterwards::is_silence_of_all(it));
            of_all.map(|alert| alert.id.clone()).collect()
        };
        self.cut(AWAY_FOR_A_DAY, 0..=LINKS.len() - 1, true);
        let (patient, rules) = free(&self.found()?);
        let readings = illness(patient, clock::now_us());
        let body: String = readings
            .iter()
            .map(|reading| sensors::body(&device_of(patient), reading))
            .collect();
        let to = self.site.sensors[AWAY_FOR_A_DAY];
        let sent = http::request(to, "POST", "/v1/samples", &body, ANSWER_WITHIN);
        match self.runtime.block_on(sent) {
            Ok((200, _)) => {}
            Ok((status, text)) => ended.push(format!("{AWAY_FOR_A_DAY} answered {status} {text}")),
            Err(error) => ended.push(format!("{AWAY_FOR_A_DAY} took no reading: {error}")),
        }
        std::thread::sleep(JUDGED_WITHIN);
        let before = self.found()?;
        for name in self.site.names() {
            self.site.kill(name);
        }
        if let Ok(clocks) = &self.site.clocks {
            clocks.catch_up()?;
        }
        for name in self.site.names() {
            self.site.start(name)?;
        }
        for (name, _) in SERVICES {
            self.runtime.block_on(self.site.wait_ready(name))?;
        }
        std::thread::sleep(afterwards::SILENT_AGAIN);
        let (was, is) = (silences(&before), silences(&self.found()?));
        if was != is {
            ended.push(format!(
                "a day without a reading changed the silence: {was:?} {is:?}"
            ));
        }
        self.cut(AWAY_FOR_A_DAY, 0..=LINKS.len() - 1, false);
        let deadline = Instant::now() + TOLD_WITHIN;
        let (found, missing) = loop {
            let found = self.found()?;
            let missing = missing(&readings, &rules, &found);
            if missing.is_empty() || Instant::now() > deadline {
                break (found, missing);
            }
            std::thread::sleep(LOOK);
        };
        ended.extend(missing);
        let (old, new) = found
            .calls
            .split_at(before.calls.len().min(found.calls.len()));
        let again = new.iter().filter(|call| afterwards::is_repeated(call, old));
        ended.extend(again.map(|call| format!("told again after a day: {call:?}")));
        Ok(())
    }
}

/// The patient who can have most of the alerts, and their rules. An open alert takes in further
/// illness, and one that latches does so until somebody acknowledges it.
fn free(found: &Found) -> (&'static str, Vec<&'static str>) {
    let rules_of = |patient: &str| -> Vec<&'static str> {
        let is_open = |rule: &str| {
            let mut open = found.alerts.iter().filter(|it| it.state != "resolved");
            open.any(|it| (it.patient.as_str(), it.rule.as_str()) == (patient, rule))
        };
        let rules = ILL.map(|(_, rule, _)| RULES[rule].id);
        rules.into_iter().filter(|rule| !is_open(rule)).collect()
    };
    let all = PATIENTS.map(|patient| (patient, rules_of(patient)));
    let best = all.into_iter().max_by_key(|(_, rules)| rules.len());
    best.unwrap_or((PATIENTS[0], Vec::new()))
}

/// The readings before, in and after the illness, of which the last is from now.
fn illness(patient: &'static str, now_us: i64) -> Vec<Reading> {
    let seconds = 0..WELL_S + ILL_S + WELL_S;
    let first_us = now_us - (seconds.end - 1) * 1_000_000;
    let of_second = |second: i64| {
        METRICS.map(|(_, metric, well)| {
            let is_ill = (WELL_S..WELL_S + ILL_S).contains(&second);
            let ill = ILL.iter().find(|(name, _, _)| is_ill && *name == metric);
            Reading {
                patient,
                metric,
                number: FIRST_NUMBER + second.cast_unsigned(),
                time_us: first_us + second * 1_000_000,
                value: ill.map_or(well, |(_, _, value)| *value),
            }
        })
    };
    seconds.flat_map(of_second).collect()
}

/// The readings that are not stored, and the alerts that are not raised or of which nobody heard.
fn missing(readings: &[Reading], rules: &[&str], found: &Found) -> Vec<String> {
    let is_stored = |reading: &&Reading| {
        found.rows.iter().any(|row| {
            (row.metric, row.number, row.time_us)
                == (reading.metric, reading.number, reading.time_us)
                && row.patient == reading.patient
                && row.value.to_bits() == reading.value.to_bits()
        })
    };
    let mut missing = Vec::new();
    let stored = readings.iter().filter(is_stored).count();
    if stored < readings.len() {
        missing.push(format!(
            "{stored} of {} readings after a day",
            readings.len()
        ));
    }
    let of_patient = |patient: &str| readings.iter().any(|it| it.patient == patient);
    for (metric, rule, value) in ILL {
        let rule = RULES[rule].id;
        let first = readings
            .iter()
            .find(|it| it.metric == metric && it.value.to_bits() == value.to_bits());
        let Some(first) = first.filter(|_| rules.contains(&rule)) else {
            continue;
        };
        let raised: Vec<_> = found
            .alerts
            .iter()
            .filter(|it| it.rule == rule && of_patient(&it.patient))
            .filter(|it| it.since_us == first.time_us)
            .collect();
        let is_told = raised.iter().any(|alert| {
            // One report names what was over when it was heard.
            let is_reported = |call: &Call| {
                call.rule == REPORT
                    && call.patient == alert.patient
                    && call.since_us <= alert.since_us
            };
            let calls = &mut found.calls.iter();
            calls.any(|call| call.id == alert.id || is_reported(call))
        });
        if raised.len() != 1 {
            missing.push(format!(
                "{rule} was raised {} times after a day",
                raised.len()
            ));
        } else if !is_told {
            missing.push(format!("nobody heard of {rule} after a day"));
        }
    }
    missing
}
