//! Writes transitions, rule states and progress in one transaction, and classifies failures.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bus::Topic;
use contracts::alerts::Alert;
use service_kit::{
    Backoff, CheckHandle, Context, ProgressHandle, Shutdown,
    probe::{Pace, keep_proving},
};
use store::{AlertsBatch, AuditEntry, Progress, QueryError, RuleState, Scope, Store, WriteError};
use tokio::sync::Notify;

pub(crate) struct Writer {
    store: Arc<dyn Store>,
    /// Notified when the outbox has a new entry.
    outbox: Arc<Notify>,
    check: CheckHandle,
    shutdown: Shutdown,
}

#[derive(Debug)]
pub(crate) enum Outcome {
    Stored,
    /// The store has different rows of these alerts.
    Conflict {
        /// The newest stored revision of each alert.
        stored: Vec<Alert>,
        /// Ids of rows that the store cannot read.
        unreadable: Vec<String>,
    },
    /// These partitions belong to another member.
    Fenced(BTreeSet<u32>),
    /// The same write would fail again.
    Refused(String),
    /// Shutdown was requested while the store did not answer. Nothing is written.
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

    /// Proves that the store takes writes, until shutdown. Without records there are no others, and
    /// the first alert would find out that the disk is full.
    pub(crate) fn prove(&self, pace: Pace) -> impl Future<Output = ()> + Send + use<> {
        let store = Arc::clone(&self.store);
        let prove = move || {
            let store = Arc::clone(&store);
            async move { store.ready().await }
        };
        keep_proving(self.check.clone(), prove, pace, self.shutdown.clone())
    }

    /// Tries until the store answers. `turns` beats with each attempt, and readiness reports the
    /// reason. Every answer is final.
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
                Err(WriteError::Conflict(ids)) => return self.conflict(&ids, turns).await,
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

    /// Records acknowledgements of people at gateways before they are stored, so that nothing
    /// happens unrecorded. A repeated attempt may record one twice. An alert does not wait for the
    /// audit log, and its history has the name as well.
    pub(crate) async fn audit(&self, acknowledged: &[(String, Alert)], now_us: i64) {
        if acknowledged.is_empty() {
            return;
        }
        let entries = acknowledged.iter().map(|(tenant, alert)| AuditEntry {
            time_us: now_us,
            tenant: tenant.clone(),
            who: alert.acknowledged_by.clone(),
            action: "acknowledge alert".to_owned(),
            patient: alert.patient.clone(),
            detail: format!("{}; {}", alert.id, alert.note),
        });
        if let Err(error) = self.store.append_audit(entries.collect()).await {
            metrics::counter!("braid_alerting_audit_failed_total").increment(1);
            tracing::warn!(%error, "acknowledgements of a gateway are not in the audit log");
        }
    }

    /// The rule states of a partition. `None`: shutdown. Unreadable states count as none, because
    /// fresh rules are better than a partition that is not judged.
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
                Err(QueryError::Unreadable(reason)) => {
                    tracing::error!(
                        partition,
                        reason,
                        "the stored states are unreadable; the rules of a partition start afresh"
                    );
                    return Some(Vec::new());
                }
                Err(QueryError::Unavailable(reason)) => {
                    if self.pause(&mut backoff, reason).await {
                        return None;
                    }
                }
            }
        }
    }

    /// Reads the stored rows of these alerts. An unreadable row stays unreadable, so it is read
    /// once.
    async fn conflict(&self, ids: &[String], turns: &ProgressHandle) -> Outcome {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        let (mut stored, mut unreadable) = (Vec::with_capacity(ids.len()), Vec::new());
        for id in ids {
            loop {
                turns.beat();
                match self.store.alert(&Scope::Service, id).await {
                    Ok(Some(alert)) => stored.push(alert),
                    Ok(None) => unreadable.push(id.clone()),
                    Err(QueryError::Unreadable(reason)) => {
                        tracing::error!(alert = id, reason, "a stored alert cannot be read");
                        unreadable.push(id.clone());
                    }
                    Err(QueryError::Unavailable(reason)) => {
                        if self.pause(&mut backoff, reason).await {
                            return Outcome::Ended;
                        }
                        continue;
                    }
                }
                break;
            }
        }
        Outcome::Conflict { stored, unreadable }
    }

    /// Waits before the next attempt. True: shutdown was requested meanwhile.
    async fn pause(&self, backoff: &mut Backoff, reason: String) -> bool {
        metrics::counter!("braid_alerting_store_retries_total").increment(1);
        self.check.failing(reason);
        tokio::select! {
            () = self.shutdown.requested() => true,
            () = backoff.wait() => false,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use store::SqliteStore;

    use super::*;

    /// A trigger refuses writes as a full disk does, and no other write finds out.
    #[tokio::test]
    async fn a_full_disk_is_known_before_the_first_alert() {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(SqliteStore::open(dir.path()).unwrap());
        let context = Context::new("alerting");
        let writer = Writer::new(store, Arc::default(), &context);
        let pace = Pace {
            while_ready: Duration::from_millis(1),
            while_not: Duration::from_millis(1),
            ..Pace::default()
        };
        context.tasks().spawn(writer.prove(pace));
        let until = async |ready: bool| {
            let reached = async {
                while context.health().is_ready() != ready {
                    tokio::time::sleep(pace.while_not).await;
                }
            };
            let reached = tokio::time::timeout(Duration::from_secs(30), reached).await;
            assert!(reached.is_ok(), "{:?}", context.health().failing());
        };
        until(true).await;
        let other = rusqlite::Connection::open(dir.path().join("store.db")).unwrap();
        other.busy_timeout(Duration::from_secs(30)).unwrap();
        let full = "CREATE TRIGGER full BEFORE UPDATE ON probe BEGIN
            SELECT RAISE(FAIL, 'database or disk is full'); END";
        other.execute_batch(full).unwrap();
        until(false).await;
        let (name, reason) = context.health().failing().remove(0);
        assert!(name == "store" && reason.contains("full"), "{reason}");
        other.execute_batch("DROP TRIGGER full").unwrap();
        until(true).await;
        context.shutdown().request();
        assert!(context.drain_tasks().await);
    }
}
