//! Rules as data: the contents of a rule set and its validation. People write it as a
//! document: see `rule_document.rs`.
//!
//! A rule is a condition on event time with a priority. It has one delay before it alerts
//! (`for_ms`) and another before it clears (`clear_for_ms`). The limit at which it begins differs
//! from the limit at which it ends (hysteresis). Sets are versioned, and every alert carries the
//! version that raised it.

use std::collections::{BTreeMap, BTreeSet};

use contracts::vitals::{Metric, Priority};
use serde::{Deserialize, Serialize};

pub use crate::{catalogue::metric_name, condition::DELAY_MS_MAX};
use crate::{
    catalogue::{by_name, entry, name},
    condition::Condition,
    refusal::{Invalid, validate_identifier},
};

/// Rules in one set. A larger set is refused.
pub const RULES_MAX: usize = 256;
/// Age from which a reading of an unknown metric is stale.
const STALE_AFTER_S_DEFAULT: u32 = 600;

/// Subject of the rules for all patients of a tenant.
pub const DEFAULT_SUBJECT: &str = "default";

/// Subjects of the rule sets for a patient, narrowest first. The first subject with a set applies,
/// as a whole.
pub fn subjects(patient: &str, group: Option<&str>) -> impl Iterator<Item = String> {
    [
        Some(format!("patient:{patient}")),
        group.map(|group| format!("group:{group}")),
        Some(DEFAULT_SUBJECT.to_owned()),
    ]
    .into_iter()
    .flatten()
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleSet {
    pub name: String,
    pub version: u32,
    /// By name of the metric, where it differs from the catalogue's. Rules count a reading for so
    /// long. The ward and the watch for silence count one of a worn sensor for less if its stream's
    /// own rhythm is faster, see `cadence`.
    #[serde(default)]
    pub stale_after_s: BTreeMap<String, u32>,
    pub rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    pub id: String,
    #[serde(with = "priority_name")]
    pub priority: Priority,
    pub condition: Condition,
    /// The condition must hold for this time before the rule alerts.
    #[serde(default)]
    pub for_ms: u64,
    /// The condition must have ended for this time before the alert ends.
    #[serde(default)]
    pub clear_for_ms: u64,
}

impl RuleSet {
    pub fn stale_after_us(&self, metric: Metric) -> i64 {
        let of_catalogue = || entry(metric).map(|entry| entry.document.stale_after_s);
        let seconds = self
            .stale_after_s
            .get(name(metric))
            .copied()
            .or_else(of_catalogue)
            .unwrap_or(STALE_AFTER_S_DEFAULT);
        i64::from(seconds) * 1_000_000
    }

    pub fn validate(&self) -> Result<(), Invalid> {
        validate_identifier("name", &self.name, "default")?;
        if self.rules.is_empty() || self.rules.len() > RULES_MAX {
            return Err(Invalid::new(
                "rules",
                format!(
                    "has {} rules, where 1 to {RULES_MAX} are taken",
                    self.rules.len()
                ),
                "one rule",
            ));
        }
        for metric in self.stale_after_s.keys() {
            if by_name(metric).is_none() {
                return Err(Invalid::new(
                    "stale_after_s",
                    format!("{metric:?} is no metric"),
                    "heart-rate",
                ));
            }
        }
        let mut ids = BTreeSet::new();
        for rule in &self.rules {
            rule.validate()?;
            if !ids.insert(&rule.id) {
                return Err(Invalid::new(
                    "rules.id",
                    format!("{:?} is there twice", rule.id),
                    format!("{:?}", format!("{}-2", rule.id)),
                ));
            }
        }
        Ok(())
    }
}

impl Rule {
    fn validate(&self) -> Result<(), Invalid> {
        validate_identifier("rules.id", &self.id, "heart-rate-high")?;
        let wrong = |field, reason: String, example: &str| {
            Err(Invalid::new(
                field,
                format!("rule {:?}: {reason}", self.id),
                example,
            ))
        };
        if self.for_ms > DELAY_MS_MAX || self.clear_for_ms > DELAY_MS_MAX {
            return wrong(
                "rules.for_ms",
                format!("a delay is longer than {DELAY_MS_MAX}"),
                "10000",
            );
        }
        if self.priority == Priority::Unspecified {
            return wrong("rules.priority", "is missing".into(), "\"high\"");
        }
        match self.condition.check() {
            Ok(()) => Ok(()),
            Err(flaw) => wrong(flaw.field, flaw.reason, &flaw.example),
        }
    }
}

/// Serialises a priority as `low`, `medium` or `high`.
pub mod priority_name {
    use super::*;

    pub fn serialize<S: serde::Serializer>(priority: &Priority, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(match priority {
            Priority::High => "high",
            Priority::Medium => "medium",
            Priority::Low | Priority::Unspecified => "low",
        })
    }

    pub fn deserialize<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Priority, D::Error> {
        match String::deserialize(from)?.as_str() {
            "high" => Ok(Priority::High),
            "medium" => Ok(Priority::Medium),
            "low" => Ok(Priority::Low),
            other => Err(serde::de::Error::custom(format!(
                "{other:?} is no priority: low, medium or high"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_default_set_is_valid_and_survives_json() {
        let set = RuleSet::default_set();
        set.validate().unwrap();
        let text = serde_json::to_string_pretty(&set).unwrap();
        assert_eq!(RuleSet::from_json(&text).unwrap(), set);
    }

    #[test]
    fn wrong_sets_are_refused_by_field() {
        let refused = |edit: fn(&mut RuleSet)| {
            let mut set = RuleSet::default_set();
            edit(&mut set);
            set.validate().unwrap_err().field
        };
        assert_eq!(refused(|set| set.rules.clear()), "rules");
        assert_eq!(refused(|set| set.rules[0].id.clear()), "rules.id");
        assert_eq!(
            refused(|set| set.rules[1].id = set.rules[0].id.clone()),
            "rules.id"
        );
        assert_eq!(
            refused(|set| set.rules[0].for_ms = DELAY_MS_MAX + 1),
            "rules.for_ms"
        );
        assert_eq!(
            refused(|set| set.rules[0].priority = Priority::Unspecified),
            "rules.priority"
        );
        let above = |metric, limit, clear| Condition::Above {
            metric,
            limit,
            clear,
        };
        let condition = |condition| {
            let mut set = RuleSet::default_set();
            set.rules[0].condition = condition;
            set.validate().unwrap_err().field
        };
        assert_eq!(
            condition(above(Metric::HeartRate, 120.0, 130.0)),
            "rules.clear"
        );
        assert_eq!(
            condition(above(Metric::HeartRate, f64::NAN, 1.0)),
            "rules.limit"
        );
        assert_eq!(condition(above(Metric::Ecg, 1.0, 1.0)), "rules.metric");
        let fall = Condition::Fall {
            impact_g: 0.5,
            still_g: 0.1,
            within_ms: 1,
        };
        assert_eq!(condition(fall), "rules.condition");
        assert_eq!(
            condition(Condition::News2 { from: 7, to: 5 }),
            "rules.condition"
        );
        assert!(RuleSet::from_json(r#"{"name":"x","version":1,"rules":[],"rulez":1}"#).is_err());
        refused(|set| {
            set.stale_after_s.insert("pulse".into(), 1);
        });
    }
}
