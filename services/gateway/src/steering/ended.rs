//! Flows that have ended lately. Their decisions hold for a moment longer, because their last bytes
//! may still be under way. The next short flow of the same kind finds the schedule unchanged.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use tunnel::steering_rules::{Flow, Urgency};

use super::rule_bytes::RuleKey;

/// Time for which a decision holds after the end of its flow.
const HOLDS_FOR: Duration = Duration::from_secs(1);

/// One flow for each rule, mode and urgency: others would be decided alike.
#[derive(Default)]
pub(super) struct EndedFlows(BTreeMap<(RuleKey, Urgency), Ended>);

struct Ended {
    flow: Flow,
    /// The first look after its end.
    since: Option<Instant>,
}

impl EndedFlows {
    pub(super) fn add(&mut self, key: RuleKey, flow: Flow) {
        let urgency = flow.urgency;
        self.0.insert((key, urgency), Ended { flow, since: None });
    }

    /// Those whose decisions still hold.
    pub(super) fn look(&mut self, now: Instant) -> impl Iterator<Item = &Flow> {
        self.0
            .retain(|_, ended| now < *ended.since.get_or_insert(now) + HOLDS_FOR);
        self.0.values().map(|ended| &ended.flow)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
