//! Ingest as a whole on the embedded bus and store: uploads over TLS with a gateway's certificate,
//! rows in the store.

#![allow(clippy::unwrap_used)]

#[path = "support/world.rs"]
#[allow(dead_code)]
mod world;
#[path = "ingest/proofs.rs"]
mod proofs;

use std::time::Duration;

use bus::{Bus, Event, Record, Topic, dead_letter};
use contracts::vitals::{EdgeAlert, Gap, Metric, Sample, VitalsRecord, Waveform, sample::Reading};
use prost::Message;
use store::Scope;
use world::{Mode, PATIENCE, World, gateway, sample, upload};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_acknowledged_is_stored_once_or_kept_apart_and_what_is_wrong_is_refused_by_its_index()
 {
    let world = World::new().await;
    let running = world.start().await;
    let mut uplink = world.gateway(&running, gateway("gw")).await;
    let foreign = Sample {
        patient: "patient-3".into(),
        ..sample("belt-0", 9)
    };
    let mut first = upload(
        10,
        vec![
            sample("belt-0", 1),
            sample("nobodys", 1),
            sample("belt-1", 1),
            foreign,
            sample("belt-0", 2),
            Sample {
                sensor_sequence: Some(u64::MAX),
                ..sample("belt-0", 8)
            },
        ],
    );
    first.gaps.push(Gap {
        device: "belt-0".into(),
        stream: "ecg".into(),
        first_sequence: 1,
        last_sequence: 5,
        from_time_us: 1,
        to_time_us: 2,
        ..Gap::default()
    });
    uplink.send(first.clone()).await;
    let answer = uplink.answer().await;
    assert_eq!(answer.position, 10);
    let refused: Vec<_> = answer.rejections.iter().map(|r| r.index).collect();
    assert_eq!(refused, [5], "{:?}", answer.rejections);
    assert!(answer.rejections[0].reason.contains("sensor_sequence"));

    // The same upload again, as after a lost acknowledgement. Then through another replica, which
    // does not know the first.
    uplink
        .send(upload(20, vec![sample("belt-0", 2), sample("belt-0", 3)]))
        .await;
    assert_eq!(uplink.answer().await.position, 20);
    let other = world.start().await;
    let mut second = world.gateway(&other, gateway("gw")).await;
    second.send(first).await;
    second.send(upload(30, vec![sample("belt-0", 4)])).await;
    assert_eq!(second.answer().await.position, 10);
    assert_eq!(second.answer().await.position, 30);

    world.stored("belt-0", 4).await;
    world.stored("belt-1", 1).await;
    assert_eq!(
        world
            .store
            .stream_count("belt-0", world::STREAM)
            .await
            .unwrap(),
        (4, 4)
    );
    let rows = world
        .store
        .samples(&Scope::tenant("default"), "patient-0", 0, i64::MAX, 100)
        .await
        .unwrap();
    assert_eq!(rows.len(), 4);
    assert!(
        rows.iter()
            .all(|row| row.gateway == "gw" && row.ingest_time_us > 0)
    );
    let gaps = world
        .store
        .gaps(&Scope::Service, "patient-0", 0, 10)
        .await
        .unwrap();
    assert_eq!(gaps.len(), 1);
    let apart = world.store.quarantine_cases(&Scope::Service).await;
    let apart: Vec<_> = apart
        .unwrap()
        .into_iter()
        .map(|it| (it.device, it.kind, it.entries))
        .collect();
    let kept = |device: &str, kind: &str| (device.to_owned(), kind.to_owned(), 1);
    assert_eq!(
        apart,
        [
            kept("belt-0", "contradicts-register"),
            kept("nobodys", "unknown-device")
        ],
        "once, though they came twice"
    );
    running.stop().await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_newer_version_wrote_is_stored_as_far_as_it_is_known_and_kept_whole() {
    let world = World::new().await;
    let running = world.start().await;
    let mut letters = running.bus.tail(Topic::DeadLetters).await.unwrap();
    let known = |n| Sample {
        patient: "patient-3".into(),
        ..sample("belt-3", n)
    };
    let record = |sample: &Sample, more: &[u8]| {
        let mut inner = sample.encode_to_vec();
        inner.extend_from_slice(more);
        // Field 1 of a record, length-delimited.
        let mut value = vec![0x0a];
        prost::encode_length_delimiter(inner.len(), &mut value).unwrap();
        value.extend_from_slice(&inner);
        value
    };
    // Field 200, a number, in the sample.
    let newer = record(&known(2), &[0xc0, 0x0c, 0x07]);
    // A metric unknown to this version: a number outside the enum.
    let strange = Sample {
        metric: 4_000,
        ..known(3)
    };
    let records = [record(&known(1), &[]), newer.clone(), record(&strange, &[])];
    let records = records.map(|value| Record::new("patient-3", value)).into();
    running.bus.publish(Topic::Vitals, records).await.unwrap();
    world.stored("belt-3", 3).await;
    let kept = loop {
        let event = tokio::time::timeout(PATIENCE, letters.next(10)).await;
        if let Event::Batch(batch) = event.unwrap().unwrap() {
            break batch;
        }
    };
    assert_eq!(kept.len(), 1, "the one that is known in part");
    assert_eq!(kept[0].value, newer, "to the last byte");
    let reason = kept[0].header(dead_letter::REASON).unwrap();
    assert!(String::from_utf8_lossy(reason).contains("newer version"));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_of_a_newer_gateway_is_kept_whole_before_it_is_acknowledged() {
    let world = World::new().await;
    let running = world.start().await;
    let mut letters = running.bus.tail(Topic::DeadLetters).await.unwrap();
    // Field 200, a number, in the upload, and a sample with the same.
    const MORE: [u8; 3] = [0xc0, 0x0c, 0x07];
    let mut inner = sample("belt-1", 2).encode_to_vec();
    inner.extend(MORE);
    let mut deep = vec![0x08, 20, 0x12];
    prost::encode_length_delimiter(inner.len(), &mut deep).unwrap();
    deep.extend(inner);
    let top = [
        &upload(30, vec![sample("belt-1", 3)]).encode_to_vec()[..],
        &MORE,
    ]
    .concat();
    let plain = upload(10, vec![sample("belt-1", 1)]).encode_to_vec();
    let sent = [plain, deep.clone(), top.clone()];
    let mut answers = world.upload_bytes(&running, gateway("gw"), sent).await;
    for position in [10, 20, 30] {
        let answer = tokio::time::timeout(PATIENCE, answers.message()).await;
        let answer = answer.unwrap().unwrap().unwrap();
        assert_eq!((answer.position, answer.rejections), (position, vec![]));
    }
    // Both were acknowledged, so both are stored.
    let mut kept = Vec::new();
    while kept.len() < 2 {
        let event = tokio::time::timeout(PATIENCE, letters.next(10)).await;
        if let Event::Batch(batch) = event.unwrap().unwrap() {
            kept.extend(batch);
        }
    }
    // Dead letters have partitions, so their order is undefined.
    let mut values: Vec<_> = kept.iter().map(|letter| letter.value.to_vec()).collect();
    values.sort();
    let mut wanted = [deep, top];
    wanted.sort();
    assert_eq!(values, wanted, "to the last byte, and the plain one is not");
    assert_eq!(kept[0].header("gateway").unwrap(), b"default/gw");
    // The letter is not a record of a topic, because its patients were not checked.
    assert_eq!(kept[0].header(dead_letter::TOPIC).unwrap(), b"uploads");
    world.stored("belt-1", 3).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_by_a_gateway_whose_clock_is_off_and_is_set_back() {
    const HOUR_US: i64 = 3_600_000_000;
    let world = World::new().await;
    let running = world.start().await;
    let mut uplink = world.gateway(&running, gateway("gw")).await;
    let (now_us, mut sequence) = (contracts::now_us(), 0);
    // An hour ahead, right, an hour behind. Each reading has the same second by its gateway's
    // clock.
    for skew_us in [HOUR_US, 0, -HOUR_US] {
        let samples = (0..20)
            .map(|second| {
                sequence += 1;
                let mut sample = sample("belt-2", sequence);
                sample.device_time_us = now_us + skew_us + second * 1_000_000;
                sample.gateway_time_us = sample.device_time_us;
                sample
            })
            .collect();
        uplink.send(upload(sequence, samples)).await;
        let answer = uplink.answer().await;
        assert_eq!(answer.rejections, [], "{skew_us}");
    }
    world.stored("belt-2", sequence).await;
    let scope = Scope::tenant("default");
    let stored = world.store.samples(&scope, "patient-2", 0, i64::MAX, 100);
    let stored = stored.await.unwrap();
    assert_eq!(stored.len() as u64, sequence, "none twice");
    // Both clocks are stored, so that the error can be seen afterwards.
    let errors = stored
        .iter()
        .map(|s| (s.gateway_time_us - s.ingest_time_us) / HOUR_US);
    assert!(errors.clone().any(|error| error == 1 || error == 0));
    assert!(errors.into_iter().any(|error| error <= -1));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alert_does_not_wait_behind_samples() {
    let world = World::new().await;
    let running = world.start().await;
    let mut alerts = running.bus.tail(Topic::Vitals).await.unwrap();
    running.bus.mode.send_replace(Mode::HoldSamples);
    let bulk = world.gateway(&running, gateway("gw")).await;
    for n in 1..=10 {
        bulk.send(upload(n, vec![sample("belt-0", n)])).await;
    }
    running
        .bus
        .met
        .subscribe()
        .wait_for(|met| *met > 0)
        .await
        .unwrap();
    let alert = EdgeAlert {
        device: "belt-0".into(),
        rule: "spo2-low".into(),
        sequence: 1,
        time_us: contracts::now_us(),
        ..EdgeAlert::default()
    };
    let mut urgent = world.gateway(&running, gateway("gw")).await;
    // Twice, as over two paths.
    for position in [1, 2] {
        let mut upload = upload(position, Vec::new());
        upload.alerts.push(alert.clone());
        urgent.send(upload).await;
        assert_eq!(urgent.answer().await.position, position);
    }
    let Event::Batch(batch) = alerts.next(10).await.unwrap() else {
        panic!()
    };
    let records: Vec<VitalsRecord> = batch
        .iter()
        .map(|delivery| VitalsRecord::decode(delivery.value.clone()).unwrap())
        .collect();
    assert_eq!(records.len(), 1, "the second one was a duplicate");
    assert_eq!(records[0].alerts[0].patient, "patient-0");
    assert_eq!(batch[0].key, "patient-0");
    assert_eq!(
        world
            .store
            .stream_count("belt-0", world::STREAM)
            .await
            .unwrap(),
        (0, 0)
    );
    running.bus.mode.send_replace(Mode::Pass);
    world.stored("belt-0", 10).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alert_of_no_time_goes_on_as_one_of_now() {
    let world = World::new().await;
    let running = world.start().await;
    let mut alerts = running.bus.tail(Topic::Vitals).await.unwrap();
    let mut uplink = world.gateway(&running, gateway("gw")).await;
    let mut upload = upload(1, Vec::new());
    upload.alerts = [i64::MIN, 0, i64::MAX]
        .map(|time_us| EdgeAlert {
            device: "belt-0".into(),
            rule: "spo2-low".into(),
            time_us,
            ..EdgeAlert::default()
        })
        .to_vec();
    let before_us = contracts::now_us();
    uplink.send(upload).await;
    assert_eq!(uplink.answer().await.position, 1);
    let Event::Batch(batch) = alerts.next(10).await.unwrap() else {
        panic!()
    };
    let record = VitalsRecord::decode(batch[0].value.clone()).unwrap();
    assert_eq!(record.alerts.len(), 3);
    for alert in record.alerts {
        assert!((before_us..=contracts::now_us()).contains(&alert.time_us));
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_bus_is_down_nothing_is_acknowledged_and_gateways_are_held_back() {
    const UPLOADS: u64 = 90;
    // 8 KiB of ECG.
    let chunk = |sequence| {
        let mut sample = Sample {
            metric: Metric::Ecg as i32,
            unit: String::new(),
            reading: Some(Reading::Waveform(Waveform {
                period_us: 4000,
                values: vec![0.5; 2000],
            })),
            ..sample("belt-0", sequence)
        };
        vitals::fill_defaults(&mut sample);
        sample
    };
    let world = World::new().await;
    let running = world.start().await;
    running.bus.mode.send_replace(Mode::Down);
    let mut uplink = world.gateway(&running, gateway("gw")).await;
    let uploads = uplink.uploads.clone();
    let (sent, mut progress) = tokio::sync::watch::channel(0);
    let feeder = tokio::spawn(async move {
        for n in 1..=UPLOADS {
            // 64 KiB each, 6 MiB in total.
            let samples = (0..8).map(|i| chunk(n * 8 + i)).collect();
            uploads.send(upload(n, samples)).await.unwrap();
            sent.send_replace(n);
        }
    });
    running
        .bus
        .met
        .subscribe()
        .wait_for(|met| *met > 0)
        .await
        .unwrap();
    // Until no more uploads are read for a while.
    while tokio::time::timeout(Duration::from_millis(700), progress.changed())
        .await
        .is_ok()
    {}
    let taken = *progress.borrow();
    assert!(taken < UPLOADS, "everything was taken into memory");
    let silent = tokio::time::timeout(
        Duration::from_millis(50),
        uplink.answers.as_mut().unwrap().message(),
    )
    .await;
    assert!(silent.is_err(), "nothing may be acknowledged: {silent:?}");
    running.bus.mode.send_replace(Mode::Pass);
    for n in 1..=UPLOADS {
        let answer = uplink.answer().await;
        assert_eq!((answer.position, answer.rejections.len()), (n, 0));
    }
    feeder.await.unwrap();
    world.stored("belt-0", UPLOADS * 8).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_and_restarted_at_any_time_every_acknowledged_sample_is_stored_once() {
    const SAMPLES: u64 = 600;
    let world = World::new().await;
    // A replica that stays, so that partitions move to and fro.
    let steady = world.start().await;
    let mut sequence = 1;
    let mut round = 0;
    while sequence <= SAMPLES {
        let doomed = world.start().await;
        let mut uplink = world.gateway(&doomed, gateway("gw")).await;
        round += 1;
        // The gateway continues after the last acknowledgement, and its connection is cut during
        // its work.
        let mut next = sequence;
        for _ in 0..4 + round % 5 {
            let samples = (next..next + 20).map(|n| sample("belt-1", n)).collect();
            next += 20;
            uplink.send(upload(next, samples)).await;
            if uplink.uploads.capacity() == 0 || next % 40 == 1 {
                sequence = sequence.max(uplink.answer().await.position);
            }
        }
        if round % 3 == 0 {
            doomed.stop().await;
        } else {
            doomed.kill();
        }
    }
    let acknowledged = sequence - 1;
    assert!(acknowledged >= SAMPLES && round > 3);
    world.stored("belt-1", acknowledged).await;
    let (rows, highest) = world
        .store
        .stream_count("belt-1", world::STREAM)
        .await
        .unwrap();
    assert_eq!(rows, highest, "none is missing, none is double");
    steady.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poison_goes_to_the_dead_letters_and_the_rest_is_stored() {
    let world = World::new().await;
    let running = world.start().await;
    let mut letters = running.bus.tail(Topic::DeadLetters).await.unwrap();
    let good = |n| {
        let mut sample = sample("belt-2", n);
        sample.patient = "patient-2".into();
        sample
    };
    let no_reading = Sample {
        reading: None,
        ..good(2)
    };
    let record = |samples: Vec<Sample>| {
        let record = VitalsRecord {
            samples,
            ..VitalsRecord::default()
        };
        Record::new("patient-2", record.encode_to_vec())
    };
    let records = vec![
        record(vec![good(1)]),
        Record::new("patient-2", &b"\xff\xff no protobuf"[..]),
        record(vec![no_reading]),
        record(vec![good(3)]),
    ];
    running.bus.publish(Topic::Vitals, records).await.unwrap();
    world.stored("belt-2", 2).await;
    let mut reasons = Vec::new();
    while reasons.len() < 2 {
        let event = tokio::time::timeout(PATIENCE, letters.next(10))
            .await
            .unwrap()
            .unwrap();
        let Event::Batch(batch) = event else { continue };
        for letter in batch {
            assert_eq!(letter.header(dead_letter::TOPIC), Some(&b"vitals"[..]));
            let reason = letter.header(dead_letter::REASON).unwrap();
            reasons.push(String::from_utf8(reason.to_vec()).unwrap());
        }
    }
    assert!(reasons[0].contains("no VitalsRecord"), "{reasons:?}");
    assert!(reasons[1].contains("it has no reading"), "{reasons:?}");
    // The progress is behind all four, so none is read again.
    let progress = world
        .store
        .progress(ingest::GROUP, Topic::Vitals)
        .await
        .unwrap();
    assert_eq!(progress.iter().map(|(_, next)| next).sum::<u64>(), 4);
    running.stop().await;
}
