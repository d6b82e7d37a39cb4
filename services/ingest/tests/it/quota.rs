//! One gateway may fill bus and store only at a bounded rate. Other gateways do not wait for it,
//! nor do its most urgent alerts.

use std::time::{Duration, Instant};

use crate::world::{Mode, Running, Uplink, World, gateway, sample, upload};
use bus::{Bus, Event, Topic, partition_of};
use contracts::vitals::{EdgeAlert, Priority, UploadRequest, VitalsRecord};
use prost::Message;
use store::{DEFAULT_TENANT, DeviceEntry};

/// Samples that a gateway of one sample a second saves in ten minutes, twice.
const TWICE_SAVED: u64 = 1_200;

/// Alerts, one after the other, whose copies are timed.
const COPIED_ALERTS: u64 = 30;

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
    // The gateway owes ten minutes, on whatever stream it continues.
    thief.send(samples("belt-0", TWICE_SAVED)).await;
    assert!(!is_answered(&mut thief).await, "read on");
    let mut again = world.gateway(&running, gateway("gw")).await;
    again.send(samples("belt-0", TWICE_SAVED)).await;
    assert!(!is_answered(&mut again).await, "a new stream owes nothing");

    // Its alerts do not wait, and neither does another gateway.
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
    put_other_belt(&world).await;
    let mut other = world.gateway(&running, gateway("other")).await;
    other.send(samples("other-belt", 0)).await;
    assert_eq!(other.answer().await.position, TWICE_SAVED);
    world.stored("belt-0", TWICE_SAVED).await;

    // Nothing is lost: unanswered uploads are sent again, and an ingest that waits ends at once.
    running.stop().await;
    world.samples_per_s = 0;
    let running = world.start().await;
    let mut honest = world.gateway(&running, gateway("gw")).await;
    honest.send(samples("belt-0", TWICE_SAVED)).await;
    assert_eq!(honest.answer().await.position, 2 * TWICE_SAVED);
    world.stored("belt-0", 2 * TWICE_SAVED).await;
    running.stop().await;
}

/// Alerts that a gateway of one alert a second may send at once, for each class.
const ALERTS_SAVED: usize = 60;

fn alert(device: &str, number: i64, priority: Priority) -> EdgeAlert {
    EdgeAlert {
        device: device.into(),
        rule: "made-up".into(),
        time_us: contracts::now_us() + number,
        priority: priority.into(),
        ..EdgeAlert::default()
    }
}

fn alerts(position: u64, alerts: Vec<EdgeAlert>) -> UploadRequest {
    UploadRequest {
        position,
        alerts,
        ..UploadRequest::default()
    }
}

/// Patient and priority of each alert on the bus, in order, once this many have arrived.
async fn on_the_bus(running: &Running, at_least: usize) -> Vec<(String, Priority)> {
    let alerts = alerts_on_the_bus(running, at_least).await.into_iter();
    alerts
        .map(|it| (it.patient.clone(), it.priority()))
        .collect()
}

async fn alerts_on_the_bus(running: &Running, at_least: usize) -> Vec<EdgeAlert> {
    let reading = async {
        let mut topic = running.bus.read_back(Topic::Vitals).await.unwrap();
        let mut found = Vec::new();
        while found.len() < at_least {
            let Ok(Event::Batch(batch)) = topic.next(100).await else {
                continue;
            };
            for delivery in batch {
                let record = VitalsRecord::decode(delivery.value).unwrap();
                found.extend(record.alerts);
            }
        }
        found
    };
    tokio::time::timeout(crate::world::PATIENCE, reading)
        .await
        .unwrap()
}

async fn put_other_belt(world: &World) {
    let device = DeviceEntry {
        id: "other-belt".into(),
        tenant: DEFAULT_TENANT.into(),
        gateway: "other".into(),
        patient: "patient-9".into(),
        registered_us: contracts::now_us(),
    };
    world.store.put_device(&device).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_alerts_delays_neither_anothers_alert_nor_its_own_urgent_one() {
    let mut world = World::new().await;
    world.alerts_per_s = 1;
    put_other_belt(&world).await;
    let running = world.start().await;
    let flooding = world.gateway(&running, gateway("gw")).await;
    let mut flood: Vec<EdgeAlert> = (0..2_500)
        .map(|number| alert("belt-0", number, Priority::Low))
        .collect();
    flood.push(alert("belt-1", 0, Priority::High));
    flooding.send(alerts(2_501, flood)).await;
    // The answer to the flood comes later, but uploads behind it are read meanwhile.
    flooding
        .send(alerts(2_502, vec![alert("belt-2", 1, Priority::High)]))
        .await;
    let mut other = world.gateway(&running, gateway("other")).await;
    other
        .send(alerts(7, vec![alert("other-belt", 0, Priority::Low)]))
        .await;
    assert_eq!(other.answer().await.position, 7);
    let found = on_the_bus(&running, ALERTS_SAVED + 3).await;
    let place = |patient: &str| found.iter().position(|(of, _)| of == patient);
    let urgent = (place("patient-1"), place("patient-2"), place("patient-9"));
    assert!(
        urgent.0.is_some() && urgent.1.is_some() && urgent.2.is_some(),
        "{urgent:?}"
    );
    let flooded = found.iter().filter(|(of, _)| of == "patient-0").count();
    assert!(flooded < 2 * ALERTS_SAVED, "{flooded} of the flood");
    running.stop().await;
}

/// A later upload waits behind the flood, and a third one has an alert of high priority.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_urgent_alert_is_read_while_earlier_uploads_wait_for_the_quota() {
    let mut world = World::new().await;
    world.alerts_per_s = 1;
    let running = world.start().await;
    let uplink = world.gateway(&running, gateway("gw")).await;
    let waiting = 30;
    let flood = 0..(ALERTS_SAVED + waiting) as i64;
    let flood = flood.map(|number| alert("belt-0", number, Priority::Low));
    uplink.send(alerts(1, flood.collect())).await;
    let late = alert("belt-0", 1_000, Priority::Low);
    uplink.send(alerts(2, vec![late])).await;
    uplink
        .send(alerts(3, vec![alert("belt-1", 0, Priority::High)]))
        .await;
    let found = on_the_bus(&running, ALERTS_SAVED + 3).await;
    let place = found.iter().position(|(of, _)| of == "patient-1");
    assert!(
        place.is_some_and(|place| place < ALERTS_SAVED + 3),
        "{place:?}"
    );
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alerts_beyond_the_quota_go_on_later_and_none_is_lost_or_twice() {
    let mut world = World::new().await;
    world.alerts_per_s = 1;
    let running = world.start().await;
    let mut sending = world.gateway(&running, gateway("gw")).await;
    let many: Vec<EdgeAlert> = (0..ALERTS_SAVED as i64 + 3)
        .map(|number| alert("belt-0", number, Priority::Medium))
        .collect();
    let count = many.len();
    sending.send(alerts(5, many.clone())).await;
    // A gateway that takes the wait for a lost link sends the same uploads again.
    let mut again = world.gateway(&running, gateway("gw")).await;
    again.send(alerts(5, many)).await;
    assert_eq!(sending.answer().await.position, 5);
    assert_eq!(again.answer().await.position, 5);
    sending
        .send(alerts(6, vec![alert("belt-1", 0, Priority::High)]))
        .await;
    assert_eq!(sending.answer().await.position, 6);
    assert_eq!(on_the_bus(&running, count + 1).await.len(), count + 1);
    running.stop().await;
}

/// Sends each alert on all of these streams, as a gateway sends copies, and waits for the answers.
async fn time_of_copies(streams: &mut [Uplink], from: u64) -> Duration {
    let begun = Instant::now();
    for position in from + 1..=from + COPIED_ALERTS {
        let copy = alerts(
            position,
            vec![alert("belt-0", position as i64, Priority::High)],
        );
        for stream in &*streams {
            stream.send(copy.clone()).await;
        }
        for stream in &mut *streams {
            assert_eq!(stream.answer().await.position, position);
        }
    }
    begun.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_of_an_alert_wait_for_the_bus_and_for_nothing_else() {
    let world = World::new().await;
    let running = world.start().await;
    let mut alone = [world.gateway(&running, gateway("gw")).await];
    let alone = time_of_copies(&mut alone, 0).await;
    let mut three = Vec::new();
    for _ in 0..3 {
        three.push(world.gateway(&running, gateway("gw")).await);
    }
    let copied = time_of_copies(&mut three, COPIED_ALERTS).await;
    let more = copied.saturating_sub(alone) / COPIED_ALERTS as u32;
    assert!(more < Duration::from_millis(25), "each waited {more:?}");
    let all = 2 * COPIED_ALERTS as usize;
    assert_eq!(on_the_bus(&running, all).await.len(), all);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_without_a_leader_delays_the_alerts_of_no_other_one() {
    let partition = |patient: &str| partition_of(patient, Topic::Vitals.default_partitions());
    assert_ne!(partition("patient-0"), partition("patient-1"));
    let world = World::new().await;
    let running = world.start().await;
    let mut uplink = world.gateway(&running, gateway("gw")).await;
    running
        .bus
        .mode
        .send_replace(Mode::HoldPatient("patient-0"));
    let both = ["belt-0", "belt-1"].map(|belt| alert(belt, 0, Priority::High));
    uplink.send(alerts(1, both.into())).await;
    uplink
        .send(alerts(2, vec![alert("belt-1", 1, Priority::High)]))
        .await;
    let found = on_the_bus(&running, 2).await;
    assert!(found.iter().all(|(of, _)| of == "patient-1"), "{found:?}");
    assert!(!is_answered(&mut uplink).await, "before the bus has all");
    running.bus.mode.send_replace(Mode::Pass);
    assert_eq!(uplink.answer().await.position, 1);
    assert_eq!(uplink.answer().await.position, 2);
    assert_eq!(on_the_bus(&running, 3).await.len(), 3);
    running.stop().await;
}

/// More of the partition without a leader waits than one stream may keep.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_alerts_of_a_partition_without_a_leader_hold_up_no_other_one() {
    const IN_UPLOAD: i64 = 4_000;
    const UPLOADS: i64 = 3;
    let mut world = World::new().await;
    world.alerts_per_s = 1_000;
    let running = world.start().await;
    let mut uplink = world.gateway(&running, gateway("gw")).await;
    let hold = Mode::HoldPatient("patient-0");
    running.bus.mode.send_replace(hold);
    let start_us = contracts::now_us() - 60_000_000;
    let of = |belt: &str, number: i64| EdgeAlert {
        time_us: start_us + number,
        ..alert(belt, 0, Priority::High)
    };
    let many = |upload: i64| -> Vec<EdgeAlert> {
        let numbers = upload * IN_UPLOAD..(upload + 1) * IN_UPLOAD;
        numbers.map(|number| of("belt-0", number)).collect()
    };
    // The first alert is on its way, and so all others of its line wait behind it or with it.
    for position in 1..=UPLOADS as u64 {
        let behind = many(position as i64 - 1);
        uplink.send(alerts(position, behind)).await;
        // The quota is shared, and a copy of the first one waits for it.
        uplink.send(alerts(position, many(0))).await;
    }
    for position in 1..=5 {
        let other = of("belt-1", position);
        uplink.send(alerts(100, vec![other])).await;
    }
    let found = on_the_bus(&running, 5).await;
    assert!(found.iter().all(|(of, _)| of == "patient-1"), "{found:?}");
    assert!(!is_answered(&mut uplink).await, "before the bus has all");

    // The gateway repeats what was not acknowledged.
    running.bus.mode.send_replace(Mode::Pass);
    let mut again = world.gateway(&running, gateway("gw")).await;
    for position in 1..=UPLOADS as u64 {
        again
            .send(alerts(position, many(position as i64 - 1)))
            .await;
        assert_eq!(again.answer().await.position, position);
    }
    let all = (UPLOADS * IN_UPLOAD) as usize + 5;
    let found = alerts_on_the_bus(&running, all).await;
    let mut times: Vec<i64> = found.iter().map(|it| it.time_us).collect();
    times.sort_unstable();
    times.dedup();
    assert!(
        times.len() >= (UPLOADS * IN_UPLOAD) as usize,
        "{}",
        times.len()
    );
    running.stop().await;
}

/// The quota gets room again and again while an upload is judged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_alert_overtakes_an_earlier_one_of_its_class() {
    const IN_UPLOAD: i64 = 4_000;
    const UPLOADS: i64 = 16;
    let mut world = World::new().await;
    world.alerts_per_s = 1_000;
    let running = world.start().await;
    for priority in [Priority::Medium, Priority::High] {
        let mut uplink = world.gateway(&running, gateway("gw")).await;
        let start_us = contracts::now_us() - 60_000_000;
        for upload in 0..UPLOADS {
            let numbers = upload * IN_UPLOAD..(upload + 1) * IN_UPLOAD;
            let many = numbers.map(|number| EdgeAlert {
                time_us: start_us + number,
                ..alert("belt-0", 0, priority)
            });
            uplink.send(alerts(upload as u64 + 1, many.collect())).await;
        }
        for upload in 0..UPLOADS {
            assert_eq!(uplink.answer().await.position, upload as u64 + 1);
        }
    }
    let all = (UPLOADS * IN_UPLOAD) as usize;
    let found = alerts_on_the_bus(&running, 2 * all).await;
    for priority in [Priority::Medium, Priority::High] {
        let of_class = found.iter().filter(|it| it.priority() == priority);
        let times: Vec<i64> = of_class.map(|it| it.time_us).collect();
        let first = times.windows(2).position(|pair| pair[0] >= pair[1]);
        assert_eq!((times.len(), first), (all, None));
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_has_a_bounded_number_of_streams() {
    let world = World::new().await;
    let running = world.start().await;
    let mut uplink = world.gateway(&running, gateway("gw")).await;
    let of_stream = |number: u64| {
        let mut sample = sample("belt-0", 1);
        sample.stream = format!("made-up-{number}");
        sample
    };
    uplink
        .send(upload(1, (0..100).map(of_stream).collect()))
        .await;
    let refused = uplink.answer().await.rejections;
    assert_eq!(refused.len(), 36);
    assert!(refused[0].reason.starts_with("stream:"), "{:?}", refused[0]);
    // A known stream of the device continues, and so does every other device.
    let mut next = of_stream(0);
    next.sequence = 2;
    uplink
        .send(upload(2, vec![next, sample("belt-1", 1)]))
        .await;
    assert_eq!(uplink.answer().await.rejections, []);
    running.stop().await;
}
