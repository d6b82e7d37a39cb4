//! Consumes the topic `vitals` and writes its samples and gaps to the store, each batch with its progress in one transaction.
//! A large batch is written in two transactions at once, of different partitions: while one waits for the store's log or
//! prepares its rows, the other's rows are being written.
//!
//! A batch that the store cannot take now is tried again until it can: the bus keeps what follows. A record that it will never
//! take goes to the dead letters with the reason, and progress passes over it only once it is there. So does a copy of a record
//! with fields that this version does not know: what it knows is stored, and the whole is there for a program that knows the rest.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bus::{Bus, Delivery, Event, StartAt, Topic, dead_letter};
use consumer_health::{Level, Own, Pace, duty};
use contracts::{canary::is_canary, vitals::VitalsRecord};
use prost::Message;
use service_kit::{Backoff, Context, ProgressHandle, telemetry::continue_trace};
use store::{Claims, Store, VitalsBatch, WriteError};
use tokio::time::MissedTickBehavior;
use tracing::Instrument;

use crate::GROUP;

/// Records taken from the bus at once; more wait there. An alert's transaction waits for at most one of these.
const BATCH_RECORDS_MAX: usize = 500;
/// A batch of fewer records is one transaction: a second commit would cost more than it saves.
const HALVED_RECORDS_MIN: usize = 100;
/// How often the bus is told of progress, and lost claims are looked at.
const TICK: Duration = Duration::from_secs(1);
/// The loop counts as stalled after so long without a turn.
const SILENCE_MAX: Duration = Duration::from_secs(60);

struct Loop {
    bus: Arc<dyn Bus>,
    store: Arc<dyn Store>,
    claims: Arc<Claims<dyn Store>>,
    context: Context,
}

pub async fn run(bus: Arc<dyn Bus>, store: Arc<dyn Store>, context: Context) {
    let progress = context.health().progress("to-store", SILENCE_MAX);
    let shutdown = context.shutdown().clone();
    let this = Loop {
        claims: Claims::new(Arc::clone(&store), GROUP),
        bus,
        store,
        context,
    };
    // A sink that stands still takes ingest out of service for nobody: what comes is safe on the bus, and alerting reads it there.
    let own = Own::duty(
        duty::STORING_VITALS,
        Level::Warning,
        Some(Arc::clone(&this.claims)),
    );
    this.context.tasks().spawn(consumer_health::watch(
        Arc::clone(&this.bus),
        Arc::clone(&this.store),
        own,
        Pace::default(),
        this.context.clone(),
    ));
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut backoff = Backoff::for_reconnect();
    while !shutdown.is_requested() {
        progress.beat();
        let start = Arc::clone(&this.claims) as Arc<dyn StartAt>;
        let mut consumer = match this.bus.subscribe(Topic::Vitals, GROUP, start).await {
            Ok(consumer) => consumer,
            Err(e) => {
                tracing::warn!(error = %e, "cannot consume vitals");
                tokio::select! {
                    () = shutdown.requested() => return,
                    () = backoff.wait() => continue,
                }
            }
        };
        loop {
            progress.beat();
            let event = tokio::select! {
                () = shutdown.requested() => return,
                _ = tick.tick() => {
                    consumer.renew(&this.claims.to_renew(Topic::Vitals));
                    if let Err(error) = consumer.commit(&this.claims.to_commit(Topic::Vitals)).await {
                        tracing::debug!(%error, "offsets not committed");
                    }
                    continue;
                }
                event = consumer.next(BATCH_RECORDS_MAX) => event,
            };
            match event {
                Ok(Event::Assigned(partitions)) => {
                    tracing::info!(partitions = bus::listed(&partitions), "assigned");
                }
                Ok(Event::Revoked(partitions)) => {
                    tracing::info!(partitions = bus::listed(&partitions), "revoked");
                    this.claims.forget(Topic::Vitals, partitions);
                }
                Ok(Event::Batch(deliveries)) => {
                    backoff.reset();
                    if !this.store(deliveries, &progress).await {
                        return;
                    }
                }
                Err(e) => {
                    tracing::warn!(error = %e, "the bus or the claims do not answer");
                    tokio::select! {
                        () = shutdown.requested() => return,
                        () = backoff.wait() => {}
                    }
                }
            }
        }
    }
}

impl Loop {
    /// False when the service ends before the batch is stored.
    async fn store(&self, mut deliveries: Vec<Delivery>, progress: &ProgressHandle) -> bool {
        deliveries.retain(|d| self.claims.holds(d.topic, d.partition));
        let started = std::time::Instant::now();
        let published_us = deliveries.first().map(|d| d.published_us);
        let (one, other) = halve(deliveries);
        let stored = tokio::join!(
            self.store_part(one, progress),
            self.store_part(other, progress)
        );
        if stored != (true, true) {
            return false;
        }
        metrics::histogram!("braid_ingest_store_seconds").record(started.elapsed());
        if let Some(published_us) = published_us {
            let waited_s = (contracts::now_us() - published_us).max(0) as f64 / 1e6;
            metrics::histogram!("braid_ingest_published_to_stored_seconds").record(waited_s);
        }
        true
    }

    /// False when the service ends before all of it is stored.
    async fn store_part(&self, deliveries: Vec<Delivery>, progress: &ProgressHandle) -> bool {
        let (batch, wanting) = decode(&deliveries);
        for (delivery, reason) in wanting {
            if !self.bury(delivery, &reason).await {
                return false;
            }
        }
        // What is refused as a whole is tried record by record, so that one bad record holds up none of the others.
        let mut parts = vec![(deliveries, Arc::new(batch))];
        while let Some((part, batch)) = parts.pop() {
            match self.write(part, batch, progress).await {
                Outcome::Stored => {}
                Outcome::Refused(part, reason) => match part.as_slice() {
                    [single] => {
                        if !self.bury(single, &reason).await || !self.pass(single).await {
                            return false;
                        }
                    }
                    _ => parts.extend(part.into_iter().rev().map(|single| {
                        let single = vec![single];
                        let batch = decode(&single).0;
                        (single, Arc::new(batch))
                    })),
                },
                Outcome::Ending => return false,
            }
        }
        true
    }

    /// Tries until the rows are stored, refused or somebody else's.
    async fn write(
        &self,
        mut part: Vec<Delivery>,
        mut batch: Arc<VitalsBatch>,
        progress: &ProgressHandle,
    ) -> Outcome {
        let mut backoff = Backoff::for_reconnect();
        loop {
            if part.is_empty() {
                return Outcome::Stored;
            }
            progress.beat();
            let advance = self.claims.progress(&part);
            let span = tracing::info_span!("store", samples = batch.samples.len());
            if let Some(traced) = batch.samples.iter().find(|s| !s.traceparent.is_empty()) {
                continue_trace(&span, &traced.traceparent);
            }
            let write = self.store.write_vitals(Arc::clone(&batch), advance.clone());
            match write.instrument(span).await {
                Ok(written) => {
                    metrics::counter!("braid_ingest_stored_rows_total").increment(written.new);
                    metrics::counter!("braid_ingest_stored_duplicates_total")
                        .increment(written.duplicate);
                    self.claims.stored(&advance);
                    return Outcome::Stored;
                }
                Err(WriteError::Fenced(partitions)) => {
                    let lost: Vec<u32> = partitions.iter().map(|(_, p)| *p).collect();
                    tracing::info!(
                        partitions = bus::listed(&lost),
                        "another member has taken over"
                    );
                    // Without one of these partitions the same write would be fenced again.
                    if part.iter().all(|d| !lost.contains(&d.partition)) {
                        let reason = format!(
                            "fenced by partitions it does not have: {}",
                            bus::listed(&lost)
                        );
                        return Outcome::Refused(part, reason);
                    }
                    part.retain(|d| !lost.contains(&d.partition));
                    self.claims.fenced(Topic::Vitals, lost);
                    batch = Arc::new(decode(&part).0);
                }
                Err(WriteError::Unavailable(reason)) => {
                    metrics::counter!("braid_ingest_store_retries_total").increment(1);
                    tracing::warn!(reason, "the store does not take rows; the bus keeps them");
                    tokio::select! {
                        () = self.context.shutdown().requested() => return Outcome::Ending,
                        () = backoff.wait() => {}
                    }
                }
                Err(
                    e @ (WriteError::Invalid(_) | WriteError::Unfit(_) | WriteError::Conflict(_)),
                ) => {
                    return Outcome::Refused(part, e.to_string());
                }
            }
        }
    }

    /// Stores the progress over a record that has no rows.
    async fn pass(&self, delivery: &Delivery) -> bool {
        let mut backoff = Backoff::for_reconnect();
        loop {
            let advance = self.claims.progress(std::slice::from_ref(delivery));
            match self.store.write_vitals(Arc::default(), advance).await {
                Err(WriteError::Unavailable(_)) => tokio::select! {
                    () = self.context.shutdown().requested() => return false,
                    () = backoff.wait() => {}
                },
                // A fence shows itself with the next batch.
                Ok(_) | Err(_) => return true,
            }
        }
    }

    /// False when the service ends before the record is kept.
    async fn bury(&self, delivery: &Delivery, reason: &str) -> bool {
        let ending = self.context.shutdown().requested();
        dead_letter::bury(&*self.bus, delivery, GROUP, reason, ending).await
    }
}

enum Outcome {
    Stored,
    /// The store will never take it as it is.
    Refused(Vec<Delivery>, String),
    Ending,
}

/// Two parts that have no partition in common, about equal in records; each partition keeps its order.
fn halve(deliveries: Vec<Delivery>) -> (Vec<Delivery>, Vec<Delivery>) {
    if deliveries.len() < HALVED_RECORDS_MIN {
        return (deliveries, Vec::new());
    }
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for delivery in &deliveries {
        *counts.entry(delivery.partition).or_default() += 1;
    }
    let mut partitions: Vec<(u32, usize)> = counts.into_iter().collect();
    partitions.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let (mut ones, mut of_one, mut of_other) = (Vec::new(), 0, 0);
    for (partition, count) in partitions {
        if of_one <= of_other {
            ones.push(partition);
            of_one += count;
        } else {
            of_other += count;
        }
    }
    deliveries
        .into_iter()
        .partition(|delivery| ones.contains(&delivery.partition))
}

/// What the copy of a record of a newer version says in the dead letters.
const NEWER: &str =
    "has fields of a newer version: what this version knows is stored, all of it is kept here only";

/// Rows of all records that can be read, and those that cannot as a whole, with the reason.
fn decode(deliveries: &[Delivery]) -> (VitalsBatch, Vec<(&Delivery, String)>) {
    let mut batch = VitalsBatch::default();
    let mut wanting = Vec::new();
    for delivery in deliveries {
        match VitalsRecord::decode(delivery.value.clone()) {
            Ok(record) => {
                // Every field that is known is written as it was read, so what is missing then was not known.
                if record.encoded_len() < delivery.value.len() {
                    wanting.push((delivery, NEWER.to_owned()));
                }
                // The canary's readings are nobody's and end here.
                let samples = record.samples.into_iter();
                batch
                    .samples
                    .extend(samples.filter(|it| !is_canary(&it.patient)));
                batch.gaps.extend(record.gaps);
                batch.quarantined.extend(record.quarantined);
            }
            Err(e) => wanting.push((delivery, format!("no VitalsRecord: {e}"))),
        }
    }
    (batch, wanting)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(partition: u32, offset: u64) -> Delivery {
        Delivery {
            topic: Topic::Vitals,
            partition,
            offset,
            key: String::new(),
            value: Default::default(),
            headers: Vec::new(),
            published_us: 0,
        }
    }

    #[test]
    fn halves_share_no_partition_and_keep_its_order() {
        let deliveries: Vec<Delivery> = (0..HALVED_RECORDS_MIN as u64 + 40)
            .map(|n| delivery([0, 1, 0, 2, 0, 3][n as usize % 6], n))
            .collect();
        let (one, other) = halve(deliveries.clone());
        assert_eq!(one.len() + other.len(), deliveries.len());
        assert!(one.len().abs_diff(other.len()) <= deliveries.len() / 10);
        for half in [&one, &other] {
            assert!(half.is_sorted_by_key(|d| d.offset));
            let elsewhere = if std::ptr::eq(half, &one) {
                &other
            } else {
                &one
            };
            assert!(
                half.iter()
                    .all(|d| elsewhere.iter().all(|e| e.partition != d.partition))
            );
        }
    }

    #[test]
    fn a_small_batch_and_a_single_partition_stay_whole() {
        let small: Vec<Delivery> = (0..4).map(|n| delivery(n, 0)).collect();
        assert!(halve(small).1.is_empty());
        let single: Vec<Delivery> = (0..1000).map(|n| delivery(7, n)).collect();
        assert!(halve(single).1.is_empty());
    }
}
