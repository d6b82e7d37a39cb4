use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{Harness, PATIENCE, join, number, numbered, publish, read};
use crate::{
    Event, PUBLISH_RECORDS_MAX, PublishError, RECORD_BYTES_MAX, Record, SubscribeError, Topic,
};

pub async fn order_per_key(harness: &dyn Harness) {
    let bus = harness.start().await.bus;
    let keys: Vec<String> = (0..20).map(|i| format!("patient-{i}")).collect();
    let tasks: Vec<_> = keys
        .iter()
        .map(|key| {
            let (bus, key) = (bus.clone(), key.clone());
            tokio::spawn(async move {
                for chunk in (0..60).collect::<Vec<u32>>().chunks(7) {
                    let records = chunk.iter().map(|n| numbered(&key, *n)).collect();
                    publish(&bus, Topic::Vitals, records).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap_or_else(|e| panic!("publisher: {e}"));
    }
    let mut consumer = join(&bus, Topic::Vitals, "order").await;
    let mut seen: BTreeMap<String, (u32, Vec<u32>)> = BTreeMap::new();
    let mut offsets: BTreeMap<u32, u64> = BTreeMap::new();
    for delivery in read(&mut consumer, 20 * 60).await {
        assert_eq!(delivery.topic, Topic::Vitals);
        assert!(delivery.published_us > 0);
        if let Some(last) = offsets.insert(delivery.partition, delivery.offset) {
            assert!(delivery.offset > last, "offsets of a partition rise");
        }
        let (partition, numbers) = seen
            .entry(delivery.key.clone())
            .or_insert((delivery.partition, Vec::new()));
        assert_eq!(
            *partition, delivery.partition,
            "a key stays in its partition"
        );
        numbers.push(number(&delivery));
    }
    assert_eq!(seen.len(), keys.len());
    for (key, (_, numbers)) in seen {
        assert_eq!(numbers, (0..60).collect::<Vec<_>>(), "order of {key}");
    }
    assert!(offsets.len() > 1, "keys are spread over partitions");
}

pub async fn durable_across_reopening(harness: &dyn Harness) {
    for round in 0..3 {
        let process = harness.start().await;
        publish(&process.bus, Topic::Alerts, vec![numbered("a", round)]).await;
        // Killed right after the acknowledgement.
        (process.kill)();
    }
    let bus = harness.start().await.bus;
    let mut consumer = join(&bus, Topic::Alerts, "durable").await;
    let numbers: Vec<u32> = read(&mut consumer, 3).await.iter().map(number).collect();
    assert_eq!(numbers, [0, 1, 2]);
}

pub async fn concurrent_publishers_lose_and_double_nothing(harness: &dyn Harness) {
    let processes = [harness.start().await.bus, harness.start().await.bus];
    let tasks: Vec<_> = (0..16_u32)
        .map(|publisher| {
            let bus = processes[publisher as usize % 2].clone();
            tokio::spawn(async move {
                for i in 0..25 {
                    let number = publisher * 1000 + i;
                    publish(
                        &bus,
                        Topic::Vitals,
                        vec![numbered(&format!("k{publisher}"), number)],
                    )
                    .await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap_or_else(|e| panic!("publisher: {e}"));
    }
    let mut consumer = join(&processes[0], Topic::Vitals, "all").await;
    let numbers: BTreeSet<u32> = read(&mut consumer, 16 * 25)
        .await
        .iter()
        .map(number)
        .collect();
    assert_eq!(numbers.len(), 16 * 25, "each record came once");
}

pub async fn limits_are_refused_with_their_reason(harness: &dyn Harness) {
    let bus = harness.start().await.bus;
    let large = Record::new("large", vec![7_u8; RECORD_BYTES_MAX - 1024]);
    publish(&bus, Topic::Vitals, vec![large.clone(); 12]).await;
    let too_large = bus
        .publish(
            Topic::Vitals,
            vec![Record::new("k", vec![0_u8; RECORD_BYTES_MAX + 1])],
        )
        .await;
    assert!(matches!(too_large, Err(PublishError::TooLarge { bytes }) if bytes > RECORD_BYTES_MAX));
    let too_many = bus
        .publish(
            Topic::Vitals,
            vec![Record::new("k", "v"); PUBLISH_RECORDS_MAX + 1],
        )
        .await;
    assert!(matches!(too_many, Err(PublishError::TooMany { .. })));
    bus.publish(Topic::Vitals, Vec::new())
        .await
        .unwrap_or_else(|e| panic!("nothing to publish is no error: {e}"));
    let name = bus
        .subscribe(
            Topic::Vitals,
            "with space",
            std::sync::Arc::new(crate::Committed),
        )
        .await;
    assert!(matches!(name, Err(SubscribeError::GroupName(_))));
    let mut consumer = join(&bus, Topic::Vitals, "large").await;
    for delivery in read(&mut consumer, 12).await {
        assert_eq!(delivery.value, large.value, "a large value comes whole");
    }
}

pub async fn tail_gives_what_comes_after_it(harness: &dyn Harness) {
    let (one, other) = (harness.start().await.bus, harness.start().await.bus);
    publish(
        &one,
        Topic::Paths,
        (0..10).map(|n| numbered(&format!("g{n}"), n)).collect(),
    )
    .await;
    let mut tail = one
        .tail(Topic::Paths)
        .await
        .unwrap_or_else(|e| panic!("tail: {e}"));
    publish(&one, Topic::Paths, vec![numbered("g1", 10)]).await;
    publish(&other, Topic::Paths, vec![numbered("g1", 11)]).await;
    publish(&other, Topic::Vitals, vec![numbered("g1", 99)]).await;
    let numbers: Vec<u32> = read(&mut tail, 2).await.iter().map(number).collect();
    assert_eq!(numbers, [10, 11]);
}

pub async fn read_back_begins_at_the_oldest_and_its_lag_tells_the_end(harness: &dyn Harness) {
    let bus = harness.start().await.bus;
    let read_back = async || {
        let reader = bus.read_back(Topic::Vitals).await;
        reader.unwrap_or_else(|e| panic!("read_back: {e}"))
    };
    let lag = async |reader: &mut Box<dyn crate::Consumer>| {
        let lag = reader.lag().await;
        lag.unwrap_or_else(|e| panic!("lag: {e}"))
    };
    assert_eq!(lag(&mut read_back().await).await, 0, "an empty topic");
    publish(
        &bus,
        Topic::Vitals,
        (0..30).map(|n| numbered(&format!("k{n}"), n)).collect(),
    )
    .await;
    // Twice: nothing is remembered of who has read.
    for _ in 0..2 {
        let mut reader = read_back().await;
        assert_eq!(lag(&mut reader).await, 30);
        let numbers: BTreeSet<u32> = read(&mut reader, 30).await.iter().map(number).collect();
        assert_eq!(numbers.len(), 30);
        assert_eq!(lag(&mut reader).await, 0);
    }
}

pub async fn next_can_be_cancelled(harness: &dyn Harness) {
    let bus = harness.start().await.bus;
    let publisher = tokio::spawn({
        let bus = bus.clone();
        async move {
            for n in 0..100 {
                publish(
                    &bus,
                    Topic::Vitals,
                    vec![numbered(&format!("k{}", n % 5), n)],
                )
                .await;
            }
        }
    });
    let mut consumer = join(&bus, Topic::Vitals, "cancel").await;
    let mut numbers = Vec::new();
    let started = tokio::time::Instant::now();
    let mut wait_us = 0;
    while numbers.len() < 100 {
        assert!(
            started.elapsed() < super::PATIENCE,
            "only {} came",
            numbers.len()
        );
        // Waits of many lengths, so that the call is cut at many points.
        wait_us = (wait_us + 37) % 3000;
        let wait = Duration::from_micros(wait_us);
        match tokio::time::timeout(wait, consumer.next(3)).await {
            Ok(Ok(Event::Batch(batch))) => numbers.extend(batch.iter().map(number)),
            Ok(Ok(_)) | Err(_) => {}
            Ok(Err(e)) => panic!("next: {e}"),
        }
    }
    publisher.await.unwrap_or_else(|e| panic!("publisher: {e}"));
    numbers.sort_unstable();
    assert_eq!(numbers, (0..100).collect::<Vec<_>>());
}

pub async fn lag_counts_what_waits(harness: &dyn Harness) {
    let bus = harness.start().await.bus;
    publish(
        &bus,
        Topic::Vitals,
        (0..30).map(|n| numbered(&format!("k{n}"), n)).collect(),
    )
    .await;
    let mut consumer = join(&bus, Topic::Vitals, "lag").await;
    let mut got = 0;
    let mut lag = 30;
    while got < 30 {
        if let Event::Batch(batch) = consumer
            .next(7)
            .await
            .unwrap_or_else(|e| panic!("next: {e}"))
        {
            got += batch.len() as u64;
            lag = consumer.lag().await.unwrap_or_else(|e| panic!("lag: {e}"));
            // Partitions may still be on their way to this member, so it can be less than what is
            // left, never more.
            assert!(lag <= 30 - got, "{lag} after {got} of 30");
        }
    }
    assert_eq!(lag, 0);
}

/// Every process sees the same log, and its end is the next record's offset.
pub async fn a_log_keeps_its_name_and_tells_its_end(harness: &dyn Harness) {
    let first = harness.start().await;
    // A broker that has just started may not know an end yet.
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let log = async |bus: &dyn crate::Bus, topic| loop {
        let log = bus.log(topic, 0).await;
        let log = log.unwrap_or_else(|e| panic!("{topic}: {e}"));
        if log.next.is_some() {
            return log;
        }
        let now = tokio::time::Instant::now();
        assert!(now < deadline, "{topic}: the end is not known");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let empty = log(&*first.bus, Topic::DeadLetters).await;
    assert!(!empty.identity.is_empty());
    assert_eq!(empty.next, Some(0));
    let records = (0..3).map(|n| numbered("k", n)).collect();
    publish(&first.bus, Topic::DeadLetters, records).await;
    (first.kill)();
    let second = harness.start().await;
    let filled = log(&*second.bus, Topic::DeadLetters).await;
    assert_eq!(filled.identity, empty.identity);
    assert_eq!(filled.next, Some(3));
    assert_eq!(log(&*second.bus, Topic::Paths).await.next, Some(0));
}
