//! Gateways whose clocks are an hour off.
//! - Stepped back during operation: no sample is refused, lost or numbered twice, and the edge
//!   still alerts.
//! - Off from the first contact on: the core alerts at once with the right time, and what is late
//!   stays late.
//! - Off, or not set, until the first contact: earlier readings are stored under their true time.

mod core;

use std::{collections::BTreeSet, sync::Arc};

use contracts::vitals::{Metric, Sample, sample::Reading};
use service_kit::{Context, Health};
use testkit::disk::FakeDisk;
use tokio::sync::{broadcast, mpsc};
use vitals::RuleSet;

use super::direct::Direct;
use crate::{
    clock::{Clock, CoreClock, Moment},
    edge_rules::EdgeRules,
    intake::{Intake, Patience},
    journal::{
        Entry, Journal, Overflow,
        test_disk::{TestDisk, entries, small},
    },
    to_ingest::{self, Courier, DeadLetters},
};

const S: i64 = 1_000_000;
const HOUR: i64 = 3600 * S;
const TRUE_US: i64 = 1_800_000_000 * S;
const BOOTED_US: i64 = 1_767_225_600 * S;
/// Length of each of the clock's three times.
const SECONDS: i64 = 120;

fn open(class: &'static str) -> Journal<TestDisk> {
    small(TestDisk(FakeDisk::new(1)), class, Overflow::Refuse)
}

#[tokio::test]
async fn an_hour_off_and_set_back_loses_nothing() {
    let (vitals, alerts) = (open("vitals"), open("alerts"));
    let rules = EdgeRules::new(RuleSet::default_set());
    let intake = Intake::new("g1".into(), vitals.clone(), alerts.clone(), rules);
    let mut sent = 0;
    // Ahead, set right, and set behind; the patient falls ill while the clock is behind.
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
            // A sensor without a clock, a sensor with a right clock, and a new sensor for each of
            // the clock's times.
            let samples = vec![
                sample("timeless", 0, rate),
                sample("right", true_us, 70.0),
                sample(&format!("new-{phase}"), 0, 70.0),
            ];
            sent += samples.len();
            let recorded = intake
                .record(samples, moment(true_us, skew), Patience::Wait, None, None)
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

/// The clock steps by 90 s and back, also with a restart in between. Each reading of a sensor
/// without a clock gets its time, and each fever is an alert of its own.
#[tokio::test]
async fn a_step_of_the_clock_moves_no_reading_of_a_sensor_without_one() {
    for by_us in [90 * S, -90 * S] {
        let (vitals, alerts) = (open("vitals"), open("alerts"));
        let rules = || EdgeRules::new(RuleSet::default_set());
        let mut intake = Intake::new("g1".into(), vitals.clone(), alerts.clone(), rules());
        let is_ill = |second: i64| second % 60 >= 30;
        for second in 0..360 {
            let true_us = TRUE_US + second * S;
            let skew_us = if (100..223).contains(&second) {
                by_us
            } else {
                0
            };
            let now = moment(true_us, skew_us);
            let reading = Sample {
                device: "timeless".into(),
                metric: Metric::HeartRate.into(),
                reading: Some(Reading::Value(if is_ill(second) { 180.0 } else { 70.0 })),
                ..Sample::default()
            };
            if second == 130 {
                let mut restarted = rules();
                restarted.restore(intake.states_of_rules(), now);
                intake = Intake::new("g1".into(), vitals.clone(), alerts.clone(), restarted);
            }
            let recorded = intake.record(vec![reading], now, Patience::Wait, None, None);
            assert_eq!(recorded.await.unwrap().accepted, 1);
        }
        let times = entries(&vitals).into_iter().map(|entry| match entry {
            Entry::Sample(sample) => sample.device_time_us,
            other => panic!("{other:?}"),
        });
        let right: Vec<i64> = (0..360).map(|second| TRUE_US + second * S).collect();
        assert_eq!(times.collect::<Vec<i64>>(), right, "{by_us}");
        let of_fevers = entries(&alerts)
            .into_iter()
            .filter_map(|entry| match entry {
                Entry::Alert(alert) if alert.rule == "heart-rate-very-high" => Some(alert),
                _ => None,
            });
        let begun: Vec<i64> = of_fevers
            .filter(|alert| !alert.resolved)
            .map(|alert| (alert.since_us - TRUE_US) / S)
            .collect();
        assert_eq!(begun, [30, 90, 150, 210, 270, 330], "{by_us}");
    }
}

/// By a clock that is off by `skew_us`.
fn moment(true_us: i64, skew_us: i64) -> Moment {
    Moment {
        wall_us: true_us + skew_us,
        uptime_us: true_us - BOOTED_US,
        boot: 7,
    }
}

/// Once the core has sent its time, a reading more than two minutes ahead is refused by its line,
/// whatever the gateway's clock shows.
#[tokio::test]
async fn a_reading_of_the_future_is_refused_once_the_core_is_known() {
    for skew_us in [0, HOUR, -HOUR] {
        let core = Arc::new(CoreClock::default());
        let rules = EdgeRules::new(RuleSet::default_set());
        let intake = Intake::new("g1".into(), open("vitals"), open("alerts"), rules);
        let intake = intake.with_core(Arc::clone(&core));
        let now = moment(TRUE_US, skew_us);
        // A sensor without a clock, a sensor with a right clock, and some that are ahead.
        let sample = |device_time_us| Sample {
            device: "belt".into(),
            stream: format!("heart-rate-{device_time_us}"),
            metric: Metric::HeartRate.into(),
            device_time_us,
            reading: Some(Reading::Value(70.0)),
            ..Sample::default()
        };
        let ahead_us = [3 * 60 * S, 90 * 60 * S].map(|us| TRUE_US + skew_us.max(0) + us);
        let samples = vec![
            sample(0),
            sample(TRUE_US),
            sample(ahead_us[0]),
            sample(ahead_us[1]),
        ];
        core.on_answer(TRUE_US - S / 10, now);
        let recorded = intake
            .record(samples, now, Patience::Wait, None, None)
            .await
            .unwrap();
        assert_eq!(recorded.accepted, 2, "{skew_us}");
        let refused: Vec<(usize, &str)> = recorded
            .refused
            .iter()
            .map(|(line, refused)| (*line, refused.parts().0))
            .collect();
        assert_eq!(refused, [(2, "device_time_us"), (3, "device_time_us")]);
    }
}

/// The clock of a gateway without a network steps by 90 s: earlier readings leave with the clock's
/// readings of that time.
#[tokio::test]
async fn entries_keep_what_the_clocks_showed_when_they_were_taken() {
    let vitals = open("vitals");
    let rules = EdgeRules::new(RuleSet::default_set());
    let intake = Intake::new("g1".into(), vitals.clone(), open("alerts"), rules);
    for second in 0..14 {
        let true_us = TRUE_US + second * S;
        let sample = Sample {
            device: "belt".into(),
            metric: Metric::HeartRate.into(),
            device_time_us: true_us,
            reading: Some(Reading::Value(70.0)),
            ..Sample::default()
        };
        let now = moment(true_us, 0);
        intake
            .record(vec![sample], now, Patience::Wait, None, None)
            .await
            .unwrap();
    }
    let samples = entries(&vitals).into_iter().map(|entry| match entry {
        Entry::Sample(sample) => sample,
        other => panic!("{other:?}"),
    });
    let left = moment(TRUE_US + 60 * S, 90 * S);
    let upload = left.stamp(contracts::vitals::UploadRequest {
        samples: samples.collect(),
        ..Default::default()
    });
    let sent = clocks::Sent {
        wall_us: upload.sent_time_us,
        uptime_us: upload.sent_uptime_us,
        boot: upload.sent_boot,
    };
    let clock = clocks::Clocks::default()
        .on_request("t", "g1", sent, TRUE_US + 61 * S)
        .unwrap();
    for (second, sample) in (0..14).zip(&upload.samples) {
        let taken = clocks::Taken::of_sample(sample);
        assert_eq!(
            clock.event_us(sample.device_time_us, taken),
            TRUE_US + second * S
        );
    }
}

fn ahead() -> Moment {
    moment(contracts::now_us(), HOUR)
}

fn behind() -> Moment {
    moment(contracts::now_us(), -HOUR)
}

fn right() -> Moment {
    moment(contracts::now_us(), 0)
}

/// A reading a second, from a sensor without a clock and one with a right clock: first well, then
/// ill. The last reading was `ago_us` ago.
async fn fall_ill(intake: &Intake<TestDisk>, devices: [&str; 2], skew_us: i64, ago_us: i64) {
    const READINGS: i64 = 40;
    let end_us = contracts::now_us() - ago_us;
    for n in 0..READINGS {
        let true_us = end_us - (READINGS - n) * S;
        let value = if n < READINGS / 2 { 70.0 } else { 180.0 };
        let reading = |device: &str, device_time_us| Sample {
            device: device.into(),
            metric: Metric::HeartRate.into(),
            device_time_us,
            reading: Some(Reading::Value(value)),
            ..Sample::default()
        };
        let samples = vec![reading(devices[0], 0), reading(devices[1], true_us)];
        let recorded = intake
            .record(
                samples,
                moment(true_us, skew_us),
                Patience::Wait,
                None,
                None,
            )
            .await
            .unwrap();
        assert_eq!(recorded.accepted, 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_hour_off_from_the_first_contact_on_alerts_at_once_and_at_the_right_time() {
    const RULE: &str = "heart-rate-very-high";
    const AGO: i64 = 150 * 60 * S;
    // The sum of the readings' interval, the error of an upload's way, and the delay of a busy
    // machine.
    const WITHIN: i64 = 120 * S;
    let core = core::Core::start().await;
    // A hundred seconds after a start in 1970.
    let unset_us = AGO + 100 * S - contracts::now_us();
    // The clock at the upload, and its error before and at the first contact.
    for (gateway, clock, kept_skew_us, skew_us) in [
        ("fast", ahead as Clock, HOUR, HOUR),
        ("slow", behind, -HOUR, -HOUR),
        ("set", right, -100 * 60 * S, 0),
        ("set-back", right, 100 * 60 * S, 0),
        ("unset", right, unset_us, 0),
    ] {
        let name = |what: &str| format!("{gateway}-{what}");
        let kept = [name("kept-timeless"), name("kept-right")];
        let live = [name("timeless"), name("right")];
        for device in kept.iter().chain(&live) {
            core.register(gateway, device).await;
        }
        let (vitals, alerts) = (open("vitals"), open("alerts"));
        let rules = EdgeRules::new(RuleSet::default_set());
        let intake = Intake::new(gateway.into(), vitals.clone(), alerts.clone(), rules);
        // Readings while the gateway had no network, then its first contact.
        fall_ill(&intake, [&kept[0], &kept[1]], kept_skew_us, AGO).await;
        let began_us = contracts::now_us();
        fall_ill(&intake, [&live[0], &live[1]], skew_us, 0).await;
        let context = Context::new("gateway");
        let dead_letters = Arc::new(DeadLetters::new(
            core.directory().join(gateway),
            crate::sealing::Keys::none(),
            Health::new().warning("rejected"),
        ));
        let uplink = Arc::new(Direct {
            identity: Some(core.identity(gateway)),
            events: broadcast::channel(1).0,
        });
        for (options, journal) in [
            (to_ingest::Options::ALERTS, alerts),
            (to_ingest::Options::VITALS, vitals),
        ] {
            let courier = Courier {
                freshness: tokio::sync::watch::Sender::default().subscribe(),
                urgent: Arc::default(),
                options,
                journal,
                uplink: uplink.clone(),
                url: core.url.clone(),
                dead_letters: dead_letters.clone(),
                check: context.health().check(options.class),
                clock,
                core: Arc::default(),
                revocation: crate::revocation::Revocation::default(),
                rules: None,
                alarmed: tokio::sync::watch::channel(false).1,
            };
            context
                .tasks()
                .spawn(courier.run(mpsc::channel(1).1, context.shutdown().clone()));
        }
        for (devices, ago_us, is_late) in [(&kept, AGO, true), (&live, 0, false)] {
            for device in devices {
                let alert = core.alert(device, RULE).await;
                let late_us = alert.recorded_us - alert.changed_us;
                assert_eq!(late_us > AGO / 2, is_late, "{alert:?}");
                let ill_us = began_us - ago_us - 20 * S;
                let off_us = (alert.since_us - ill_us).abs();
                assert!(off_us < WITHIN, "{off_us} us off: {alert:?}");
                let stored = core.newest_us(device).await;
                let off_us = (stored - (began_us - ago_us)).abs();
                assert!(off_us < WITHIN, "{device}: stored {off_us} us off");
            }
        }
        context.shutdown().request();
    }
    core.stop().await;
}
