//! Examples for a rule set: readings in, expected alerts out. They are data that a clinician can
//! read and extend.

use std::{collections::BTreeMap, sync::Arc};

use contracts::vitals::{Metric, Sample, sample};
use serde::{Deserialize, Serialize};

use crate::{
    Spo2Scale,
    engine::Profile,
    rehearsal::Rehearsal,
    rules::{RuleSet, metric_name},
    validate::fill_defaults,
};

/// Readings in one case. A longer case is refused and belongs into a replay.
const READINGS_MAX: u64 = 200_000;
const START_US: i64 = 1_800_000_000_000_000;

/// A file of examples.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Cases {
    pub case: Vec<Case>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub name: String,
    #[serde(default)]
    pub spo2_scale: Spo2Scale,
    pub readings: Vec<Readings>,
    /// Exactly these alerts are raised, in this order. Empty: no alert may be raised.
    #[serde(default)]
    pub expect: Vec<Expected>,
}

/// One reading at `at_s`, or one every `every_s` seconds before `until_s`, changing linearly to
/// `to`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Readings {
    #[serde(with = "metric_name")]
    pub metric: Metric,
    pub at_s: u64,
    pub value: f64,
    pub until_s: Option<u64>,
    pub every_s: Option<u64>,
    pub to: Option<f64>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    pub rule: String,
    /// Second at which the alert is raised.
    pub at_s: u64,
    /// Tolerance of `at_s`.
    #[serde(default)]
    pub within_s: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    #[error("case {case:?}: more than {READINGS_MAX} readings")]
    TooLong { case: String },
    #[error("case {case:?}: expected {}, got {}", list(.expected), list(.raised))]
    Differs {
        case: String,
        expected: Vec<Expected>,
        raised: Vec<Expected>,
    },
}

fn list(alerts: &[Expected]) -> String {
    if alerts.is_empty() {
        return "no alert".into();
    }
    let alerts: Vec<String> = alerts
        .iter()
        .map(|alert| format!("{} at {} s", alert.rule, alert.at_s))
        .collect();
    alerts.join(", ")
}

impl Case {
    pub fn try_on(&self, rules: &Arc<RuleSet>) -> Result<(), CaseError> {
        let profile = Profile {
            spo2_scale: self.spo2_scale,
        };
        let mut rehearsal = Rehearsal::new("case", Arc::clone(rules), profile);
        for sample in self.samples()? {
            rehearsal.feed(&sample);
        }
        let (raised, _) = rehearsal.finish();
        let raised: Vec<Expected> = raised
            .into_iter()
            .map(|raised| Expected {
                rule: raised.rule,
                at_s: ((raised.raised_us - START_US) / 1_000_000).unsigned_abs(),
                within_s: 0,
            })
            .collect();
        let agrees = |expected: &Expected, raised: &Expected| {
            expected.rule == raised.rule && expected.at_s.abs_diff(raised.at_s) <= expected.within_s
        };
        let is_same = raised.len() == self.expect.len()
            && self.expect.iter().zip(&raised).all(|(e, r)| agrees(e, r));
        if is_same {
            return Ok(());
        }
        Err(CaseError::Differs {
            case: self.name.clone(),
            expected: self.expect.clone(),
            raised,
        })
    }

    /// In order of time. Readings at the same time keep the order of the file.
    fn samples(&self) -> Result<Vec<Sample>, CaseError> {
        let mut readings = Vec::new();
        for stretch in &self.readings {
            let every_s = stretch.every_s.unwrap_or(1).max(1);
            let until_s = stretch.until_s.unwrap_or(stretch.at_s + 1);
            let length_s = until_s.saturating_sub(stretch.at_s);
            if readings.len() as u64 + length_s.div_ceil(every_s) > READINGS_MAX {
                return Err(CaseError::TooLong {
                    case: self.name.clone(),
                });
            }
            let rise = stretch.to.map_or(0.0, |to| to - stretch.value);
            let mut second = stretch.at_s;
            while second < until_s {
                let share = (second - stretch.at_s) as f64 / length_s as f64;
                readings.push((second, stretch.metric, stretch.value + rise * share));
                second += every_s;
            }
        }
        readings.sort_by_key(|(second, ..)| *second);
        let mut sequences: BTreeMap<i32, u64> = BTreeMap::new();
        let sample = |(second, metric, value): (u64, Metric, f64)| {
            let sequence = sequences.entry(metric.into()).or_default();
            *sequence += 1;
            let mut sample = Sample {
                device: "case".into(),
                sequence: *sequence,
                metric: metric.into(),
                device_time_us: START_US + second as i64 * 1_000_000,
                reading: Some(sample::Reading::Value(value)),
                ..Sample::default()
            };
            fill_defaults(&mut sample);
            sample
        };
        Ok(readings.into_iter().map(sample).collect())
    }
}
