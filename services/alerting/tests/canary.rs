//! The canary passes through alerting like a patient's reading and belongs to no tenant.
#![allow(clippy::unwrap_used)]

#[path = "support/stage.rs"]
mod stage;

use bus::{Event, Topic};
use contracts::{
    alerts::{Alert, AlertState},
    canary::NAME,
    vitals::VitalsRecord,
};
use prost::Message;
use stage::{LIMIT, S, World, pulses};
use store::Scope;
use vitals::canary::{HALF_US, next_us, reading};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_raised_and_cleared_and_nobody_is_told() {
    let world = World::new();
    let mut told = world.bus.tail(Topic::Alerts).await.unwrap();
    let running = world.start_with(|config| {
        config.people.webhook = Some(service_kit::Secret::new("http://127.0.0.1:1/hook"));
    });
    // Halves of a minute that have just passed, so the first raises the alert.
    let mut half_us = next_us(contracts::now_us() - 4 * HALF_US);
    if half_us / HALF_US % 2 != 0 {
        half_us -= HALF_US;
    }
    for number in 0..4 {
        let record = VitalsRecord {
            samples: vec![reading(half_us + number * HALF_US)],
            ..VitalsRecord::default()
        };
        world.publish(NAME, record).await;
    }
    let mut states = Vec::new();
    let mut ids = Vec::new();
    while states.len() < 4 {
        let next = tokio::time::timeout(LIMIT, told.next(16)).await;
        let Event::Batch(batch) = next.unwrap().unwrap() else {
            continue;
        };
        for delivery in batch {
            let alert = Alert::decode(delivery.value).unwrap();
            assert_eq!((&*alert.patient, &*alert.rule), (NAME, NAME));
            states.push(alert.state());
            ids.push(alert.id);
        }
    }
    use AlertState::{Active, Resolved};
    assert_eq!(states, [Active, Resolved, Active, Resolved]);
    assert_eq!((&ids[0], &ids[2]), (&ids[1], &ids[3]));

    // The later patient's alert was decided, so the canary was skipped.
    let pulse = pulses("ada", 1, contracts::now_us() - 30 * S, &[150.0; 25]);
    world.publish("ada", pulse).await;
    let real = world
        .alert("heart-rate-very-high", AlertState::Active)
        .await;
    assert_eq!(real.patient, "ada");
    for id in ids {
        let notices = world.store.notices(&Scope::Service, &id).await.unwrap();
        assert_eq!(notices, [], "nobody is told of {id}");
    }
    let listed = world.alerts().await;
    assert!(
        listed.iter().all(|alert| alert.patient != NAME),
        "{listed:?}"
    );
    running.stop().await;
}
