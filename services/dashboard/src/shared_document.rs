//! A document of the store by which the replicas of a dashboard agree.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
    sync::Arc,
    time::Duration,
};

use clocks::CheckedClock;
use contracts::alerts::Document;
use serde::{Serialize, de::DeserializeOwned};
use store::{DEFAULT_TENANT, Scope, Store, WriteError};
use tokio::time::timeout;

/// A store that does not answer by then has no part in it.
const WITHIN: Duration = Duration::from_secs(5);
/// Versions that another replica may put in between; then it is asked again later.
const TRIES_MAX: usize = 8;

/// The result of a change.
pub(crate) enum Changed<T> {
    To(T),
    /// Other replicas changed the document all the time.
    Contended,
    /// The store does not answer.
    Away,
}

pub(crate) struct SharedDocument {
    store: Arc<dyn Store>,
    clock: CheckedClock,
    kind: &'static str,
    subject: &'static str,
    /// Names this process among the replicas.
    replica: String,
}

impl SharedDocument {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        clock: CheckedClock,
        kind: &'static str,
        subject: &'static str,
    ) -> SharedDocument {
        let number = RandomState::new().build_hasher().finish();
        SharedDocument {
            store,
            clock,
            kind,
            subject,
            replica: format!("{number:016x}"),
        }
    }

    pub(crate) fn replica(&self) -> &str {
        &self.replica
    }

    /// Changes the newest version, at this time of the clock.
    pub(crate) async fn change<D, T>(&self, change: impl Fn(&mut D, i64) -> T) -> Changed<T>
    where
        D: Default + Clone + PartialEq + Serialize + DeserializeOwned,
    {
        match timeout(WITHIN, self.try_change(change)).await {
            Ok(Ok(Some(changed))) => Changed::To(changed),
            Ok(Ok(None)) => Changed::Contended,
            Ok(Err(error)) => {
                tracing::debug!(kind = self.kind, %error, "the replicas cannot agree");
                Changed::Away
            }
            Err(_) => Changed::Away,
        }
    }

    async fn try_change<D, T>(
        &self,
        change: impl Fn(&mut D, i64) -> T,
    ) -> Result<Option<T>, WriteError>
    where
        D: Default + Clone + PartialEq + Serialize + DeserializeOwned,
    {
        let scope = Scope::tenant(DEFAULT_TENANT);
        for _ in 0..TRIES_MAX {
            let newest = self
                .store
                .stored_history(&scope, self.kind, self.subject, 1);
            let newest = newest.await;
            let newest = newest.map_err(|error| WriteError::Unavailable(error.to_string()))?;
            let newest = newest.into_iter().next();
            let version = newest.as_ref().map_or(0, |it| it.version);
            // One that cannot be read is replaced: a letter too many is better than none.
            let before: D = newest
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
                kind: self.kind.to_owned(),
                tenant: DEFAULT_TENANT.to_owned(),
                subject: self.subject.to_owned(),
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
