//! The watcher with consumers that fail in every way that a loop cannot notice by itself.
#![allow(clippy::unwrap_used)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bus::{Bus, Committed, EmbeddedBus, EmbeddedOptions, Event, Record, Topic};
use clocks::CheckedClock;
use consumer_health::{Asked, Level, Own, Pace, Seen, Source, Standing, Watcher, duty, watch};
use parking_lot::Mutex;
use service_kit::{Context, Health};
use store::{Claims, QueryError, SqliteStore, Store};

const LIMIT: Duration = Duration::from_secs(30);

/// The proportions of the defaults, a hundred times as fast.
fn pace() -> Pace {
    Pace {
        every: Duration::from_millis(30),
        patience: Duration::from_millis(150),
        within: Duration::from_millis(500),
        restart_after: Duration::from_millis(1200),
    }
}

#[derive(Clone)]
enum Mode {
    /// Offsets of the partitions from 0 on.
    Done(Vec<u64>),
    /// One notice, due at this time.
    Due(i64),
    Away,
    Hangs,
}

/// Positions stored by the consumer, or the reason why they are unknown.
struct Positions(Mutex<Mode>);

#[async_trait]
impl Asked for Positions {
    async fn stored(&self, _: &str, _: Topic) -> Result<Vec<(u32, u64)>, QueryError> {
        let mode = self.0.lock().clone();
        match mode {
            Mode::Done(done) => Ok((0..).zip(done).collect()),
            Mode::Due(_) => Ok(Vec::new()),
            Mode::Away => Err(QueryError::Unavailable("no connection".into())),
            Mode::Hangs => std::future::pending().await,
        }
    }

    async fn waiting(&self, _: usize) -> Result<Vec<u64>, QueryError> {
        let mode = self.0.lock().clone();
        match mode {
            Mode::Done(waiting) => Ok(waiting),
            Mode::Due(_) => Ok(Vec::new()),
            Mode::Away => Err(QueryError::Unavailable("no connection".into())),
            Mode::Hangs => std::future::pending().await,
        }
    }

    async fn untried(&self, due_us: i64, _: i64, _: usize) -> Result<u64, QueryError> {
        let mode = self.0.lock().clone();
        match mode {
            Mode::Due(at_us) => Ok(u64::from(at_us <= due_us)),
            Mode::Done(untried) => Ok(untried.first().copied().unwrap_or_default()),
            Mode::Away => Err(QueryError::Unavailable("no connection".into())),
            Mode::Hangs => std::future::pending().await,
        }
    }
}

struct Stage {
    _dir: tempfile::TempDir,
    bus: Arc<EmbeddedBus>,
    positions: Arc<Positions>,
    context: Context,
}

impl Stage {
    fn new() -> Stage {
        let dir = tempfile::tempdir().unwrap();
        let bus = EmbeddedBus::open(dir.path(), EmbeddedOptions::default()).unwrap();
        Stage {
            _dir: dir,
            bus: Arc::new(bus),
            positions: Arc::new(Positions(Mutex::new(Mode::Done(Vec::new())))),
            context: Context::new("test"),
        }
    }

    fn watch(&self, own: Own) {
        let bus = Arc::clone(&self.bus) as Arc<dyn Bus>;
        let positions = Arc::clone(&self.positions);
        tokio::spawn(watch(bus, positions, own, pace(), self.context.clone()));
    }

    fn set(&self, mode: Mode) {
        *self.positions.0.lock() = mode;
    }

    /// Dead letters have one partition, so this is the offset of the next one.
    async fn publish(&self, topic: Topic) {
        let records = vec![Record::new("key", "value")];
        self.bus.publish(topic, records).await.unwrap();
    }

    fn health(&self) -> &Health {
        self.context.health()
    }

    async fn until(&self, what: &str, condition: impl Fn(&Health) -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !condition(self.health()) {
            let (failing, warnings) = (self.health().failing(), self.health().warnings());
            assert!(
                Instant::now() < deadline,
                "{what}: {failing:?} {warnings:?}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn one_partition(level: Level) -> Own {
    let duty = consumer_health::Duty {
        topic: Topic::DeadLetters,
        ..duty::JUDGING
    };
    Own::duty(duty, level, None)
}

fn fails_with(reason: &'static str) -> impl Fn(&Health) -> bool {
    move |health| health.failing().iter().any(|(_, it)| it.contains(reason))
}

fn is_well(health: &Health) -> bool {
    health.is_ready() && health.warnings().is_empty() && health.stalled(Instant::now()).is_empty()
}

#[tokio::test]
async fn a_position_that_does_not_move_is_said_until_it_moves() {
    let stage = Stage::new();
    stage.watch(one_partition(Level::Failing));
    stage.until("well with nothing to do", is_well).await;
    // For each kind of failure: a repeated conflict, a stuck call, a lost subscription.
    stage.publish(Topic::DeadLetters).await;
    stage
        .until(
            "standing still",
            fails_with("alerts are not being judged since 2"),
        )
        .await;
    let stalled = |health: &Health| !health.stalled(Instant::now()).is_empty();
    stage.until("a restart is asked for", stalled).await;
    stage.set(Mode::Done(vec![1]));
    stage.until("well again", is_well).await;
}

#[tokio::test]
async fn a_store_that_is_away_or_hangs_is_no_proof_of_health() {
    for mode in [Mode::Away, Mode::Hangs] {
        let stage = Stage::new();
        stage.watch(one_partition(Level::Failing));
        stage.until("well", is_well).await;
        stage.set(mode);
        let unknown = "unknown whether alerts are being judged: the store does not answer";
        stage.until("unknown", fails_with(unknown)).await;
        assert_eq!(
            stage.health().stalled(Instant::now()).len(),
            0,
            "a restart would not bring the store back"
        );
        stage.set(Mode::Done(Vec::new()));
        stage.until("well again", is_well).await;
    }
}

#[tokio::test]
async fn a_bus_that_is_away_is_no_proof_of_health() {
    let stage = Stage::new();
    stage.watch(one_partition(Level::Failing));
    stage.until("well", is_well).await;
    std::fs::rename(
        stage._dir.path().join("bus.db"),
        stage._dir.path().join("x"),
    )
    .unwrap();
    let unknown = "it is unknown whether alerts are being judged";
    stage.until("unknown", fails_with(unknown)).await;
    std::fs::rename(
        stage._dir.path().join("x"),
        stage._dir.path().join("bus.db"),
    )
    .unwrap();
    stage.until("well again", is_well).await;
}

#[tokio::test]
async fn a_sink_that_stands_still_warns_and_takes_nothing_out_of_service() {
    let stage = Stage::new();
    stage.watch(one_partition(Level::Warning));
    stage.publish(Topic::DeadLetters).await;
    let warns = |health: &Health| health.is_ready() && health.warnings().len() == 1;
    stage.until("a warning", warns).await;
    stage.set(Mode::Done(vec![1]));
    stage.until("well again", is_well).await;
}

/// Attempts at other notices are no progress for the waiting ones.
#[tokio::test]
async fn notices_that_are_not_tried_are_a_warning_until_they_are() {
    let stage = Stage::new();
    stage.watch(Own::duty(duty::DELIVERING, Level::Warning, None));
    stage.until("well", is_well).await;
    let is_warned = |health: &Health| {
        let warnings = health.warnings();
        let says = "notices wait and their delivery is not tried since";
        health.is_ready() && warnings.iter().any(|(_, it)| it.says.starts_with(says))
    };
    for untried in [3, 2, 1] {
        stage.set(Mode::Done(vec![untried]));
        stage.until("a warning", is_warned).await;
    }
    stage.set(Mode::Done(vec![0]));
    stage.until("well again", is_well).await;
}

#[tokio::test]
async fn a_step_of_the_machines_clock_makes_no_notice_overdue() {
    const NOW_US: i64 = 1_800_000_000_000_000;
    let stage = Stage::new();
    let stepped_us = Arc::new(AtomicI64::new(0));
    let clock = {
        let (stepped_us, begun) = (Arc::clone(&stepped_us), Instant::now());
        CheckedClock::new(Arc::new(move || {
            let monotonic_us = i64::try_from(begun.elapsed().as_micros()).unwrap();
            clocks::Moment {
                wall_us: NOW_US + monotonic_us + stepped_us.load(Ordering::Relaxed),
                monotonic_us,
            }
        }))
    };
    stage.set(Mode::Due(NOW_US));
    let pace = Pace {
        patience: Duration::ZERO,
        ..pace()
    };
    let mut watcher = Watcher::new(
        Arc::clone(&stage.bus) as Arc<dyn Bus>,
        Arc::clone(&stage.positions),
        Source::Duty(duty::DELIVERING),
        pace,
        clock,
    );
    let is_well = Standing::Well { behind: 0 };
    assert_eq!(watcher.look().await, is_well);
    stepped_us.store(3_600_000_000, Ordering::Relaxed);
    assert_eq!(watcher.look().await, is_well);
    // A notice that is really overdue is found all the same.
    stage.set(Mode::Due(NOW_US - 3_600_000_000));
    assert!(matches!(watcher.look().await, Standing::Still { .. }));
}

#[tokio::test]
async fn another_replicas_partition_is_a_warning_here() {
    let stage = Stage::new();
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(stage._dir.path()).unwrap());
    let claims = Claims::new(Arc::clone(&stage.bus) as Arc<dyn Bus>, store, "alerting");
    let own = Own::duty(duty::JUDGING, Level::Failing, Some(Arc::clone(&claims)));
    stage.watch(own);
    stage.publish(Topic::Vitals).await;
    // With no partition at all this replica may have lost its subscription.
    let fails = fails_with("alerts are not being judged");
    stage.until("nobody's partition", fails).await;
    let extents = stage.bus.extents(Topic::Vitals).await.unwrap();
    let (waiting, _) = extents.iter().find(|(_, it)| it.next > 0).unwrap();
    let other = (0..8).find(|partition| partition != waiting).unwrap();
    bus::StartAt::start(&*claims, Topic::Vitals, other)
        .await
        .unwrap();
    let warns = |health: &Health| health.is_ready() && health.warnings().len() == 1;
    stage.until("another's partition", warns).await;
    bus::StartAt::start(&*claims, Topic::Vitals, *waiting)
        .await
        .unwrap();
    let fails = fails_with("alerts are not being judged");
    stage.until("its own partition", fails).await;
}

#[tokio::test]
async fn a_group_without_a_store_is_judged_by_its_commits() {
    let stage = Stage::new();
    let duty = consumer_health::Duty {
        topic: Topic::DeadLetters,
        ..duty::TELLING
    };
    stage.watch(Own::duty(duty, Level::Failing, None));
    stage.publish(Topic::DeadLetters).await;
    let fails = fails_with("people are not being notified of alerts");
    stage.until("standing still", fails).await;
    let joined = stage
        .bus
        .subscribe(Topic::DeadLetters, duty.group, Arc::new(Committed));
    let mut consumer = joined.await.unwrap();
    while !matches!(consumer.next(1).await.unwrap(), Event::Batch(_)) {}
    consumer.commit(&[(0, 1)]).await.unwrap();
    stage.until("well again", is_well).await;
}

#[tokio::test]
async fn an_outbox_whose_oldest_stays_stands_still() {
    let stage = Stage::new();
    stage.watch(Own::duty(duty::PUBLISHING, Level::Failing, None));
    stage.set(Mode::Done(vec![7, 8]));
    let fails = fails_with("alerts do not leave the store");
    stage.until("standing still", fails).await;
    stage.set(Mode::Done(Vec::new()));
    stage.until("well again", is_well).await;
}

#[tokio::test]
async fn a_reader_without_a_group_is_judged_by_what_it_passed() {
    let stage = Stage::new();
    let seen = Arc::new(Seen::default());
    let topic = Topic::DeadLetters;
    stage.watch(Own {
        name: "live",
        source: Source::Reader {
            topic,
            seen: Arc::clone(&seen),
        },
        stands: "the page is not up to date",
        does: "the page is up to date",
        label: Some(("topic", "dead-letters")),
        ..one_partition(Level::Failing)
    });
    stage
        .until("it has not begun", fails_with("reading has not begun"))
        .await;
    seen.begin(&stage.bus.extents(topic).await.unwrap());
    stage.until("well", is_well).await;
    stage.publish(topic).await;
    let fails = fails_with("the page is not up to date");
    stage.until("standing still", fails).await;
    seen.passed(0, 1);
    stage.until("well again", is_well).await;
}
