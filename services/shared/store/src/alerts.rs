use async_trait::async_trait;
use bus::Topic;
use bytes::Bytes;
use contracts::alerts::Alert;

use crate::{
    Progress, Scope,
    error::{QueryError, WriteError},
};

/// What alerting knows about one key (a patient), so that a restart or another member goes on where it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleState {
    /// Partition of the topic that feeds the rules: the member that is assigned it loads the states of it.
    pub topic: Topic,
    pub partition: u32,
    pub key: String,
    /// Empty: forget the key.
    pub state: Bytes,
}

/// Everything that evaluating some records changed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AlertsBatch {
    /// Each is stored as an immutable row by (id, revision) and put into the outbox. Again with the same content is a
    /// duplicate; with other content the whole write fails with `Conflict`.
    pub transitions: Vec<Alert>,
    pub states: Vec<RuleState>,
}

/// What a row that cannot be read is called.
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
    /// `None`: all in scope.
    pub patient: Option<String>,
    /// Resolved ones too.
    pub include_resolved: bool,
    /// 0: 200.
    pub limit: usize,
}

#[async_trait]
pub trait AlertsStore: Send + Sync {
    /// Transitions, states, outbox entries and progress in one transaction. `Written` counts transitions.
    async fn write_alerts(
        &self,
        batch: AlertsBatch,
        progress: Vec<Progress>,
    ) -> Result<crate::Written, WriteError>;

    async fn rule_states(&self, topic: Topic, partition: u32)
    -> Result<Vec<RuleState>, QueryError>;

    /// Oldest first. Entries stay until they are cleared, so publishing is at least once.
    async fn outbox(&self, limit: usize) -> Result<Vec<OutboxEntry>, QueryError>;

    async fn clear_outbox(&self, ids: &[u64]) -> Result<(), WriteError>;

    /// The last revision of one alert.
    async fn alert(&self, scope: &Scope, id: &str) -> Result<Option<Alert>, QueryError>;

    /// The last revision of each, newest `since_us` first.
    async fn alerts(&self, scope: &Scope, query: &AlertsQuery) -> Result<Vec<Alert>, QueryError>;

    /// Every transition of one alert, oldest first.
    async fn alert_history(&self, scope: &Scope, id: &str) -> Result<Vec<Alert>, QueryError>;
}
