//! The steering document of each tenant, from the store, for its gateways.

use std::{collections::HashMap, sync::Arc, time::Duration};

use multipath::steering_rules::Document;
use parking_lot::Mutex;
use service_kit::Context;
use store::{DocumentsStore, STEERING, Scope, Store};
use tokio::time::MissedTickBehavior;

/// Interval at which the store is asked; a new version takes effect at a gateway after this and
/// the gateway's own interval.
const REFRESH: Duration = Duration::from_secs(5);

/// The newest documents. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Documents {
    /// By tenant; bounded by the tenants.
    by_tenant: Arc<Mutex<HashMap<String, Newest>>>,
}

/// A version. The document is absent where it was taken back.
#[derive(Clone, Debug)]
struct Newest {
    version: u32,
    document: Option<Arc<Document>>,
}

impl Documents {
    /// The newest version, and its body as this gateway obeys it. The body is empty where the
    /// document was taken back, and where the gateway has that version. None: none was ever put.
    pub(crate) fn newest(&self, tenant: &str, gateway: &str, held: u32) -> Option<(u32, String)> {
        let newest = self.by_tenant.lock().get(tenant).cloned()?;
        let document = newest.document.filter(|_| newest.version != held);
        let body = document.map(|document| document.for_gateway(gateway).to_json());
        Some((newest.version, body.unwrap_or_default()))
    }

    /// Whether the store has answered.
    async fn read(&self, store: &(impl DocumentsStore + ?Sized)) -> bool {
        let stored = store.stored_documents(&Scope::Service, STEERING, contracts::now_us());
        let stored = match stored.await {
            Ok(stored) => stored,
            // The last answer stays in force.
            Err(error) => {
                tracing::debug!(%error, "steering documents could not be read");
                return false;
            }
        };
        let mut by_tenant = self.by_tenant.lock();
        for entry in stored {
            let newest = entry.document.map_err(|error| error.to_string());
            let newest = newest.and_then(|stored| {
                let document = match stored.body.as_str() {
                    "" => None,
                    body => Some(Document::from_json(body, STEERING)),
                };
                let document = document.transpose().map_err(|error| error.to_string())?;
                let version = stored.version;
                let document = document.map(Arc::new);
                Ok((stored.tenant, Newest { version, document }))
            });
            match newest {
                Ok((tenant, newest)) => {
                    by_tenant.insert(tenant, newest);
                }
                // The version before it stays in force.
                Err(error) => {
                    tracing::warn!(%error, version = entry.version, "a steering document is damaged");
                }
            }
        }
        true
    }

    /// Follows the store until shutdown.
    pub(crate) async fn follow(self, store: Arc<dyn Store>, context: Context) {
        let mut newest = None;
        let mut tick = tokio::time::interval(REFRESH);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = context.shutdown().requested() => return,
                _ = tick.tick() => {}
            }
            self.look(store.as_ref(), &mut newest).await;
        }
    }

    /// Reads the documents if one was put since they were read.
    async fn look(&self, store: &(impl DocumentsStore + ?Sized), newest: &mut Option<u64>) {
        // One number shows whether a document was put.
        match store.newest_document().await {
            Ok(number) if *newest == Some(number) => {}
            // After a failure they are read again, although nobody puts another one.
            Ok(number) => {
                if self.read(store).await {
                    *newest = Some(number);
                }
            }
            Err(error) => tracing::debug!(%error, "the store cannot be asked"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use store::{QueryError, StoredDocument, WriteError};

    use super::*;

    /// Has one document, and may be unable to read it.
    #[derive(Default)]
    struct Failing(AtomicBool);

    #[async_trait::async_trait]
    impl DocumentsStore for Failing {
        async fn put_document(&self, _: &contracts::alerts::Document) -> Result<(), WriteError> {
            Ok(())
        }

        async fn stored_documents(
            &self,
            _: &Scope,
            _: &str,
            _: i64,
        ) -> Result<Vec<StoredDocument>, QueryError> {
            if self.0.load(Ordering::Relaxed) {
                return Err(QueryError::Unreadable("a test".to_owned()));
            }
            Ok(vec![StoredDocument {
                kind: STEERING.to_owned(),
                tenant: "default".to_owned(),
                subject: "default".to_owned(),
                version: 7,
                document: Ok(contracts::alerts::Document {
                    version: 7,
                    tenant: "default".to_owned(),
                    body: r#"{"format":1}"#.to_owned(),
                    ..Default::default()
                }),
            }])
        }

        async fn stored_history(
            &self,
            scope: &Scope,
            kind: &str,
            _: &str,
            _: usize,
        ) -> Result<Vec<StoredDocument>, QueryError> {
            self.stored_documents(scope, kind, 0).await
        }

        async fn newest_document(&self) -> Result<u64, QueryError> {
            Ok(1)
        }
    }

    #[tokio::test]
    async fn a_document_that_could_not_be_read_is_read_at_the_next_look() {
        let (store, documents, mut newest) = (Failing::default(), Documents::default(), None);
        let held = || documents.newest("default", "gw-1", 0);
        store.0.store(true, Ordering::Relaxed);
        documents.look(&store, &mut newest).await;
        assert_eq!(held(), None);
        store.0.store(false, Ordering::Relaxed);
        documents.look(&store, &mut newest).await;
        assert_eq!(held().map(|it| it.0), Some(7));
    }
}
