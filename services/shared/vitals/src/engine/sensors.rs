//! Rules about the sensor itself: it shows exactly one value, or a flat line.

use std::sync::Arc;

use contracts::{
    alerts::Alert,
    vitals::{Metric, Sample},
};

use super::{Engine, stream_key};
use crate::{
    frozen::{Frozen, Shown},
    machine::{Origin, Verdict},
    rules::Rule,
};

impl Engine {
    /// A waveform has no value to compare, so it can only be a flat line. The clock follows values.
    pub(super) fn on_waveform(&mut self, sample: &Sample) -> Vec<Alert> {
        let (metric, now_us) = (sample.metric(), sample.device_time_us);
        let rules = Arc::clone(&self.rules);
        let is_judged = |rule: &Rule| rule.condition.is_frozen() && self.judges(rule, metric);
        if !rules.rules.iter().any(is_judged) {
            return Vec::new();
        }
        let Some(shown) = Shown::of(sample) else {
            return Vec::new();
        };
        let Some(before_us) = self.advance_stream(sample) else {
            self.skipped += 1;
            return Vec::new();
        };
        if self.steps_back(before_us, now_us) {
            self.set_back(metric, now_us);
        }
        let mut alerts = self.end_retired(now_us);
        for (index, rule) in rules.rules.iter().enumerate() {
            if self.judges(rule, metric) {
                alerts.extend(self.apply(&rules, index, sample, shown.value(), None));
            }
        }
        self.note(alerts)
    }

    /// Whether this engine judges readings of the metric by the rule. Sensors are judged by the
    /// core alone, which has the readings of all gateways.
    pub(super) fn judges(&self, rule: &Rule, metric: Metric) -> bool {
        let is_here = self.origin == Origin::Core || !rule.condition.is_frozen();
        is_here && rule.condition.depends_on(metric)
    }

    /// The verdict of a rule about a frozen sensor. `length_us`: the time of the rule.
    pub(super) fn judge_frozen(&mut self, rule: &Rule, length_us: i64, sample: &Sample) -> Verdict {
        let Some(shown) = Shown::of(sample) else {
            return Verdict::Unknown;
        };
        if !self.frozen.contains_key(&rule.id) {
            self.frozen.insert(rule.id.clone(), Frozen::default());
        }
        let hold_us = self.rules.stale_after_us(sample.metric());
        let frozen = self.frozen.get_mut(&rule.id);
        frozen.map_or(Verdict::Unknown, |frozen| {
            frozen.judge(length_us, hold_us, &stream_key(sample), shown)
        })
    }
}
