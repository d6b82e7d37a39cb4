//! What sensors are told when the disk refuses, and that nothing is forgotten over it.

#![allow(clippy::unwrap_used)]

#[path = "support/test_disk.rs"]
mod test_disk;

use std::time::Duration;

use contracts::vitals::{Metric, Sample, sample::Reading};
use gateway::{
    clock::Moment,
    edge_rules::EdgeRules,
    intake::{Intake, Patience, RecordError},
    journal::{Condition, Entry, Journal, Limits, Options, Overflow},
};
use test_disk::TestDisk;
use testkit::disk::FakeDisk;
use vitals::RuleSet;

const START_US: i64 = 1_800_000_000_000_000;

fn open(disk: &FakeDisk, class: &'static str, overflow: Overflow) -> Journal<TestDisk> {
    let options = Options {
        class,
        limits: Limits {
            bytes_max: 1 << 20,
            segment_bytes: 1 << 16,
            overflow,
        },
        gather: Duration::ZERO,
    };
    Journal::open(TestDisk(disk.clone()), options).unwrap().0
}

struct Bench {
    vitals_disk: FakeDisk,
    alerts_disk: FakeDisk,
    vitals: Journal<TestDisk>,
    alerts: Journal<TestDisk>,
    intake: Intake<TestDisk>,
}

impl Bench {
    fn new() -> Self {
        let (vitals_disk, alerts_disk) = (FakeDisk::new(1), FakeDisk::new(2));
        let vitals = open(&vitals_disk, "vitals", Overflow::DropOldest);
        let alerts = open(&alerts_disk, "alerts", Overflow::Refuse);
        let rules = EdgeRules::new(RuleSet::default_set());
        let intake = Intake::new("g1".into(), vitals.clone(), alerts.clone(), rules);
        Self {
            vitals_disk,
            alerts_disk,
            vitals,
            alerts,
            intake,
        }
    }

    async fn record(&self, device: &str, second: i64, value: f64) -> Result<usize, RecordError> {
        let now_us = START_US + second * 1_000_000;
        let sample = Sample {
            device: device.into(),
            metric: Metric::HeartRate.into(),
            device_time_us: now_us,
            reading: Some(Reading::Value(value)),
            sensor_sequence: Some(second as u64),
            ..Sample::default()
        };
        let now = Moment {
            wall_us: now_us,
            ..Moment::now()
        };
        let recorded = self
            .intake
            .record(vec![sample], now, Patience::Wait, None)
            .await?;
        assert!(recorded.refused.is_empty());
        Ok(recorded.accepted)
    }
}

fn entries(journal: &Journal<TestDisk>) -> Vec<Entry> {
    let chunk = journal.reader().read(0, 10_000, 1 << 20).unwrap();
    chunk.entries.into_iter().map(|(_, entry)| entry).collect()
}

#[tokio::test]
async fn a_full_disk_refuses_says_so_and_goes_on_when_there_is_room() {
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
async fn an_alert_that_cannot_be_kept_holds_back_its_device_only() {
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
        // Asked once, and gone.
        let _ = futures::poll!(recording);
        // The journal has answered whom it could.
        let _ = bench.alerts.append_alerts(Vec::new()).await;
    }
    assert!(entries(&bench.alerts).is_empty());

    bench.alerts_disk.fail_next(0);
    assert_eq!(bench.record("ill", 119, 180.0).await.unwrap(), 1);
    let raised = entries(&bench.alerts);
    assert!(!raised.is_empty(), "the alert is lost");
}
