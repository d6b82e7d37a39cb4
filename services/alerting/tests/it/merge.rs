//! Edge and core histories of one alert, and store errors that repetition cannot fix. Other
//! patients' alerts continue.

use std::sync::Arc;

use crate::stage::{LIMIT, S, World, pulses};
use bus::{Event, Topic, dead_letter};
use contracts::{
    alerts::{Alert, AlertState},
    vitals::{Metric, Sample, VitalsRecord, sample},
};
use store::Scope;
use vitals::{Engine, Origin, Profile, RuleSet, edge_alert, episode_id};

const RULE: &str = "temperature-very-high";

/// Temperatures at these ages, and the alerts that a gateway raises for them.
fn both_histories(patient: &str, now_us: i64, values: &[(i64, f64)]) -> VitalsRecord {
    let rules = Arc::new(RuleSet::default_set());
    let mut edge = Engine::new(patient, rules, Profile::default(), Origin::Edge);
    let mut record = VitalsRecord::default();
    for (index, (ago_s, value)) in values.iter().enumerate() {
        let mut sample = Sample {
            device: format!("{patient}-patch"),
            gateway: "gateway-1".into(),
            patient: patient.into(),
            sequence: index as u64 + 1,
            metric: Metric::Temperature.into(),
            device_time_us: now_us - ago_s * S,
            ingest_time_us: now_us,
            reading: Some(sample::Reading::Value(*value)),
            ..Sample::default()
        };
        vitals::fill_defaults(&mut sample);
        let alerts = edge.on_sample(&sample);
        let alerts = alerts.iter().filter_map(|alert| edge_alert(alert, 0));
        record.alerts.extend(alerts);
        record.samples.push(sample);
    }
    record
}

async fn histories(world: &World, patient: &str, rule: &str) -> Vec<Vec<Alert>> {
    let mut histories = Vec::new();
    for alert in world.alerts().await {
        if alert.patient == patient && alert.rule == rule {
            let history = world.store.alert_history(&Scope::Service, &alert.id);
            histories.push(history.await.unwrap());
        }
    }
    histories.sort_by_key(|history| history[0].since_us);
    histories
}

/// Two episodes begin and end before alerting has received any of their samples.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn episodes_that_are_over_before_their_samples_come_stop_nobody() {
    let world = World::new();
    let running = world.start_with(|_| ());
    let now_us = contracts::now_us();
    let values = [(40, 39.6), (35, 36.7), (20, 39.6), (15, 36.7)];
    let record = both_histories("ann", now_us, &values);
    assert_eq!(record.alerts.iter().filter(|it| it.rule == RULE).count(), 4);
    world.publish("ann", record.clone()).await;
    world
        .publish("ben", pulses("ben", 1, now_us - 30 * S, &[150.0; 15]))
        .await;
    let other = world
        .alert_of("ben", "heart-rate-very-high", AlertState::Active)
        .await;
    assert_eq!(other.since_us, now_us - 30 * S);

    // The same record again, and its halves one after the other, change nothing.
    let settled = histories(&world, "ann", RULE).await;
    let (alerts, samples) = (record.alerts.clone(), record.samples.clone());
    for part in [
        record,
        VitalsRecord {
            samples,
            ..VitalsRecord::default()
        },
        VitalsRecord {
            alerts,
            ..VitalsRecord::default()
        },
    ] {
        world.publish("ann", part).await;
    }
    world
        .publish("cem", pulses("cem", 1, now_us - 30 * S, &[150.0; 15]))
        .await;
    world
        .alert_of("cem", "heart-rate-very-high", AlertState::Active)
        .await;
    assert_eq!(histories(&world, "ann", RULE).await, settled);

    let begins: Vec<i64> = settled.iter().map(|history| history[0].since_us).collect();
    assert_eq!(begins, [now_us - 40 * S, now_us - 20 * S]);
    for history in &settled {
        let revisions: Vec<u32> = history.iter().map(|alert| alert.revision).collect();
        assert_eq!(revisions, [1, 2, 3], "{history:?}");
        let last = history.last().unwrap();
        assert_eq!(last.state(), AlertState::Resolved);
        assert!(last.from_edge && last.from_core);
        assert_eq!(last.changed_us, last.since_us + 5 * S);
    }
    running.stop().await;
}

/// Unreadable rows of an alert, as a damaged disk leaves them.
fn damage(world: &World, id: &str, revisions: u32) {
    let rows = rusqlite::Connection::open(world.dir.path().join("store.db")).unwrap();
    for revision in 1..=revisions {
        let row = (id, revision, [0x0a_u8]);
        rows.execute("INSERT INTO alert_transitions VALUES (?1, ?2, ?3)", row)
            .unwrap();
    }
}

/// Stored rows of an alert stay, and the alert continues after them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_cannot_be_read_are_passed_over() {
    let world = World::new();
    let start = contracts::now_us() - 30 * S;
    let id = episode_id("ann", "heart-rate-very-high", start);
    damage(&world, &id, 2);
    let running = world.start_with(|_| ());
    world
        .publish("ann", pulses("ann", 1, start, &[150.0; 15]))
        .await;
    let alert = world
        .alert("heart-rate-very-high", AlertState::Active)
        .await;
    assert_eq!((alert.id, alert.revision), (id, 3));
    running.stop().await;
}

/// A store that contradicts every attempt costs one record and no other patient's alert.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_can_never_be_stored_is_buried_and_the_others_go_on() {
    let world = World::new();
    let mut letters = world.bus.tail(Topic::DeadLetters).await.unwrap();
    let start = contracts::now_us() - 30 * S;
    damage(
        &world,
        &episode_id("bad", "heart-rate-very-high", start),
        100,
    );
    // All of them wait when alerting begins, so they form few batches.
    for n in 0..9 {
        let name = if n == 4 {
            "bad".to_owned()
        } else {
            format!("p{n}")
        };
        world
            .publish(&name, pulses(&name, 1, start, &[150.0; 15]))
            .await;
    }
    let running = world.start_with(|_| ());
    for n in (0..9).filter(|n| *n != 4) {
        let name = format!("p{n}");
        let alert = world.alert_of(&name, "heart-rate-very-high", AlertState::Active);
        assert_eq!(alert.await.since_us, start);
    }
    let event = tokio::time::timeout(LIMIT, letters.next(10)).await;
    let Event::Batch(letters) = event.unwrap().unwrap() else {
        panic!("no batch");
    };
    let [letter] = letters.as_slice() else {
        panic!("{letters:?}");
    };
    assert_eq!(letter.key, "bad");
    let mut headers = letter.headers.iter();
    let reason = headers.find(|(name, _)| name == dead_letter::REASON);
    let reason = String::from_utf8_lossy(&reason.unwrap().1).into_owned();
    assert!(reason.contains("contradicted 8 tries"), "{reason}");
    // The patient's next readings are judged.
    let flat = crate::stage::readings(Metric::Battery, "bad", 100, contracts::now_us(), &[5.0]);
    world.publish("bad", flat).await;
    world
        .alert_of("bad", "battery-low", AlertState::Active)
        .await;
    running.stop().await;
}
