//! Consumes the topic `vitals` and writes its samples and gaps to the store, each batch with its progress in one transaction.
//!
//! A batch that the store cannot take now is tried again until it can: the bus keeps what follows. A record that it will never
//! take goes to the dead letters with the reason, and progress passes over it only once it is there.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bus::{Bus, Consumer, Delivery, Event, StartAt, Topic, dead_letter};
use contracts::vitals::VitalsRecord;
use prost::Message;
use service_kit::{Backoff, Context, ProgressHandle, telemetry::continue_trace};
use store::{Claims, Store, VitalsBatch, WriteError};
use tokio::time::MissedTickBehavior;
use tracing::Instrument;

use crate::{GROUP, now_us};

/// Records taken from the bus at once; more wait there. An alert's transaction waits for at most one of these.
const BATCH_RECORDS_MAX: usize = 250;
/// How often the lag is measured, and lost claims are looked at.
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
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut backoff = Backoff::for_reconnect();
    while !shutdown.is_requested() {
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
                    if let Ok(lag) = consumer.lag().await {
                        metrics::gauge!("braid_ingest_lag_records").set(lag as f64);
                    }
                    continue;
                }
                event = consumer.next(BATCH_RECORDS_MAX) => event,
            };
            match event {
                Ok(Event::Assigned(partitions)) => tracing::info!(?partitions, "assigned"),
                Ok(Event::Revoked(partitions)) => {
                    tracing::info!(?partitions, "revoked");
                    this.claims.forget(Topic::Vitals, partitions);
                }
                Ok(Event::Batch(deliveries)) => {
                    backoff.reset();
                    if !this.store(deliveries, consumer.as_mut(), &progress).await {
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
    async fn store(
        &self,
        mut deliveries: Vec<Delivery>,
        consumer: &mut dyn Consumer,
        progress: &ProgressHandle,
    ) -> bool {
        deliveries.retain(|d| self.claims.holds(d.topic, d.partition));
        let started = std::time::Instant::now();
        let (batch, unreadable) = decode(&deliveries);
        for (delivery, reason) in unreadable {
            if !self.bury(delivery, &reason).await {
                return false;
            }
        }
        let offsets = offsets(&deliveries);
        let published_us = deliveries.first().map(|d| d.published_us);
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
        metrics::histogram!("braid_ingest_store_seconds").record(started.elapsed());
        if let Some(published_us) = published_us {
            let waited_s = (now_us() - published_us).max(0) as f64 / 1e6;
            metrics::histogram!("braid_ingest_published_to_stored_seconds").record(waited_s);
        }
        // The store's progress is what counts; the bus's own serves its figures.
        if let Err(e) = consumer.commit(&offsets).await {
            tracing::debug!(error = %e, "offsets not committed");
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
            let write = self.store.write_vitals(Arc::clone(&batch), advance);
            match write.instrument(span).await {
                Ok(written) => {
                    metrics::counter!("braid_ingest_stored_rows_total").increment(written.new);
                    metrics::counter!("braid_ingest_stored_duplicates_total")
                        .increment(written.duplicate);
                    return Outcome::Stored;
                }
                Err(WriteError::Fenced(partitions)) => {
                    tracing::info!(?partitions, "another member has taken over");
                    let lost: Vec<u32> = partitions.iter().map(|(_, p)| *p).collect();
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
                Err(e @ (WriteError::Invalid(_) | WriteError::Conflict(_))) => {
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

/// Rows of all records that can be read, and those that cannot, with the reason.
fn decode(deliveries: &[Delivery]) -> (VitalsBatch, Vec<(&Delivery, String)>) {
    let mut batch = VitalsBatch::default();
    let mut unreadable = Vec::new();
    for delivery in deliveries {
        match VitalsRecord::decode(delivery.value.clone()) {
            Ok(record) => {
                batch.samples.extend(record.samples);
                batch.gaps.extend(record.gaps);
            }
            Err(e) => unreadable.push((delivery, format!("no VitalsRecord: {e}"))),
        }
    }
    (batch, unreadable)
}

fn offsets(deliveries: &[Delivery]) -> Vec<(u32, u64)> {
    let mut next: BTreeMap<u32, u64> = BTreeMap::new();
    for delivery in deliveries {
        let offset = next.entry(delivery.partition).or_default();
        *offset = (*offset).max(delivery.offset + 1);
    }
    next.into_iter().collect()
}
