//! Who owns a device: the store's register, remembered.
//!
//! An answer is used for the refresh time. When the store does not answer, the last known owner is believed for [`STALE_MAX`], so
//! that gateways that were known go on through a failure of the store.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use store::{DeviceEntry, QueryError, Scope, Store};

use crate::admission::GatewayId;

/// Devices remembered; beyond it all are forgotten and asked for anew.
const DEVICES_MAX: usize = 100_000;
/// An unknown device is asked for again after this, so that a newly registered one need not wait for the refresh time.
const UNKNOWN_REFRESH: Duration = Duration::from_secs(1);
const STALE_MAX: Duration = Duration::from_secs(3600);

struct Known {
    entry: Option<Arc<DeviceEntry>>,
    asked: Instant,
}

pub struct Register {
    store: Arc<dyn Store>,
    refresh: Duration,
    known: Mutex<HashMap<String, Known, RandomState>>,
}

impl Register {
    pub fn new(store: Arc<dyn Store>, refresh: Duration) -> Register {
        Register {
            store,
            refresh,
            known: Mutex::default(),
        }
    }

    /// `None`: nobody has registered it.
    pub async fn device(&self, id: &str) -> Result<Option<Arc<DeviceEntry>>, QueryError> {
        let stale = {
            let known = self.known.lock();
            match known.get(id) {
                None => None,
                Some(Known { entry, asked }) => {
                    let age = asked.elapsed();
                    let fresh = if entry.is_some() {
                        self.refresh
                    } else {
                        UNKNOWN_REFRESH.min(self.refresh)
                    };
                    if age < fresh {
                        return Ok(entry.clone());
                    }
                    entry.clone().filter(|_| age < STALE_MAX)
                }
            }
        };
        match self.store.device(&Scope::Service, id).await {
            Ok(entry) => {
                let entry = entry.map(Arc::new);
                let mut known = self.known.lock();
                if known.len() >= DEVICES_MAX {
                    known.clear();
                }
                let asked = Instant::now();
                known.insert(
                    id.to_owned(),
                    Known {
                        entry: entry.clone(),
                        asked,
                    },
                );
                Ok(entry)
            }
            Err(e) => stale.map(Some).ok_or(e),
        }
    }

    /// Whether any device of the gateway is worn by the patient, or, of no patient, whether it is a gateway of its tenant: one of that
    /// name elsewhere has nothing to do with it. Asked only for alerts that name no device.
    pub async fn cares_for(&self, gateway: &GatewayId, patient: &str) -> Result<bool, QueryError> {
        let scope = Scope::tenant(&gateway.tenant);
        if patient.is_empty() {
            let gateways = self.store.gateways(&scope).await?;
            return Ok(gateways.iter().any(|own| own.id == gateway.id));
        }
        let devices = self.store.devices(&scope, Some(&gateway.id)).await?;
        Ok(devices.iter().any(|device| device.patient == patient))
    }
}
