//! Writes transitions, rule states and progress in one transaction, and says what to do when that fails.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bus::Topic;
use contracts::alerts::Alert;
use service_kit::{Backoff, CheckHandle, Context, ProgressHandle, Shutdown};
use store::{AlertsBatch, Progress, QueryError, RuleState, Scope, Store, WriteError};
use tokio::sync::Notify;

pub(crate) struct Writer {
    store: Arc<dyn Store>,
    /// Woken when the outbox has something new.
    outbox: Arc<Notify>,
    check: CheckHandle,
    shutdown: Shutdown,
}

#[derive(Debug)]
pub(crate) enum Outcome {
    Stored,
    /// Somebody else wrote the next revision of these alerts; here they are as stored.
    Conflict(Vec<Alert>),
    /// These partitions belong to another member.
    Fenced(BTreeSet<u32>),
    /// Would fail again.
    Refused(String),
    /// Shutdown was requested while the store did not answer; nothing is written.
    Ended,
}

impl Writer {
    pub(crate) fn new(store: Arc<dyn Store>, outbox: Arc<Notify>, context: &Context) -> Writer {
        Writer {
            store,
            outbox,
            check: context.health().check("store"),
            shutdown: context.shutdown().clone(),
        }
    }

    /// Tries until the store answers; `turns` beats with each try.
    pub(crate) async fn write(
        &self,
        batch: &AlertsBatch,
        progress: &[Progress],
        turns: &ProgressHandle,
    ) -> Outcome {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        loop {
            turns.beat();
            match self
                .store
                .write_alerts(batch.clone(), progress.to_vec())
                .await
            {
                Ok(_) => {
                    self.check.ok();
                    if !batch.transitions.is_empty() {
                        self.outbox.notify_one();
                    }
                    return Outcome::Stored;
                }
                Err(WriteError::Conflict(ids)) => match self.stored(&ids, turns).await {
                    Some(alerts) => return Outcome::Conflict(alerts),
                    None => return Outcome::Ended,
                },
                Err(WriteError::Fenced(partitions)) => {
                    return Outcome::Fenced(partitions.into_iter().map(|(_, p)| p).collect());
                }
                Err(WriteError::Invalid(reason) | WriteError::Unfit(reason)) => {
                    return Outcome::Refused(reason);
                }
                Err(WriteError::Unavailable(reason)) => {
                    if self.pause(&mut backoff, reason).await {
                        return Outcome::Ended;
                    }
                }
            }
        }
    }

    /// The rule states of a partition; `None` after shutdown.
    pub(crate) async fn states(
        &self,
        partition: u32,
        turns: &ProgressHandle,
    ) -> Option<Vec<RuleState>> {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        loop {
            turns.beat();
            match self.store.rule_states(Topic::Vitals, partition).await {
                Ok(states) => {
                    self.check.ok();
                    return Some(states);
                }
                Err(error) => {
                    if self.pause(&mut backoff, error.to_string()).await {
                        return None;
                    }
                }
            }
        }
    }

    async fn stored(&self, ids: &[String], turns: &ProgressHandle) -> Option<Vec<Alert>> {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        let mut alerts = Vec::with_capacity(ids.len());
        for id in ids {
            loop {
                turns.beat();
                match self.store.alert(&Scope::Service, id).await {
                    Ok(alert) => {
                        alerts.extend(alert);
                        break;
                    }
                    Err(QueryError::Unavailable(reason) | QueryError::Unreadable(reason)) => {
                        if self.pause(&mut backoff, reason).await {
                            return None;
                        }
                    }
                }
            }
        }
        Some(alerts)
    }

    /// Waits before another try; true when shutdown was requested meanwhile.
    async fn pause(&self, backoff: &mut Backoff, reason: String) -> bool {
        metrics::counter!("braid_alerting_store_retries_total").increment(1);
        self.check.failing(reason);
        tokio::select! {
            () = self.shutdown.requested() => true,
            () = backoff.wait() => false,
        }
    }
}
