//! The canary passes through alerting like a patient's reading and belongs to no tenant.

use crate::stage::{LIMIT, S, World, pulses};
use bus::{Event, Topic};
use contracts::{
    alerts::{Alert, AlertState, NoticeOutcome, NoticeResult},
    canary::NAME,
    vitals::VitalsRecord,
};
use prost::Message;
use store::Scope;
use vitals::canary::{HALF_US, next_us, reading};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_raised_and_cleared_and_its_notices_are_delivered_to_nobody() {
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
    // A canary of another partition than that of the plain name.
    let name = format!("{NAME}.3");
    for number in 0..4 {
        let record = VitalsRecord {
            samples: vec![reading(&name, half_us + number * HALF_US)],
            ..VitalsRecord::default()
        };
        world.publish(&name, record).await;
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
            assert_eq!((&*alert.patient, &*alert.rule), (&*name, NAME));
            states.push(alert.state());
            ids.push(alert.id);
        }
    }
    use AlertState::{Active, Resolved};
    assert_eq!(states, [Active, Resolved, Active, Resolved]);
    assert_eq!((&ids[0], &ids[2]), (&ids[1], &ids[3]));

    // The later patient's alert was decided, so those of the canary were.
    let pulse = pulses("ada", 1, contracts::now_us() - 30 * S, &[150.0; 25]);
    world.publish("ada", pulse).await;
    let real = world
        .alert("heart-rate-very-high", AlertState::Active)
        .await;
    assert_eq!(real.patient, "ada");
    for id in [&ids[0], &ids[2]] {
        let delivered = async {
            loop {
                let records = world.store.notices(&Scope::Service, id).await.unwrap();
                let of_whom = records.iter().filter_map(|it| it.notice.as_ref());
                let channels: Vec<&str> = of_whom.map(|it| it.channel.as_str()).collect();
                assert!(channels.iter().all(|it| *it == "canary"), "{channels:?}");
                let outcomes = records.iter().filter_map(|it| it.outcome.as_ref());
                let results: Vec<NoticeResult> = outcomes.map(NoticeOutcome::result).collect();
                if results == [NoticeResult::Delivered; 2] {
                    return;
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(LIMIT, delivered).await.unwrap();
    }
    let listed = world.alerts().await;
    assert!(
        listed.iter().all(|alert| alert.patient == "ada"),
        "{listed:?}"
    );
    running.stop().await;
}
