//! Writes the topic `paths` to the store: rows and progress in one transaction.

use std::{sync::Arc, time::Duration};

use bus::{Bus, Delivery, Event, StartAt, Topic, dead_letter};
use consumer_health::{Level, Own, Pace, duty};
use contracts::paths::{PathReport, PathsRecord};
use prost::Message;
use service_kit::{Backoff, CheckHandle, Context, ProgressHandle};
use store::{Claims, Store, WriteError};
use tokio::time::MissedTickBehavior;

use crate::STORE_GROUP;

/// Records taken from the bus at once; more wait there.
const BATCH_RECORDS_MAX: usize = 512;
/// How often the bus is told of progress, and lost claims are looked at.
const TICK: Duration = Duration::from_secs(5);
/// The loop counts as stalled after so long without a turn.
const SILENCE_MAX: Duration = Duration::from_secs(60);

enum Written {
    Stored,
    /// The store will never take it as it is.
    Refused(Vec<(Delivery, Vec<PathReport>)>, String),
    /// The service ends, or progress cannot be stored: nothing behind this may be written.
    Ended,
}

struct Sink {
    bus: Arc<dyn Bus>,
    store: Arc<dyn Store>,
    claims: Arc<Claims<dyn Store>>,
    check: CheckHandle,
    /// Beats with each try of the store, too: one that is away is no reason to start this anew.
    turns: ProgressHandle,
    context: Context,
}

pub(crate) async fn run(bus: Arc<dyn Bus>, store: Arc<dyn Store>, context: Context) {
    let shutdown = context.shutdown().clone();
    let claims = Claims::new(Arc::clone(&store), STORE_GROUP);
    // Reports go on to the bus, and policies come from there, while the sink stands still.
    let own = Own::duty(
        duty::STORING_PATHS,
        Level::Warning,
        Some(Arc::clone(&claims)),
    );
    context.tasks().spawn(consumer_health::watch(
        Arc::clone(&bus),
        Arc::clone(&store),
        own,
        Pace::default(),
        context.clone(),
    ));
    let sink = Sink {
        bus: Arc::clone(&bus),
        store,
        claims: Arc::clone(&claims),
        // Reports go on to the bus, and policies come from there.
        check: context.health().check_at_start(
            "store",
            "see why the database does not answer; the bus keeps what comes",
        ),
        turns: context.health().progress("to-store", SILENCE_MAX),
        context,
    };
    let mut backoff = Backoff::for_reconnect();
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !shutdown.is_requested() {
        sink.turns.beat();
        let start: Arc<dyn StartAt> = Arc::clone(&claims) as Arc<dyn StartAt>;
        let mut consumer = match bus.subscribe(Topic::Paths, STORE_GROUP, start).await {
            Ok(consumer) => consumer,
            Err(error) => {
                sink.check.failing(error.to_string());
                tokio::select! {
                    () = shutdown.requested() => return,
                    () = backoff.wait() => continue,
                }
            }
        };
        sink.check.ok();
        loop {
            sink.turns.beat();
            let event = tokio::select! {
                // First the end: behind a batch that it cut short nothing may be written, or that batch is nowhere.
                biased;
                () = shutdown.requested() => return,
                _ = tick.tick() => {
                    consumer.renew(&claims.to_renew(Topic::Paths));
                    if let Err(error) = consumer.commit(&claims.to_commit(Topic::Paths)).await {
                        tracing::debug!(%error, "offsets not committed");
                    }
                    continue;
                }
                event = consumer.next(BATCH_RECORDS_MAX) => event,
            };
            match event {
                Ok(Event::Assigned(_)) => {
                    backoff.reset();
                    sink.check.ok();
                }
                Ok(Event::Revoked(partitions)) => claims.forget(Topic::Paths, partitions),
                Ok(Event::Batch(deliveries)) => sink.on_batch(deliveries).await,
                // Asked again without leaving: a store that is away would cost the group a rebalance at every try.
                Err(error) => {
                    sink.check.failing(error.to_string());
                    tokio::select! {
                        () = shutdown.requested() => return,
                        () = backoff.wait() => {}
                    }
                }
            }
        }
    }
}

impl Sink {
    async fn on_batch(&self, mut deliveries: Vec<Delivery>) {
        deliveries.retain(|delivery| self.claims.holds(Topic::Paths, delivery.partition));
        let mut records = Vec::with_capacity(deliveries.len());
        for delivery in deliveries {
            let reports = match PathsRecord::decode(delivery.value.clone()) {
                Ok(record) => record.reports,
                Err(error) => {
                    let reason = format!("no PathsRecord: {error}");
                    if !self.bury(&delivery, &reason).await {
                        return;
                    }
                    Vec::new()
                }
            };
            records.push((delivery, reports));
        }
        // What is refused as a whole is tried record by record, so that one bad record takes none of the others with it.
        let mut parts = vec![records];
        while let Some(part) = parts.pop() {
            match self.write(part).await {
                Written::Stored => {}
                Written::Refused(part, reason) => match <[_; 1]>::try_from(part) {
                    // Buried already: the next batch carries the progress past it.
                    Ok([(_, reports)]) if reports.is_empty() => {
                        tracing::error!(reason, "progress cannot be stored");
                    }
                    Ok([(delivery, _)]) => {
                        if !self.bury(&delivery, &reason).await {
                            return;
                        }
                        parts.push(vec![(delivery, Vec::new())]);
                    }
                    Err(part) => parts.extend(part.into_iter().rev().map(|single| vec![single])),
                },
                Written::Ended => return,
            }
        }
    }

    /// Rows and progress of these records in one transaction; tries until the store says yes or no.
    async fn write(&self, mut part: Vec<(Delivery, Vec<PathReport>)>) -> Written {
        let mut backoff = Backoff::for_reconnect();
        loop {
            self.turns.beat();
            let progress = self
                .claims
                .progress(part.iter().map(|(delivery, _)| delivery));
            if progress.is_empty() {
                return Written::Stored;
            }
            let reports: Vec<PathReport> = part.iter().flat_map(|(_, r)| r.clone()).collect();
            let is_progress_alone = reports.is_empty();
            match self.store.write_paths(reports, progress.clone()).await {
                Ok(written) => {
                    self.claims.stored(&progress);
                    self.check.ok();
                    metrics::counter!("braid_path_telemetry_rows_total").increment(written.new);
                    metrics::counter!("braid_path_telemetry_duplicate_rows_total")
                        .increment(written.duplicate);
                    return Written::Stored;
                }
                Err(WriteError::Fenced(partitions)) => {
                    let lost: Vec<u32> = partitions.iter().map(|(_, p)| *p).collect();
                    // Without one of these partitions the same write would be fenced again.
                    if part.iter().all(|(d, _)| !lost.contains(&d.partition)) {
                        let reason = format!(
                            "fenced by partitions it does not have: {}",
                            bus::listed(&lost)
                        );
                        return Written::Refused(part, reason);
                    }
                    self.claims.fenced(Topic::Paths, lost);
                    part.retain(|(d, _)| self.claims.holds(Topic::Paths, d.partition));
                }
                Err(error) if error.is_retryable() => {
                    self.check.failing(error.to_string());
                    tokio::select! {
                        () = self.context.shutdown().requested() => return Written::Ended,
                        () = backoff.wait() => {}
                    }
                }
                // The records are buried; the next batch carries the progress past them.
                Err(error) if is_progress_alone => {
                    tracing::error!(%error, "progress cannot be stored");
                    return Written::Stored;
                }
                Err(error) => {
                    tracing::error!(%error, records = part.len(), "the store refuses reports");
                    return Written::Refused(part, error.to_string());
                }
            }
        }
    }

    /// False when the service ends before the record is kept.
    async fn bury(&self, delivery: &Delivery, reason: &str) -> bool {
        let ending = self.context.shutdown().requested();
        dead_letter::bury(&*self.bus, delivery, STORE_GROUP, reason, ending).await
    }
}
