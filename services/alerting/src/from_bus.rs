//! Consumes `vitals`, runs the rules, and has the result stored together with the progress.
//!
//! What led to no transition is held back and stored with the next one, or after a second: until then another member would
//! judge it again and come to the same. So the way of an alert is free of writes that nobody waits for.

mod profiles;
mod refused;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bus::{Bus, Consumer, Delivery, Event, Topic, dead_letter};
use consumer_health::{Level, Own, Pace, duty};
use contracts::{alerts::Alert, vitals::VitalsRecord};
use prost::Message;
use service_kit::{Backoff, Context, ProgressHandle, telemetry::continue_trace};
use store::{AlertsBatch, Claims, Store};
use tokio::time::{MissedTickBehavior, timeout};
use tracing::Instrument;

use crate::{
    GROUP, OFFSETS_WITHIN, book,
    canary::is_canary,
    heard::Heard,
    to_store::{Outcome, Writer},
    ward::Ward,
};

/// Records taken from the bus at once; more wait there.
const BATCH_RECORDS_MAX: usize = 512;
/// Records judged and not stored as such at once; a member that takes over judges so many again.
const HELD_RECORDS_MAX: usize = 16_384;
/// Answers of the store to one batch that each changed what was tried next; past it the batch is halved, and a single record buried.
const ANSWERS_MAX: u32 = 8;
/// How often time passes for rules that wait for it, and what is held back is stored.
const TICK: Duration = Duration::from_secs(1);
/// The loop counts as stalled after so long without a turn.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Partition, key and content of a record that can be read.
type Readable = (u32, String, VitalsRecord);

enum Evaluated {
    /// Stored, or held back.
    Done,
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
    heard: Arc<Heard>,
    /// Next offset of each partition as judged; the store may be behind it.
    positions: BTreeMap<u32, u64>,
    /// Records by which it is.
    held: usize,
    /// What was published before this time has been judged.
    heard_us: i64,
    /// Beats with each question to the store, too: a store that is away is no reason to start this anew.
    turns: ProgressHandle,
    context: Context,
}

pub(crate) async fn run(
    bus: Arc<dyn Bus>,
    store: Arc<dyn Store>,
    writer: Writer,
    mut ward: Ward,
    mut book: book::Reader,
    heard: Arc<Heard>,
    context: Context,
) {
    ward.set_book(Arc::clone(&book.borrow_and_update()));
    let check = context.health().check("bus");
    let turns = context.health().progress("from-bus", SILENCE_MAX);
    let shutdown = context.shutdown().clone();
    let claims = Claims::new(Arc::clone(&store), GROUP);
    let own = Own::duty(duty::JUDGING, Level::Failing, Some(Arc::clone(&claims)));
    context.tasks().spawn(consumer_health::watch(
        Arc::clone(&bus),
        Arc::clone(&store),
        own,
        Pace::default(),
        context.clone(),
    ));
    let mut state = Loop {
        bus: Arc::clone(&bus),
        store,
        claims: Arc::clone(&claims),
        writer,
        ward,
        book,
        heard,
        positions: BTreeMap::new(),
        held: 0,
        heard_us: 0,
        turns,
        context,
    };
    let mut backoff = Backoff::for_reconnect();
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !shutdown.is_requested() {
        state.turns.beat();
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
            state.turns.beat();
            let event = tokio::select! {
                // First the end: behind a batch that it cut short nothing may be written, or nobody judges that batch.
                biased;
                () = shutdown.requested() => {
                    state.store_held().await;
                    return;
                }
                _ = tick.tick() => {
                    consumer.renew(&state.claims.to_renew(Topic::Vitals));
                    state.hear(&mut *consumer).await;
                    state.on_tick().await;
                    let reached = state.claims.to_commit(Topic::Vitals);
                    let telling = async {
                        if let Err(error) = consumer.commit(&reached).await {
                            tracing::debug!(%error, "offsets not committed");
                        }
                    };
                    let _ = timeout(OFFSETS_WITHIN, telling).await;
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
                // Asked again without leaving: a store that is away would cost the group a rebalance at every try.
                Err(error) => {
                    check.failing(error.to_string());
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
    /// Asks whether anything waits on the bus: while it does, or the bus is away, a delay that it may end does not end by time alone.
    async fn hear(&mut self, consumer: &mut dyn Consumer) {
        if !self.ward.is_waiting() {
            return;
        }
        let asked_us = self.context.clock().now_us();
        if let Ok(Ok(0)) = timeout(OFFSETS_WITHIN, consumer.lag()).await {
            self.heard_us = asked_us;
        }
    }

    async fn on_event(&mut self, event: Event) {
        match event {
            Event::Assigned(partitions) => {
                for partition in partitions {
                    if let Some(states) = self.writer.states(partition, &self.turns).await {
                        let now_us = self.now_us();
                        self.ward.load(partition, states, now_us);
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
        let newest_us = deliveries.iter().map(|it| it.published_us).max();
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
        self.heard.note(&deliveries, &records, self.context.clock());
        // A batch that is refused is halved until the culprit is alone, so that it takes no other's alerts with it. Each half comes
        // before what is behind it.
        let mut parts = vec![(deliveries, records)];
        while let Some((part, records)) = parts.pop() {
            let is_buried = records.is_empty();
            match self.evaluate(part, records).await {
                Evaluated::Done => {}
                Evaluated::Refused(part, reason) => match part.as_slice() {
                    [_] if is_buried => {
                        tracing::error!(reason, "the progress past a dead letter is refused");
                    }
                    [single] => {
                        if !self.bury(single, &reason).await {
                            return;
                        }
                        parts.push((part, Vec::new()));
                    }
                    _ => parts.extend(halves(part)),
                },
                Evaluated::Ended => return,
            }
        }
        if let Some(newest_us) = newest_us {
            self.heard_us = newest_us;
        }
        if let Some(first_us) = first_us {
            let waited_s = (self.now_us() - first_us).max(0) as f64 / 1e6;
            metrics::histogram!("braid_alerting_published_to_judged_seconds").record(waited_s);
        }
    }

    /// Runs the rules and has the result stored with the progress; waits while the store is away. Each other answer changes what is
    /// tried next, or is final.
    async fn evaluate(&mut self, mut part: Vec<Delivery>, mut records: Vec<Readable>) -> Evaluated {
        self.follow_book();
        let asked_us = self.now_us();
        let wanted = self.ward.wanting_profile(&records, asked_us);
        if !self.fetch_profiles(wanted, asked_us).await {
            return Evaluated::Ended;
        }
        let span = tracing::info_span!("evaluate", records = records.len());
        // One span for the batch, in the trace of its first traced sample.
        let mut samples = records.iter().flat_map(|(_, _, record)| &record.samples);
        if let Some(traced) = samples.find(|sample| !sample.traceparent.is_empty()) {
            continue_trace(&span, &traced.traceparent);
        }
        for _ in 0..ANSWERS_MAX {
            let now_us = self.now_us();
            let evaluation = span.in_scope(|| self.ward.evaluate(&records, now_us));
            let reached = self.claims.progress(&part);
            if reached.is_empty() {
                self.ward.undo();
                return Evaluated::Done;
            }
            let transitions = evaluation.transitions;
            let outcome = if transitions.is_empty() {
                self.ward.keep();
                self.held += records.len().max(1);
                None
            } else {
                let written = self.write(transitions, &part);
                Some(written.instrument(span.clone()).await)
            };
            match outcome {
                None | Some(Outcome::Stored) => {
                    metrics::counter!("braid_alerting_samples_total").increment(evaluation.samples);
                    metrics::counter!("braid_alerting_skipped_samples_total")
                        .increment(evaluation.skipped);
                    for progress in reached {
                        self.positions
                            .insert(progress.partition, progress.next_offset);
                    }
                    if self.held >= HELD_RECORDS_MAX && !self.store_held().await {
                        return Evaluated::Ended;
                    }
                    return Evaluated::Done;
                }
                // Taken over: the next try goes on from what is stored.
                Some(Outcome::Conflict { .. }) => {}
                Some(Outcome::Fenced(partitions)) => {
                    part.retain(|delivery| !partitions.contains(&delivery.partition));
                    records.retain(|(partition, _, _)| !partitions.contains(partition));
                    self.fenced(partitions);
                }
                Some(Outcome::Refused(reason)) => {
                    tracing::error!(reason, records = records.len(), "the store refuses a batch");
                    // What was held back may be the reason, and these records shall not suffer for it.
                    if self.holds_back() {
                        if !self.store_held().await {
                            return Evaluated::Ended;
                        }
                    } else {
                        return Evaluated::Refused(part, reason);
                    }
                }
                Some(Outcome::Ended) => return Evaluated::Ended,
            }
        }
        let reason = format!("the store has contradicted {ANSWERS_MAX} tries");
        tracing::error!(reason, records = records.len(), "a batch is given up");
        Evaluated::Refused(part, reason)
    }

    fn holds_back(&self) -> bool {
        self.held > 0 || self.ward.owes()
    }

    /// Writes the ward's running try, with everything that was held back; taken back unless it is stored.
    async fn write(&mut self, transitions: Vec<Alert>, part: &[Delivery]) -> Outcome {
        let before = self.positions.iter().map(|(p, next)| (*p, *next));
        let reached = before.chain(part.iter().map(|d| (d.partition, d.offset + 1)));
        let reached = reached.map(|(partition, next)| (Topic::Vitals, partition, next));
        let progress = self.claims.progress_to(reached);
        let states = self.ward.states();
        let batch = AlertsBatch {
            transitions,
            states,
        };
        let outcome = self.writer.write(&batch, &progress, &self.turns).await;
        if let Outcome::Stored = outcome {
            self.ward.stored();
            self.held = 0;
            self.claims.stored(&progress);
            count_transitions(&batch);
            return outcome;
        }
        self.ward.undo();
        if let Outcome::Conflict { stored, unreadable } = &outcome {
            metrics::counter!("braid_alerting_conflicts_total").increment(1);
            stored.iter().for_each(|alert| self.ward.adopt(alert));
            for id in unreadable {
                let said = batch.transitions.iter().filter(|alert| alert.id == *id);
                self.ward.pass_over(&said.cloned().collect::<Vec<Alert>>());
            }
        }
        outcome
    }

    /// False: the store did not answer before the service ended.
    async fn store_held(&mut self) -> bool {
        for _ in 0..ANSWERS_MAX {
            if !self.holds_back() {
                return true;
            }
            match self.write(Vec::new(), &[]).await {
                Outcome::Stored => {}
                Outcome::Fenced(partitions) => self.fenced(partitions),
                Outcome::Refused(reason) => {
                    tracing::error!(reason, "the store refuses rule states");
                    break;
                }
                // Of transitions, and there are none.
                Outcome::Conflict { .. } => break,
                Outcome::Ended => return false,
            }
        }
        self.store_each_state().await
    }

    fn now_us(&self) -> i64 {
        self.context.clock().now_us()
    }

    fn follow_book(&mut self) {
        if self.book.has_changed().unwrap_or(false) {
            let book = Arc::clone(&self.book.borrow_and_update());
            self.ward.set_book(book);
        }
    }

    async fn on_tick(&mut self) {
        self.follow_book();
        let now_us = self.now_us();
        let strangers = self.ward.waiting_strangers(now_us);
        if !self.fetch_profiles(strangers, now_us).await {
            return;
        }
        for _ in 0..ANSWERS_MAX {
            let transitions = self.ward.on_time(now_us, self.heard_us);
            if transitions.is_empty() {
                self.ward.keep();
                self.store_held().await;
                return;
            }
            match self.write(transitions, &[]).await {
                // Taken over: the next try goes on from what is stored.
                Outcome::Conflict { .. } => {}
                Outcome::Fenced(partitions) => self.fenced(partitions),
                Outcome::Refused(reason) => {
                    tracing::error!(reason, "the store refuses what time brought");
                    self.store_held().await;
                    break;
                }
                Outcome::Stored | Outcome::Ended => return,
            }
        }
        self.store_each_transition(now_us).await;
    }

    /// False when the service ends before the record is kept.
    async fn bury(&self, delivery: &Delivery, reason: &str) -> bool {
        let ending = self.context.shutdown().requested();
        dead_letter::bury(&*self.bus, delivery, GROUP, reason, ending).await
    }
}

/// Later half first: it is taken last.
fn halves(mut part: Vec<Delivery>) -> [(Vec<Delivery>, Vec<Readable>); 2] {
    let later = part.split_off(part.len() / 2);
    [later, part].map(|half| {
        let records = half.iter().filter_map(|it| read(it).ok()).collect();
        (half, records)
    })
}

fn read(delivery: &Delivery) -> Result<Readable, String> {
    let record = VitalsRecord::decode(delivery.value.clone())
        .map_err(|error| format!("no VitalsRecord: {error}"))?;
    // No store takes it as a name, and its state would be in every other's way.
    let mut names = record.samples.iter().map(|sample| &sample.patient);
    if delivery.key.contains('\0') || names.any(|patient| patient.contains('\0')) {
        return Err("a patient's name holds a NUL".to_owned());
    }
    Ok((delivery.partition, delivery.key.clone(), record))
}

fn count_transitions(batch: &AlertsBatch) {
    let transitions = batch.transitions.iter();
    for alert in transitions.filter(|alert| !is_canary(&alert.patient)) {
        metrics::counter!(
            "braid_alerting_transitions_total",
            "priority" => alert.priority().as_str_name(),
            "state" => alert.state().as_str_name()
        )
        .increment(1);
    }
}
