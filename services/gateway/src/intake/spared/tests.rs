//! A gateway that is killed on a full disk raises no alert twice.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use contracts::vitals::{EdgeAlert, Metric, Sample, sample::Reading};
use testkit::disk::{Crash, FakeDisk};
use vitals::RuleSet;

use super::*;
use crate::{
    clock::Moment,
    edge_rules::EdgeRules,
    intake::{Patience, RecordError},
    journal::{
        Entry, Journal, Overflow,
        test_disk::{Folder, TestDisk, entries, small_options},
    },
    rule_states::StateLog,
};

const START_US: i64 = 1_800_000_000_000_000;

struct Gateway {
    intake: Intake<Folder>,
    alerts: Journal<Folder>,
    reserve: Reserve<Folder>,
}

fn at(second: i64) -> Moment {
    Moment {
        wall_us: START_US + second * 1_000_000,
        ..Moment::now()
    }
}

impl Gateway {
    /// As the gateway starts, with all directories on one disk.
    fn start(disk: &FakeDisk, second: i64) -> Gateway {
        let folder = |name| Folder {
            disk: TestDisk(disk.clone()),
            name,
        };
        let (states, kept) = StateLog::open(folder("rule-states")).unwrap();
        let reserve = Reserve::open(folder("rule-states"));
        let mut rules = EdgeRules::new(RuleSet::default_set());
        rules.restore(kept, at(second));
        let open = |class, overflow| {
            let options = small_options(class, overflow);
            let opened = reserve.opening(|| Journal::open(folder(class), options));
            opened.unwrap().0
        };
        let vitals = open("vitals", Overflow::DropOldest);
        let alerts = open("alerts", Overflow::Refuse);
        let intake = Intake::new("g1".into(), vitals, alerts.clone(), rules);
        Gateway {
            intake: intake.with_states(states).with_reserve(reserve.clone()),
            alerts,
            reserve,
        }
    }

    async fn record(&self, device: &str, second: i64, value: f64) -> Result<usize, RecordError> {
        let sample = Sample {
            device: device.into(),
            metric: Metric::HeartRate.into(),
            device_time_us: START_US + second * 1_000_000,
            reading: Some(Reading::Value(value)),
            ..Sample::default()
        };
        let recorded = self
            .intake
            .record(vec![sample], at(second), Patience::Wait, None, None);
        Ok(recorded.await?.accepted)
    }

    /// Rule and beginning of what the core is told: from the journal and from memory.
    fn told(&self) -> BTreeSet<(String, String, i64)> {
        let held = self.intake.first_held(usize::MAX);
        let held = held.into_iter().map(|(_, alert)| alert);
        let journaled = entries(&self.alerts).into_iter().map(|entry| match entry {
            Entry::Alert(alert) => alert,
            other => panic!("{other:?}"),
        });
        let raised = |alert: &EdgeAlert| !alert.resolved;
        let all = held.chain(journaled).filter(raised);
        all.map(|it| (it.device, it.rule, it.since_us)).collect()
    }
}

/// Others leave the disk room for some entries or none. The sensor sends no reading again.
#[tokio::test]
async fn an_alert_is_raised_once_though_its_gateway_is_killed_on_a_full_disk() {
    for room in (0..6_000).step_by(1_000) {
        let disk = FakeDisk::new(room as u64);
        let gateway = Gateway::start(&disk, 0);
        for second in 0..5 {
            assert_eq!(gateway.record("ill", second, 70.0).await.unwrap(), 1);
        }
        disk.leave_room(room);
        let mut second = 5;
        while gateway.told().is_empty() {
            let _ = gateway.record("ill", second, 180.0).await;
            second += 1;
        }
        let mut told = gateway.told();
        assert!(gateway.intake.held.lock().is_empty(), "room {room}");
        drop(gateway);
        disk.restart(Crash::Process);

        let gateway = Gateway::start(&disk, second);
        for second in second..second + 40 {
            let _ = gateway.record("ill", second, 180.0).await;
        }
        told.extend(gateway.told());
        let rules: BTreeSet<_> = told.iter().map(|it| &it.1).collect();
        assert_eq!(rules.len(), told.len(), "room {room}: {told:?}");
    }
}

#[tokio::test]
async fn a_gateway_that_is_killed_on_a_full_disk_starts_again_and_delivers() {
    let disk = FakeDisk::new(2);
    let gateway = Gateway::start(&disk, 0);
    for second in 0..40 {
        let _ = gateway.record("ill", second, 180.0).await;
    }
    let told = gateway.told();
    assert!(!told.is_empty() && !gateway.reserve.is_in_use());
    disk.leave_room(0);
    drop(gateway);
    disk.restart(Crash::Process);

    let gateway = Gateway::start(&disk, 40);
    assert!(gateway.reserve.is_in_use());
    assert_eq!(gateway.told(), told);
}

#[tokio::test]
async fn readings_leave_the_space_to_alerts_until_there_is_room() {
    let disk = FakeDisk::new(1);
    let gateway = Gateway::start(&disk, 0);
    assert_eq!(gateway.record("ill", 0, 70.0).await.unwrap(), 1);
    disk.leave_room(0);
    // The first one meets the full disk, and its state takes the space.
    assert!(gateway.record("ill", 1, 70.0).await.is_err());
    for second in 2..200 {
        let refused = gateway.record("ill", second, 70.0).await.unwrap_err();
        assert!(refused.to_string().contains("kept for alerts"), "{refused}");
    }
    for second in 200..320 {
        let _ = gateway.record("ill", second, 180.0).await;
    }
    let told = gateway.told();
    assert!(!told.is_empty() && gateway.intake.held.lock().is_empty());

    // There is room again.
    disk.leave_room(1 << 20);
    gateway.reserve.refill();
    assert!(gateway.reserve.is_in_use(), "less than the space");
    disk.leave_room(usize::MAX >> 1);
    gateway.reserve.refill();
    assert!(!gateway.reserve.is_in_use());
    assert_eq!(gateway.record("ill", 321, 180.0).await.unwrap(), 1);
    assert!(disk.file_bytes("rule-states/reserve").is_some());
}
