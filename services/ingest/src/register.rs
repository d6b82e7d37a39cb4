//! Who owns a device: the store's register, remembered.
//!
//! An answer is used for the refresh time, unless the device is registered anew: that is asked each second for all devices at once, because
//! what a device measures with somebody else must not be stored as the one's before. When the store does not answer, the last known owner is believed for [`STALE_MAX`], so
//! that gateways that were known go on through a failure of the store. What a gateway names is up to it: names that nobody can have
//! registered are not asked for, and those that nobody has are the first to be forgotten.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use store::{DeviceEntry, QueryError, Scope, Store};
use vitals::validate_identifier;

use crate::admission::GatewayId;

/// Devices remembered; beyond it those that nobody has registered are forgotten, or else all, and asked for anew.
const DEVICES_MAX: usize = 100_000;
/// A device that is unknown, or another gateway's, is asked for again after this: what a newly registered one or one that has changed
/// hands sends meanwhile is refused for good.
const REFUSED_REFRESH: Duration = Duration::from_secs(1);
const STALE_MAX: Duration = Duration::from_secs(3600);
/// How often it is asked what was registered anew, and how far back: who registers may have a clock that is behind another's by so much.
/// Beyond it the refresh time holds.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_BACK_US: i64 = 60_000_000;

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

    /// For `gateway`, which speaks for it. `None`: nobody has registered it.
    pub async fn device(
        &self,
        id: &str,
        gateway: &GatewayId,
    ) -> Result<Option<Arc<DeviceEntry>>, QueryError> {
        if validate_identifier("device", id, "chest-belt-7").is_err() {
            return Ok(None);
        }
        let stale = {
            let known = self.known.lock();
            match known.get(id) {
                None => None,
                Some(Known { entry, asked }) => {
                    let age = asked.elapsed();
                    let fresh = if entry.as_deref().is_some_and(|entry| gateway.owns(entry)) {
                        self.refresh
                    } else {
                        REFUSED_REFRESH.min(self.refresh)
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
                    known.retain(|_, known| known.entry.is_some());
                }
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

    /// Follows what is registered anew until `end`.
    pub async fn follow(&self, end: impl Future<Output = ()>) {
        let mut end = std::pin::pin!(end);
        let mut newest_us = contracts::now_us();
        loop {
            tokio::select! {
                () = end.as_mut() => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            match self.look(newest_us).await {
                Ok(newest) => newest_us = newest,
                // As for any other question meanwhile, what was last known holds.
                Err(error) => tracing::debug!(%error, "what was registered anew is not known"),
            }
        }
    }

    /// Takes up what was registered since shortly before `newest_us`; returns when the newest of it was.
    async fn look(&self, newest_us: i64) -> Result<i64, QueryError> {
        let since_us = newest_us.saturating_sub(LOOK_BACK_US);
        let found = self.store.registered_since(since_us).await?;
        let asked = Instant::now();
        let times = found.iter().map(|entry| entry.registered_us);
        // No time of a clock that is far ahead, behind which all others' would be passed over.
        let newest_us = times.fold(newest_us, i64::max).min(contracts::now_us());
        let mut known = self.known.lock();
        for entry in found {
            if let Some(known) = known.get_mut(&entry.id) {
                let entry = Some(Arc::new(entry));
                *known = Known { entry, asked };
            }
        }
        Ok(newest_us)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use store::SqliteStore;

    use super::*;

    #[tokio::test]
    async fn a_gateway_that_takes_a_device_over_does_not_wait_for_the_refresh_time() {
        let directory = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(directory.path()).unwrap());
        let register = Register::new(Arc::clone(&store), Duration::from_secs(3600));
        let gateway = |id: &str| GatewayId {
            tenant: "t".into(),
            id: id.into(),
        };
        let belongs_to = async |id: &str| {
            let entry = DeviceEntry {
                id: "belt".into(),
                tenant: "t".into(),
                gateway: id.into(),
                patient: "ada".into(),
                registered_us: 1,
            };
            store.put_device(&entry).await.unwrap();
        };
        belongs_to("old").await;
        let (old, new) = (gateway("old"), gateway("new"));
        let known = register.device("belt", &old).await.unwrap().unwrap();
        assert!(old.owns(&known));
        belongs_to("new").await;
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let known = register.device("belt", &new).await.unwrap().unwrap();
            if new.owns(&known) {
                break;
            }
            assert!(Instant::now() < deadline, "it is refused for an hour");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let known = register.device("belt", &old).await.unwrap().unwrap();
        assert!(!old.owns(&known), "for both from then on");
    }

    #[tokio::test]
    async fn who_wears_a_device_now_is_known_within_a_second() {
        let directory = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(directory.path()).unwrap());
        let register = Register::new(Arc::clone(&store), Duration::from_secs(3600));
        let gateway = GatewayId {
            tenant: "t".into(),
            id: "gw".into(),
        };
        let worn_by = async |patient: &str, registered_us| {
            let entry = DeviceEntry {
                id: "belt".into(),
                tenant: "t".into(),
                gateway: "gw".into(),
                patient: patient.into(),
                registered_us,
            };
            store.put_device(&entry).await.unwrap();
        };
        let now_us = contracts::now_us();
        worn_by("ada", now_us - 3_600_000_000).await;
        let known = register.device("belt", &gateway).await.unwrap().unwrap();
        assert_eq!(known.patient, "ada");
        // Registered where the clock is half a minute behind.
        worn_by("ben", now_us - 30_000_000).await;
        let deadline = Instant::now() + Duration::from_secs(30);
        let done = tokio::sync::Notify::new();
        let becomes_known = async {
            loop {
                let known = register.device("belt", &gateway).await.unwrap().unwrap();
                if known.patient == "ben" || Instant::now() > deadline {
                    return known.patient.clone();
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let (patient, ()) = tokio::join!(
            async {
                let patient = becomes_known.await;
                done.notify_one();
                patient
            },
            register.follow(done.notified())
        );
        assert_eq!(
            patient, "ben",
            "what he measures is stored as hers for an hour"
        );
        // A clock that is ahead hides nobody behind it.
        worn_by("eve", i64::MAX).await;
        assert!(register.look(now_us).await.unwrap() <= contracts::now_us());
        let known = register.device("belt", &gateway).await.unwrap().unwrap();
        assert_eq!(known.patient, "eve");
    }

    #[tokio::test]
    async fn who_names_devices_that_are_none_takes_neither_memory_nor_what_is_known() {
        let directory = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(directory.path()).unwrap());
        let register = Register::new(Arc::clone(&store), Duration::from_secs(3600));
        let gateway = GatewayId {
            tenant: "t".into(),
            id: "gw".into(),
        };
        let entry = DeviceEntry {
            id: "belt".into(),
            tenant: "t".into(),
            gateway: "gw".into(),
            patient: "ada".into(),
            registered_us: 1,
        };
        store.put_device(&entry).await.unwrap();
        register.device("belt", &gateway).await.unwrap().unwrap();
        for none in ["x".repeat(4 << 20), "nul\0".to_owned()] {
            assert_eq!(register.device(&none, &gateway).await.unwrap(), None);
        }
        assert_eq!(register.known.lock().len(), 1, "of any length");
        let asked = Instant::now();
        let nobodys = |n| (format!("none-{n}"), Known { entry: None, asked });
        register.known.lock().extend((1..DEVICES_MAX).map(nobodys));
        register.device("one-more", &gateway).await.unwrap();
        let known = register.known.lock();
        assert!(known.contains_key("belt") && known.len() == 2);
    }
}
