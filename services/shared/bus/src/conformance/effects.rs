use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::{Harness, PATIENCE, next, number, numbered, publish};
use crate::{Event, Start, StartAt, StartAtError, Topic};

/// Before an engine that did not answer is asked again.
const PAUSE: Duration = Duration::from_millis(100);
/// A fenced member has this long to hear that it lost the partition.
const RENEW_AFTER: Duration = Duration::from_millis(500);

/// A store as the real ones are: numbers and next offsets change together, if the epoch is the
/// newest.
#[derive(Default)]
pub struct Ledger {
    epochs: BTreeMap<u32, u64>,
    next: BTreeMap<u32, u64>,
    /// How often each number took effect.
    pub applied: BTreeMap<u32, usize>,
    /// Effects of each member.
    pub by_member: BTreeMap<&'static str, usize>,
}

impl Ledger {
    /// Numbers that took effect more than once.
    pub fn doubled(&self) -> BTreeSet<u32> {
        let doubled = self.applied.iter().filter(|(_, times)| **times != 1);
        doubled.map(|(number, _)| *number).collect()
    }
}

struct Claimer {
    ledger: Arc<Mutex<Ledger>>,
    mine: Mutex<BTreeMap<u32, u64>>,
}

#[async_trait]
impl StartAt for Claimer {
    async fn start(&self, _: Topic, partition: u32) -> Result<Start, StartAtError> {
        let mut ledger = self.ledger.lock();
        let epoch = ledger.epochs.entry(partition).or_default();
        *epoch += 1;
        self.mine.lock().insert(partition, *epoch);
        let next = ledger.next.get(&partition).copied();
        Ok(next.map_or(Start::Oldest, Start::At))
    }
}

pub async fn start_is_asked_and_obeyed(harness: &dyn Harness) {
    let bus = harness.start().await.bus;
    publish(
        &bus,
        Topic::DeadLetters,
        (0..10).map(|n| numbered("k", n)).collect(),
    )
    .await;
    let mut plain = super::join(&bus, Topic::DeadLetters, "plain").await;
    let offset = super::read(&mut plain, 10).await[7].offset;
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    ledger.lock().next.insert(0, offset);
    let claimer = Arc::new(Claimer {
        ledger: ledger.clone(),
        mine: Mutex::default(),
    });
    let mut consumer = bus
        .subscribe(Topic::DeadLetters, "own-offsets", claimer)
        .await
        .unwrap_or_else(|e| panic!("subscribe: {e}"));
    assert_eq!(next(&mut consumer).await, Event::Assigned(vec![0]));
    assert_eq!(
        ledger.lock().epochs[&0],
        1,
        "the start was asked on assignment"
    );
    let Event::Batch(batch) = next(&mut consumer).await else {
        panic!("a batch follows")
    };
    assert_eq!(batch.iter().map(number).collect::<Vec<_>>(), [7, 8, 9]);
}

/// A store that is slow, or far away.
struct Slow;

/// For one partition.
const SLOW: Duration = Duration::from_millis(50);

#[async_trait]
impl StartAt for Slow {
    async fn start(&self, _: Topic, _: u32) -> Result<Start, StartAtError> {
        tokio::time::sleep(SLOW).await;
        Ok(Start::Oldest)
    }
}

/// Members look after other things between two calls, and cut each short for that.
pub async fn a_start_that_takes_long_is_come_to(harness: &dyn Harness) {
    let bus = harness.start().await.bus;
    let partitions = bus.partitions(Topic::Vitals).await;
    let all = partitions.unwrap_or_else(|e| panic!("{e}")) as usize;
    let subscribed = bus.subscribe(Topic::Vitals, "slow", Arc::new(Slow)).await;
    let mut consumer = subscribed.unwrap_or_else(|e| panic!("subscribe: {e}"));
    let mut mine = BTreeSet::new();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while mine.len() < all {
        let now = tokio::time::Instant::now();
        assert!(now < deadline, "only {mine:?} of {all} were begun");
        match tokio::time::timeout(SLOW * 2, consumer.next(1)).await {
            Ok(Ok(Event::Assigned(partitions))) => mine.extend(partitions),
            Ok(Ok(Event::Revoked(partitions))) => mine.retain(|p| !partitions.contains(p)),
            Ok(_) | Err(_) => {}
        }
    }
}

/// As after a restore of what the group keeps: its account begins anew, and what it committed on
/// the bus is from before.
pub async fn an_empty_account_begins_at_the_oldest_record(harness: &dyn Harness) {
    let bus = harness.start().await.bus;
    let ten = (0..10).map(|n| numbered("k", n)).collect();
    publish(&bus, Topic::DeadLetters, ten).await;
    let mut before = super::join(&bus, Topic::DeadLetters, "restored").await;
    let last = super::read(&mut before, 10).await[9].offset;
    before
        .commit(&[(0, last + 1)])
        .await
        .unwrap_or_else(|e| panic!("commit: {e}"));
    drop(before);
    let claimer = Arc::new(Claimer {
        ledger: Arc::default(),
        mine: Mutex::default(),
    });
    let mut consumer = bus
        .subscribe(Topic::DeadLetters, "restored", claimer)
        .await
        .unwrap_or_else(|e| panic!("subscribe: {e}"));
    let read = super::read(&mut consumer, 10).await;
    assert_eq!(
        read.iter().map(number).collect::<Vec<_>>(),
        (0..10).collect::<Vec<_>>()
    );
}

/// Somebody who is not in the group takes a claim over and goes away. No event reports it, and the
/// member gets the partition back.
pub async fn a_claim_lost_in_passing_is_renewed(harness: &dyn Harness) {
    let bus = harness.start().await.bus;
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let member = tokio::spawn(work(bus.clone(), ledger.clone(), "one", Duration::ZERO));
    let records = |numbers: std::ops::Range<u32>| -> Vec<_> {
        numbers
            .map(|n| numbered(&format!("k{}", n % 40), n))
            .collect()
    };
    publish(&bus, Topic::Vitals, records(0..100)).await;
    took_effect(&ledger, 100).await;
    for epoch in ledger.lock().epochs.values_mut() {
        *epoch += 1;
    }
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let mut published = 100;
    while ledger.lock().applied.len() < 200 {
        assert!(
            tokio::time::Instant::now() < deadline,
            "{} of {published} took effect after the claims were lost",
            ledger.lock().applied.len()
        );
        // A fence shows itself only to one who has something to write.
        if published < 200 {
            publish(&bus, Topic::Vitals, records(published..published + 10)).await;
            published += 10;
        }
        tokio::time::sleep(PAUSE).await;
    }
    member.abort();
    let doubled = ledger.lock().doubled();
    assert!(
        doubled.is_empty(),
        "took effect more than once: {doubled:?}"
    );
}

async fn took_effect(ledger: &Mutex<Ledger>, records: usize) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while ledger.lock().applied.len() < records {
        assert!(
            tokio::time::Instant::now() < deadline,
            "{} of {records} took effect",
            ledger.lock().applied.len()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Members come, die and are slow at random while records are published; every record takes effect
/// exactly once.
pub async fn exactly_once_through_crashes(harness: &dyn Harness) {
    const RECORDS: u32 = 600;
    let mut random = StdRng::seed_from_u64(0xb4a1d);
    let publisher = harness.start().await.bus;
    let feed = tokio::spawn(async move {
        for n in 0..RECORDS {
            publish(
                &publisher,
                Topic::Vitals,
                vec![numbered(&format!("k{}", n % 40), n)],
            )
            .await;
        }
        publisher
    });
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let started = tokio::time::Instant::now();
    let notices = harness.notices_death_within();
    let mut members = Vec::new();
    let mut deaths = 0;
    while ledger.lock().applied.len() < RECORDS as usize || deaths < 4 {
        assert!(
            started.elapsed() < PATIENCE * 2 + notices * 30,
            "{} of {RECORDS} took effect",
            ledger.lock().applied.len()
        );
        if members.len() < 3 && (members.is_empty() || random.random_bool(0.5)) {
            let process = harness.start().await;
            let slow = Duration::from_millis(random.random_range(0..5));
            let task = tokio::spawn(work(process.bus.clone(), ledger.clone(), "any", slow));
            members.push((process, task));
        } else if random.random_bool(0.5) {
            let (process, task) = members.remove(random.random_range(0..members.len()));
            // The process dies first, so that its member leaves nothing in order.
            (process.kill)();
            task.abort();
            deaths += 1;
            // Sometimes sooner than the engine notices, mostly later.
            tokio::time::sleep(notices.mul_f64(random.random_range(0.0..3.0))).await;
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(0..120))).await;
    }
    feed.await.unwrap_or_else(|e| panic!("publisher: {e}"));
    for (_, task) in &members {
        task.abort();
    }
    let doubled = ledger.lock().doubled();
    assert!(
        doubled.is_empty(),
        "took effect more than once: {doubled:?}"
    );
}

/// A service: every record of `vitals` takes effect in the ledger, unless somebody else has taken
/// over its partition. It goes on until it is aborted: an engine that does not answer is asked
/// again.
pub async fn work(
    bus: Arc<dyn crate::Bus>,
    ledger: Arc<Mutex<Ledger>>,
    member: &'static str,
    slow: Duration,
) {
    let claimer = Arc::new(Claimer {
        ledger: ledger.clone(),
        mine: Mutex::default(),
    });
    let mut consumer = loop {
        let subscribed = bus.subscribe(Topic::Vitals, "ledger", claimer.clone());
        match subscribed.await {
            Ok(consumer) => break consumer,
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    };
    let mut fenced: BTreeMap<u32, tokio::time::Instant> = BTreeMap::new();
    loop {
        let due = fenced.extract_if(.., |_, since| since.elapsed() > RENEW_AFTER);
        consumer.renew(&due.map(|(partition, _)| partition).collect::<Vec<_>>());
        let batch = match consumer.next(20).await {
            Ok(Event::Batch(batch)) => batch,
            Ok(Event::Assigned(partitions) | Event::Revoked(partitions)) => {
                fenced.retain(|partition, _| !partitions.contains(partition));
                continue;
            }
            Err(_) => {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        tokio::time::sleep(slow).await;
        let mut done = Vec::new();
        {
            let mut ledger = ledger.lock();
            for delivery in &batch {
                let mine = claimer.mine.lock().get(&delivery.partition).copied();
                // Fenced: somebody else has claimed it since.
                if mine != ledger.epochs.get(&delivery.partition).copied() {
                    let now = tokio::time::Instant::now();
                    fenced.entry(delivery.partition).or_insert(now);
                    continue;
                }
                *ledger.applied.entry(number(delivery)).or_default() += 1;
                *ledger.by_member.entry(member).or_default() += 1;
                ledger.next.insert(delivery.partition, delivery.offset + 1);
                done.push((delivery.partition, delivery.offset + 1));
            }
        }
        let _ = consumer.commit(&done).await;
    }
}
