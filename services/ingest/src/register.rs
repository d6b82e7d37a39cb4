//! The wearing intervals of devices: the store's register, cached.
//!
//! An answer is used for the refresh time, or until the assignments of the device change. Changes
//! of all devices are asked for each second, so a change that begins [`store::ASSIGN_LEAD_US`]
//! after its entry is known in time.
//! While the store does not answer, the last known assignments hold for [`STALE_MAX`].
//! A gateway may send any name. Names that cannot be registered are not asked for, and unknown ones
//! are forgotten first.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use store::{Asked, Of, QueryError, Scope, Store};
use tokio::sync::watch;
use tonic::Status;
use vitals::{attribution::Interval, validate_identifier};

use crate::admission::GatewayId;

/// Devices remembered. Beyond it the unregistered ones are forgotten, or else all, and asked for
/// anew.
const DEVICES_MAX: usize = 100_000;
/// A device that is unknown, or of another tenant, is asked for again after this time.
const UNKNOWN_REFRESH: Duration = Duration::from_secs(1);
/// Age up to which a remembered device holds while the store does not answer.
const STALE_MAX: Duration = Duration::from_secs(3600);
/// A read of a remembered device may take so long while the changes are known. Then the last known
/// assignments hold, and those of all remembered devices for `UNKNOWN_REFRESH`.
const READ_LIMIT: Duration = Duration::from_millis(250);
/// The changes count as known for this time after a look at them.
const CHANGES_KNOWN_MAX: Duration = Duration::from_secs(5);
/// How often changes are asked for, and how far back. The clock of the program that enters a change
/// may be behind by this much; beyond it the refresh time holds.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_BACK_US: i64 = 60_000_000;

/// A device as the register has it.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Device {
    tenant: String,
    intervals: Vec<Interval>,
}

impl Device {
    /// The intervals that the gateway may see. A device of another tenant has none.
    pub(crate) fn intervals(&self, gateway: &GatewayId) -> &[Interval] {
        if self.tenant == gateway.tenant {
            &self.intervals
        } else {
            &[]
        }
    }
}

struct Known {
    device: Arc<Device>,
    asked: Instant,
}

pub(crate) struct Register {
    store: Arc<dyn Store>,
    refresh: Duration,
    known: Mutex<HashMap<String, Known, RandomState>>,
    /// Until when the last known assignments hold, because the store did not answer in time.
    holds_until: Mutex<Option<Instant>>,
    /// Time of the last look at the changes.
    looked_at: Mutex<Option<Instant>>,
    /// Number of looks that found a change.
    changes: watch::Sender<u64>,
}

impl Register {
    pub(crate) fn new(store: Arc<dyn Store>, refresh: Duration) -> Register {
        Register {
            store,
            refresh,
            known: Mutex::default(),
            holds_until: Mutex::default(),
            looked_at: Mutex::default(),
            changes: watch::Sender::new(0),
        }
    }

    /// Notifies of every change of any assignment.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// For a gateway of this tenant. An unregistered device has no intervals.
    /// Samples that the gateway is to send again.
    pub(crate) async fn asked_again(
        &self,
        gateway: &GatewayId,
        now_us: i64,
    ) -> Result<Vec<Asked>, QueryError> {
        self.store.asked_again(&gateway.id, now_us).await
    }

    pub(crate) async fn device(
        &self,
        id: &str,
        gateway: &GatewayId,
    ) -> Result<Arc<Device>, QueryError> {
        if validate_identifier("device", id, "chest-belt-7").is_err() {
            return Ok(Arc::default());
        }
        let stale = {
            let known = self.known.lock();
            match known.get(id) {
                None => None,
                Some(Known { device, asked }) => {
                    let age = asked.elapsed();
                    let fresh = if device.intervals(gateway).is_empty() {
                        UNKNOWN_REFRESH.min(self.refresh)
                    } else {
                        self.refresh
                    };
                    if age < fresh {
                        return Ok(Arc::clone(device));
                    }
                    Some(Arc::clone(device)).filter(|_| age < STALE_MAX)
                }
            }
        };
        let worn = stale.as_ref();
        let worn = worn.filter(|device| !device.intervals(gateway).is_empty());
        let read = match worn.filter(|_| self.knows_changes()) {
            None => self.read(id).await,
            Some(worn) => match self.in_time(self.read(id)).await {
                Some(read) => read,
                None => return Ok(Arc::clone(worn)),
            },
        };
        match read {
            Ok(device) => {
                let mut known = self.known.lock();
                if known.len() >= DEVICES_MAX {
                    known.retain(|_, known| !known.device.intervals.is_empty());
                }
                if known.len() >= DEVICES_MAX {
                    known.clear();
                }
                let asked = Instant::now();
                let entry = Known {
                    device: Arc::clone(&device),
                    asked,
                };
                known.insert(id.to_owned(), entry);
                Ok(device)
            }
            Err(e) => stale.ok_or(e),
        }
    }

    fn knows_changes(&self) -> bool {
        let looked_at = *self.looked_at.lock();
        looked_at.is_some_and(|at| at.elapsed() < CHANGES_KNOWN_MAX)
    }

    /// `None` if the store does not answer in time, or did not a moment ago.
    async fn in_time<T>(&self, read: impl Future<Output = T>) -> Option<T> {
        let holds_until = *self.holds_until.lock();
        if holds_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        let read = tokio::time::timeout(READ_LIMIT, read).await.ok();
        if read.is_none() {
            *self.holds_until.lock() = Some(Instant::now() + UNKNOWN_REFRESH);
        }
        read
    }

    async fn read(&self, id: &str) -> Result<Arc<Device>, QueryError> {
        let assignments = self
            .store
            .assignments(&Scope::Service, Of::Device(id))
            .await?;
        let Some(first) = assignments.first() else {
            return Ok(Arc::default());
        };
        let tenant = first.tenant.clone();
        let intervals = assignments.into_iter().map(|it| Interval {
            patient: it.patient,
            gateway: it.gateway,
            from_us: it.from_us,
            until_us: it.until_us,
        });
        Ok(Arc::new(Device {
            tenant,
            intervals: intervals.collect(),
        }))
    }

    /// Follows the changes until `end`.
    pub(crate) async fn follow(&self, end: impl Future<Output = ()>) {
        let mut end = std::pin::pin!(end);
        let mut looked = Looked {
            newest_us: contracts::now_us(),
            found: Vec::new(),
        };
        loop {
            tokio::select! {
                () = end.as_mut() => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            // The last known assignments hold meanwhile.
            if let Err(error) = self.look(&mut looked).await {
                tracing::debug!(%error, "changes of the register are unknown for now");
            }
        }
    }

    /// Reads anew which assignments changed since shortly before the newest known change.
    async fn look(&self, looked: &mut Looked) -> Result<(), QueryError> {
        let since_us = looked.newest_us.saturating_sub(LOOK_BACK_US);
        let found = self.store.assignments_changed_since(since_us).await?;
        let new = found.iter().filter(|it| !looked.found.contains(it));
        let new: Vec<(String, i64)> = new.cloned().collect();
        for (id, _) in &new {
            if self.known.lock().contains_key(id) {
                let device = self.read(id).await?;
                let asked = Instant::now();
                self.known
                    .lock()
                    .insert(id.clone(), Known { device, asked });
            }
        }
        if !new.is_empty() {
            self.changes.send_modify(|changes| *changes += 1);
        }
        let newest_us = found.iter().map(|(_, changed_us)| *changed_us);
        // A clock that is far ahead must not hide later changes of others.
        looked.newest_us = newest_us
            .fold(looked.newest_us, i64::max)
            .min(contracts::now_us());
        looked.found = found;
        *self.looked_at.lock() = Some(Instant::now());
        Ok(())
    }

    /// Whether the patient wore any device at the gateway at that time. Without a patient: whether
    /// the gateway belongs to its tenant. Asked only for alerts that name no device.
    pub(crate) async fn cares_for(
        &self,
        gateway: &GatewayId,
        patient: &str,
        time_us: i64,
    ) -> Result<bool, QueryError> {
        let scope = Scope::tenant(&gateway.tenant);
        if patient.is_empty() {
            let own = self.store.gateway(&scope, &gateway.id).await?;
            return Ok(own.is_some());
        }
        let worn = self.store.assignments(&scope, Of::Patient(patient)).await?;
        let mut worn = worn.iter();
        Ok(worn.any(|it| it.gateway == gateway.id && (it.from_us..it.until_us).contains(&time_us)))
    }
}

/// The result of the last look.
struct Looked {
    newest_us: i64,
    found: Vec<(String, i64)>,
}

/// A gateway may be in anybody's hands, so the details of the store are only logged.
pub(crate) fn unknown(error: QueryError) -> Status {
    tracing::warn!(%error, "the register does not answer, so an upload cannot be judged");
    Status::unavailable("the register of devices does not answer; send again")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use store::{DeviceEntry, SqliteStore};

    use super::*;

    fn gateway(id: &str) -> GatewayId {
        GatewayId {
            tenant: "t".into(),
            id: id.into(),
        }
    }

    async fn worn(store: &dyn Store, at: &str, patient: &str, registered_us: i64) {
        let entry = DeviceEntry {
            id: "belt".into(),
            tenant: "t".into(),
            gateway: at.into(),
            patient: patient.into(),
            registered_us,
        };
        store.put_device(&entry).await.unwrap();
    }

    fn wearers(device: &Device) -> Vec<&str> {
        let intervals = device.intervals(&gateway("gw")).iter();
        intervals.map(|it| it.patient.as_str()).collect()
    }

    #[tokio::test]
    async fn a_device_that_was_unknown_is_known_soon_and_to_its_tenant_alone() {
        let directory = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(directory.path()).unwrap());
        let register = Register::new(Arc::clone(&store), Duration::from_secs(3600));
        let gw = gateway("gw");
        let known = register.device("belt", &gw).await.unwrap();
        assert_eq!(wearers(&known), Vec::<&str>::new());
        worn(&*store, "gw", "ada", 1).await;
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let known = register.device("belt", &gw).await.unwrap();
            if wearers(&known) == ["ada"] {
                let elsewhere = GatewayId {
                    tenant: "u".into(),
                    id: "gw".into(),
                };
                assert_eq!(known.intervals(&elsewhere), []);
                return;
            }
            assert!(Instant::now() < deadline, "it is unknown for an hour");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    #[tokio::test]
    async fn who_wears_a_device_is_known_within_a_second() {
        let directory = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(directory.path()).unwrap());
        let register = Register::new(Arc::clone(&store), Duration::from_secs(3600));
        let gw = gateway("gw");
        let now_us = contracts::now_us();
        worn(&*store, "gw", "ada", now_us - 3_600_000_000).await;
        let known = register.device("belt", &gw).await.unwrap();
        assert_eq!(wearers(&known), ["ada"]);
        let mut changes = register.changes();
        let done = tokio::sync::Notify::new();
        let becomes_known = async {
            worn(&*store, "gw", "ben", now_us).await;
            let seen = tokio::time::timeout(Duration::from_secs(30), changes.changed());
            seen.await.unwrap().unwrap();
            let known = register.device("belt", &gw).await.unwrap();
            done.notify_one();
            known
        };
        let (known, ()) = tokio::join!(becomes_known, register.follow(done.notified()));
        assert_eq!(wearers(&known), ["ada", "ben"]);
        // A change is seen once, and a clock that is ahead hides no later change.
        let mut looked = Looked {
            newest_us: now_us,
            found: Vec::new(),
        };
        let change = store::Change {
            author: "eve".into(),
            reason: "a test".into(),
            at_us: i64::MAX,
        };
        let scope = Scope::tenant("t");
        store
            .end_assignment(&scope, "belt", now_us + 1, &change)
            .await
            .unwrap();
        register.look(&mut looked).await.unwrap();
        assert!(looked.newest_us <= contracts::now_us());
        let before = *register.changes().borrow();
        register.look(&mut looked).await.unwrap();
        assert_eq!(*register.changes().borrow(), before);
        let known = register.device("belt", &gw).await.unwrap();
        assert_eq!(known.intervals(&gw)[1].until_us, now_us + 1);
    }

    #[tokio::test]
    async fn a_slow_store_delays_no_device_whose_changes_are_known() {
        let directory = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(directory.path()).unwrap());
        let register = Register::new(Arc::clone(&store), Duration::ZERO);
        assert!(!register.knows_changes(), "before the first look");
        let mut looked = Looked {
            newest_us: contracts::now_us(),
            found: Vec::new(),
        };
        register.look(&mut looked).await.unwrap();
        assert!(register.knows_changes());
        let gw = gateway("gw");
        worn(&*store, "gw", "ada", 1).await;
        register.device("belt", &gw).await.unwrap();
        let begun = Instant::now();
        assert_eq!(register.in_time(std::future::pending::<()>()).await, None);
        assert!(begun.elapsed() >= READ_LIMIT);
        // For a second the store is not asked, and the last known assignments hold.
        worn(&*store, "gw", "ben", 2).await;
        let known = register.device("belt", &gw).await.unwrap();
        assert_eq!(wearers(&known), ["ada"]);
        *register.holds_until.lock() = None;
        let known = register.device("belt", &gw).await.unwrap();
        assert_eq!(wearers(&known), ["ada", "ben"]);
    }

    #[tokio::test]
    async fn names_that_nobody_registered_take_neither_memory_nor_what_is_known() {
        let directory = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(directory.path()).unwrap());
        let register = Register::new(Arc::clone(&store), Duration::from_secs(3600));
        let gw = gateway("gw");
        worn(&*store, "gw", "ada", 1).await;
        register.device("belt", &gw).await.unwrap();
        for none in ["x".repeat(4 << 20), "nul\0".to_owned()] {
            assert_eq!(
                *register.device(&none, &gw).await.unwrap(),
                Device::default()
            );
        }
        assert_eq!(register.known.lock().len(), 1, "of any length");
        let asked = Instant::now();
        let nobodys = |n| {
            let device = Arc::default();
            (format!("none-{n}"), Known { device, asked })
        };
        register.known.lock().extend((1..DEVICES_MAX).map(nobodys));
        register.device("one-more", &gw).await.unwrap();
        let known = register.known.lock();
        assert!(known.contains_key("belt") && known.len() == 2);
    }
}
