//! Keeps the states of the rules beside the journal.

use std::{io, sync::Arc};

use tokio::sync::Notify;

use super::Intake;
use crate::{journal::Disk, rule_states::StateLog};

impl<D: Disk> Intake<D> {
    /// Publishes each alert to the uploads of vitals.
    #[must_use]
    pub fn hurrying(self, urgent: Arc<Notify>) -> Self {
        Self { urgent, ..self }
    }

    /// Keeps the states of the rules in this log.
    #[must_use]
    pub fn with_states(self, log: StateLog<D>) -> Self {
        Self {
            states: Some(Arc::new(tokio::sync::Mutex::new(log))),
            ..self
        }
    }

    /// Returns once the states that have changed are on disk. Requests that come while one writes
    /// wait, and the next write serves them all. A disk that refuses costs a restart its states,
    /// so the readings are taken all the same.
    pub(super) async fn keep_states(&self) {
        let Some(states) = &self.states else {
            return;
        };
        if !self.rules.lock().has_changed() {
            return;
        }
        let mut log = Arc::clone(states).lock_owned().await;
        let changed = {
            let _settled = self.settled.write().await;
            if !self.held.lock().is_empty() {
                return;
            }
            let mut rules = self.rules.lock();
            if !rules.has_changed() {
                return;
            }
            if log.wants_all() {
                rules.take_all()
            } else {
                rules.take_changed()
            }
        };
        let written = tokio::task::spawn_blocking(move || log.write(&changed)).await;
        if let Err(error) = written.map_err(io::Error::other).flatten() {
            metrics::counter!("braid_gateway_rule_states_failed_total").increment(1);
            tracing::warn!(%error, "the states of the rules are not kept");
        }
    }
}
