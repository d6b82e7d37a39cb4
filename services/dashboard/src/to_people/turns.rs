//! Asks the store whether this replica posts for the installation.

use std::{
    collections::hash_map::RandomState,
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
/// A store that does not answer by then has no part in it: the replica posts by itself.
const WITHIN: Duration = Duration::from_secs(5);
/// Versions that another replica may put in between; then it is asked again later.
const TRIES_MAX: usize = 8;

pub(crate) struct OnePost {
    store: Arc<dyn Store>,
    clock: CheckedClock,
    /// Names this process among the replicas.
    replica: String,
}

impl OnePost {
    pub(crate) fn new(store: Arc<dyn Store>, clock: CheckedClock) -> OnePost {
        let number = RandomState::new().build_hasher().finish();
        OnePost {
            store,
            clock,
            replica: format!("{number:016x}"),
        }
    }

    /// See [`OutageDocument::enter`]. `None`: the store does not answer.
    pub(crate) async fn enter(&self, has_posted: bool) -> Option<Turn> {
        self.change(|shared, now_us| shared.enter(&self.replica, has_posted, now_us))
            .await
    }

    /// See [`OutageDocument::pass_on`].
    pub(crate) async fn pass_on(&self) {
        self.change(|shared, _| shared.pass_on(&self.replica)).await;
    }

    /// See [`OutageDocument::leave`]. `None`: the store does not answer.
    pub(crate) async fn leave(&self) -> Option<Turn> {
        self.change(|shared, now_us| shared.leave(&self.replica, now_us))
            .await
    }

    async fn change(&self, change: impl Fn(&mut OutageDocument, i64) -> Turn) -> Option<Turn> {
        match timeout(WITHIN, self.try_change(change)).await {
            Ok(Ok(turn)) => Some(turn),
            Ok(Err(error)) => {
                tracing::debug!(%error, "the store does not tell which replica posts");
                None
            }
            Err(_) => None,
        }
    }

    async fn try_change(
        &self,
        change: impl Fn(&mut OutageDocument, i64) -> Turn,
    ) -> Result<Turn, WriteError> {
        let scope = Scope::tenant(DEFAULT_TENANT);
        for _ in 0..TRIES_MAX {
            let newest = self.store.stored_history(&scope, KIND, SUBJECT, 1).await;
            let newest = newest.map_err(|error| WriteError::Unavailable(error.to_string()))?;
            let newest = newest.into_iter().next();
            let version = newest.as_ref().map_or(0, |it| it.version);
            // One that cannot be read is replaced: a post too many is better than none.
            let before: OutageDocument = newest
                .and_then(|it| it.document.ok())
                .and_then(|it| serde_json::from_str(&it.body).ok())
                .unwrap_or_default();
            let mut shared = before.clone();
            let now_us = self.clock.now_us();
            let turn = change(&mut shared, now_us);
            if shared == before {
                return Ok(turn);
            }
            let document = Document {
                kind: KIND.to_owned(),
                tenant: DEFAULT_TENANT.to_owned(),
                subject: SUBJECT.to_owned(),
                version: version + 1,
                author: "braid-dashboard".to_owned(),
                reason: "one post of an outage for all replicas".to_owned(),
                at_us: now_us,
                // Strings and numbers: serialisation has no way to fail.
                body: serde_json::to_string(&shared).unwrap_or_default(),
                ..Document::default()
            };
            match self.store.put_document(&document).await {
                Ok(()) => return Ok(turn),
                Err(WriteError::Conflict(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Turn::Wait)
    }
}
