//! Ingest and alerting on the embedded engines, and the results of a gateway's uploads.

use std::{path::Path, sync::Arc, time::Duration};

use bus::{Bus, EmbeddedBus, EmbeddedOptions};
use contracts::alerts::{Alert, AlertState};
use service_kit::{
    Context,
    config::defaults,
    tls::{Identity, PeerId, authority::LocalAuthority},
};
use store::{AlertsQuery, DEFAULT_TENANT, DeviceEntry, Scope, SqliteStore, Store};
use tokio::{task::JoinHandle, time::Instant};

/// Only a failing test reaches this time.
const PATIENCE: Duration = Duration::from_secs(120);

pub struct Core {
    directory: tempfile::TempDir,
    authority: LocalAuthority,
    store: Arc<dyn Store>,
    pub url: String,
    contexts: [Context; 2],
    ingest: JoinHandle<Result<(), ingest::RunError>>,
    alerting: JoinHandle<Result<(), alerting::RunError>>,
}

impl Core {
    pub async fn start() -> Core {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let authority = LocalAuthority::open_or_create(&path.join("identities")).unwrap();
        let files = |noun| authority.issue(&PeerId::service(noun), &[]).unwrap();
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(path).unwrap());
        let bus: Arc<dyn Bus> =
            Arc::new(EmbeddedBus::open(path, EmbeddedOptions::default()).unwrap());
        let contexts = [Context::new("ingest"), Context::new("alerting")];
        let mut to_ingest: ingest::Config = defaults().unwrap();
        to_ingest.listen = "127.0.0.1:0".parse().unwrap();
        to_ingest.identity = files("ingest");
        let mut to_alerting: alerting::Config = defaults().unwrap();
        to_alerting.listen = "127.0.0.1:0".parse().unwrap();
        to_alerting.identity = files("alerting");
        let ingest = tokio::spawn(ingest::run(
            to_ingest,
            Arc::clone(&bus),
            Arc::clone(&store),
            contexts[0].clone(),
        ));
        let alerting = tokio::spawn(alerting::run(
            to_alerting,
            bus,
            Arc::clone(&store),
            contexts[1].clone(),
        ));
        let address = contexts[0].address("grpc").await.unwrap();
        Core {
            url: format!("https://127.0.0.1:{}", address.port()),
            directory,
            authority,
            store,
            contexts,
            ingest,
            alerting,
        }
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A device that a patient of the same name wears.
    pub async fn register(&self, gateway: &str, device: &str) {
        let entry = DeviceEntry {
            id: device.into(),
            tenant: DEFAULT_TENANT.into(),
            gateway: gateway.into(),
            patient: device.into(),
            registered_us: 0,
        };
        self.store.put_device(&entry).await.unwrap();
    }

    pub fn identity(&self, gateway: &str) -> Identity {
        let id = PeerId::gateway(DEFAULT_TENANT, gateway);
        Identity::load(&self.authority.issue(&id, &[]).unwrap()).unwrap()
    }

    /// Waits for an active alert that the core itself raised.
    pub async fn alert(&self, patient: &str, rule: &str) -> Alert {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let query = AlertsQuery::default();
            let alerts = self.store.alerts(&Scope::Service, &query).await.unwrap();
            let of_patient: Vec<&Alert> =
                alerts.iter().filter(|it| it.patient == patient).collect();
            let found = of_patient.iter().find(|alert| {
                alert.rule == rule && alert.state() == AlertState::Active && alert.from_core
            });
            if let Some(alert) = found {
                return (*alert).clone();
            }
            assert!(Instant::now() < deadline, "no {rule} in {of_patient:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits for a reading of the patient; returns the time of the newest.
    pub async fn newest_us(&self, patient: &str) -> i64 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let latest = self.store.latest_vitals(&Scope::Service, Some(patient));
            if let Some(newest) = latest.await.unwrap().first() {
                return newest.device_time_us;
            }
            assert!(Instant::now() < deadline, "nothing stored of {patient}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub async fn stop(self) {
        for context in &self.contexts {
            context.shutdown().request();
        }
        self.ingest.await.unwrap().unwrap();
        self.alerting.await.unwrap().unwrap();
    }
}
