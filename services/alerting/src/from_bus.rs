//! Consumes `vitals`, runs the rules, and has the result stored together with the progress.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bus::{Bus, Delivery, Event, Topic, dead_letter};
use bytes::Bytes;
use contracts::vitals::VitalsRecord;
use prost::Message;
use service_kit::{Backoff, Context, telemetry::continue_trace};
use store::{AlertsBatch, Claims, PatientEntry, Scope, SpO2Scale, Store};
use tokio::time::MissedTickBehavior;
use tracing::Instrument;
use vitals::{Profile, news2::Spo2Scale};

use crate::{
    GROUP, book, now_us,
    to_store::{Outcome, Writer},
    ward::Ward,
};

/// Records taken from the bus at once; more wait there.
const BATCH_RECORDS_MAX: usize = 512;
/// How often time passes for rules that wait for it.
const TICK: Duration = Duration::from_secs(1);
/// The loop counts as stalled after so long without a turn.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Partition, key and content of a record that can be read.
type Readable = (u32, String, VitalsRecord);

enum Evaluated {
    Stored,
    /// The store will never take it as it is.
    Refused(Vec<Delivery>, String),
    /// The service ends, or progress cannot be stored: nothing behind this may be written.
    Ended,
}

struct Loop {
    bus: Arc<dyn Bus>,
    store: Arc<dyn Store>,
    claims: Arc<Claims<dyn Store>>,
    writer: Writer,
    ward: Ward,
    book: book::Reader,
    /// Next offset of each partition as last stored.
    positions: BTreeMap<u32, u64>,
    context: Context,
}

pub(crate) async fn run(
    bus: Arc<dyn Bus>,
    store: Arc<dyn Store>,
    writer: Writer,
    mut ward: Ward,
    mut book: book::Reader,
    context: Context,
) {
    ward.set_book(Arc::clone(&book.borrow_and_update()));
    let check = context.health().check("bus");
    let progress = context.health().progress("from-bus", SILENCE_MAX);
    let shutdown = context.shutdown().clone();
    let claims = Claims::new(Arc::clone(&store), GROUP);
    let mut state = Loop {
        bus: Arc::clone(&bus),
        store,
        claims: Arc::clone(&claims),
        writer,
        ward,
        book,
        positions: BTreeMap::new(),
        context,
    };
    let mut backoff = Backoff::for_reconnect();
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    'subscribe: while !shutdown.is_requested() {
        let start: Arc<dyn bus::StartAt> = Arc::clone(&claims) as Arc<dyn bus::StartAt>;
        let mut consumer = match bus.subscribe(Topic::Vitals, GROUP, start).await {
            Ok(consumer) => consumer,
            Err(error) => {
                check.failing(error.to_string());
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
                    consumer.renew(&state.claims.to_renew(Topic::Vitals));
                    state.on_tick().await;
                    if let Err(error) = consumer.commit(&state.claims.to_commit(Topic::Vitals)).await {
                        tracing::debug!(%error, "offsets not committed");
                    }
                    if let Ok(lag) = consumer.lag().await {
                        metrics::gauge!("braid_alerting_lag_records").set(lag as f64);
                    }
                    continue;
                }
                event = consumer.next(BATCH_RECORDS_MAX) => event,
            };
            match event {
                Ok(event) => {
                    check.ok();
                    backoff.reset();
                    state.on_event(event).await;
                }
                Err(error) => {
                    check.failing(error.to_string());
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

impl Loop {
    async fn on_event(&mut self, event: Event) {
        match event {
            Event::Assigned(partitions) => {
                for partition in partitions {
                    if let Some(states) = self.writer.states(partition).await {
                        self.ward.load(partition, states);
                    }
                }
            }
            Event::Revoked(partitions) => {
                self.claims.forget(Topic::Vitals, partitions.clone());
                self.release(partitions);
            }
            Event::Batch(deliveries) => self.on_batch(deliveries).await,
        }
        metrics::gauge!("braid_alerting_patients").set(self.ward.len() as f64);
    }

    fn fenced(&mut self, partitions: impl IntoIterator<Item = u32> + Clone) {
        self.claims.fenced(Topic::Vitals, partitions.clone());
        self.release(partitions);
    }

    fn release(&mut self, partitions: impl IntoIterator<Item = u32>) {
        for partition in partitions {
            self.ward.release(partition);
            self.positions.remove(&partition);
        }
    }

    async fn on_batch(&mut self, mut deliveries: Vec<Delivery>) {
        deliveries.retain(|delivery| self.claims.holds(Topic::Vitals, delivery.partition));
        metrics::counter!("braid_alerting_records_total").increment(deliveries.len() as u64);
        let first_us = deliveries.first().map(|first| first.published_us);
        let mut records = Vec::with_capacity(deliveries.len());
        for delivery in &deliveries {
            match read(delivery) {
                Ok(record) => records.push(record),
                Err(reason) => {
                    if !self.bury(delivery, &reason).await {
                        return;
                    }
                }
            }
        }
        // What is refused as a whole is tried record by record, so that one bad record takes no other's alerts with it.
        let mut parts = vec![(deliveries, records)];
        while let Some((part, records)) = parts.pop() {
            match self.evaluate(part, records).await {
                Evaluated::Stored => {}
                Evaluated::Refused(part, reason) => match part.as_slice() {
                    [single] => {
                        if !self.bury(single, &reason).await {
                            return;
                        }
                        parts.push((part, Vec::new()));
                    }
                    _ => parts.extend(part.into_iter().rev().map(|single| {
                        let records = read(&single).into_iter().collect();
                        (vec![single], records)
                    })),
                },
                Evaluated::Ended => return,
            }
        }
        if let Some(first_us) = first_us {
            let waited_s = (now_us() - first_us).max(0) as f64 / 1e6;
            metrics::histogram!("braid_alerting_published_to_stored_seconds").record(waited_s);
        }
    }

    /// Runs the rules and has the result stored with the progress; tries until the store says yes or no.
    async fn evaluate(&mut self, mut part: Vec<Delivery>, mut records: Vec<Readable>) -> Evaluated {
        self.follow_book();
        if !self.fetch_profiles(&records).await {
            return Evaluated::Ended;
        }
        let span = tracing::info_span!("evaluate", records = records.len());
        // One span for the batch, in the trace of its first traced sample.
        let mut samples = records.iter().flat_map(|(_, _, record)| &record.samples);
        if let Some(traced) = samples.find(|sample| !sample.traceparent.is_empty()) {
            continue_trace(&span, &traced.traceparent);
        }
        loop {
            let now_us = now_us();
            let evaluation = span.in_scope(|| self.ward.evaluate(&records, now_us));
            let progress = self.claims.progress(&part);
            if progress.is_empty() {
                self.ward.undo();
                return Evaluated::Stored;
            }
            let written = self.writer.write(&evaluation.batch, &progress);
            match written.instrument(span.clone()).await {
                Outcome::Stored => {
                    self.ward.keep();
                    metrics::counter!("braid_alerting_samples_total").increment(evaluation.samples);
                    metrics::counter!("braid_alerting_skipped_samples_total")
                        .increment(evaluation.skipped);
                    count_transitions(&evaluation.batch);
                    self.claims.stored(&progress);
                    for progress in progress {
                        self.positions
                            .insert(progress.partition, progress.next_offset);
                    }
                    return Evaluated::Stored;
                }
                Outcome::Conflict(stored) => {
                    self.ward.undo();
                    metrics::counter!("braid_alerting_conflicts_total").increment(1);
                    for alert in &stored {
                        self.ward.adopt(alert);
                    }
                }
                Outcome::Fenced(partitions) => {
                    self.ward.undo();
                    part.retain(|delivery| !partitions.contains(&delivery.partition));
                    records.retain(|(partition, _, _)| !partitions.contains(partition));
                    self.fenced(partitions);
                }
                Outcome::Refused(reason) => {
                    self.ward.undo();
                    tracing::error!(reason, records = records.len(), "the store refuses a batch");
                    if records.is_empty() {
                        return Evaluated::Ended;
                    }
                    return Evaluated::Refused(part, reason);
                }
                Outcome::Ended => {
                    self.ward.undo();
                    return Evaluated::Ended;
                }
            }
        }
    }

    fn follow_book(&mut self) {
        if self.book.has_changed().unwrap_or(false) {
            let book = Arc::clone(&self.book.borrow_and_update());
            self.ward.set_book(book);
        }
    }

    async fn on_tick(&mut self) {
        self.follow_book();
        let batch = self.ward.on_time(now_us());
        if batch.transitions.is_empty() && batch.states.is_empty() {
            self.ward.keep();
            return;
        }
        let positions: Vec<Delivery> = self
            .positions
            .iter()
            .filter(|(_, next)| **next > 0)
            .map(|(partition, next)| position(*partition, *next))
            .collect();
        let progress = self.claims.progress(&positions);
        match self.writer.write(&batch, &progress).await {
            Outcome::Stored => {
                self.ward.keep();
                count_transitions(&batch);
            }
            Outcome::Conflict(stored) => {
                self.ward.undo();
                // The next tick tries again.
                stored.iter().for_each(|alert| self.ward.adopt(alert));
            }
            Outcome::Fenced(partitions) => {
                self.ward.undo();
                self.fenced(partitions);
            }
            Outcome::Refused(reason) => {
                self.ward.undo();
                tracing::error!(reason, "the store refuses what time brought");
            }
            Outcome::Ended => self.ward.undo(),
        }
    }

    /// False when the service ends before it is known which rules hold for a patient whom nobody here knows.
    async fn fetch_profiles(&mut self, records: &[Readable]) -> bool {
        let now_us = now_us();
        for key in self.ward.wanting_profile(records, now_us) {
            let Some(entry) = self.patient(&key).await else {
                if self.context.shutdown().is_requested() {
                    return false;
                }
                continue;
            };
            let (tenant, scale) = entry.map_or((String::new(), SpO2Scale::One), |entry| {
                (entry.tenant, entry.spo2_scale)
            });
            let spo2_scale = match scale {
                SpO2Scale::One => Spo2Scale::One,
                SpO2Scale::Two => Spo2Scale::Two,
            };
            let partition = records
                .iter()
                .find(|(_, own, record)| {
                    *own == key || record.samples.iter().any(|sample| sample.patient == key)
                })
                .map_or(0, |(partition, _, _)| *partition);
            let profile = Profile { spo2_scale };
            self.ward
                .set_profile(&key, partition, &tenant, profile, now_us);
        }
        true
    }

    /// The register's entry. `None`: no answer, and what was known of the patient stays; of a stranger nothing is judged before
    /// there is an answer, because other rules would end what is open.
    async fn patient(&self, key: &str) -> Option<Option<PatientEntry>> {
        let mut backoff = Backoff::for_reconnect();
        loop {
            match self.store.patient(&Scope::Service, key).await {
                Ok(entry) => return Some(entry),
                Err(error) => {
                    tracing::warn!(patient = key, %error, "the patient's scale and rules are unknown");
                }
            }
            if !self.ward.is_stranger(key) {
                return None;
            }
            tokio::select! {
                () = self.context.shutdown().requested() => return None,
                () = backoff.wait() => {}
            }
        }
    }

    /// False when the service ends before the record is kept.
    async fn bury(&self, delivery: &Delivery, reason: &str) -> bool {
        let ending = self.context.shutdown().requested();
        dead_letter::bury(&*self.bus, delivery, GROUP, reason, ending).await
    }
}

fn read(delivery: &Delivery) -> Result<Readable, String> {
    let record = VitalsRecord::decode(delivery.value.clone())
        .map_err(|error| format!("no VitalsRecord: {error}"))?;
    Ok((delivery.partition, delivery.key.clone(), record))
}

/// Stands for everything before `next` when nothing new was delivered.
fn position(partition: u32, next: u64) -> Delivery {
    Delivery {
        topic: Topic::Vitals,
        partition,
        offset: next - 1,
        key: String::new(),
        value: Bytes::new(),
        headers: Vec::new(),
        published_us: 0,
    }
}

fn count_transitions(batch: &AlertsBatch) {
    for alert in &batch.transitions {
        metrics::counter!(
            "braid_alerting_transitions_total",
            "priority" => alert.priority().as_str_name(),
            "state" => alert.state().as_str_name()
        )
        .increment(1);
    }
}
