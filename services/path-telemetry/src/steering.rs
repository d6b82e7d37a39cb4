//! The steering document of each tenant, from the store, for its gateways.

use std::{collections::HashMap, sync::Arc, time::Duration};

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
    /// Version and JSON by tenant; bounded by the tenants.
    by_tenant: Arc<Mutex<HashMap<String, (u32, String)>>>,
}

impl Documents {
    /// Version and body; the body is empty where it was taken back. None: none was ever put.
    pub(crate) fn newest(&self, tenant: &str) -> Option<(u32, String)> {
        self.by_tenant.lock().get(tenant).cloned()
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
            match entry.document {
                Ok(document) => {
                    let newest = (document.version, document.body);
                    by_tenant.insert(document.tenant, newest);
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
            // One number tells whether anything was put.
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
