//! A disk that takes a write and does not answer.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use contracts::vitals::EdgeAlert;
use service_kit::{Context, Health};
use tokio::{
    sync::{broadcast, mpsc},
    task::JoinHandle,
};
use vitals::RuleSet;

use super::{
    direct::Direct,
    disk_full::reading,
    fake_ingest::{FakeIngest, Running},
    under_test::until,
    unreadable::{CHECK, courier},
};
use crate::{
    clock::Moment,
    edge_rules::EdgeRules,
    intake::{EARLY_WAITING_MAX, Intake, Patience, RecordError, Recorded},
    journal::{
        Journal, Overflow, STALLED_AFTER,
        test_disk::{Stopping, entries, small},
    },
    serve::journals::watch,
    to_ingest::FromMemory,
};

const START_US: i64 = 1_800_000_000_000_000;
/// Shorter than a stall.
const SOON: Duration = Duration::from_secs(3);

struct Bench {
    disk: Stopping,
    alerts: Journal<Stopping>,
    intake: Arc<Intake<Stopping>>,
    early: Option<mpsc::Receiver<Vec<EdgeAlert>>>,
    ingest: FakeIngest,
    running: Running,
    context: Context,
}

impl Bench {
    async fn new() -> Self {
        let disk = Stopping::new(1);
        let vitals = small(Stopping::new(2), "vitals", Overflow::DropOldest);
        let alerts = small(disk.clone(), "alerts", Overflow::Refuse);
        let rules = EdgeRules::new(RuleSet::default_set());
        let (early, waiting) = mpsc::channel(EARLY_WAITING_MAX);
        let intake = Intake::new("g1".into(), vitals, alerts.clone(), rules).sending_early(early);
        let ingest = FakeIngest::default();
        let running = ingest.start().await;
        Self {
            disk,
            alerts,
            intake: Arc::new(intake),
            early: Some(waiting),
            ingest,
            running,
            context: Context::new("gateway"),
        }
    }

    /// Readings that raise an alert.
    fn fall_ill(&self, device: &str) -> JoinHandle<Result<Recorded, RecordError>> {
        let readings = (1..60).map(|second| reading(device, second, 180.0));
        let now = Moment {
            wall_us: START_US + 60_000_000,
            ..Moment::now()
        };
        let (intake, readings) = (Arc::clone(&self.intake), readings.collect());
        let recorded =
            async move { (intake.record(readings, now, Patience::Wait, None, None)).await };
        tokio::spawn(recorded)
    }

    fn says_stalled(health: &Health) -> bool {
        let failing = health.failing();
        let mut reasons = failing.iter().map(|(_, reason)| reason);
        reasons.any(|reason| reason.contains("has not answered a write"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alert_does_not_wait_for_a_slow_disk() {
    let mut bench = Bench::new().await;
    let files = tempfile::tempdir().unwrap();
    let courier = courier(
        &bench.alerts,
        &bench.running,
        bench.context.health(),
        &files,
    );
    let early = bench.early.take().unwrap();
    let task = tokio::spawn(courier.run(early, bench.context.shutdown().clone()));
    let is_up = || {
        !bench
            .context
            .health()
            .failing()
            .iter()
            .any(|(name, _)| *name == CHECK)
    };
    until("a link", &bench.ingest, |got| {
        got.connections > 3 && is_up()
    })
    .await;

    bench.disk.stop(true);
    let began = Instant::now();
    let request = bench.fall_ill("ill");
    until("the core is told", &bench.ingest, |got| {
        !got.alerts.is_empty()
    })
    .await;
    let took = began.elapsed();
    assert!(took < STALLED_AFTER / 2, "{took:?}");
    assert!(!request.is_finished(), "the readings are not on disk");
    let early: Vec<u64> = bench.ingest.got.lock().alerts.keys().copied().collect();
    assert_eq!(early, [0], "no place in the journal");

    bench.disk.stop(false);
    assert_eq!(request.await.unwrap().unwrap().accepted, 59);
    until("the journal's own alert follows", &bench.ingest, |got| {
        got.alerts.keys().any(|sequence| *sequence > 0)
    })
    .await;
    {
        let got = bench.ingest.got.lock();
        let content = |it: &EdgeAlert| (it.device.clone(), it.rule.clone(), it.time_us);
        let (early, mut kept) = (content(&got.alerts[&0]), got.alerts.range(1..));
        let merges = kept.any(|(_, it)| content(it) == early);
        assert!(merges, "{early:?} is no alert of the journal");
    }
    until("nothing waits", &bench.ingest, |_| {
        bench.alerts.waiting() == 0
    })
    .await;
    bench.context.shutdown().request();
    task.await.unwrap();
    bench.running.task.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_never_answers_is_reported_and_its_alerts_go_from_memory() {
    let bench = Bench::new().await;
    let health = bench.context.health();
    let check = health.check("alerts-journal");
    let watching = tokio::spawn(watch(bench.alerts.clone(), check));
    let from_memory = FromMemory {
        intake: Arc::clone(&bench.intake),
        uplink: Arc::new(Direct {
            identity: None,
            events: broadcast::channel(1).0,
        }),
        url: format!("http://{}", bench.running.address),
        clock: Moment::now,
    };
    let telling = tokio::spawn(from_memory.run(bench.context.shutdown().clone()));
    until("ready", &bench.ingest, |_| health.is_ready()).await;

    bench.disk.stop(true);
    let began = Instant::now();
    let refused = bench.fall_ill("ill").await.unwrap().unwrap_err();
    assert!(
        refused.to_string().contains("has not answered"),
        "{refused}"
    );
    let took = began.elapsed();
    assert!(took < STALLED_AFTER * 2, "{took:?}");
    let told = |device: &str| {
        let got = bench.ingest.got.lock();
        got.alerts.values().any(|alert| alert.device == device)
    };
    until("readiness says it", &bench.ingest, |_| {
        Bench::says_stalled(health)
    })
    .await;
    soon("the core is told", || told("ill")).await;
    // A request that comes later does not wait for the disk.
    let began = Instant::now();
    let refused = bench.fall_ill("worse").await.unwrap();
    assert!(refused.is_err() && began.elapsed() < STALLED_AFTER / 2);
    soon("the core is told of the other", || told("worse")).await;
    assert!(bench.alerts.acknowledge(0), "nor does a courier");

    bench.disk.stop(false);
    until("ready again", &bench.ingest, |_| health.is_ready()).await;
    assert_eq!(bench.fall_ill("ill").await.unwrap().unwrap().accepted, 59);
    assert!(!entries(&bench.alerts).is_empty(), "the first write ended");
    bench.context.shutdown().request();
    telling.await.unwrap();
    watching.abort();
    bench.running.task.abort();
}

async fn soon(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
