//! An ingest that starts and stops at one address, its store, and the authors of rules.

use std::{net::SocketAddr, path::Path, sync::Arc};

use bus::{Bus, Consumer, EmbeddedBus, EmbeddedOptions, Event, Topic};
use contracts::{
    alerts::Document,
    vitals::{EdgeAlert, VitalsRecord},
};
use prost::Message;
use service_kit::{
    Context,
    tls::{Identity, IdentityFiles, PeerId, authority::LocalAuthority},
};
use store::{Change, DeviceEntry, RULES, Scope, SqliteStore, Store, TEAM};
use tokio::task::JoinHandle;
use vitals::{Condition, RuleSet};

pub struct Core {
    directory: tempfile::TempDir,
    pub authority: LocalAuthority,
    files: IdentityFiles,
    pub store: Arc<dyn Store>,
    pub bus: Arc<dyn Bus>,
    address: SocketAddr,
    url: String,
}

pub struct Ingest {
    context: Context,
    task: JoinHandle<Result<(), ingest::RunError>>,
}

impl Core {
    pub async fn start() -> Core {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let authority = LocalAuthority::open_or_create(&path.join("identities")).unwrap();
        let files = authority.issue(&PeerId::service("ingest"), &[]).unwrap();
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(path).unwrap());
        let bus: Arc<dyn Bus> =
            Arc::new(EmbeddedBus::open(path, EmbeddedOptions::default()).unwrap());
        // A free address, reserved for this test.
        let address = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = address.local_addr().unwrap();
        Core {
            url: format!("https://{address}"),
            directory,
            authority,
            files,
            store,
            bus,
            address,
        }
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Ingest, until it is stopped.
    pub async fn ingest(&self) -> Ingest {
        let mut config: ingest::Config = service_kit::config::defaults().unwrap();
        config.listen = self.address;
        config.identity = self.files.clone();
        config.register_refresh_s = 1;
        let context = Context::new("ingest");
        let (bus, store) = (Arc::clone(&self.bus), Arc::clone(&self.store));
        let running = ingest::run(config, bus, store, context.clone());
        let task = tokio::spawn(running);
        context.address("grpc").await.unwrap();
        Ingest { context, task }
    }

    pub fn identity(&self, tenant: &str) -> Identity {
        let id = PeerId::gateway(tenant, "gw");
        Identity::load(&self.authority.issue(&id, &[]).unwrap()).unwrap()
    }

    /// For the gateway `gw` of tenant `one`.
    pub async fn register(&self, tenant: &str, device: &str, patient: &str) {
        let entry = DeviceEntry {
            id: device.into(),
            tenant: tenant.into(),
            gateway: "gw".into(),
            patient: patient.into(),
            registered_us: 0,
        };
        self.store.put_device(&entry).await.unwrap();
    }

    /// Ends the device's assignment at that time.
    pub async fn end(&self, tenant: &str, device: &str, at_us: i64) {
        let (scope, change) = (Scope::tenant(tenant), Change::by_program("test"));
        let ended = self.store.end_assignment(&scope, device, at_us, &change);
        ended.await.unwrap().expect("somebody wears it");
    }

    pub async fn put_team(&self, tenant: &str, body: &str) {
        let document = document(TEAM, tenant, "default", 1, body);
        alerting::documents::check(&document).unwrap();
        self.store.put_document(&document).await.unwrap();
    }

    /// The built-in rules with this limit of the heart rate.
    pub async fn put_rules(&self, tenant: &str, subject: &str, version: u32, heart_rate: f64) {
        let mut set = RuleSet::default_set();
        let rule = set.rules.iter_mut().find(|it| it.id == "heart-rate-high");
        let Condition::Above { limit, clear, .. } = &mut rule.unwrap().condition else {
            panic!("the built-in rule is another");
        };
        (*limit, *clear) = (heart_rate, heart_rate - 5.0);
        let body = serde_json::to_string(&set).unwrap();
        let document = document(RULES, tenant, subject, version, &body);
        alerting::documents::check(&document).unwrap();
        self.store.put_document(&document).await.unwrap();
    }

    /// Stored as it is, without a check.
    pub async fn put_body(&self, tenant: &str, subject: &str, version: u32, body: &str) {
        let document = document(RULES, tenant, subject, version, body);
        self.store.put_document(&document).await.unwrap();
    }

    /// The results of gateways' alerts from now on.
    pub async fn edge_alerts(&self) -> Heard {
        Heard(self.bus.tail(Topic::Vitals).await.unwrap())
    }
}

impl Ingest {
    pub async fn stop(self) {
        self.context.shutdown().request();
        self.task.await.unwrap().unwrap();
    }
}

pub struct Heard(Box<dyn Consumer>);

impl Heard {
    pub async fn until(&mut self, wanted: impl Fn(&EdgeAlert) -> bool) -> EdgeAlert {
        loop {
            let Event::Batch(batch) = self.0.next(100).await.unwrap() else {
                panic!("a tail is given no partitions")
            };
            for record in batch {
                let record = VitalsRecord::decode(record.value).unwrap();
                if let Some(alert) = record.alerts.into_iter().find(&wanted) {
                    return alert;
                }
            }
        }
    }
}

fn document(kind: &str, tenant: &str, subject: &str, version: u32, body: &str) -> Document {
    Document {
        kind: kind.into(),
        tenant: tenant.into(),
        subject: subject.into(),
        version,
        author: "Ada Nurse".into(),
        reason: "for the test".into(),
        body: body.into(),
        ..Document::default()
    }
}
