//! Publishes the outbox. Every stored transition goes to the topic `alerts`, at least once.
//!
//! Alerts of high priority go first, and the others in stored order, one call of a partition at a
//! time. The transitions of one alert keep their order. A partition without a leader delays only
//! the alerts of its own patients. High alerts are also offered to those who notify people, so that
//! they wait for no backlog of the topic.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bus::{Bus, PublishError, Record, Topic, partition_of};
use contracts::alerts::Alert;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use prost::Message;
use service_kit::{Backoff, Context};
use store::{OutboxEntry, QueryError, Store};
use tokio::sync::Notify;

use crate::{
    express::{Offers, is_high},
    stalled::LOOP_SILENCE_MAX,
};

/// Entries of one call. More wait in the store.
const CALL_ENTRIES_MAX: usize = 256;
/// Entries that are read at most. While more of a partition without a leader wait, alerts of other
/// partitions wait behind them.
const READ_ENTRIES_MAX: usize = 4_096;
/// Poll interval for transitions of another member, and of a call that failed.
const POLL: Duration = Duration::from_millis(500);

/// A partition of the topic.
struct Part {
    state: State,
    /// Why the last call failed.
    failure: Option<String>,
    backoff: Backoff,
}

enum State {
    Idle,
    /// A call is under way since then.
    Publishing(Instant),
    /// The last call failed, and the next one waits until then.
    Paused(Instant),
}

impl Part {
    fn new() -> Part {
        Part {
            state: State::Idle,
            failure: None,
            backoff: Backoff::for_reconnect(),
        }
    }

    fn may_begin(&self) -> bool {
        match self.state {
            State::Idle => true,
            State::Publishing(_) => false,
            State::Paused(until) => Instant::now() >= until,
        }
    }

    fn is_stuck(&self) -> bool {
        matches!(self.state, State::Publishing(since) if since.elapsed() >= LOOP_SILENCE_MAX)
    }

    fn on_end(&mut self, published: Result<(), String>) {
        self.failure = published.err();
        self.state = match self.failure {
            None => {
                self.backoff.reset();
                State::Idle
            }
            Some(_) => State::Paused(Instant::now() + self.backoff.next_delay()),
        };
    }
}

pub(crate) async fn run(
    bus: Arc<dyn Bus>,
    store: Arc<dyn Store>,
    outbox: Arc<Notify>,
    mut offers: Offers,
    context: Context,
) {
    let check = context.health().check("outbox");
    let turns = context.health().progress("outbox", LOOP_SILENCE_MAX);
    let shutdown = context.shutdown().clone();
    let mut parts: BTreeMap<u32, Part> = BTreeMap::new();
    let mut calls = FuturesUnordered::new();
    let mut limit = CALL_ENTRIES_MAX;
    loop {
        if !parts.values().any(Part::is_stuck) {
            turns.beat();
        }
        // A last read after the shutdown request publishes everything stored before it.
        let ends = shutdown.is_requested();
        let entries = read(store.as_ref(), limit).await;
        let unread = entries.as_ref().err().map(ToString::to_string);
        let failure = || parts.values().find_map(|part| part.failure.clone());
        match unread.or_else(failure) {
            Some(reason) => check.failing(reason),
            None => check.ok(),
        }
        let entries = entries.unwrap_or_default();
        offers.offer(&entries);
        let is_full = entries.len() >= limit;
        // By the next read, these entries may be under way.
        let next_limit = (CALL_ENTRIES_MAX + entries.len()).min(READ_ENTRIES_MAX);
        let ready = ready(entries, &parts);
        let goes_on = is_full && (next_limit > limit || !ready.is_empty());
        limit = next_limit;
        for (number, entries) in ready {
            let part = parts.entry(number).or_insert_with(Part::new);
            part.state = State::Publishing(Instant::now());
            let (bus, store) = (Arc::clone(&bus), Arc::clone(&store));
            calls.push(async move {
                let published = publish_and_clear(bus.as_ref(), store.as_ref(), entries).await;
                (number, published)
            });
        }
        if ends && calls.is_empty() {
            return;
        }
        tokio::select! {
            Some((number, published)) = calls.next() => {
                parts.entry(number).or_insert_with(Part::new).on_end(published);
            }
            () = std::future::ready(()), if goes_on => {}
            () = shutdown.requested(), if !ends => {}
            () = outbox.notified() => {}
            () = tokio::time::sleep(POLL) => {}
        }
    }
}

/// High alerts come first. They are read apart only if others fill the read.
async fn read(store: &dyn Store, limit: usize) -> Result<Vec<OutboxEntry>, QueryError> {
    let oldest = store.outbox(limit).await?;
    if oldest.len() < limit {
        let urgent = |entry: &OutboxEntry| entry.alert.as_ref().is_none_or(|it| !is_high(it));
        let mut entries = oldest;
        // The sort is stable: the transitions of one alert keep their order.
        entries.sort_by_key(urgent);
        return Ok(entries);
    }
    let mut entries = store.urgent_outbox(limit).await?;
    let urgent: HashSet<u64> = entries.iter().map(|entry| entry.id).collect();
    let others = oldest.into_iter().filter(|it| !urgent.contains(&it.id));
    entries.extend(others);
    Ok(entries)
}

/// The entries of partitions that may publish now, in their order.
fn ready(
    entries: Vec<OutboxEntry>,
    parts: &BTreeMap<u32, Part>,
) -> BTreeMap<u32, Vec<OutboxEntry>> {
    let mut ready: BTreeMap<u32, Vec<OutboxEntry>> = BTreeMap::new();
    for entry in entries {
        // Unreadable rows have no patient, and are cleared with those of one partition.
        let patient = entry.alert.as_ref().map(|alert| alert.patient.as_str());
        let patient = patient.unwrap_or_default();
        let number = partition_of(patient, Topic::Alerts.default_partitions());
        if parts.get(&number).is_none_or(Part::may_begin) {
            let of_part = ready.entry(number).or_default();
            if of_part.len() < CALL_ENTRIES_MAX {
                of_part.push(entry);
            }
        }
    }
    ready
}

async fn publish_and_clear(
    bus: &dyn Bus,
    store: &dyn Store,
    entries: Vec<OutboxEntry>,
) -> Result<(), String> {
    let ids: Vec<u64> = entries.iter().map(|entry| entry.id).collect();
    let alerts: Vec<Alert> = entries.into_iter().filter_map(|it| it.alert).collect();
    if alerts.len() < ids.len() {
        let rows = (ids.len() - alerts.len()) as u64;
        tracing::error!(
            rows,
            "unreadable alerts are not published; they notify nobody"
        );
        metrics::counter!("braid_alerting_unpublishable_total").increment(rows);
    }
    match publish(bus, &alerts).await {
        Err(error) if !error.is_retryable() => one_by_one(bus, &alerts).await,
        published => published,
    }
    .map_err(|error| error.to_string())?;
    metrics::counter!("braid_alerting_published_total").increment(ids.len() as u64);
    store
        .clear_outbox(&ids)
        .await
        .map_err(|error| error.to_string())
}

async fn publish(bus: &dyn Bus, alerts: &[Alert]) -> Result<(), PublishError> {
    let records = alerts.iter().map(record).collect();
    bus.publish(Topic::Alerts, records).await
}

/// Publishes each alert alone. One that the bus will never accept stays in the store and on the
/// page, and blocks no other.
async fn one_by_one(bus: &dyn Bus, alerts: &[Alert]) -> Result<(), PublishError> {
    for alert in alerts {
        match publish(bus, std::slice::from_ref(alert)).await {
            Err(error) if !error.is_retryable() => {
                tracing::error!(alert = alert.id, revision = alert.revision, %error, "the bus refuses this alert; it notifies nobody");
                metrics::counter!("braid_alerting_unpublishable_total").increment(1);
            }
            published => published?,
        }
    }
    Ok(())
}

fn record(alert: &Alert) -> Record {
    let record = Record::new(alert.patient.clone(), alert.encode_to_vec());
    if alert.traceparent.is_empty() {
        return record;
    }
    record.header("traceparent", alert.traceparent.clone())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;
    use bus::{EmbeddedBus, EmbeddedOptions, Event, Interposed};
    use store::{AlertsBatch, SqliteStore};

    use super::*;
    use crate::express;

    #[tokio::test]
    async fn an_alert_that_the_bus_will_never_take_holds_up_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let bus = EmbeddedBus::open(directory.path(), EmbeddedOptions::default()).unwrap();
        let store: &dyn Store = &SqliteStore::open(directory.path()).unwrap();
        let transitions = ["one", "too-large", "other"].map(|id| Alert {
            id: id.into(),
            patient: "ada".into(),
            revision: 1,
            summary: "x".repeat(if id == "too-large" { 2 << 20 } else { 1 }),
            ..Alert::default()
        });
        let batch = AlertsBatch {
            transitions: transitions.to_vec(),
            ..AlertsBatch::default()
        };
        store.write_alerts(batch, Vec::new()).await.unwrap();
        let entries = store.outbox(10).await.unwrap();
        assert_eq!(publish_and_clear(&bus, store, entries).await, Ok(()));
        assert_eq!(store.outbox(10).await.unwrap().len(), 0);
        let mut told = bus.read_back(Topic::Alerts).await.unwrap();
        let Event::Batch(batch) = told.next(10).await.unwrap() else {
            panic!()
        };
        let ids = batch.iter().map(|it| Alert::decode(it.value.clone()));
        let ids: Vec<String> = ids.map(|alert| alert.unwrap().id).collect();
        assert_eq!(ids, ["one", "other"]);
    }

    /// The partition of one patient has no leader.
    struct Leaderless {
        inner: EmbeddedBus,
        patient: &'static str,
        calls: AtomicUsize,
    }

    #[async_trait]
    impl Interposed for Leaderless {
        fn inner(&self) -> &dyn Bus {
            &self.inner
        }

        async fn publish(&self, topic: Topic, records: Vec<Record>) -> Result<(), PublishError> {
            if !records.iter().any(|record| record.key == self.patient) {
                return self.inner.publish(topic, records).await;
            }
            // The first call hangs for a moment, and later ones fail.
            if self.calls.fetch_add(1, Ordering::Relaxed) == 0 {
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
            Err(PublishError::Unavailable("no leader".into()))
        }
    }

    async fn store_one(store: &dyn Store, patient: &str, number: usize) {
        let alert = Alert {
            id: format!("{patient}-{number}"),
            patient: patient.into(),
            revision: 1,
            ..Alert::default()
        };
        let batch = AlertsBatch {
            transitions: vec![alert],
            ..AlertsBatch::default()
        };
        store.write_alerts(batch, Vec::new()).await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_partition_without_a_leader_delays_only_its_own_alerts() {
        let partition = |patient| partition_of(patient, Topic::Alerts.default_partitions());
        assert_ne!(partition("ada"), partition("ben"));
        let directory = tempfile::tempdir().unwrap();
        let bus = Arc::new(Leaderless {
            inner: EmbeddedBus::open(directory.path(), EmbeddedOptions::default()).unwrap(),
            patient: "ada",
            calls: AtomicUsize::new(0),
        });
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(directory.path()).unwrap());
        // More than one call takes, so that they fill a read.
        for number in 0..=CALL_ENTRIES_MAX {
            store_one(store.as_ref(), "ada", number).await;
        }
        let (outbox, context) = (Arc::new(Notify::new()), Context::new("alerting"));
        let running = tokio::spawn(run(
            Arc::clone(&bus) as Arc<dyn Bus>,
            Arc::clone(&store),
            Arc::clone(&outbox),
            express::lane().0,
            context.clone(),
        ));
        for number in 0..8 {
            let begun = Instant::now();
            store_one(store.as_ref(), "ben", number).await;
            outbox.notify_one();
            let all = CALL_ENTRIES_MAX + 10;
            let is_left =
                |entry: &OutboxEntry| entry.alert.as_ref().is_some_and(|it| it.patient == "ben");
            while store.outbox(all).await.unwrap().iter().any(is_left) {
                assert!(begun.elapsed() < Duration::from_secs(20), "alert {number}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            if number > 0 {
                let took = begun.elapsed();
                assert!(took < 3 * POLL, "alert {number} took {took:?}");
            }
        }
        assert!(bus.calls.load(Ordering::Relaxed) > 0);
        assert_eq!(
            store.outbox(1_000).await.unwrap().len(),
            CALL_ENTRIES_MAX + 1
        );
        context.shutdown().request();
        let ended = tokio::time::timeout(Duration::from_secs(30), running);
        ended.await.unwrap().unwrap();
    }
}
