//! The steering document of each tenant, from the store, for its gateways.

use std::{collections::HashMap, sync::Arc, time::Duration};

use multipath::steering_rules::Document;
use parking_lot::Mutex;
use service_kit::Context;
use store::{STEERING, Scope, Store};
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

    async fn read(&self, store: &dyn Store) {
        let stored = store.stored_documents(&Scope::Service, STEERING, contracts::now_us());
        let stored = match stored.await {
            Ok(stored) => stored,
            // The last answer stays in force.
            Err(error) => {
                tracing::debug!(%error, "steering documents could not be read");
                return;
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
            // One number shows whether a document was put.
            match store.newest_document().await {
                Ok(number) if newest == Some(number) => {}
                Ok(number) => {
                    self.read(store.as_ref()).await;
                    newest = Some(number);
                }
                Err(error) => tracing::debug!(%error, "the store cannot be asked"),
            }
        }
    }
}
