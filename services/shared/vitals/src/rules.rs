//! Rules as data: what a rule set says and when it may be used.
//!
//! A rule is a condition on event time with a delay before it alerts (`for_ms`) and before it clears
//! (`clear_for_ms`), a limit at which it begins and one at which it ends (hysteresis), and a priority.
//! Sets are versioned; every alert carries the version that raised it.

use std::collections::{BTreeMap, BTreeSet};

use contracts::vitals::{Metric, Priority};
use serde::{Deserialize, Serialize};

use crate::{
    catalogue::{Reading, by_name, entry, name},
    validate::{Invalid, validate_identifier},
};

/// Rules in one set; a larger set is refused.
pub const RULES_MAX: usize = 256;
/// Longest delay of a rule, a day; a longer one is refused.
pub const DELAY_MS_MAX: u64 = 86_400_000;
/// Age from which a reading says nothing about the present, for metrics that a set does not list.
const STALE_AFTER_S_DEFAULT: u32 = 600;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleSet {
    pub name: String,
    pub version: u32,
    /// By metric's name.
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
    /// The condition must hold for so long before the rule alerts.
    #[serde(default)]
    pub for_ms: u64,
    /// And must have ended for so long before the alert does.
    #[serde(default)]
    pub clear_for_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Condition {
    /// Begins at `limit` or more, ends below `clear`; in between it stays as it is.
    Above {
        #[serde(with = "metric_name")]
        metric: Metric,
        limit: f64,
        clear: f64,
    },
    /// Begins at `limit` or less, ends above `clear`.
    Below {
        #[serde(with = "metric_name")]
        metric: Metric,
        limit: f64,
        clear: f64,
    },
    /// A blow of `impact_g` or more, then stillness (within `still_g` of gravity alone) that begins at most `within_ms` later.
    Fall {
        impact_g: f64,
        still_g: f64,
        within_ms: u64,
    },
    /// The NEWS2 aggregate is in `from..=to`.
    News2 { from: u32, to: u32 },
    /// A single parameter scores 3 while the aggregate is below medium.
    News2Red,
}

impl Condition {
    /// The metric of a threshold; `Unspecified` for a score over several.
    pub fn metric(&self) -> Metric {
        match self {
            Condition::Above { metric, .. } | Condition::Below { metric, .. } => *metric,
            Condition::Fall { .. } => Metric::Activity,
            Condition::News2 { .. } | Condition::News2Red => Metric::Unspecified,
        }
    }

    pub fn depends_on(&self, metric: Metric) -> bool {
        match self {
            Condition::Above { metric: own, .. } | Condition::Below { metric: own, .. } => {
                *own == metric
            }
            Condition::Fall { .. } => metric == Metric::Activity,
            Condition::News2 { .. } | Condition::News2Red => {
                crate::news2::PARAMETERS.contains(&metric)
            }
        }
    }
}

impl RuleSet {
    pub fn stale_after_us(&self, metric: Metric) -> i64 {
        let seconds = self
            .stale_after_s
            .get(name(metric))
            .copied()
            .unwrap_or(STALE_AFTER_S_DEFAULT);
        i64::from(seconds) * 1_000_000
    }

    pub fn from_json(text: &str) -> Result<RuleSet, Invalid> {
        let set: RuleSet = serde_json::from_str(text).map_err(|error| {
            Invalid::new("rules", error.to_string(), "what `braid rules show` prints")
        })?;
        set.validate()?;
        Ok(set)
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
        let (metric, limit, clear, ordered) = match &self.condition {
            Condition::Above {
                metric,
                limit,
                clear,
            } => (*metric, *limit, *clear, clear <= limit),
            Condition::Below {
                metric,
                limit,
                clear,
            } => (*metric, *limit, *clear, clear >= limit),
            Condition::Fall {
                impact_g,
                still_g,
                within_ms,
            } => {
                let is_sane = (1.5..=32.0).contains(impact_g)
                    && (0.01..=0.5).contains(still_g)
                    && *within_ms <= DELAY_MS_MAX;
                if is_sane {
                    return Ok(());
                }
                return wrong(
                    "rules.condition",
                    format!(
                        "{impact_g} g is outside 1.5 to 32, {still_g} g outside 0.01 to 0.5, or {within_ms} above {DELAY_MS_MAX}"
                    ),
                    "2.5, 0.1 and 60000",
                );
            }
            Condition::News2 { from, to } if from > to => {
                return wrong(
                    "rules.condition",
                    format!("{from} is above {to}"),
                    "5 and 6",
                );
            }
            Condition::News2 { .. } | Condition::News2Red => return Ok(()),
        };
        let Some(entry) =
            entry(metric).filter(|entry| !matches!(entry.reading, Reading::Waveform { .. }))
        else {
            return wrong(
                "rules.metric",
                "has no single number to compare".into(),
                "\"heart-rate\"",
            );
        };
        let (low, high) = entry.range;
        if !(low..=high).contains(&limit) || !(low..=high).contains(&clear) {
            return wrong(
                "rules.limit",
                format!(
                    "{limit} or {clear} is outside {low} to {high} {}",
                    entry.unit
                ),
                &entry.example.to_string(),
            );
        }
        if !ordered {
            return wrong(
                "rules.clear",
                format!("{clear} is on the wrong side of the limit {limit}"),
                &limit.to_string(),
            );
        }
        Ok(())
    }
}

/// A metric by its kebab-case name.
pub mod metric_name {
    use super::*;

    pub fn serialize<S: serde::Serializer>(metric: &Metric, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(name(*metric))
    }

    pub fn deserialize<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Metric, D::Error> {
        let text = String::deserialize(from)?;
        by_name(&text).map(|entry| entry.metric).ok_or_else(|| {
            serde::de::Error::custom(format!("{text:?} is no metric, for example \"heart-rate\""))
        })
    }
}

/// `low`, `medium` or `high`.
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
