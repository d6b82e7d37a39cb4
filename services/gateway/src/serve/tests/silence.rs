//! A gateway whose clock is an hour off, and silence. A gateway that vanishes is reported on time.
//! A gateway whose sensors pause is not reported while it reports its paths. Real reports,
//! path-telemetry and alerting on the embedded engines.

use std::{sync::Arc, time::Duration};

use bus::{Bus, EmbeddedBus, EmbeddedOptions};
use contracts::{
    alerts::{Alert, AlertState},
    vitals::{Metric, Sample, sample::Reading},
};
use service_kit::{
    Context, Shutdown,
    config::defaults,
    grpc::ChannelError,
    tls::{Identity, PeerId, authority::LocalAuthority},
};
use store::{AlertsQuery, DEFAULT_TENANT, DeviceEntry, Scope, SqliteStore, Store, VitalsBatch};
use tokio::{sync::broadcast, task::JoinHandle, time::Instant};
use tonic::transport::Channel;
use tunnel::{CopyNumber, PathSnapshot, PathState, TunnelEvent, Urgency};
use vitals::silence::{DEVICE, GATEWAY};

use super::direct::Direct;
use crate::{
    clock::{Clock, Moment},
    steering::Flows,
    to_path_telemetry::{InJournals, JournalsWaiting, Telemetry},
    to_proxy::Uplink,
};

const S: i64 = 1_000_000;
const HOUR: i64 = 3600 * S;
const SILENT_AFTER_S: u64 = 8;
/// Only a failing test reaches this time.
const PATIENCE: Duration = Duration::from_secs(120);

/// A single healthy path.
struct OnePath(Direct);

impl Uplink for OnePath {
    fn channel(
        &self,
        url: &str,
        urgency: Urgency,
        copy: Option<&CopyNumber>,
    ) -> Result<Channel, ChannelError> {
        self.0.channel(url, urgency, copy)
    }

    fn events(&self) -> broadcast::Receiver<TunnelEvent> {
        self.0.events()
    }

    fn paths(&self) -> Vec<PathSnapshot> {
        vec![PathSnapshot {
            session: 1,
            name: "wifi".into(),
            state: PathState::Available,
            rtt: Duration::from_millis(20),
            rtt_min: Duration::from_millis(20),
            ..PathSnapshot::default()
        }]
    }
}

struct World {
    store: Arc<dyn Store>,
    authority: LocalAuthority,
    journals: JournalsWaiting,
    url: String,
    contexts: [Context; 2],
    path_telemetry: JoinHandle<Result<(), path_telemetry::RunError>>,
    alerting: JoinHandle<Result<(), alerting::RunError>>,
    _directory: tempfile::TempDir,
}

impl World {
    async fn start() -> World {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let authority = LocalAuthority::open_or_create(&path.join("identities")).unwrap();
        let files = |noun| authority.issue(&PeerId::service(noun), &[]).unwrap();
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(path).unwrap());
        let bus: Arc<dyn Bus> =
            Arc::new(EmbeddedBus::open(path, EmbeddedOptions::default()).unwrap());
        let contexts = [Context::new("path-telemetry"), Context::new("alerting")];
        let mut to_path_telemetry: path_telemetry::Config = defaults().unwrap();
        to_path_telemetry.listen = "127.0.0.1:0".parse().unwrap();
        to_path_telemetry.identity = files("path-telemetry");
        let mut to_alerting: alerting::Config = defaults().unwrap();
        to_alerting.listen = "127.0.0.1:0".parse().unwrap();
        to_alerting.identity = files("alerting");
        to_alerting.silent_after_s = SILENT_AFTER_S;
        let path_telemetry = tokio::spawn(path_telemetry::run(
            to_path_telemetry,
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
        World {
            store,
            authority,
            journals: JournalsWaiting::default(),
            url: format!("https://127.0.0.1:{}", address.port()),
            contexts,
            path_telemetry,
            alerting,
            _directory: directory,
        }
    }

    /// A gateway that reports its path by this clock until it is stopped.
    fn report(&self, gateway: &str, clock: Clock) -> Shutdown {
        let id = PeerId::gateway(DEFAULT_TENANT, gateway);
        let identity = Identity::load(&self.authority.issue(&id, &[]).unwrap()).unwrap();
        let telemetry = Telemetry {
            gateway: gateway.into(),
            uplink: Arc::new(OnePath(Direct {
                identity: Some(identity),
                events: broadcast::channel(1).0,
            })),
            url: self.url.clone(),
            interval: Duration::from_millis(200),
            beat: Duration::from_millis(200),
            clock,
            journals: self.journals.clone(),
            tunnel: None,
            steering: None,
            flows: Flows::default(),
        };
        let context = Context::new("gateway");
        context
            .tasks()
            .spawn(telemetry.run(context.shutdown().clone()));
        context.shutdown().clone()
    }

    async fn register(&self, gateway: &str) {
        let entry = DeviceEntry {
            id: format!("{gateway}-device"),
            tenant: DEFAULT_TENANT.into(),
            gateway: gateway.into(),
            patient: format!("{gateway}-patient"),
            registered_us: 0,
        };
        self.store.put_device(&entry).await.unwrap();
    }

    /// Waits until the core has a reading of the gateway's device.
    async fn hear(&self, gateway: &str) {
        let time_us = contracts::now_us();
        let sample = Sample {
            device: format!("{gateway}-device"),
            patient: format!("{gateway}-patient"),
            gateway: gateway.into(),
            stream: "s".into(),
            sequence: time_us.unsigned_abs(),
            metric: Metric::HeartRate.into(),
            device_time_us: time_us,
            gateway_time_us: time_us,
            ingest_time_us: time_us,
            reading: Some(Reading::Value(70.0)),
            ..Sample::default()
        };
        let batch = Arc::new(VitalsBatch {
            samples: vec![sample],
            ..VitalsBatch::default()
        });
        self.store.write_vitals(batch, Vec::new()).await.unwrap();
    }

    async fn reports_of(&self, gateway: &str) -> usize {
        let latest = self.store.latest_paths(&Scope::Service, Some(gateway));
        latest.await.unwrap().len()
    }

    async fn open(&self) -> Vec<Alert> {
        let query = AlertsQuery::default();
        let mut alerts = self.store.alerts(&Scope::Service, &query).await.unwrap();
        alerts.retain(|alert| alert.state() == AlertState::Active);
        alerts
    }

    async fn stop(self) {
        for context in &self.contexts {
            context.shutdown().request();
        }
        self.path_telemetry.await.unwrap().unwrap();
        self.alerting.await.unwrap().unwrap();
    }
}

fn off(skew_us: i64) -> Moment {
    let now = Moment::now();
    Moment {
        wall_us: now.wall_us + skew_us,
        ..now
    }
}

fn ahead() -> Moment {
    off(HOUR)
}

fn behind() -> Moment {
    off(-HOUR)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_an_hour_off_is_missed_on_time_and_not_while_it_reports() {
    let world = World::start().await;
    // The third gateway reports all the time; otherwise the core itself would count as silent.
    for gateway in ["vanishes", "pauses", "steady"] {
        world.register(gateway).await;
        world.hear(gateway).await;
    }
    world.journals.open(|| InJournals {
        waiting: 7,
        filled_permille: 800,
    });
    let vanishing = world.report("vanishes", ahead);
    let pausing = world.report("pauses", behind);
    let deadline = Instant::now() + PATIENCE;
    while world.reports_of("vanishes").await == 0 || world.reports_of("pauses").await == 0 {
        assert!(Instant::now() < deadline, "no reports are stored");
        world.hear("steady").await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let reports = world.store.latest_paths(&Scope::Service, Some("vanishes"));
    let reports = reports.await.unwrap();
    assert_eq!(reports[0].journal_waiting, Some(7), "what waits is said");
    assert_eq!(reports[0].journal_filled_permille, Some(800));
    vanishing.request();
    let vanished_us = contracts::now_us();
    let deadline = Instant::now() + PATIENCE;
    let missed = loop {
        let open = world.open().await;
        let find = |rule: &str, gateway: &str| {
            let found = open
                .iter()
                .find(|alert| alert.rule == rule && alert.gateway == gateway);
            found.cloned()
        };
        // Judged in one round: its device is silent, and the gateway is not. After a stall of the
        // machine the next round sees it again.
        let pauses = find(DEVICE, "pauses").is_some() && find(GATEWAY, "pauses").is_none();
        if let (true, Some(missed)) = (pauses, find(GATEWAY, "vanishes")) {
            break missed;
        }
        assert!(Instant::now() < deadline, "{open:?}");
        world.hear("steady").await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    let off_us = (missed.since_us - vanished_us).abs();
    assert!(off_us < 120 * S, "{off_us} us off: {missed:?}");
    pausing.request();
    world.stop().await;
}
