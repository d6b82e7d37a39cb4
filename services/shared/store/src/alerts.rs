use std::cmp::Reverse;
use std::collections::BTreeMap;

use async_trait::async_trait;
use bus::Topic;
use bytes::Bytes;
use contracts::alerts::{Alert, AlertCount, AlertState};

use crate::{
    Progress, Scope,
    error::{QueryError, WriteError},
};

/// Alerting's knowledge of one key (a patient), so that a restart or another member continues from
/// it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleState {
    /// Partition of the topic that feeds the rules: the member that is assigned it loads the states
    /// of it.
    pub topic: Topic,
    pub partition: u32,
    pub key: String,
    /// Empty: forget the key.
    pub state: Bytes,
}

/// Everything that evaluating some records changed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AlertsBatch {
    /// Each is stored as an immutable row by (id, revision) and put into the outbox. Again with the
    /// same content is a duplicate; with other content the whole write fails with `Conflict`.
    pub transitions: Vec<Alert>,
    pub states: Vec<RuleState>,
}

/// The name of a row that cannot be read.
pub(crate) const ALERT: &str = "alert";

/// A stored transition that has not been published yet.
#[derive(Debug, Clone, PartialEq)]
pub struct OutboxEntry {
    /// Rises in the order of storing.
    pub id: u64,
    /// `None`: the row cannot be read.
    pub alert: Option<Alert>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AlertsQuery {
    /// `None`: all in scope, without the system's own test alert.
    pub patient: Option<String>,
    /// Resolved ones too.
    pub include_resolved: bool,
    /// Resolved ones alone.
    pub only_resolved: bool,
    /// 0: [`LIMIT_DEFAULT`]. Past the limit the least important alerts are left out: see
    /// [`AlertsStore::alerts`].
    pub limit: usize,
}

/// Alerts of a query that sets no limit.
pub(crate) const LIMIT_DEFAULT: usize = 200;

impl AlertsQuery {
    /// In the order of the answer: whether resolved ones are wanted.
    pub(crate) fn parts(&self) -> &'static [bool] {
        match (self.only_resolved, self.include_resolved) {
            (true, _) => &[true],
            (false, true) => &[false, true],
            (false, false) => &[false],
        }
    }

    pub(crate) fn limit(&self) -> usize {
        match self.limit {
            0 => LIMIT_DEFAULT,
            limit => limit,
        }
    }
}

/// The order within open and within resolved alerts. Active alerts come before latched ones of the
/// same priority, and those before acknowledged ones.
pub(crate) fn order(resolved: bool) -> String {
    let (active, latched) = (AlertState::Active as i32, AlertState::Latched as i32);
    if resolved {
        "since_us DESC".to_owned()
    } else {
        format!("priority DESC, (state = {active}) DESC, (state = {latched}) DESC, since_us DESC")
    }
}

/// The last revision of an alert whose patient has departed. The note says why it ended, unless a
/// person wrote one.
pub(crate) fn ended(alert: &Alert, at_us: i64, because: &str) -> Alert {
    let note = match alert.note.as_str() {
        "" => because,
        note => note,
    };
    Alert {
        state: AlertState::Resolved.into(),
        changed_us: at_us.max(alert.changed_us),
        recorded_us: at_us,
        note: note.to_owned(),
        revision: alert.revision.saturating_add(1),
        ..alert.clone()
    }
}

/// Open alerts of one tenant and one priority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenAlerts {
    /// Empty: of no registered patient or gateway.
    pub tenant: String,
    pub priority: i32,
    pub open: u64,
    pub unacknowledged: u64,
}

impl OpenAlerts {
    /// The totals by priority, highest first, and how many of each a list leaves out.
    pub fn beside(totals: &[OpenAlerts], list: &[Alert]) -> Vec<AlertCount> {
        let small = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let mut by_priority: BTreeMap<Reverse<i32>, AlertCount> = BTreeMap::new();
        for total in totals {
            let count = by_priority.entry(Reverse(total.priority)).or_default();
            count.priority = total.priority;
            count.open = count.open.saturating_add(small(total.open));
            count.unacknowledged = count
                .unacknowledged
                .saturating_add(small(total.unacknowledged));
        }
        let is_open = |alert: &&Alert| alert.state() != AlertState::Resolved;
        let mut counts: Vec<AlertCount> = by_priority.into_values().collect();
        for count in &mut counts {
            let listed = list.iter().filter(is_open);
            let listed = listed.filter(|alert| alert.priority == count.priority);
            count.omitted = count.open.saturating_sub(small(listed.count() as u64));
        }
        counts
    }
}

#[async_trait]
pub trait AlertsStore: Send + Sync {
    /// Transitions, states, outbox entries and progress in one transaction. `Written` counts
    /// transitions.
    async fn write_alerts(
        &self,
        batch: AlertsBatch,
        progress: Vec<Progress>,
    ) -> Result<crate::Written, WriteError>;

    async fn rule_states(&self, topic: Topic, partition: u32)
    -> Result<Vec<RuleState>, QueryError>;

    /// Oldest first. Entries stay until they are cleared, so publishing is at least once.
    async fn outbox(&self, limit: usize) -> Result<Vec<OutboxEntry>, QueryError>;

    /// The same for alerts of high priority alone. They are published first.
    async fn urgent_outbox(&self, limit: usize) -> Result<Vec<OutboxEntry>, QueryError>;

    async fn clear_outbox(&self, ids: &[u64]) -> Result<(), WriteError>;

    /// The last revision of one alert.
    async fn alert(&self, scope: &Scope, id: &str) -> Result<Option<Alert>, QueryError>;

    /// The last revision of each alert. Open alerts come before resolved ones. Open alerts are
    /// sorted by priority, then active before latched before acknowledged, then newest first;
    /// resolved ones newest first. So a limit never leaves out an alert for a less important one.
    async fn alerts(&self, scope: &Scope, query: &AlertsQuery) -> Result<Vec<Alert>, QueryError>;

    /// How many alerts are open, by tenant and priority, highest priority first. `patient`: of one
    /// patient alone.
    async fn open_alerts(
        &self,
        scope: &Scope,
        patient: Option<&str>,
    ) -> Result<Vec<OpenAlerts>, QueryError>;

    /// Every transition of one alert, oldest first.
    async fn alert_history(&self, scope: &Scope, id: &str) -> Result<Vec<Alert>, QueryError>;
}
