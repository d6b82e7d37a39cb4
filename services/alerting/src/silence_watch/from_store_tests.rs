#![allow(clippy::unwrap_used)]
use std::sync::atomic::{AtomicI64, Ordering};

use clocks::{CheckedClock, Moment};
use contracts::{
    alerts::{Alert, AlertState},
    patients::Operation,
    vitals::{Metric, Sample},
};
use store::{Change, SqliteStore};

use super::*;

#[path = "from_store_lasting_tests.rs"]
mod lasting;
#[path = "../../tests/support/scene.rs"]
mod scene;

use lasting::{Host, Life};
use scene::Sensor;

const HOUR_US: i64 = 3_600_000_000;

async fn hear(store: &dyn Store, device: &str, at_us: i64) {
    scene::hear(store, [Sensor::named(device)].into_iter(), at_us).await;
}

async fn hear_all(store: &dyn Store, devices: &[String], at_us: i64) {
    scene::hear(store, devices.iter().map(|it| Sensor::named(it)), at_us).await;
}

/// A reading of a sensor that the patient wears at the gateway of the same name.
async fn hear_as(store: &dyn Store, device: &str, patient: &str, at_us: i64) {
    let sensor = Sensor::worn_by(patient, device);
    scene::hear(store, [sensor].into_iter(), at_us).await;
}

async fn wear(store: &dyn Store, device: &str) {
    Sensor::named(device).wear(store, i64::MIN).await;
}

/// Alerts of the open silences.
async fn open_silences(store: &dyn Store) -> Vec<Alert> {
    let mut open = Vec::new();
    each_silent(store, |it| open.push(it.alert)).await.unwrap();
    open
}

fn watch(store: SqliteStore, context: Context) -> SilenceWatch {
    SilenceWatch {
        store: Arc::new(store),
        outbox: Arc::default(),
        rules: Arc::new(RuleSet::default_set()),
        heard: Arc::new(LastReceived::new(Some(60_000_000))),
        silent_after_us: 60_000_000,
        context,
    }
}

#[tokio::test]
async fn more_open_alerts_than_any_list_hide_no_silence_and_no_end() {
    const OTHERS: usize = 12_000;
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path()).unwrap();
    let watch = watch(store, Context::new("alerting"));
    let store = watch.store.as_ref();
    let now_us = contracts::now_us();
    let mut memory = Memory::new(watch.silent_after_us);
    for device in ["first", "second", "well"] {
        wear(store, device).await;
    }
    hear(store, "first", now_us - HOUR_US).await;
    hear(store, "second", now_us).await;
    hear(store, "well", now_us).await;
    // The device and its gateway.
    assert_eq!(watch.round(&mut memory).await.unwrap(), Round::Written(2));
    // So many newer and more important alerts that no list of a bounded length has the silence.
    let others = (0..OTHERS).map(|number| Alert {
        id: format!("other-{number}"),
        patient: "other".into(),
        rule: "fall".into(),
        priority: contracts::vitals::Priority::High.into(),
        state: AlertState::Active.into(),
        since_us: now_us,
        revision: 1,
        ..Alert::default()
    });
    let batch = store::AlertsBatch {
        transitions: others.collect(),
        ..store::AlertsBatch::default()
    };
    store.write_alerts(batch, Vec::new()).await.unwrap();
    let again = watch.round(&mut memory).await.unwrap();
    assert_eq!(again, Round::Written(0), "said once");
    hear(store, "first", now_us).await;
    let heard = watch.round(&mut memory).await.unwrap();
    assert_eq!(heard, Round::Written(2), "both end");
    assert_eq!(open_silences(store).await, []);
}

async fn change(store: &dyn Store, patient: &str, operation: Operation, at_us: i64) {
    let change = contracts::patients::Change {
        patient: patient.into(),
        operation: operation.into(),
        ..Default::default()
    };
    let by = Change {
        author: "eve".into(),
        reason: "a test".into(),
        at_us,
    };
    store.change_patients("t", &[change], &by).await.unwrap();
}

#[tokio::test]
async fn nobody_misses_a_paused_patient_and_a_resumed_one_has_a_moment() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path()).unwrap();
    let watch = watch(store, Context::new("alerting"));
    let store = watch.store.as_ref();
    let now_us = contracts::now_us();
    let mut memory = Memory::new(watch.silent_after_us);
    for device in ["ada", "ben"] {
        wear(store, device).await;
        hear(store, device, now_us - HOUR_US).await;
    }
    hear(store, "ben", now_us).await;
    change(store, "ada", Operation::Pause, now_us - HOUR_US).await;
    let round = watch.round(&mut memory).await.unwrap();
    assert_eq!(round, Round::Written(0), "a pause is no silence");
    // Resumed a moment ago: the sensor is still being put on.
    change(store, "ada", Operation::Resume, now_us).await;
    assert_eq!(watch.round(&mut memory).await.unwrap(), Round::Written(0));
    // Silent since a resumption of two minutes ago: the device and its gateway.
    change(store, "ada", Operation::Pause, now_us - 121_000_000).await;
    change(store, "ada", Operation::Resume, now_us - 120_000_000).await;
    assert_eq!(watch.round(&mut memory).await.unwrap(), Round::Written(2));
    change(store, "ada", Operation::Pause, now_us).await;
    assert_eq!(watch.round(&mut memory).await.unwrap(), Round::Written(2));
    assert_eq!(open_silences(store).await, []);
    // A reading that was under way raised an alert about somebody who has died.
    change(store, "ada", Operation::Die, now_us).await;
    let late = Alert {
        id: "late".into(),
        patient: "ada".into(),
        state: AlertState::Active.into(),
        revision: 1,
        ..Alert::default()
    };
    let batch = store::AlertsBatch {
        transitions: vec![late],
        ..store::AlertsBatch::default()
    };
    store.write_alerts(batch, Vec::new()).await.unwrap();
    watch.round(&mut memory).await.unwrap();
    let late = store.alert(&Scope::Service, "late").await.unwrap().unwrap();
    assert_eq!(late.state(), AlertState::Resolved);
}

#[tokio::test]
async fn a_silence_of_a_version_without_evidence_is_taken_over() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path()).unwrap();
    let watch = watch(store, Context::new("alerting"));
    let store = watch.store.as_ref();
    let now_us = contracts::now_us();
    for device in ["belt", "well"] {
        wear(store, device).await;
        hear(store, device, now_us - HOUR_US).await;
    }
    let belt = Alert {
        id: "old".into(),
        patient: "belt".into(),
        device: "belt".into(),
        gateway: "belt".into(),
        rule: silence::DEVICE.into(),
        state: AlertState::Acknowledged.into(),
        since_us: now_us - HOUR_US,
        revision: 2,
        ..Alert::default()
    };
    let batch = store::AlertsBatch {
        transitions: vec![belt],
        ..store::AlertsBatch::default()
    };
    store.write_alerts(batch, Vec::new()).await.unwrap();
    hear(store, "well", now_us).await;
    let mut memory = Memory::new(watch.silent_after_us);
    watch.round(&mut memory).await.unwrap();
    let open = open_silences(store).await;
    let of_belt: Vec<_> = open
        .iter()
        .filter(|it| it.rule == silence::DEVICE)
        .collect();
    assert_eq!(of_belt.len(), 1, "not raised twice: {open:?}");
    assert_eq!(of_belt[0].id, "old");
    hear(store, "belt", now_us + 1).await;
    watch.round(&mut memory).await.unwrap();
    assert_eq!(open_silences(store).await, []);
}

/// The failure that this watch must not have: everybody is silent, alerting starts again, and the
/// alert ends without a reading.
#[tokio::test]
async fn a_start_of_alerting_or_another_member_ends_no_silence() {
    let host = Host::new(0);
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path()).unwrap();
    let shared: Arc<dyn Store> = Arc::new(store);
    for device in ["g1", "g2"] {
        wear(shared.as_ref(), device).await;
        hear(shared.as_ref(), device, host.true_us()).await;
    }
    let mut first = Life::start(&shared, &host, 0);
    assert_eq!(first.round().await, Round::Written(0));
    first.pass(&host, 65);
    // The pipeline and both gateways, whose alerts have their devices.
    assert_eq!(first.round().await, Round::Written(3));
    let before = open_silences(shared.as_ref()).await;
    for error_us in [0, HOUR_US, -HOUR_US] {
        let mut next = Life::start(&shared, &host, error_us);
        for _ in 0..40 {
            assert_eq!(next.round().await, Round::Written(0));
            next.pass(&host, 5);
        }
        first.pass(&host, 86_400);
        assert_eq!(first.round().await, Round::Written(0));
    }
    assert_eq!(open_silences(shared.as_ref()).await, before);
    // A reading of one ends its silence and that of the pipeline, also for a new member. The other
    // sensor no longer waits behind the pipeline.
    hear(shared.as_ref(), "g1", host.true_us()).await;
    let mut last = Life::start(&shared, &host, -HOUR_US);
    assert_eq!(last.round().await, Round::Written(3));
    let open = open_silences(shared.as_ref()).await;
    assert!(open.iter().all(|it| it.gateway == "g2"), "{open:?}");
    assert_eq!(open.len(), 2);
}

#[tokio::test]
async fn short_lives_add_up_until_a_silence_is_raised() {
    let host = Host::new(0);
    let directory = tempfile::tempdir().unwrap();
    let shared: Arc<dyn Store> = Arc::new(SqliteStore::open(directory.path()).unwrap());
    wear(shared.as_ref(), "belt").await;
    hear(shared.as_ref(), "belt", host.true_us()).await;
    // No process lives for as long as the silence lasts.
    for _ in 0..8 {
        let mut life = Life::start(&shared, &host, 0);
        for _ in 0..4 {
            life.round().await;
            life.pass(&host, 5);
        }
    }
    let open = open_silences(shared.as_ref()).await;
    assert_eq!(open.len(), 2, "device and gateway: {open:?}");
}

#[tokio::test]
async fn a_sensor_that_never_sent_is_missed_from_its_assignment_on() {
    let host = Host::new(0);
    let directory = tempfile::tempdir().unwrap();
    let shared: Arc<dyn Store> = Arc::new(SqliteStore::open(directory.path()).unwrap());
    let store = shared.as_ref();
    // Ann wears two belts at one gateway. One of them is never switched on.
    for device in ["belt", "spare"] {
        let sensor = Sensor::worn_by("ann", device);
        sensor.wear(store, host.true_us()).await;
    }
    let assigned_us = host.true_us();
    let mut life = Life::start(&shared, &host, 0);
    let mut raised_after_s = None;
    for second in (0..120).step_by(5) {
        hear_as(store, "belt", "ann", host.true_us()).await;
        life.round().await;
        if raised_after_s.is_none() && !open_silences(store).await.is_empty() {
            raised_after_s = Some(second);
        }
        life.pass(&host, 5);
    }
    assert_eq!(raised_after_s, Some(65));
    let open = open_silences(store).await;
    assert_eq!(open.len(), 1, "{open:?}");
    assert_eq!(
        (open[0].device.as_str(), open[0].since_us),
        ("spare", assigned_us)
    );
    assert!(
        open[0]
            .summary
            .contains("has sent nothing since it was assigned")
    );
    hear_as(store, "spare", "ann", host.true_us()).await;
    life.round().await;
    // The newest heart rate is of one belt at a time, and both have sent.
    for _ in 0..40 {
        hear_as(store, "belt", "ann", host.true_us()).await;
        life.round().await;
        assert_eq!(open_silences(store).await, []);
        life.pass(&host, 5);
    }
}

/// Two sensors of one patient measure the same, so the store shows the newest of both.
#[tokio::test]
async fn a_sensor_that_another_hides_in_the_store_is_missed_and_heard_again() {
    let host = Host::new(0);
    let directory = tempfile::tempdir().unwrap();
    let shared: Arc<dyn Store> = Arc::new(SqliteStore::open(directory.path()).unwrap());
    let store = shared.as_ref();
    for device in ["belt", "ring"] {
        let sensor = Sensor::worn_by("ann", device);
        sensor.wear(store, host.true_us()).await;
    }
    let mut life = Life::start(&shared, &host, 0);
    let mut silent_at_s = Vec::new();
    for second in (0..200).step_by(5) {
        // The ring's reading is the newest, and the belt pauses for 100 s.
        if !(40..140).contains(&second) {
            hear_as(store, "belt", "ann", host.true_us()).await;
            life.hear("belt", &host);
        }
        hear_as(store, "ring", "ann", host.true_us()).await;
        life.hear("ring", &host);
        life.round().await;
        let open = open_silences(store).await;
        assert!(open.iter().all(|it| it.device == "belt"), "{open:?}");
        silent_at_s.extend(open.iter().map(|_| second));
        life.pass(&host, 5);
    }
    // Last heard at 35 s.
    let expected: Vec<i32> = (100..140).step_by(5).collect();
    assert_eq!(silent_at_s, expected);
}

/// A bus that lags brings readings that arrived before the silence began.
#[tokio::test]
async fn a_backlog_of_the_bus_ends_no_silence_however_short_its_limit() {
    for after_s in [5, 10, 29, 60, 120] {
        let host = Host::new(0);
        let directory = tempfile::tempdir().unwrap();
        let shared: Arc<dyn Store> = Arc::new(SqliteStore::open(directory.path()).unwrap());
        let store = shared.as_ref();
        wear(store, "belt").await;
        wear(store, "well").await;
        hear(store, "belt", host.true_us()).await;
        let last_us = host.true_us();
        let mut life = Life::start_with(&shared, &host, 0, after_s * 1_000_000);
        let mut ids = BTreeSet::new();
        for second in 0..3 * after_s {
            hear(store, "well", host.true_us()).await;
            // The same reading comes again by the bus, as after a start of a consumer.
            if second > after_s {
                life.hear_late("belt", last_us);
            }
            life.round().await;
            let open = open_silences(store).await;
            ids.extend(open.into_iter().map(|it| it.id));
            life.pass(&host, 1);
        }
        // The device and its gateway, each once.
        assert_eq!(ids.len(), 2, "{after_s} s: {ids:?}");
        // A reading that arrived a moment ago, and is stored, ends both.
        life.hear_late("belt", host.true_us() - 1_000_000);
        hear(store, "belt", host.true_us() - 1_000_000).await;
        hear(store, "well", host.true_us()).await;
        life.round().await;
        assert_eq!(open_silences(store).await, [], "{after_s} s");
    }
}

/// A gateway that got no answer sends its readings again. One member of alerting receives them.
#[tokio::test]
async fn a_copy_of_a_stored_reading_ends_no_silence_and_none_is_raised_twice() {
    let host = Host::new(0);
    let directory = tempfile::tempdir().unwrap();
    let shared: Arc<dyn Store> = Arc::new(SqliteStore::open(directory.path()).unwrap());
    let store = shared.as_ref();
    wear(store, "belt").await;
    wear(store, "well").await;
    hear(store, "belt", host.true_us()).await;
    let last_us = host.true_us();
    let mut lives = [0; 2].map(|error_us| Life::start(&shared, &host, error_us));
    let mut ids = BTreeSet::new();
    for second in (0..300).step_by(5) {
        hear(store, "well", host.true_us()).await;
        if (100..250).contains(&second) {
            for number in -3..=0 {
                let first_us = last_us + number * 1_000_000;
                lives[0].hear_reading(Sample {
                    device: "belt".into(),
                    sequence: first_us.cast_unsigned(),
                    metric: Metric::HeartRate.into(),
                    device_time_us: first_us,
                    ingest_time_us: host.true_us(),
                    ..Sample::default()
                });
            }
        }
        for life in &mut lives {
            life.round().await;
        }
        let open = open_silences(store).await;
        assert!(second <= 65 || open.len() == 2, "{second} s: {open:?}");
        ids.extend(open.into_iter().map(|it| it.id));
        lives[0].pass(&host, 5);
        lives[1].pass(&host, 0);
    }
    // The device and its gateway, each once.
    assert_eq!(ids.len(), 2);
    // A new reading ends them, also if only the other member receives it.
    lives[1].hear("belt", &host);
    lives[0].round().await;
    assert_eq!(open_silences(store).await.len(), 2, "it is not stored yet");
    hear(store, "belt", host.true_us()).await;
    lives[0].round().await;
    assert_eq!(open_silences(store).await, []);
}

/// The newest stored reading is of a later time than the sensor's clock shows now.
#[tokio::test]
async fn a_sensor_whose_clock_was_set_back_is_missed_and_heard_again() {
    let host = Host::new(0);
    let directory = tempfile::tempdir().unwrap();
    let shared: Arc<dyn Store> = Arc::new(SqliteStore::open(directory.path()).unwrap());
    let store = shared.as_ref();
    wear(store, "belt").await;
    wear(store, "well").await;
    hear(store, "belt", host.true_us()).await;
    let mut life = Life::start(&shared, &host, 0);
    let mut silent_at_s = Vec::new();
    for second in (0..200).step_by(5) {
        hear(store, "well", host.true_us()).await;
        if second >= 100 {
            life.hear_reading(Sample {
                device: "belt".into(),
                sequence: host.true_us().cast_unsigned(),
                metric: Metric::HeartRate.into(),
                device_time_us: host.true_us() - HOUR_US,
                ingest_time_us: host.true_us(),
                ..Sample::default()
            });
        }
        life.round().await;
        let open = open_silences(store).await;
        if open.iter().any(|it| it.rule == silence::DEVICE) {
            silent_at_s.push(second);
        }
        life.pass(&host, 5);
    }
    // Readings that go on for 30 s are no copies.
    let expected: Vec<i64> = (65..130).step_by(5).collect();
    assert_eq!(silent_at_s, expected);
}

#[tokio::test]
async fn a_member_behind_raises_no_silence_that_ended_with_its_assignment() {
    let host = Host::new(0);
    let directory = tempfile::tempdir().unwrap();
    let shared: Arc<dyn Store> = Arc::new(SqliteStore::open(directory.path()).unwrap());
    let store = shared.as_ref();
    wear(store, "well").await;
    Sensor::worn_by("ann", "belt").wear(store, i64::MIN).await;
    hear_as(store, "belt", "ann", host.true_us()).await;
    let mut lives = [0, -10_000_000].map(|error_us| Life::start(&shared, &host, error_us));
    let mut of_ann = BTreeSet::new();
    for second in (0..200).step_by(5) {
        if second == 100 {
            Sensor::worn_by("ben", "belt")
                .wear(store, host.true_us())
                .await;
        }
        hear(store, "well", host.true_us()).await;
        for life in &mut lives {
            life.round().await;
            let open = open_silences(store).await;
            let open = open.into_iter().filter(|it| it.patient == "ann");
            of_ann.extend(open.map(|it| (it.id, second >= 100)));
        }
        lives[0].pass(&host, 5);
        lives[1].pass(&host, 0);
    }
    assert_eq!(of_ann.len(), 1, "once, and before the change: {of_ann:?}");
}

/// Devices of one gateway each, silent for an hour, beside one that is heard.
async fn silent_site(devices: usize) -> (tempfile::TempDir, SilenceWatch) {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path()).unwrap();
    let watch = watch(store, Context::new("alerting"));
    let store = watch.store.as_ref();
    let silent: Vec<String> = (0..devices).map(|number| format!("d{number}")).collect();
    for device in &silent {
        wear(store, device).await;
    }
    wear(store, "well").await;
    let now_us = contracts::now_us();
    hear_all(store, &silent, now_us - HOUR_US).await;
    hear(store, "well", now_us).await;
    (directory, watch)
}

#[tokio::test]
async fn one_round_raises_every_silence_of_a_large_site() {
    let (_directory, watch) = silent_site(600).await;
    let mut memory = Memory::new(watch.silent_after_us);
    // Each device and its gateway.
    let first = watch.round(&mut memory).await.unwrap();
    assert_eq!(first, Round::Written(1200));
    let second = watch.round(&mut memory).await.unwrap();
    assert_eq!(second, Round::Written(0));
}

#[tokio::test]
async fn silences_that_another_member_raised_first_keep_no_other_from_the_round() {
    let (_directory, watch) = silent_site(600).await;
    let mut memory = Memory::new(watch.silent_after_us);
    watch.round(&mut memory).await.unwrap();
    let mut raised = Vec::new();
    each_silent(watch.store.as_ref(), |it| raised.push(it))
        .await
        .unwrap();
    // The other member found some of them in a round of its own.
    let (_directory, watch) = silent_site(0).await;
    let others = raised.iter().step_by(3).cloned().map(|silent| Silent {
        alert: Alert {
            id: format!("{}-other", silent.alert.id),
            ..silent.alert
        },
        ..silent
    });
    let others = SilentBatch {
        begun: others.collect(),
        ended: Vec::new(),
    };
    assert_eq!(watch.write(others).await.unwrap(), 400);
    let own = SilentBatch {
        begun: raised,
        ended: Vec::new(),
    };
    assert_eq!(watch.write(own).await.unwrap(), 800);
    assert_eq!(open_silences(watch.store.as_ref()).await.len(), 1200);
}

#[tokio::test]
async fn a_silence_follows_the_sensor_to_the_next_patient_and_ends_with_the_assignment() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path()).unwrap();
    let watch = watch(store, Context::new("alerting"));
    let store = watch.store.as_ref();
    let now_us = contracts::now_us();
    let mut memory = Memory::new(watch.silent_after_us);
    for device in ["belt", "well"] {
        wear(store, device).await;
    }
    hear(store, "belt", now_us - HOUR_US).await;
    hear(store, "well", now_us).await;
    let open = async || {
        let query = AlertsQuery::default();
        let open = store.alerts(&Scope::Service, &query).await.unwrap();
        let of = |alert: &Alert| (alert.rule.clone(), alert.patient.clone(), alert.since_us);
        open.iter().map(of).collect::<Vec<_>>()
    };
    watch.round(&mut memory).await.unwrap();
    assert!(open().await.contains(&(
        "device-silent".to_owned(),
        "belt".to_owned(),
        now_us - HOUR_US
    )));
    // The belt went to another patient at another gateway half an hour ago.
    let handed_us = now_us - HOUR_US / 2;
    let handed = Sensor {
        device: "belt",
        patient: "ben",
        gateway: "gw-2",
    };
    handed.wear(store, handed_us).await;
    watch.round(&mut memory).await.unwrap();
    let expected = [("device-silent", "ben"), ("gateway-silent", "")];
    let mut found = open().await;
    found.sort();
    let named: Vec<(&str, &str)> = found.iter().map(|it| (&*it.0, &*it.1)).collect();
    assert_eq!(named, expected, "{found:?}");
    assert!(found.iter().all(|it| it.2 == handed_us), "{found:?}");
    // The patient was discharged, so no reading is expected.
    let change = Change::by_program("discharged");
    let scope = Scope::tenant("t");
    let ended = store.end_assignment(&scope, "belt", now_us - 1, &change);
    assert!(ended.await.unwrap().is_some());
    watch.round(&mut memory).await.unwrap();
    assert_eq!(open().await, []);
}

/// The true time is `T0_US` plus the monotonic time. The wall clock has an error.
struct Machine {
    monotonic_us: Arc<AtomicI64>,
    error_us: Arc<AtomicI64>,
    clock: CheckedClock,
}

const T0_US: i64 = 1_800_000_000_000_000;

impl Machine {
    fn new(error_us: i64) -> Machine {
        let (monotonic_us, error_us) = (
            Arc::new(AtomicI64::new(0)),
            Arc::new(AtomicI64::new(error_us)),
        );
        let clocks = (Arc::clone(&monotonic_us), Arc::clone(&error_us));
        let clock = CheckedClock::new(Arc::new(move || {
            let monotonic_us = clocks.0.load(Ordering::Relaxed);
            Moment {
                wall_us: T0_US + monotonic_us + clocks.1.load(Ordering::Relaxed),
                monotonic_us,
            }
        }));
        Machine {
            monotonic_us,
            error_us,
            clock,
        }
    }

    fn true_us(&self) -> i64 {
        T0_US + self.monotonic_us.load(Ordering::Relaxed)
    }

    fn pass(&self, seconds: i64) {
        for _ in 0..seconds {
            self.monotonic_us.fetch_add(1_000_000, Ordering::Relaxed);
            self.clock.now_us();
        }
    }
}

/// Twenty devices continue and one ends before the step. Returns the raised alerts with their
/// delay in seconds.
async fn raised_after_step(start_us: i64, by_us: i64) -> Vec<(i64, String)> {
    let machine = Machine::new(start_us);
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path()).unwrap();
    let context = Context::with_clock("alerting", machine.clock.clone());
    let watch = watch(store, context);
    let mut memory = Memory::new(watch.silent_after_us);
    let mut raised = Vec::new();
    for device in (0..20).map(|n| format!("d{n}")) {
        wear(watch.store.as_ref(), &device).await;
    }
    wear(watch.store.as_ref(), "mute").await;
    for step in 0..40 {
        machine.pass(5);
        if step == 8 {
            machine.error_us.fetch_add(by_us, Ordering::Relaxed);
        }
        let mut devices: Vec<String> = (0..20).map(|n| format!("d{n}")).collect();
        if step < 8 {
            devices.push("mute".to_owned());
        }
        hear_all(watch.store.as_ref(), &devices, machine.true_us()).await;
        let before = raised.len();
        if let Round::Written(1..) = watch.round(&mut memory).await.unwrap() {
            let query = AlertsQuery::default();
            let open = watch.store.alerts(&Scope::Service, &query).await.unwrap();
            for alert in open.into_iter().skip(before) {
                let what = format!("{} {}{}", alert.rule, alert.device, alert.gateway);
                raised.push(((step - 8) * 5, what));
            }
        }
    }
    raised
}

#[tokio::test]
async fn a_step_of_the_own_clock_calls_nobody_silent_and_hides_no_real_silence() {
    for start_us in [0, 3 * HOUR_US, -90_000_000] {
        for by_us in [0, 90_000_000, -90_000_000, HOUR_US, -HOUR_US] {
            let raised = raised_after_step(start_us, by_us).await;
            assert!(!raised.is_empty(), "{start_us} {by_us}");
            for (after_s, what) in &raised {
                assert!(what.contains("mute"), "{start_us} {by_us}: {raised:?}");
                // One silence, one round, and the interval of two readings.
                assert!(
                    (60..=70).contains(after_s),
                    "{start_us} {by_us}: {raised:?}"
                );
            }
        }
    }
}
