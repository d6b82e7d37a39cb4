//! The tenant of each gateway, from the register. A gateway of the same name in another tenant can
//! neither write nor read its paths.
//!
//! A name that is not registered belongs to no tenant: every tenant may report under it, and no
//! tenant is shown its paths. The same holds until the store answers for the first time. Reports
//! name no patient, and the reports after a start cannot wait for the store.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use service_kit::{Context, tls::GatewayId};
use store::{Scope, Store};
use tokio::time::MissedTickBehavior;

/// Interval at which the register is read; a new registration takes effect after it.
const REFRESH: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, Default)]
pub(crate) struct Owners {
    /// Tenant by gateway; bounded by the register.
    tenants: Arc<Mutex<HashMap<String, String>>>,
}

impl Owners {
    /// Whether the gateway of this name belongs to another tenant.
    pub(crate) fn is_anothers(&self, gateway: &GatewayId) -> bool {
        let tenants = self.tenants.lock();
        // A gateway that was entered from stored rows has no tenant until it is registered.
        let owner = tenants.get(&gateway.id).filter(|owner| !owner.is_empty());
        owner.is_some_and(|owner| *owner != gateway.tenant)
    }

    async fn read(&self, store: &dyn Store) {
        match store.gateways(&Scope::Service).await {
            Ok(gateways) => {
                let tenants = gateways.into_iter().map(|entry| (entry.id, entry.tenant));
                *self.tenants.lock() = tenants.collect();
            }
            // The last answer of the store stays in force.
            Err(error) => tracing::debug!(%error, "the register of gateways could not be read"),
        }
    }

    /// Reads the register at intervals until shutdown.
    pub(crate) async fn follow(self, store: Arc<dyn Store>, context: Context) {
        let mut tick = tokio::time::interval(REFRESH);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = context.shutdown().requested() => return,
                _ = tick.tick() => self.read(store.as_ref()).await,
            }
        }
    }
}
