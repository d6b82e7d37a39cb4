//! Path-telemetry on the embedded bus and store, and peers that report to it.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;
use bus::{
    Bus, Consumer, EmbeddedBus, EmbeddedOptions, Interposed, PublishError, Record, Start, StartAt,
    StartAtError, SubscribeError, Topic,
};
use contracts::paths::{
    End, PathReport, ReportRequest, path_telemetry_service_client::PathTelemetryServiceClient,
};
use path_telemetry::{Config, RunError};
use service_kit::{
    Context,
    grpc::channel,
    tls::{Identity, PeerId, authority::LocalAuthority},
};
use store::{PathsQuery, Scope, SqliteStore, Store};
use tonic::{Status, transport::Channel};

pub const LIMIT: Duration = Duration::from_secs(30);

pub fn open(dir: &Path) -> EmbeddedBus {
    EmbeddedBus::open(dir, EmbeddedOptions::default()).unwrap()
}

pub struct World {
    pub store: Arc<dyn Store>,
    pub authority: LocalAuthority,
    pub context: Context,
    pub joined: tokio::task::JoinHandle<Result<(), RunError>>,
    _dir: tempfile::TempDir,
}

/// The embedded bus, whose store leaves the first questions for a starting position unanswered.
pub struct Forgetful {
    pub inner: EmbeddedBus,
    pub failures: u32,
    pub asked: Arc<AtomicU32>,
    pub subscribed: Arc<AtomicU32>,
    /// The error that a publisher gets.
    pub says: Option<PublishError>,
}

struct Unanswered {
    inner: Arc<dyn StartAt>,
    failures: u32,
    asked: Arc<AtomicU32>,
}

#[async_trait]
impl StartAt for Unanswered {
    async fn start(&self, topic: Topic, partition: u32) -> Result<Start, StartAtError> {
        if self.asked.fetch_add(1, Ordering::Relaxed) < self.failures {
            return Err(StartAtError("the test has stopped it".into()));
        }
        self.inner.start(topic, partition).await
    }
}

#[async_trait]
impl Interposed for Forgetful {
    fn inner(&self) -> &dyn Bus {
        &self.inner
    }

    async fn publish(&self, topic: Topic, records: Vec<Record>) -> Result<(), PublishError> {
        match &self.says {
            Some(error) => Err(error.clone()),
            None => self.inner.publish(topic, records).await,
        }
    }

    async fn subscribe(
        &self,
        topic: Topic,
        group: &str,
        start: Arc<dyn StartAt>,
    ) -> Result<Box<dyn Consumer>, SubscribeError> {
        self.subscribed.fetch_add(1, Ordering::Relaxed);
        let start = Arc::new(Unanswered {
            inner: start,
            failures: self.failures,
            asked: Arc::clone(&self.asked),
        });
        self.inner.subscribe(topic, group, start).await
    }
}

impl World {
    pub fn start() -> World {
        World::with_bus(|dir| Arc::new(open(dir)))
    }

    /// Starts with the entries that `fill` writes to the register.
    pub async fn with_store<F: Future<Output = ()>>(
        fill: impl FnOnce(Arc<dyn Store>) -> F,
    ) -> World {
        let dir = tempfile::tempdir().unwrap();
        fill(Arc::new(SqliteStore::open(dir.path()).unwrap())).await;
        World::within(dir, |dir| Arc::new(open(dir)))
    }

    pub fn with_bus(bus: impl FnOnce(&Path) -> Arc<dyn Bus>) -> World {
        World::within(tempfile::tempdir().unwrap(), bus)
    }

    fn within(dir: tempfile::TempDir, bus: impl FnOnce(&Path) -> Arc<dyn Bus>) -> World {
        let authority = LocalAuthority::open_or_create(&dir.path().join("identities")).unwrap();
        let identity = authority
            .issue(&PeerId::service("path-telemetry"), &[])
            .unwrap();
        let bus = bus(dir.path());
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(dir.path()).unwrap());
        let config = Config {
            listen: "127.0.0.1:0".parse().unwrap(),
            front: Default::default(),
            identity,
            allow: vec!["proxy".into()],
            gateway_reports_per_s: 2,
            detection_ms: 500,
            false_alarm_interval_s: 100_000,
            keepalive_interval_ms_min: 50,
        };
        let context = Context::new("path-telemetry");
        let joined = tokio::spawn(path_telemetry::run(
            config,
            bus,
            Arc::clone(&store),
            context.clone(),
        ));
        World {
            store,
            authority,
            context,
            joined,
            _dir: dir,
        }
    }

    pub async fn channel(&self, id: &PeerId) -> Channel {
        let address = self.context.address("grpc").await.unwrap();
        let identity = Identity::load(&self.authority.issue(id, &[]).unwrap()).unwrap();
        let url = format!("https://127.0.0.1:{}", address.port());
        channel(&url, Some(&identity)).unwrap()
    }

    /// Sends one request and returns the acknowledged count.
    pub async fn report(&self, id: &PeerId, reports: Vec<PathReport>) -> Result<u64, Status> {
        let mut client = PathTelemetryServiceClient::new(self.channel(id).await);
        let requests = tokio_stream::once(ReportRequest {
            reports,
            sent_time_us: 0,
        });
        let mut answers = client.report(requests).await?.into_inner();
        let answer = tokio::time::timeout(LIMIT, answers.message())
            .await
            .unwrap()?;
        Ok(answer.map_or(0, |answer| answer.accepted))
    }

    pub async fn rows(&self, at_least: usize) -> Vec<PathReport> {
        let query = PathsQuery {
            gateway: None,
            from_us: 0,
            to_us: i64::MAX,
            limit: 0,
        };
        let deadline = tokio::time::Instant::now() + LIMIT;
        loop {
            let rows = self.store.paths(&Scope::Service, &query).await.unwrap();
            if rows.len() >= at_least {
                return rows;
            }
            assert!(
                tokio::time::Instant::now() < deadline,
                "{} rows",
                rows.len()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

pub fn reports(end: End, path: &str, lost_packets: u64) -> Vec<PathReport> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    // All times lie in the past, so no report counts as dated ahead.
    let began_us = now.as_micros() as i64 - 60_000_000;
    let report = |sequence: u64| PathReport {
        gateway: "gateway-1".into(),
        path: path.into(),
        end: end.into(),
        session: 1,
        time_us: began_us + sequence as i64 * 1_000_000,
        interval_ms: 1000,
        sent_packets: 100,
        lost_packets,
        rtt_ms: 100.0,
        rtt_min_ms: 90.0,
        sequence,
        ..PathReport::default()
    };
    (1..=30).map(report).collect()
}
