//! A reading belongs to the patient who wore the device at its event time, or it is kept apart.
//! This test moves devices at random between patients and gateways. Gateway clocks are wrong by
//! hours, and outages last half a day. Uploads come late, twice and in any order, and ingest is
//! killed.

use std::collections::BTreeMap;

use crate::world::{Running, World, gateway, upload};
use contracts::vitals::{Sample, UploadRequest, quarantined::Entry, sample::Reading};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};
use store::{Assignment, Change, DEFAULT_TENANT, QuarantineQuery, Scope};

const S: i64 = 1_000_000;
const HOUR: i64 = 3600 * S;
const DEVICES: usize = 3;
const GATEWAYS: usize = 3;
const PATIENTS: usize = 4;
const ROUNDS: usize = 3;
const READINGS: usize = 120;

/// Wearer and gateway of a device from each time on. The last entry stays in force.
type History = BTreeMap<i64, Option<(usize, usize)>>;

#[derive(Debug)]
struct Truth {
    wearer: Option<usize>,
    /// The patient wore the device at the uploading gateway.
    is_here: bool,
    is_near_a_change: bool,
}

/// A day of moves, at least half an hour apart, so that the uncertainty of the clocks decides
/// nothing.
fn moves(random: &mut StdRng, now_us: i64) -> History {
    let mut history = History::new();
    let mut at_us = now_us - 26 * HOUR;
    while at_us < now_us - HOUR {
        let wearer = random.random_bool(0.8).then(|| {
            (
                random.random_range(0..PATIENTS),
                random.random_range(0..GATEWAYS),
            )
        });
        history.insert(at_us, wearer);
        at_us += random.random_range(HOUR / 2..6 * HOUR);
    }
    history
}

async fn enter(world: &World, device: &str, history: &History) {
    let ends = history.keys().skip(1).copied().chain([i64::MAX]);
    for ((from_us, wearer), until_us) in history.iter().zip(ends) {
        let Some((patient, at)) = wearer else {
            continue;
        };
        let assignment = Assignment {
            device: device.into(),
            tenant: DEFAULT_TENANT.into(),
            gateway: format!("gateway-{at}"),
            patient: format!("patient-{patient}"),
            from_us: *from_us,
            until_us,
            entered: Change {
                author: "eve".into(),
                reason: "a move".into(),
                at_us: contracts::now_us(),
            },
        };
        world.store.assign(&assignment).await.unwrap();
    }
}

async fn send(world: &World, running: &Running, at: usize, mut uploads: Vec<UploadRequest>) {
    let mut uplink = world
        .gateway(running, gateway(&format!("gateway-{at}")))
        .await;
    // Until here this field holds how far the gateway's clock is ahead.
    let skew_us = uploads[0].sent_time_us;
    for upload in &mut uploads {
        upload.sent_time_us = contracts::now_us() + skew_us;
        uplink.send(upload.clone()).await;
        assert_eq!(uplink.answer().await.rejections, []);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_reading_is_in_anothers_record_and_none_is_lost() {
    for seed in 0..3 {
        one_world(seed).await;
    }
}

async fn one_world(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let world = World::new().await;
    let now_us = contracts::now_us();
    let histories: Vec<History> = (0..DEVICES).map(|_| moves(&mut random, now_us)).collect();
    for (n, history) in histories.iter().enumerate() {
        enter(&world, &format!("device-{n}"), history).await;
    }
    // Each gateway's clock is right, or wrong by seconds or hours.
    let skews: Vec<i64> = (0..GATEWAYS)
        .map(|_| [0, 40 * S, -70 * S, 5 * HOUR, -9 * HOUR][random.random_range(0..5)])
        .collect();
    // The value of a reading is its number, which identifies it.
    let mut truth: BTreeMap<u64, Truth> = BTreeMap::new();
    let mut number = 0;
    for _ in 0..ROUNDS {
        let running = world.start().await;
        for (at, skew_us) in skews.iter().enumerate() {
            let mut samples = Vec::new();
            for _ in 0..READINGS {
                let n = random.random_range(0..DEVICES);
                // Within the last 25 hours. Most readings waited in the journal.
                let time_us = now_us - random.random_range(0..25 * HOUR);
                let wearer = histories[n].range(..=time_us).next_back();
                let wearer = wearer.and_then(|(_, wearer)| *wearer);
                // A gateway mostly uploads devices that were with it, and sometimes a device that
                // was elsewhere.
                if random.random_bool(0.9) && wearer.is_some_and(|(_, by)| by != at) {
                    continue;
                }
                number += 1;
                let mut changes = histories[n].keys();
                let reading = Truth {
                    wearer: wearer.map(|(patient, _)| patient),
                    is_here: wearer.is_some_and(|(_, by)| by == at),
                    is_near_a_change: changes.any(|it| (it - time_us).abs() < 150 * S),
                };
                truth.insert(number, reading);
                let mut sample = Sample {
                    reading: Some(Reading::Value(number as f64 / 100.0 + 40.0)),
                    device_time_us: time_us + skew_us,
                    // Received when it was measured, by the same clock.
                    gateway_time_us: time_us + skew_us,
                    ..crate::world::sample(&format!("device-{n}"), number)
                };
                sample.stream = format!("stream-of-{at}");
                samples.push(sample);
            }
            samples.shuffle(&mut random);
            let mut uploads: Vec<UploadRequest> = samples
                .chunks(25)
                .map(|chunk| upload(1, chunk.to_vec()))
                .collect();
            // Some come twice, in another order.
            let again = some(&uploads, &mut random);
            uploads.extend(again);
            for upload in &mut uploads {
                upload.sent_time_us = *skew_us;
            }
            if !uploads.is_empty() {
                send(&world, &running, at, uploads).await;
            }
        }
        if random.random_bool(0.5) {
            running.kill();
        } else {
            running.stop().await;
        }
    }
    let running = world.start().await;
    check(&world, &truth, seed).await;
    running.stop().await;
}

fn some(uploads: &[UploadRequest], random: &mut StdRng) -> Vec<UploadRequest> {
    let mut some: Vec<UploadRequest> = uploads
        .iter()
        .filter(|_| random.random_bool(0.3))
        .cloned()
        .collect();
    some.shuffle(random);
    some
}

/// Waits until every accepted reading is stored, and returns where.
async fn check(world: &World, truth: &BTreeMap<u64, Truth>, seed: u64) {
    let scope = Scope::tenant(DEFAULT_TENANT);
    let deadline = tokio::time::Instant::now() + crate::world::PATIENCE;
    loop {
        let mut found: BTreeMap<u64, Option<usize>> = BTreeMap::new();
        let mut count = 0;
        for patient in 0..PATIENTS {
            let name = format!("patient-{patient}");
            let stored = world.store.samples(&scope, &name, 0, i64::MAX, 100_000);
            for sample in stored.await.unwrap() {
                count += 1;
                found.insert(sample.sequence, Some(patient));
            }
        }
        for device in 0..DEVICES {
            let query = QuarantineQuery {
                device: format!("device-{device}"),
                from_us: i64::MIN,
                until_us: i64::MAX,
                limit: 100_000,
                ..QuarantineQuery::default()
            };
            for entry in world.store.quarantined(&scope, &query).await.unwrap() {
                let Some(Entry::Sample(sample)) = entry.quarantined.entry else {
                    panic!("only samples were sent")
                };
                count += 1;
                found.insert(sample.sequence, None);
            }
        }
        if found.len() < truth.len() && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            continue;
        }
        assert_eq!(found.len(), truth.len(), "seed {seed}: some are lost");
        assert_eq!(count, truth.len(), "seed {seed}: some are there twice");
        let mut stored = 0;
        for (number, truth) in truth {
            let says = format!("seed {seed}: reading {number}, {truth:?}");
            match found[number] {
                // Near a change a reading may be kept apart, but never goes to another patient.
                Some(patient) => {
                    stored += 1;
                    let nobody = truth.wearer.is_none() && truth.is_near_a_change;
                    assert!(truth.wearer == Some(patient) || nobody, "{says}");
                    assert!(truth.is_here || truth.is_near_a_change, "{says}");
                }
                None => assert!(!truth.is_here || truth.is_near_a_change, "{says}"),
            }
        }
        assert!(stored > 50, "seed {seed}: {stored} stored");
        return;
    }
}
