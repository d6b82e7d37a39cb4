//! Path-telemetry as a whole, on the embedded bus and store: reports in, rows and policy out.

#![allow(clippy::unwrap_used)]

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bus::{Bus, EmbeddedBus, EmbeddedOptions};
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
use store::{PathsQuery, Scope, SqliteStore, Store};
use tonic::{Code, Status, transport::Channel};

const LIMIT: Duration = Duration::from_secs(30);

struct World {
    store: Arc<dyn Store>,
    authority: LocalAuthority,
    context: Context,
    joined: tokio::task::JoinHandle<Result<(), RunError>>,
    _dir: tempfile::TempDir,
}

impl World {
    fn start() -> World {
        let dir = tempfile::tempdir().unwrap();
        let authority = LocalAuthority::open_or_create(&dir.path().join("identities")).unwrap();
        let identity = authority
            .issue(&PeerId::service("path-telemetry"), &[])
            .unwrap();
        let bus: Arc<dyn Bus> =
            Arc::new(EmbeddedBus::open(dir.path(), EmbeddedOptions::default()).unwrap());
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(dir.path()).unwrap());
        let config = Config {
            listen: "127.0.0.1:0".parse().unwrap(),
            front: Default::default(),
            identity,
            allow: vec!["proxy".into()],
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
