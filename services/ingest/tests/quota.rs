//! One gateway may fill bus and store only so fast, and nobody waits for it, not even its own alerts.

#![allow(clippy::unwrap_used)]

#[path = "support/world.rs"]
#[allow(dead_code)]
mod world;

use std::time::Duration;

use contracts::vitals::{EdgeAlert, UploadRequest};
use store::{DEFAULT_TENANT, DeviceEntry};
use world::{Uplink, World, gateway, sample, upload};

/// What a gateway of one sample a second saves up in ten minutes, and as much again.
const TWICE_SAVED: u64 = 1_200;

fn samples(device: &str, from: u64) -> UploadRequest {
    let numbers = from + 1..=from + TWICE_SAVED;
    let samples = numbers.map(|sequence| sample(device, sequence)).collect();
    upload(from + TWICE_SAVED, samples)
}

async fn is_answered(uplink: &mut Uplink) -> bool {
    let answers = uplink.answers.as_mut().unwrap();
    let answered = tokio::time::timeout(Duration::from_secs(2), answers.message());
    answered.await.is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_brings_too_much_is_read_later_and_loses_nothing() {
    let mut world = World::new().await;
    world.samples_per_s = 1;
    let running = world.start().await;
    let mut thief = world.gateway(&running, gateway("gw")).await;
    thief.send(samples("belt-0", 0)).await;
    assert_eq!(thief.answer().await.position, TWICE_SAVED);
    // It owes ten minutes, by whatever stream it comes.
    thief.send(samples("belt-0", TWICE_SAVED)).await;
    assert!(!is_answered(&mut thief).await, "read on");
    let mut again = world.gateway(&running, gateway("gw")).await;
    again.send(samples("belt-0", TWICE_SAVED)).await;
    assert!(!is_answered(&mut again).await, "a new stream owes nothing");

    // Its alerts wait for nothing, nor does another gateway.
    let mut alerts = world.gateway(&running, gateway("gw")).await;
    let alert = EdgeAlert {
        device: "belt-0".into(),
        rule: "fall".into(),
        time_us: contracts::now_us(),
        ..EdgeAlert::default()
    };
    let urgent = UploadRequest {
        position: 7,
        alerts: vec![alert],
        ..UploadRequest::default()
    };
    alerts.send(urgent).await;
    assert_eq!(alerts.answer().await.position, 7);
    let device = DeviceEntry {
        id: "other-belt".into(),
        tenant: DEFAULT_TENANT.into(),
        gateway: "other".into(),
        patient: "patient-9".into(),
        registered_us: contracts::now_us(),
    };
    world.store.put_device(&device).await.unwrap();
    let mut other = world.gateway(&running, gateway("other")).await;
    other.send(samples("other-belt", 0)).await;
    assert_eq!(other.answer().await.position, TWICE_SAVED);
    world.stored("belt-0", TWICE_SAVED).await;

    // Nothing is lost: what was not answered is sent again, and ends an ingest that waits at once.
    running.stop().await;
    world.samples_per_s = 0;
    let running = world.start().await;
    let mut honest = world.gateway(&running, gateway("gw")).await;
    honest.send(samples("belt-0", TWICE_SAVED)).await;
    assert_eq!(honest.answer().await.position, 2 * TWICE_SAVED);
    world.stored("belt-0", 2 * TWICE_SAVED).await;
    running.stop().await;
}
