//! Path-telemetry as a whole, on the embedded bus and store: reports in, rows and policy out.

#![allow(clippy::unwrap_used)]

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
    Bus, Consumer, EmbeddedBus, EmbeddedOptions, NotReady, PublishError, Record, Start, StartAt,
    StartAtError, SubscribeError, Topic,
};
use contracts::{
    paths::{
        End, PathReport, ReportRequest, path_telemetry_service_client::PathTelemetryServiceClient,
    },
    policy::{GetPolicyRequest, SteeringMode, policy_service_client::PolicyServiceClient},
};
use path_telemetry::{Config, RunError, Steering};
use service_kit::{
    Context,
    grpc::channel,
    tls::{Identity, PeerId, authority::LocalAuthority},
};
use store::{GatewayEntry, PATHS_PER_GATEWAY_MAX, PathsQuery, Scope, SqliteStore, Store};
use tonic::{Code, Status, transport::Channel};

const LIMIT: Duration = Duration::from_secs(30);

fn open(dir: &Path) -> EmbeddedBus {
    EmbeddedBus::open(dir, EmbeddedOptions::default()).unwrap()
}

struct World {
    store: Arc<dyn Store>,
    authority: LocalAuthority,
    context: Context,
    joined: tokio::task::JoinHandle<Result<(), RunError>>,
    _dir: tempfile::TempDir,
}

/// The embedded bus, behind which the store answers no question about the beginning until so many were asked.
struct Forgetful {
    inner: EmbeddedBus,
    failures: u32,
    asked: Arc<AtomicU32>,
    subscribed: Arc<AtomicU32>,
    /// To whoever publishes.
    says: Option<PublishError>,
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
impl Bus for Forgetful {
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

    async fn tail(&self, topic: Topic) -> Result<Box<dyn Consumer>, SubscribeError> {
        self.inner.tail(topic).await
    }

    async fn read_back(&self, topic: Topic) -> Result<Box<dyn Consumer>, SubscribeError> {
        self.inner.read_back(topic).await
    }

    async fn partitions(&self, topic: Topic) -> Result<u32, NotReady> {
        self.inner.partitions(topic).await
    }

    async fn extents(
        &self,
        topic: Topic,
    ) -> Result<std::collections::BTreeMap<u32, bus::Extent>, NotReady> {
        self.inner.extents(topic).await
    }

    async fn committed(
        &self,
        topic: Topic,
        group: &str,
    ) -> Result<std::collections::BTreeMap<u32, u64>, NotReady> {
        self.inner.committed(topic, group).await
    }

    async fn ready(&self) -> Result<(), NotReady> {
        self.inner.ready().await
    }
}

impl World {
    fn start() -> World {
        World::with_bus(|dir| Arc::new(open(dir)))
    }

    /// With what the register has beforehand.
    async fn with_store<F: Future<Output = ()>>(fill: impl FnOnce(Arc<dyn Store>) -> F) -> World {
        let dir = tempfile::tempdir().unwrap();
        fill(Arc::new(SqliteStore::open(dir.path()).unwrap())).await;
        World::within(dir, |dir| Arc::new(open(dir)))
    }

    fn with_bus(bus: impl FnOnce(&Path) -> Arc<dyn Bus>) -> World {
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
            steering: Steering::Auto,
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

    async fn channel(&self, id: &PeerId) -> Channel {
        let address = self.context.address("grpc").await.unwrap();
        let identity = Identity::load(&self.authority.issue(id, &[]).unwrap()).unwrap();
        let url = format!("https://127.0.0.1:{}", address.port());
        channel(&url, Some(&identity)).unwrap()
    }

    /// Sends one request; the count acknowledged.
    async fn report(&self, id: &PeerId, reports: Vec<PathReport>) -> Result<u64, Status> {
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

    async fn rows(&self, at_least: usize) -> Vec<PathReport> {
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

fn reports(end: End, path: &str, lost_packets: u64) -> Vec<PathReport> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    // All in the past: no report is taken as one of the future.
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_ends_report_and_the_gateway_gets_its_policy() {
    let world = World::start();
    let gateway = PeerId::gateway("default", "gateway-1");
    let proxy = PeerId::service("proxy");
    let up = reports(End::Gateway, "lte", 5);
    assert_eq!(world.report(&gateway, up.clone()).await.unwrap(), 30);
    assert_eq!(
        world
            .report(&proxy, reports(End::Proxy, "lte", 1))
            .await
            .unwrap(),
        30
    );
    assert_eq!(world.rows(60).await.len(), 60);
    // Sent again after a lost acknowledgement: accepted, stored once. The last one is new and shows that the others were handled.
    let mut again = up;
    again.push(PathReport {
        sequence: 31,
        ..again[0].clone()
    });
    world.report(&gateway, again).await.unwrap();
    assert_eq!(world.rows(61).await.len(), 61);

    let mut client = PolicyServiceClient::new(world.channel(&gateway).await);
    let mut ask = async |gateway: &str| {
        let gateway = gateway.to_owned();
        client.get_policy(GetPolicyRequest { gateway }).await
    };
    // The paper's example: 100 ms and 5 % give K 7 and 60 ms, once the estimates have followed the topic.
    let deadline = tokio::time::Instant::now() + LIMIT;
    let policy = loop {
        let policy = ask("gateway-1").await.unwrap().into_inner();
        let choice = policy
            .paths
            .first()
            .map(|path| (path.keepalive_k, path.keepalive_interval_ms));
        if choice == Some((7, 60)) {
            break policy;
        }
        assert!(tokio::time::Instant::now() < deadline, "{policy:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(policy.paths.len(), 1);
    assert_eq!(policy.paths[0].path, "lte");
    assert_eq!(policy.mode(), SteeringMode::SmallestDelay);
    assert_eq!(
        ask("gateway-2").await.unwrap_err().code(),
        Code::PermissionDenied
    );

    world.context.shutdown().request();
    world.joined.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_reports_for_somebody_else() {
    let world = World::start();
    let cases = [
        (
            PeerId::gateway("default", "gateway-2"),
            End::Gateway,
            Code::PermissionDenied,
        ),
        (
            PeerId::gateway("default", "gateway-1"),
            End::Proxy,
            Code::PermissionDenied,
        ),
        (
            PeerId::service("proxy"),
            End::Gateway,
            Code::PermissionDenied,
        ),
        (
            PeerId::service("ingest"),
            End::Proxy,
            Code::PermissionDenied,
        ),
    ];
    for (peer, end, code) in cases {
        let refused = world
            .report(&peer, reports(end, "wifi", 0))
            .await
            .unwrap_err();
        assert_eq!(refused.code(), code, "{peer}");
    }
    let mut nonsense = reports(End::Proxy, "wifi", 0);
    nonsense[3].rtt_ms = f64::INFINITY;
    let refused = world
        .report(&PeerId::service("proxy"), nonsense)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    // What is accepted afterwards is all there is.
    world
        .report(&PeerId::service("proxy"), reports(End::Proxy, "wifi", 0))
        .await
        .unwrap();
    assert_eq!(world.rows(30).await.len(), 30);
    world.context.shutdown().request();
    world.joined.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_dated_long_ago_is_taken_as_of_its_arrival() {
    let world = World::start();
    let dated = |end: End| {
        let mut reports = reports(end, "wifi", 0);
        // A clock that was never set, and days made up.
        for (days, report) in (0..).zip(&mut reports) {
            report.time_us = 1 + days * 86_400_000_000;
        }
        reports
    };
    let began_us = contracts::now_us();
    let gateway = PeerId::gateway("default", "gateway-1");
    world.report(&gateway, dated(End::Gateway)).await.unwrap();
    let proxy = PeerId::service("proxy");
    world.report(&proxy, dated(End::Proxy)).await.unwrap();
    let rows = world.rows(60).await;
    let past = rows.iter().filter(|row| row.time_us < began_us);
    assert_eq!(past.count(), 0);
    world.context.shutdown().request();
    world.joined.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namesake_in_another_tenant_neither_writes_nor_reads() {
    let world = World::with_store(|store| async move {
        let entry = GatewayEntry {
            id: "gateway-1".into(),
            tenant: "default".into(),
        };
        store.put_gateway(&entry).await.unwrap();
    })
    .await;
    let own = PeerId::gateway("default", "gateway-1");
    let namesake = PeerId::gateway("other", "gateway-1");
    let mut asking = PolicyServiceClient::new(world.channel(&namesake).await);
    let policy = GetPolicyRequest {
        gateway: "gateway-1".into(),
    };
    // Once the register has been read.
    let deadline = tokio::time::Instant::now() + LIMIT;
    while asking.get_policy(policy.clone()).await.is_ok() {
        assert!(tokio::time::Instant::now() < deadline, "it reads on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let refused = world
        .report(&namesake, reports(End::Gateway, "lte", 0))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    // The proxy has both as peers: the namesake's reports go nowhere, and those beside them are kept.
    let of = |tenant: &str, path: &str| {
        let mut reports = reports(End::Proxy, path, 0);
        reports.iter_mut().for_each(|it| it.tenant = tenant.into());
        reports
    };
    let mut both = [of("other", "lte"), of("default", "wifi")].concat();
    // As an older proxy says it.
    both[59].tenant.clear();
    let proxy = PeerId::service("proxy");
    assert_eq!(world.report(&proxy, both).await.unwrap(), 60);
    world
        .report(&own, reports(End::Gateway, "wifi", 0))
        .await
        .unwrap();
    let rows = world.rows(60).await;
    assert_eq!(rows.len(), 60);
    assert!(rows.iter().all(|row| row.path == "wifi"));
    world.context.shutdown().request();
    world.joined.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_reported_under_a_name_of_nobody_is_not_of_whoever_registers_it() {
    let world = World::with_store(|_| async {}).await;
    let before = PeerId::gateway("other", "gateway-1");
    let mut forged = reports(End::Gateway, "lte", 0);
    forged
        .iter_mut()
        .for_each(|it| it.tenant = "default".into());
    world.report(&before, forged).await.unwrap();
    assert_eq!(world.rows(30).await.len(), 30);
    let entry = GatewayEntry {
        id: "gateway-1".into(),
        tenant: "default".into(),
    };
    world.store.put_gateway(&entry).await.unwrap();
    let scope = Scope::tenant("default");
    assert_eq!(world.store.latest_paths(&scope, None).await.unwrap(), []);
    world.context.shutdown().request();
    world.joined.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_does_not_say_where_to_begin_costs_the_group_no_rebalance() {
    const FAILURES: u32 = 4;
    let (asked, subscribed) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let world = World::with_bus(|dir| {
        Arc::new(Forgetful {
            inner: open(dir),
            failures: FAILURES,
            asked: Arc::clone(&asked),
            subscribed: Arc::clone(&subscribed),
            says: None,
        })
    });
    let gateway = PeerId::gateway("default", "gateway-1");
    world
        .report(&gateway, reports(End::Gateway, "lte", 0))
        .await
        .unwrap();
    assert_eq!(world.rows(30).await.len(), 30);
    assert!(asked.load(Ordering::Relaxed) > FAILURES);
    assert_eq!(subscribed.load(Ordering::Relaxed), 1, "it stayed a member");
    assert!(
        world
            .context
            .health()
            .failing()
            .iter()
            .all(|it| it.0 != "store")
    );
    world.context.shutdown().request();
    world.joined.await.unwrap().unwrap();
}

/// A gateway may be in anybody's hands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_gateway_is_told_what_the_bus_says_of_itself() {
    let inside = "broker kafka-0.inside:9092";
    for (says, code) in [
        (PublishError::Unavailable(inside.into()), Code::Unavailable),
        (PublishError::Refused(inside.into()), Code::InvalidArgument),
    ] {
        let world = World::with_bus(|dir| {
            Arc::new(Forgetful {
                inner: open(dir),
                failures: 0,
                asked: Arc::default(),
                subscribed: Arc::default(),
                says: Some(says),
            })
        });
        let gateway = PeerId::gateway("default", "gateway-1");
        let refused = world.report(&gateway, reports(End::Gateway, "lte", 5));
        let refused = refused.await.unwrap_err();
        assert_eq!(refused.code(), code);
        assert!(refused.message().contains("the bus"), "{refused}");
        assert!(!refused.message().contains(inside), "{refused}");
        world.context.shutdown().request();
        world.joined.await.unwrap().unwrap();
    }
}

/// Reports with a new name each, as many as a gateway of two a second may send at once.
const SAVED: u64 = 1_200;

fn made_up(gateway: &str, end: End, from: u64, count: u64) -> Vec<PathReport> {
    let report = reports(end, "made-up", 0).remove(0);
    let numbered = |sequence: u64| PathReport {
        gateway: gateway.into(),
        tenant: "default".into(),
        path: format!("made-up-{sequence}"),
        session: sequence,
        sequence,
        ..report.clone()
    };
    (from..from + count).map(numbered).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ever_new_names_fill_neither_memory_nor_store_and_harm_no_other() {
    let world = World::start();
    let thief = PeerId::gateway("default", "thief");
    let honest = PeerId::gateway("default", "gateway-1");
    let proxy = PeerId::service("proxy");
    let mut client = PathTelemetryServiceClient::new(world.channel(&thief).await);
    let requests = (0..10).map(|n| ReportRequest {
        reports: made_up("thief", End::Gateway, 1 + n * SAVED / 2, SAVED / 2),
        sent_time_us: 0,
    });
    let flood = client.report(tokio_stream::iter(requests));
    let mut answers = flood.await.unwrap().into_inner();
    // What it had saved, and the request that made the debt; the others are not read.
    for taken in [SAVED / 2, SAVED, 3 * SAVED / 2] {
        let answer = tokio::time::timeout(LIMIT, answers.message()).await;
        assert_eq!(answer.unwrap().unwrap().unwrap().accepted, taken);
    }
    let waits = tokio::time::timeout(Duration::from_secs(2), answers.message());
    assert!(waits.await.is_err(), "it is read on");
    // A proxy speaks for the thief and for others: only the thief's reports are left out.
    let mut both = made_up("thief", End::Proxy, 1, 900);
    both.extend(reports(End::Proxy, "wifi", 0));
    assert_eq!(world.report(&proxy, both).await.unwrap(), 930);
    let own = reports(End::Gateway, "lte", 0);
    assert_eq!(world.report(&honest, own).await.unwrap(), 30);

    // Both ends of the paths that the thief has.
    let of_thief = 2 * PATHS_PER_GATEWAY_MAX;
    let most = 60 + of_thief;
    let rows = world.rows(most).await;
    assert_eq!(rows.len(), most);
    let honest = rows.iter().filter(|row| row.gateway == "gateway-1");
    assert_eq!(honest.count(), 60);
    let all = world.store.latest_paths(&Scope::Service, None).await;
    assert_eq!(all.unwrap().len(), 2 + of_thief);
    world.context.shutdown().request();
    world.joined.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_of_too_many_bytes_is_not_decoded() {
    let world = World::start();
    let gateway = PeerId::gateway("default", "gateway-1");
    let mut large = reports(End::Gateway, "lte", 0);
    large[0].local_address = "x".repeat(600 << 10);
    let refused = world.report(&gateway, large).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange);
    world.context.shutdown().request();
    world.joined.await.unwrap().unwrap();
}
