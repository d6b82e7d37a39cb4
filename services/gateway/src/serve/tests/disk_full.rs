//! Answers to sensors while the disk refuses writes, and that no alert is lost by it.

use std::{sync::Arc, time::Duration};

use contracts::vitals::{Metric, Sample, sample::Reading};
use service_kit::{Context, Health};
use testkit::disk::FakeDisk;
use tokio::sync::broadcast;
use vitals::RuleSet;

use super::{direct::Direct, fake_ingest::FakeIngest};
use crate::{
    clock::Moment,
    edge_rules::EdgeRules,
    intake::{Intake, Patience, RecordError},
    journal::{
        Condition, Entry, Journal, Overflow,
        test_disk::{TestDisk, entries, small},
    },
    to_ingest::FromMemory,
    unjournaled::UNJOURNALED_ALERTS_MAX,
};

const START_US: i64 = 1_800_000_000_000_000;

struct Bench {
    vitals_disk: FakeDisk,
    alerts_disk: FakeDisk,
    vitals: Journal<TestDisk>,
    alerts: Journal<TestDisk>,
    intake: Arc<Intake<TestDisk>>,
}

impl Bench {
    fn new() -> Self {
        let (vitals_disk, alerts_disk) = (FakeDisk::new(1), FakeDisk::new(2));
        let vitals = small(
            TestDisk(vitals_disk.clone()),
            "vitals",
            Overflow::DropOldest,
        );
        let alerts = small(TestDisk(alerts_disk.clone()), "alerts", Overflow::Refuse);
        let rules = EdgeRules::new(RuleSet::default_set());
        let intake = Intake::new("g1".into(), vitals.clone(), alerts.clone(), rules);
        let intake = Arc::new(intake);
        Self {
            vitals_disk,
            alerts_disk,
            vitals,
            alerts,
            intake,
        }
    }

    async fn record(&self, device: &str, second: i64, value: f64) -> Result<usize, RecordError> {
        let sample = reading(device, second, value);
        self.request(vec![sample], second).await
    }

    async fn request(&self, samples: Vec<Sample>, second: i64) -> Result<usize, RecordError> {
        let now = Moment {
            wall_us: START_US + second * 1_000_000,
            ..Moment::now()
        };
        let recorded = self
            .intake
            .record(samples, now, Patience::Wait, None, None)
            .await?;
        assert!(recorded.refused.is_empty());
        Ok(recorded.accepted)
    }
}

pub fn reading(device: &str, second: i64, value: f64) -> Sample {
    Sample {
        device: device.into(),
        metric: Metric::HeartRate.into(),
        device_time_us: START_US + second * 1_000_000,
        reading: Some(Reading::Value(value)),
        sensor_sequence: Some(second as u64),
        ..Sample::default()
    }
}

#[tokio::test]
async fn a_full_disk_refuses_samples_with_a_reason_and_accepts_them_later() {
    let bench = Bench::new();
    assert_eq!(bench.record("d1", 1, 70.0).await.unwrap(), 1);
    assert_eq!(*bench.vitals.condition().borrow(), Condition::Writable);

    bench.vitals_disk.fail_next(u64::MAX);
    for second in 2..5 {
        let error = bench.record("d1", second, 70.0).await.unwrap_err();
        assert!(error.to_string().contains("no space left"), "{error}");
    }
    assert!(matches!(
        *bench.vitals.condition().borrow(),
        Condition::Failing(_)
    ));

    bench.vitals_disk.fail_next(0);
    for second in 2..6 {
        assert_eq!(bench.record("d1", second, 70.0).await.unwrap(), 1);
    }
    assert_eq!(*bench.vitals.condition().borrow(), Condition::Writable);
    let sequences: Vec<_> = entries(&bench.vitals)
        .iter()
        .map(|entry| match entry {
            Entry::Sample(sample) => (sample.sequence, sample.sensor_sequence.unwrap()),
            other => panic!("{other:?}"),
        })
        .collect();
    // The stream began at the clock of its first sample.
    let first = (START_US + 1_000_000) as u64;
    let expected: Vec<_> = (0..5).map(|n| (first + n, 1 + n)).collect();
    assert_eq!(sequences, expected);
}

#[tokio::test]
async fn an_alert_that_cannot_be_stored_holds_back_only_its_device() {
    let bench = Bench::new();
    bench.alerts_disk.fail_next(u64::MAX);
    let mut refused_from = None;
    for second in 1..120 {
        let taken = bench.record("ill", second, 180.0).await.is_ok();
        assert!(bench.record("well", second, 70.0).await.is_ok());
        match refused_from {
            None if !taken => refused_from = Some(second),
            Some(_) => assert!(
                !taken,
                "second {second}: accepted, though its alert is not kept"
            ),
            None => {}
        }
    }
    let refused_from = refused_from.unwrap();
    assert!(entries(&bench.alerts).is_empty());

    bench.alerts_disk.fail_next(0);
    for second in refused_from..120 {
        assert_eq!(bench.record("ill", second, 180.0).await.unwrap(), 1);
    }
    let raised: Vec<_> = entries(&bench.alerts)
        .into_iter()
        .map(|entry| match entry {
            Entry::Alert(alert) => (alert.device, alert.rule, alert.sequence),
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(!raised.is_empty());
    assert!(raised.iter().all(|(device, _, _)| device == "ill"));
    let samples = entries(&bench.vitals).len();
    assert_eq!(samples, 2 * 119);
}

#[tokio::test]
async fn an_alert_outlives_a_sensor_that_hangs_up_before_the_disk_answers() {
    let bench = Bench::new();
    bench.alerts_disk.fail_next(u64::MAX);
    for second in 1..120 {
        let recording = std::pin::pin!(bench.record("ill", second, 180.0));
        // The request is polled once and dropped.
        let _ = futures::poll!(recording);
        // The journal has answered the remaining requests.
        let _ = bench.alerts.append_alerts(Vec::new()).await;
    }
    assert!(entries(&bench.alerts).is_empty());

    bench.alerts_disk.fail_next(0);
    assert_eq!(bench.record("ill", 119, 180.0).await.unwrap(), 1);
    let raised = entries(&bench.alerts);
    assert!(!raised.is_empty(), "the alert is lost");
}

const WARNING: &str = "alerts-in-memory";
const LIMIT: Duration = Duration::from_secs(30);

/// The timer that tries the journal again, as the gateway starts it.
fn trying_again(bench: &Bench, context: &Context) {
    let intake = Arc::clone(&bench.intake);
    let (warning, shutdown) = (
        context.health().warning(WARNING),
        context.shutdown().clone(),
    );
    tokio::spawn(async move { intake.try_again(warning, shutdown).await });
}

fn warns(health: &Health) -> bool {
    health.warnings().iter().any(|(name, _)| *name == WARNING)
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(LIMIT, waiting).await;
    assert!(waited.is_ok(), "{what}");
}

#[tokio::test]
async fn a_refused_alert_is_stored_later_without_a_request() {
    let bench = Bench::new();
    let context = Context::new("gateway");
    trying_again(&bench, &context);
    bench.alerts_disk.fail_next(u64::MAX);
    let mut second = 1;
    while bench.record("ill", second, 180.0).await.is_ok() {
        second += 1;
    }
    until("no warning", || warns(context.health())).await;
    bench.alerts_disk.fail_next(0);
    until("the alert is not kept", || {
        !entries(&bench.alerts).is_empty()
    })
    .await;
    until("a warning", || !warns(context.health())).await;
    assert_eq!(*bench.alerts.condition().borrow(), Condition::Writable);
}

#[tokio::test]
async fn alerts_go_to_the_core_from_memory_while_the_disk_is_full() {
    let bench = Bench::new();
    let context = Context::new("gateway");
    trying_again(&bench, &context);
    let ingest = FakeIngest::default();
    let running = ingest.start().await;
    let from_memory = FromMemory {
        intake: Arc::clone(&bench.intake),
        uplink: Arc::new(Direct {
            identity: None,
            events: broadcast::channel(1).0,
        }),
        url: format!("http://{}", running.address),
        clock: Moment::now,
    };
    let telling = tokio::spawn(from_memory.run(context.shutdown().clone()));

    bench.alerts_disk.fail_next(u64::MAX);
    let mut second = 1;
    while bench.record("ill", second, 180.0).await.is_ok() {
        second += 1;
    }
    let told = || {
        ingest
            .got
            .lock()
            .alerts
            .values()
            .cloned()
            .collect::<Vec<_>>()
    };
    until("the core is not told", || !told().is_empty()).await;
    assert!(
        told()
            .iter()
            .all(|alert| alert.device == "ill" && !alert.resolved)
    );
    // The device goes on, since its alert needs no disk any more. Once there is room the alert is
    // stored without a further request.
    until("it is still held", || !warns(context.health())).await;
    bench.record("ill", second, 180.0).await.unwrap();
    assert!(entries(&bench.alerts).is_empty());
    assert_ne!(*bench.alerts.condition().borrow(), Condition::Writable);
    bench.alerts_disk.fail_next(0);
    until("the journal is not tried", || {
        *bench.alerts.condition().borrow() == Condition::Writable
    })
    .await;
    assert_eq!(entries(&bench.alerts), [], "the core has it");
    context.shutdown().request();
    telling.await.unwrap();
    running.task.abort();
}

/// Every device with an alert holds one; with the last of them the gateway accepts no more samples.
#[tokio::test]
async fn alerts_in_memory_have_a_bound() {
    let bench = Bench::new();
    bench.alerts_disk.fail_next(u64::MAX);
    let count = || *bench.intake.held().borrow();
    // A request with all the readings that an alert needs.
    for device in 0..UNJOURNALED_ALERTS_MAX {
        if count() >= UNJOURNALED_ALERTS_MAX {
            break;
        }
        let device = format!("d{device}");
        let readings = (1..60).map(|second| reading(&device, second, 180.0));
        let _ = bench.request(readings.collect(), 60).await;
    }
    assert!(count() >= UNJOURNALED_ALERTS_MAX, "{} held", count());
    assert!(bench.record("well", 1, 70.0).await.is_err());
    bench.alerts_disk.fail_next(0);
    assert!(bench.record("well", 1, 70.0).await.is_ok());
    assert_eq!(count(), 0);
    assert!(entries(&bench.alerts).len() >= UNJOURNALED_ALERTS_MAX);
}
