//! Which tenant a gateway belongs to, as the register says. A gateway of the same name elsewhere neither writes nor reads its paths.
//!
//! A name that nobody has registered is everybody's: no tenant is shown its paths. So it is while the store has not answered yet, for
//! reports name no patient, and those of a start could not wait for a store that is away.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use service_kit::{Context, tls::GatewayId};
use store::{Scope, Store};
use tokio::time::MissedTickBehavior;

/// How often the register is read anew; a name that is registered is so long everybody's.
const REFRESH: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, Default)]
pub(crate) struct Owners {
    /// Tenant by gateway; as many as the register has.
    tenants: Arc<Mutex<HashMap<String, String>>>,
}

impl Owners {
    /// Whether the gateway of this name belongs to another tenant.
    pub(crate) fn is_anothers(&self, gateway: &GatewayId) -> bool {
        let tenants = self.tenants.lock();
        // Entered by what was stored of it, a gateway has no tenant until it is registered.
        let owner = tenants.get(&gateway.id).filter(|owner| !owner.is_empty());
        owner.is_some_and(|owner| *owner != gateway.tenant)
    }

    async fn read(&self, store: &dyn Store) {
        match store.gateways(&Scope::Service).await {
            Ok(gateways) => {
                let tenants = gateways.into_iter().map(|entry| (entry.id, entry.tenant));
                *self.tenants.lock() = tenants.collect();
            }
            // What was read last holds on.
            Err(error) => tracing::debug!(%error, "the register of gateways could not be read"),
        }
    }

    /// Keeps them in step with the store until shutdown.
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
