//! A gateway whose clock is an hour off and is set back while sensors go on: nothing is refused, lost or numbered twice, and the
//! edge still alerts.

#![allow(clippy::unwrap_used)]

#[path = "support/test_disk.rs"]
mod test_disk;

use std::{collections::BTreeSet, time::Duration};

use contracts::vitals::{Metric, Sample, sample::Reading};
use gateway::{
    edge_rules::EdgeRules,
    intake::{Intake, Patience},
    journal::{Entry, Journal, Limits, Options, Overflow},
};
use test_disk::TestDisk;
use testkit::disk::FakeDisk;
use vitals::RuleSet;

const S: i64 = 1_000_000;
const HOUR: i64 = 3600 * S;
const TRUE_US: i64 = 1_800_000_000 * S;
/// Of each of the clock's three times.
const SECONDS: i64 = 120;

fn open(class: &'static str) -> Journal<TestDisk> {
    let options = Options {
        class,
        limits: Limits {
            bytes_max: 1 << 20,
            segment_bytes: 1 << 16,
            overflow: Overflow::Refuse,
        },
        gather: Duration::ZERO,
    };
    Journal::open(TestDisk(FakeDisk::new(1)), options)
        .unwrap()
        .0
}

fn entries(journal: &Journal<TestDisk>) -> Vec<Entry> {
    let chunk = journal.reader().read(0, 10_000, 1 << 20).unwrap();
    chunk.entries.into_iter().map(|(_, entry)| entry).collect()
}

#[tokio::test]
async fn an_hour_off_and_set_back_loses_nothing() {
    let (vitals, alerts) = (open("vitals"), open("alerts"));
    let rules = EdgeRules::new(RuleSet::default_set());
    let intake = Intake::new("g1".into(), vitals.clone(), alerts.clone(), rules);
    let mut sent = 0;
    // Ahead, set right, and set behind; the person falls ill while the clock is behind.
    for (phase, skew) in [HOUR, 0, -HOUR].into_iter().enumerate() {
        for second in 0..SECONDS {
            let true_us = TRUE_US + (phase as i64 * SECONDS + second) * S;
            let rate = if skew < 0 { 180.0 } else { 70.0 };
            let sample = |device: &str, device_time_us, value| Sample {
                device: device.into(),
                metric: Metric::HeartRate.into(),
                device_time_us,
                reading: Some(Reading::Value(value)),
                ..Sample::default()
            };
            // One sensor has no clock, one a right clock of its own; one comes new with every time the clock has.
            let samples = vec![
                sample("timeless", 0, rate),
                sample("right", true_us, 70.0),
                sample(&format!("new-{phase}"), 0, 70.0),
            ];
            sent += samples.len();
            let recorded = intake
                .record(samples, true_us + skew, Patience::Wait, None)
                .await
                .unwrap();
            let refused: Vec<String> = recorded.refused.iter().map(|it| it.1.to_string()).collect();
            assert_eq!(refused, Vec::<String>::new(), "{skew}");
        }
    }
    let mut identities = BTreeSet::new();
    let mut last = std::collections::BTreeMap::new();
    for entry in entries(&vitals) {
        let Entry::Sample(sample) = entry else {
            panic!("{entry:?}")
        };
        let before = last.insert(sample.device.clone(), sample.sequence);
        assert!(before.is_none_or(|before| sample.sequence == before + 1));
        identities.insert((sample.device, sample.sequence));
    }
    assert_eq!(
        identities.len(),
        sent,
        "every one, under a number of its own"
    );
    let raised = entries(&alerts).into_iter().any(|entry| {
        matches!(entry, Entry::Alert(alert) if alert.device == "timeless" && alert.rule == "heart-rate-very-high")
    });
    assert!(
        raised,
        "the edge alerts by a clock that went back two hours"
    );
}
