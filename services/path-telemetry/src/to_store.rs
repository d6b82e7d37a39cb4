//! Writes the topic `paths` to the store: rows and progress in one transaction.

use std::{sync::Arc, time::Duration};

use bus::{Bus, Consumer, Delivery, Event, StartAt, Topic, dead_letter};
use contracts::paths::{PathReport, PathsRecord};
use prost::Message;
use service_kit::{Backoff, CheckHandle, Context};
use store::{Claims, Store, WriteError};
use tokio::time::MissedTickBehavior;

use crate::STORE_GROUP;

/// Records taken from the bus at once; more wait there.
const BATCH_RECORDS_MAX: usize = 512;
const LAG_INTERVAL: Duration = Duration::from_secs(5);
/// The loop counts as stalled after so long without a turn.
const SILENCE_MAX: Duration = Duration::from_secs(60);

struct Sink {
    bus: Arc<dyn Bus>,
    store: Arc<dyn Store>,
    claims: Arc<Claims<dyn Store>>,
    check: CheckHandle,
    context: Context,
}

pub(crate) async fn run(bus: Arc<dyn Bus>, store: Arc<dyn Store>, context: Context) {
    let progress = context.health().progress("to-store", SILENCE_MAX);
    let shutdown = context.shutdown().clone();
    let claims = Claims::new(Arc::clone(&store), STORE_GROUP);
    let sink = Sink {
        bus: Arc::clone(&bus),
        store,
        claims: Arc::clone(&claims),
        check: context.health().check("store"),
        context,
    };
    let mut backoff = Backoff::for_reconnect();
    let mut tick = tokio::time::interval(LAG_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    'subscribe: while !shutdown.is_requested() {
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
            progress.beat();
            let event = tokio::select! {
                () = shutdown.requested() => return,
                _ = tick.tick() => {
                    if let Ok(lag) = consumer.lag().await {
                        metrics::gauge!("braid_path_telemetry_lag_records").set(lag as f64);
                    }
                    continue;
                }
                event = consumer.next(BATCH_RECORDS_MAX) => event,
            };
            match event {
                Ok(Event::Assigned(_)) => backoff.reset(),
                Ok(Event::Revoked(partitions)) => claims.forget(Topic::Paths, partitions),
                Ok(Event::Batch(deliveries)) => sink.on_batch(deliveries, consumer.as_mut()).await,
                Err(error) => {
                    sink.check.failing(error.to_string());
                    tokio::select! {
                        () = shutdown.requested() => return,
                        () = backoff.wait() => {}
                    }
                    if matches!(error, bus::ConsumeError::StartAt(_)) {
                        continue 'subscribe;
                    }
                }
            }
        }
    }
}

impl Sink {
    async fn on_batch(&self, mut deliveries: Vec<Delivery>, consumer: &mut dyn Consumer) {
        deliveries.retain(|delivery| self.claims.holds(Topic::Paths, delivery.partition));
        let mut poisoned: Vec<(Delivery, String)> = Vec::new();
        let mut backoff = Backoff::for_reconnect();
        let mut reports = self.decode(&deliveries, &mut poisoned);
        for (delivery, reason) in &poisoned {
            self.bury(delivery, reason).await;
        }
        loop {
            let progress = self.claims.progress(&deliveries);
            if progress.is_empty() {
                return;
            }
            match self.store.write_paths(reports.clone(), progress).await {
                Ok(written) => {
                    self.check.ok();
                    metrics::counter!("braid_path_telemetry_rows_total").increment(written.new);
                    metrics::counter!("braid_path_telemetry_duplicate_rows_total")
                        .increment(written.duplicate);
                    break;
                }
                Err(WriteError::Fenced(partitions)) => {
                    self.claims.forget(
                        Topic::Paths,
                        partitions.iter().map(|(_, partition)| *partition),
                    );
                    deliveries.retain(|d| self.claims.holds(Topic::Paths, d.partition));
                    reports = self.decode(&deliveries, &mut Vec::new());
                }
                Err(error) if error.is_retryable() => {
                    self.check.failing(error.to_string());
                    tokio::select! {
                        () = self.context.shutdown().requested() => return,
                        () = backoff.wait() => {}
                    }
                }
                Err(error) if reports.is_empty() => {
                    tracing::error!(%error, "progress cannot be stored");
                    return;
                }
                Err(error) => {
                    tracing::error!(%error, reports = reports.len(), "the store refuses reports");
                    for delivery in &deliveries {
                        self.bury(delivery, &error.to_string()).await;
                    }
                    reports.clear();
                }
            }
        }
        // The store is what counts; the bus's own record serves its lag figure, so a failure here changes nothing.
        let done: Vec<(u32, u64)> = self
            .claims
            .progress(&deliveries)
            .into_iter()
            .map(|progress| (progress.partition, progress.next_offset))
            .collect();
        if let Err(error) = consumer.commit(&done).await {
            tracing::debug!(%error, "offsets not committed");
        }
    }

    fn decode(
        &self,
        deliveries: &[Delivery],
        poisoned: &mut Vec<(Delivery, String)>,
    ) -> Vec<PathReport> {
        let mut reports = Vec::new();
        for delivery in deliveries {
            match PathsRecord::decode(delivery.value.clone()) {
                Ok(record) => reports.extend(record.reports),
                Err(error) => poisoned.push((delivery.clone(), format!("no PathsRecord: {error}"))),
            }
        }
        reports
    }

    /// Keeps a record that cannot be stored for people to look at; tries until the bus has it.
    async fn bury(&self, delivery: &Delivery, reason: &str) {
        tracing::warn!(
            partition = delivery.partition,
            offset = delivery.offset,
            reason,
            "dead letter"
        );
        metrics::counter!("braid_path_telemetry_dead_letters_total").increment(1);
        let mut backoff = Backoff::for_reconnect();
        while !self.context.shutdown().is_requested() {
            let record = dead_letter::record(delivery, STORE_GROUP, reason);
            match self.bus.publish(Topic::DeadLetters, vec![record]).await {
                Err(error) if error.is_retryable() => backoff.wait().await,
                Ok(()) => return,
                Err(error) => {
                    tracing::error!(%error, "a dead letter is lost");
                    return;
                }
            }
        }
    }
}
