//! Alerting ends while the store does not answer. Pending records are judged by the next member,
//! and nothing is written past them.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::stage::{Running, S, World, pulses, until};
use async_trait::async_trait;
use bus::{
    Bus, CommitError, ConsumeError, Consumer, Delivery, Event, Interposed, StartAt, SubscribeError,
    Topic,
};
use prost::Message;

/// Endings tried. Where the fault can occur, it occurs in half of them.
const ENDINGS: u32 = 8;

/// A bus whose members of `vitals` receive both records at once, as a prefetching client does.
struct Ahead(Arc<dyn Bus>);

struct Fetched(VecDeque<Event>);

fn record(patient: &str, offset: u64) -> Event {
    let now_us = contracts::now_us();
    let readings = pulses(patient, 1, now_us - 30 * S, &[150.0; 15]);
    Event::Batch(vec![Delivery {
        topic: Topic::Vitals,
        partition: 0,
        offset,
        key: patient.into(),
        value: readings.encode_to_vec().into(),
        headers: Vec::new(),
        published_us: now_us,
    }])
}

#[async_trait]
impl Consumer for Fetched {
    async fn next(&mut self, _: usize) -> Result<Event, ConsumeError> {
        match self.0.pop_front() {
            Some(event) => Ok(event),
            None => std::future::pending().await,
        }
    }

    async fn commit(&mut self, _: &[(u32, u64)]) -> Result<(), CommitError> {
        Ok(())
    }

    fn renew(&mut self, _: &[u32]) {}

    async fn lag(&mut self) -> Result<u64, ConsumeError> {
        Ok(self.0.len() as u64)
    }
}

#[async_trait]
impl Interposed for Ahead {
    fn inner(&self) -> &dyn Bus {
        &*self.0
    }

    async fn subscribe(
        &self,
        topic: Topic,
        group: &str,
        start: Arc<dyn StartAt>,
    ) -> Result<Box<dyn Consumer>, SubscribeError> {
        if topic != Topic::Vitals {
            return self.0.subscribe(topic, group, start).await;
        }
        start.start(topic, 0).await.unwrap();
        let events = [Event::Assigned(vec![0]), record("ann", 0), record("ben", 1)];
        Ok(Box::new(Fetched(VecDeque::from(events))))
    }
}

/// A little more than the longest pause between two attempts.
const PAUSE: Duration = Duration::from_secs(6);
/// After this time without a turn the loop counts as stalled, and its pod is restarted.
const LOOP_SILENCE_MAX: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_an_alert_passes_through_is_seen_when_it_stops() {
    let world = World::new();
    let running = world.start_with(|config| {
        config.people.webhook = Some(service_kit::Secret::new("http://127.0.0.1:1/hook"));
    });
    let health = running.context.health();
    let expected = [
        "from-bus",
        "judging",
        "notices-canary",
        "notices-webhook",
        "outbox",
        "people",
        "publishing",
        "silence",
        "telling",
    ];
    let are_seen = || {
        let an_hour_later = Instant::now() + Duration::from_secs(3600);
        let stopped = health.stalled(an_hour_later);
        stopped.iter().map(|it| it.0).eq(expected)
    };
    until("each of them is watched", are_seen).await;
    running.stop().await;
}

/// A world that waits for its store with both records in hand, and the file of that store.
async fn without_store() -> (World, Running, rusqlite::Connection) {
    let mut world = World::new();
    world.bus = Arc::new(Ahead(Arc::clone(&world.bus)));
    let file = rusqlite::Connection::open(world.dir.path().join("store.db")).unwrap();
    file.execute_batch("ALTER TABLE alert_transitions RENAME TO away")
        .unwrap();
    let running = world.start_with(|_| {});
    let health = running.context.health();
    let is_waiting = || health.failing().iter().any(|check| check.0 == "store");
    until("the store is away", is_waiting).await;
    (world, running, file)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_away_is_no_stalled_loop() {
    let (_world, running, _file) = without_store().await;
    let health = running.context.health();
    tokio::time::sleep(PAUSE + Duration::from_secs(2)).await;
    let a_minute_later = Instant::now() + LOOP_SILENCE_MAX - PAUSE;
    assert_eq!(health.stalled(a_minute_later), []);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_while_the_store_is_away_passes_over_nothing() {
    for ending in 0..ENDINGS {
        let (world, running, file) = without_store().await;
        // Until the pauses between attempts are long enough to end during one.
        tokio::time::sleep(Duration::from_millis(500)).await;
        file.execute_batch("ALTER TABLE away RENAME TO alert_transitions")
            .unwrap();
        running.stop().await;
        let alerts = world.alerts().await;
        let told = |patient: &str| alerts.iter().any(|alert| alert.patient == patient);
        assert!(
            told("ann") || !told("ben"),
            "ending {ending}: the record before is passed over"
        );
    }
}
