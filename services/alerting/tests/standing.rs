//! A stalled alerting reports it within half a minute, whatever its loop waits for. It is ready
//! again as soon as the loop turns. Each scene lasts as long as the promise.
#![allow(clippy::unwrap_used)]

#[path = "support/stage.rs"]
mod stage;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use bus::{
    Bus, CommitError, ConsumeError, Consumer, Event, Extent, Interposed, NotReady, StartAt,
    SubscribeError, Topic,
};
use contracts::alerts::AlertState;
use stage::{Running, S, World, pulses};
use tokio::sync::watch;

/// Promised time to report a stall, and to report the start.
const SAID_WITHIN: Duration = Duration::from_secs(35);

async fn becomes(running: &Running, what: &str, condition: impl Fn(&str) -> bool) {
    let deadline = tokio::time::Instant::now() + SAID_WITHIN;
    loop {
        let failing = format!("{:?}", running.context.health().failing());
        if condition(&failing) {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "{what}: {failing}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn is_ready(running: &Running) {
    becomes(running, "ready", |failing| failing == "[]").await;
}

async fn stands_still(running: &Running) {
    let says = "alerts are not being judged since";
    becomes(running, says, |failing| failing.contains(says)).await;
}

/// Enough readings for an alert.
async fn fast_pulse(world: &World) {
    let record = pulses("ada", 1, contracts::now_us() - 30 * S, &[150.0; 25]);
    world.publish("ada", record).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loop_that_repeats_a_refused_write() {
    let world = World::new();
    let running = world.start_with(|_| {});
    is_ready(&running).await;
    let rows = rusqlite::Connection::open(world.dir.path().join("store.db")).unwrap();
    rows.busy_timeout(Duration::from_secs(10)).unwrap();
    // The row is neither written nor present, so no answer of the store ends the loop.
    rows.execute_batch(
        "CREATE TRIGGER for_the_test BEFORE INSERT ON alert_transitions BEGIN SELECT RAISE(IGNORE); END",
    )
    .unwrap();
    fast_pulse(&world).await;
    stands_still(&running).await;
    rows.execute_batch("DROP TRIGGER for_the_test").unwrap();
    world
        .alert("heart-rate-very-high", AlertState::Active)
        .await;
    is_ready(&running).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_to_the_store_that_does_not_return() {
    let world = World::new();
    let running = world.start_with(|_| {});
    is_ready(&running).await;
    let rows = rusqlite::Connection::open(world.dir.path().join("store.db")).unwrap();
    rows.busy_timeout(Duration::from_secs(10)).unwrap();
    rows.execute_batch("BEGIN IMMEDIATE").unwrap();
    fast_pulse(&world).await;
    stands_still(&running).await;
    rows.execute_batch("ROLLBACK").unwrap();
    world
        .alert("heart-rate-very-high", AlertState::Active)
        .await;
    is_ready(&running).await;
    running.stop().await;
}

/// A bus that loses members of `vitals` silently, or does not answer at all.
struct Faulty {
    inner: Arc<dyn Bus>,
    is_deaf: watch::Sender<bool>,
    is_away: watch::Sender<bool>,
}

struct Deaf {
    inner: Box<dyn Consumer>,
    is_deaf: watch::Receiver<bool>,
}

async fn is_deaf(is_deaf: &mut watch::Receiver<bool>) {
    if is_deaf.wait_for(|is_deaf| *is_deaf).await.is_err() {
        std::future::pending().await
    }
}

#[async_trait]
impl Consumer for Deaf {
    async fn next(&mut self, max_records: usize) -> Result<Event, ConsumeError> {
        tokio::select! {
            biased;
            () = is_deaf(&mut self.is_deaf) => {
                // Returns now and then, so that the loop turns.
                tokio::time::sleep(Duration::from_millis(100)).await;
                Ok(Event::Assigned(Vec::new()))
            }
            event = self.inner.next(max_records) => event,
        }
    }

    async fn commit(&mut self, offsets: &[(u32, u64)]) -> Result<(), CommitError> {
        self.inner.commit(offsets).await
    }

    fn renew(&mut self, partitions: &[u32]) {
        self.inner.renew(partitions);
    }

    async fn lag(&mut self) -> Result<u64, ConsumeError> {
        Ok(0)
    }
}

#[async_trait]
impl Interposed for Faulty {
    fn inner(&self) -> &dyn Bus {
        &*self.inner
    }

    async fn subscribe(
        &self,
        topic: Topic,
        group: &str,
        start: Arc<dyn StartAt>,
    ) -> Result<Box<dyn Consumer>, SubscribeError> {
        let inner = self.inner.subscribe(topic, group, start).await?;
        if topic != Topic::Vitals {
            return Ok(inner);
        }
        let is_deaf = self.is_deaf.subscribe();
        Ok(Box::new(Deaf { inner, is_deaf }))
    }

    async fn extents(&self, topic: Topic) -> Result<BTreeMap<u32, Extent>, NotReady> {
        if *self.is_away.borrow() {
            return Err(NotReady("the test has stopped it".into()));
        }
        self.inner.extents(topic).await
    }
}

fn faulty() -> (World, Arc<Faulty>) {
    let mut world = World::new();
    let faulty = Arc::new(Faulty {
        inner: Arc::clone(&world.bus),
        is_deaf: watch::Sender::new(false),
        is_away: watch::Sender::new(false),
    });
    world.bus = Arc::clone(&faulty) as Arc<dyn Bus>;
    (world, faulty)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_that_was_lost() {
    let (world, faulty) = faulty();
    let running = world.start_with(|_| {});
    is_ready(&running).await;
    faulty.is_deaf.send_replace(true);
    fast_pulse(&world).await;
    stands_still(&running).await;
    faulty.is_deaf.send_replace(false);
    world
        .alert("heart-rate-very-high", AlertState::Active)
        .await;
    is_ready(&running).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bus_that_does_not_answer() {
    let (world, faulty) = faulty();
    let running = world.start_with(|_| {});
    is_ready(&running).await;
    faulty.is_away.send_replace(true);
    let says = "it is unknown whether alerts are being judged";
    becomes(&running, says, |failing| failing.contains(says)).await;
    faulty.is_away.send_replace(false);
    is_ready(&running).await;
    running.stop().await;
}
