//! Asks the store whether this replica tells people for the installation.

use std::{
    collections::{BTreeSet, hash_map::RandomState},
    hash::{BuildHasher, Hasher},
    sync::Arc,
    time::Duration,
};

use clocks::CheckedClock;
use contracts::alerts::Document;
use store::{DEFAULT_TENANT, Scope, Store, WriteError};
use tokio::time::timeout;

use crate::outage::shared::{OutageDocument, Turn};

/// The document is of this kind, and has one subject.
const KIND: &str = "outage-posts";
const SUBJECT: &str = "canary-webhook";
/// A store that does not answer by then has no part in it: the replica tells people by itself.
const WITHIN: Duration = Duration::from_secs(5);
/// Versions that another replica may put in between; then it is asked again later.
const TRIES_MAX: usize = 8;

pub(crate) struct Turns {
    store: Arc<dyn Store>,
    clock: CheckedClock,
    /// Names this process among the replicas.
    replica: String,
}

impl Turns {
    pub(crate) fn new(store: Arc<dyn Store>, clock: CheckedClock) -> Turns {
        let number = RandomState::new().build_hasher().finish();
        Turns {
            store,
            clock,
            replica: format!("{number:016x}"),
        }
    }

    /// Names letters of this replica when the store does not answer.
    pub(crate) fn replica(&self) -> &str {
        &self.replica
    }

    /// See [`OutageDocument::enter`]. `None`: the store does not answer.
    pub(crate) async fn enter(
        &self,
        told: &BTreeSet<String>,
        wanted: &BTreeSet<String>,
    ) -> Option<(Turn, OutageDocument)> {
        let changed = self.change(|shared, now_us| {
            let turn = shared.enter(&self.replica, told, wanted, now_us);
            (turn, shared.clone())
        });
        Some(
            changed
                .await?
                .unwrap_or((Turn::Wait, OutageDocument::default())),
        )
    }

    /// See [`OutageDocument::pass_on`].
    pub(crate) async fn pass_on(&self) {
        self.change(|shared, _| shared.pass_on(&self.replica)).await;
    }

    /// See [`OutageDocument::leave`], with the name of the outage. The outer `None`: the store does
    /// not answer.
    pub(crate) async fn leave(&self) -> Option<Option<(BTreeSet<String>, String)>> {
        let changed = self.change(|shared, now_us| {
            let outage = shared.outage.clone();
            let told = shared.leave(&self.replica, now_us)?;
            Some((told, outage))
        });
        Some(changed.await?.flatten())
    }

    /// The inner `None`: other replicas changed the document all the time.
    async fn change<T>(&self, change: impl Fn(&mut OutageDocument, i64) -> T) -> Option<Option<T>> {
        match timeout(WITHIN, self.try_change(change)).await {
            Ok(Ok(changed)) => Some(changed),
            Ok(Err(error)) => {
                tracing::debug!(%error, "the store does not say which replica tells people");
                None
            }
            Err(_) => None,
        }
    }

    async fn try_change<T>(
        &self,
        change: impl Fn(&mut OutageDocument, i64) -> T,
    ) -> Result<Option<T>, WriteError> {
        let scope = Scope::tenant(DEFAULT_TENANT);
        for _ in 0..TRIES_MAX {
            let newest = self.store.stored_history(&scope, KIND, SUBJECT, 1).await;
            let newest = newest.map_err(|error| WriteError::Unavailable(error.to_string()))?;
            let newest = newest.into_iter().next();
            let version = newest.as_ref().map_or(0, |it| it.version);
            // One that cannot be read is replaced: a letter too many is better than none.
            let before: OutageDocument = newest
                .and_then(|it| it.document.ok())
                .and_then(|it| serde_json::from_str(&it.body).ok())
                .unwrap_or_default();
            let mut shared = before.clone();
            let now_us = self.clock.now_us();
            let changed = change(&mut shared, now_us);
            if shared == before {
                return Ok(Some(changed));
            }
            let document = Document {
                kind: KIND.to_owned(),
                tenant: DEFAULT_TENANT.to_owned(),
                subject: SUBJECT.to_owned(),
                version: version + 1,
                author: "braid-dashboard".to_owned(),
                reason: "people are told once for all replicas".to_owned(),
                at_us: now_us,
                // Strings and numbers: serialisation has no way to fail.
                body: serde_json::to_string(&shared).unwrap_or_default(),
                ..Document::default()
            };
            match self.store.put_document(&document).await {
                Ok(()) => return Ok(Some(changed)),
                Err(WriteError::Conflict(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}
