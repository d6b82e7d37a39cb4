//! Bytes of flows by the steering rule that decided about them, and by its mode.

use std::collections::BTreeMap;

use contracts::paths::RuleUse;
use service_kit::labels::{Labels, OTHER};
use tunnel::steering_rules::{Decision, Mode};

/// Rules between two reports; bytes of further ones are added to [`OTHER`]. A document has fewer.
const RULES_MAX: usize = 512;

/// A rule and its mode; the name is empty where no rule decides.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RuleKey {
    pub(super) rule: String,
    pub(super) mode: Mode,
}

impl RuleKey {
    pub(super) fn of(decision: &Decision) -> Self {
        Self {
            rule: decision.rule.clone().unwrap_or_default(),
            mode: decision.mode,
        }
    }

    /// Without a document.
    pub(super) fn free() -> Self {
        Self {
            rule: String::new(),
            mode: Mode::Auto,
        }
    }

    pub(super) fn to_use(&self, bytes: u64) -> RuleUse {
        RuleUse {
            rule: self.rule.clone(),
            mode: self.mode.name().to_owned(),
            bytes,
        }
    }
}

/// Bytes since the last report.
#[derive(Debug, Default)]
pub(super) struct RuleBytes {
    since: BTreeMap<RuleKey, u64>,
    series: Labels,
}

impl RuleBytes {
    pub(super) fn add(&mut self, key: &RuleKey, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let series = self.series_of(&key.rule);
        metrics::counter!("braid_gateway_rule_bytes_total", "rule" => series, "mode" => key.mode.name())
            .increment(bytes);
        let is_full = self.since.len() >= RULES_MAX && !self.since.contains_key(key);
        let key = match is_full {
            true => RuleKey {
                rule: OTHER.to_owned(),
                mode: key.mode,
            },
            false => key.clone(),
        };
        let counted = self.since.entry(key).or_default();
        *counted = counted.saturating_add(bytes);
    }

    fn series_of(&mut self, rule: &str) -> String {
        if rule.is_empty() {
            return "none".to_owned();
        }
        self.series.of(rule)
    }

    /// The bytes since the last call, those of most bytes first.
    pub(super) fn take(&mut self) -> Vec<RuleUse> {
        let taken = std::mem::take(&mut self.since);
        let mut uses: Vec<RuleUse> = taken.iter().map(|(key, it)| key.to_use(*it)).collect();
        uses.sort_by_key(|it| std::cmp::Reverse(it.bytes));
        uses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(rule: &str) -> RuleKey {
        RuleKey {
            rule: rule.to_owned(),
            mode: Mode::Priority,
        }
    }

    #[test]
    fn bytes_are_reported_once_and_rules_are_bounded() {
        let mut bytes = RuleBytes::default();
        bytes.add(&key("bulk"), 5);
        bytes.add(&RuleKey::free(), 9);
        bytes.add(&key("bulk"), 2);
        bytes.add(&key("idle"), 0);
        let taken = bytes.take();
        let taken: Vec<_> = taken
            .iter()
            .map(|it| (it.rule.as_str(), it.mode.as_str(), it.bytes))
            .collect();
        assert_eq!(taken, [("", "auto", 9), ("bulk", "priority", 7)]);
        assert_eq!(bytes.take(), []);
        for number in 0..RULES_MAX + 9 {
            bytes.add(&key(&format!("rule-{number}")), 1);
        }
        let taken = bytes.take();
        assert_eq!(taken.len(), RULES_MAX + 1);
        assert_eq!((taken[0].rule.as_str(), taken[0].bytes), (OTHER, 9));
        assert_eq!(bytes.series_of("one-more"), OTHER);
    }
}
