//! Keeps the states of the rules beside the journal.
//!
//! Invariant: a state that has raised an alert is not kept before the alert is. After a crash in
//! between, nobody would raise it again. So the states of subjects with alerts on their way to the
//! journal wait, and those of other subjects do not.

use std::{collections::BTreeSet, io, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedMutexGuard};

use super::{Intake, unsettled::Unsettled};
use crate::{
    edge_rules::EdgeRules,
    journal::Disk,
    reserve::Reserve,
    rule_states::{StateLog, States},
};

/// States on their way to the disk. Dropping this before they are written leaves them changed.
struct Taken<D: Disk> {
    rules: Arc<Mutex<EdgeRules>>,
    unsettled: Arc<Unsettled>,
    states: States,
    log: OwnedMutexGuard<StateLog<D>>,
    is_written: bool,
}

impl<D: Disk> Taken<D> {
    /// Blocks on the disk. After an error the log asks for all states.
    fn write(mut self) -> io::Result<()> {
        let written = self.log.write(&self.states);
        self.is_written = written.is_ok();
        written
    }
}

impl<D: Disk> Drop for Taken<D> {
    // The log, as a field, is released afterwards.
    fn drop(&mut self) {
        let mut rules = self.rules.lock();
        if !self.is_written {
            rules.not_kept(&self.states);
        }
        self.unsettled.write_next(BTreeSet::new());
    }
}

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

    /// Returns once the changed states of these subjects are on disk. Requests that come while one
    /// writes wait, and the next write serves them all. A disk that refuses costs a restart its
    /// states, so the readings are taken all the same.
    pub(super) async fn keep_states(&self, mut touched: BTreeSet<String>) {
        let Some(states) = &self.states else {
            return;
        };
        let mut settled = self.unsettled.settlements();
        let mut is_first = true;
        loop {
            {
                let rules = self.rules.lock();
                touched.retain(|it| rules.has_changed(it) || self.unsettled.is_being_written(it));
            }
            if touched.is_empty() {
                return;
            }
            let log = Arc::clone(states).lock_owned().await;
            settled.mark_unchanged();
            let Some(taken) = self.take_states(log).await else {
                return;
            };
            let keys = taken.states.engines.keys().cloned();
            let keys: BTreeSet<String> = keys.collect();
            if keys.is_empty() {
                drop(taken);
                // Their alerts are on their way.
                let waits = touched.iter().any(|it| self.unsettled.has(it));
                if waits && settled.changed().await.is_err() {
                    return;
                }
                continue;
            }
            let written = tokio::task::spawn_blocking(move || taken.write()).await;
            if let Err(error) = written.map_err(io::Error::other).flatten() {
                if std::mem::take(&mut is_first) && self.has_freed_room(&error).await {
                    continue;
                }
                metrics::counter!("braid_gateway_rule_states_failed_total").increment(1);
                tracing::warn!(%error, "the states of the rules are not kept");
                return;
            }
            touched.retain(|it| !keys.contains(it));
        }
    }

    /// The states to write, none of an alert on its way. `None`: while alerts are held in memory no
    /// state is kept.
    async fn take_states(&self, mut log: OwnedMutexGuard<StateLog<D>>) -> Option<Taken<D>> {
        log.spare_room(self.reserve.as_ref().is_some_and(Reserve::is_in_use));
        let is_all = log.wants_all();
        let taken = {
            let mut rules = self.rules.lock();
            let states = match is_all {
                true => rules.take_all(),
                false => rules.take_changed(|subject| !self.unsettled.has(subject)),
            };
            let written = states.engines.keys().cloned().collect();
            self.unsettled.write_next(written);
            Taken {
                rules: Arc::clone(&self.rules),
                unsettled: Arc::clone(&self.unsettled),
                states,
                log,
                is_written: false,
            }
        };
        if is_all {
            // A log without the subjects of these alerts would lose their former states.
            self.unsettled.until_settled().await;
        }
        // Alerts are held before they are settled, so this comes last.
        let is_kept = self.held.lock().is_empty();
        is_kept.then_some(taken)
    }
}

#[cfg(test)]
mod tests;
