//! Consumes `vitals`, runs the rules, and stores the result together with the progress.
//!
//! Records without a transition are not stored at once, but with the next transition or after a
//! second. Until then another member that takes over would judge them again with the same result.
//! So no alert waits for writes of others.
//!
//! Records of a patient without a profile are deferred, and the others judged. Progress does not
//! pass a deferred record, so another member judges it again.

mod deferred;
mod profiles;
mod questions;
mod refused;
mod register;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use bus::{Bus, Delivery, Topic};
use consumer::{Answer, Away, Consumer, Decoded, Done, Setup, Sink};
use consumer_health::{Level, duty};
use contracts::{alerts::Alert, vitals::VitalsRecord};
use prost::Message;
use service_kit::{CheckHandle, Context, ProgressHandle, WarningHandle, telemetry::continue_trace};
use store::{AlertsBatch, Claims, Progress, Store};
use tokio::{sync::Mutex, task::JoinSet, time::timeout};
use tracing::Instrument;

use deferred::{Deferred, Readable, held_to};
use questions::Questions;

use crate::{
    canary::is_canary,
    last_received::LastReceived,
    rule_engines::RuleEngines,
    rules_in_force,
    to_store::{Outcome, Writer},
};

/// Consumer group of the topic `vitals`.
pub const GROUP: &str = duty::JUDGING.group;

/// Limit for bus calls about offsets, which only feed metrics. No alert waits longer for them.
const OFFSETS_WITHIN: Duration = Duration::from_millis(250);

/// Records taken from the bus at once. The rest waits on the bus.
const BATCH_RECORDS_MAX: usize = 512;
/// Judged records whose progress is not stored yet. A member that takes over judges at most as many
/// again.
const UNSTORED_RECORDS_MAX: usize = 16_384;
/// Attempts to write one batch, each changed by the store's answer to the attempt before.
const ANSWERS_MAX: u32 = 8;

/// Records that are judged together.
#[derive(Default)]
struct Records {
    readable: Vec<Readable>,
    /// Offset of each of them.
    offsets: Vec<u64>,
    /// When the bus accepted the newest record, by the bus's clock.
    newest_us: Option<i64>,
}

struct JudgingState {
    bus: Arc<dyn Bus>,
    register: Arc<dyn register::Entries>,
    questions: Questions,
    /// Patients without a profile that were asked for, with their partition. Bounded by their
    /// records and states.
    asked_for: BTreeMap<String, u32>,
    deferred: Deferred,
    /// On while records are deferred.
    waiting: WarningHandle,
    /// The round of questions about known patients under way, if any. Judging does not wait for it.
    refreshing: JoinSet<register::Refreshed>,
    claims: Arc<Claims<dyn Store>>,
    writer: Writer,
    engines: RuleEngines,
    in_force: rules_in_force::Reader,
    heard: Arc<LastReceived>,
    /// Next offset of each partition as judged. The stored offset may be behind.
    positions: BTreeMap<u32, u64>,
    /// Records judged but not yet stored.
    unstored_records: usize,
    /// Everything published before this time has been judged.
    heard_us: i64,
    /// Also beats with each query to the store. A restart would not help against a store that is
    /// away.
    turns: Arc<ProgressHandle>,
    context: Context,
}

pub(crate) async fn run(
    bus: Arc<dyn Bus>,
    store: Arc<dyn Store>,
    writer: Writer,
    mut engines: RuleEngines,
    mut in_force: rules_in_force::Reader,
    heard: Arc<LastReceived>,
    context: Context,
) {
    engines.set_documents_in_force(Arc::clone(&in_force.borrow_and_update()));
    let check = context.health().check("bus");
    let (duty, level) = (duty::JUDGING, Level::Failing);
    let setup = Setup::new(duty, level, "from-bus", BATCH_RECORDS_MAX);
    let of_consumer = (Arc::clone(&bus), Arc::clone(&store));
    let consumer = Consumer::new(of_consumer.0, of_consumer.1, setup, context.clone());
    let register: Arc<dyn register::Entries> = Arc::new(store);
    let state = JudgingState {
        bus,
        questions: Questions::new(&register),
        register,
        asked_for: BTreeMap::new(),
        deferred: Deferred::default(),
        waiting: context.health().warning("profiles"),
        refreshing: JoinSet::new(),
        claims: consumer.claims(),
        writer,
        engines,
        in_force,
        heard,
        positions: BTreeMap::new(),
        unstored_records: 0,
        heard_us: 0,
        turns: consumer.turns(),
        context,
    };
    let state = Mutex::new(state);
    consumer.run(Judging { check, state }).await;
}

/// Sink of the consumer, which calls it from one task at a time.
struct Judging {
    check: CheckHandle,
    state: Mutex<JudgingState>,
}

#[async_trait]
impl Sink for Judging {
    type Batch = Records;

    fn decode(&self, delivery: &Delivery, records: &mut Records) -> Decoded {
        records.newest_us = records.newest_us.max(Some(delivery.published_us));
        match read(delivery) {
            Ok(record) => {
                records.readable.push(record);
                records.offsets.push(delivery.offset);
                Decoded::Whole
            }
            Err(reason) => Decoded::Refused(reason),
        }
    }

    async fn write(&self, records: Arc<Records>, progress: &[Progress]) -> Answer {
        self.state.lock().await.evaluate(&records, progress).await
    }

    fn on_away(&self, away: Away<'_>) {
        let (Away::Bus(reason) | Away::Store(reason)) = away;
        self.check.failing(reason);
    }

    fn on_well(&self) {
        self.check.ok();
    }

    async fn on_done(&self, done: Done) {
        self.state.lock().await.on_done(done);
    }

    async fn on_assigned(&self, partitions: &[u32]) {
        let mut state = self.state.lock().await;
        for partition in partitions {
            let states = state.writer.states(*partition, &state.turns).await;
            if let Some(states) = states {
                let now_us = state.now_us();
                state.engines.load(*partition, states, now_us);
            }
        }
        state.count_patients();
    }

    async fn on_lost(&self, partitions: &[u32]) {
        let mut state = self.state.lock().await;
        state.release(partitions.iter().copied());
        state.count_patients();
    }

    async fn on_tick(&self, consumer: &mut dyn bus::Consumer) {
        let mut state = self.state.lock().await;
        state.hear(consumer).await;
        state.on_tick().await;
    }

    async fn on_end(&self) {
        self.state.lock().await.store_unstored().await;
    }
}

impl JudgingState {
    /// Queries whether records wait on the bus. While they do, or the bus is away, a delay that a
    /// record may end does not end by time alone.
    async fn hear(&mut self, consumer: &mut dyn bus::Consumer) {
        if !self.engines.is_waiting() {
            return;
        }
        let asked_us = self.context.clock().now_us();
        if let Ok(Ok(0)) = timeout(OFFSETS_WITHIN, consumer.lag()).await {
            self.heard_us = asked_us;
        }
    }

    fn count_patients(&self) {
        metrics::gauge!("braid_alerting_patients").set(self.engines.len() as f64);
    }

    fn on_done(&mut self, done: Done) {
        self.heard_us = done.newest_us;
        let waited_s = (self.now_us() - done.first_us).max(0) as f64 / 1e6;
        metrics::histogram!("braid_alerting_published_to_judged_seconds").record(waited_s);
        metrics::counter!("braid_alerting_records_total").increment(done.records as u64);
        self.count_patients();
    }

    fn fenced(&mut self, partitions: impl IntoIterator<Item = u32> + Clone) {
        self.claims.fenced(Topic::Vitals, partitions.clone());
        self.release(partitions);
    }

    fn release(&mut self, partitions: impl IntoIterator<Item = u32>) {
        for partition in partitions {
            self.engines.release(partition);
            self.positions.remove(&partition);
            self.deferred.forget(partition);
            self.asked_for.retain(|_, of| *of != partition);
        }
    }

    /// One attempt to run the rules and to store the result with the progress.
    async fn evaluate(&mut self, records: &Records, progress: &[Progress]) -> Answer {
        let readable = &records.readable;
        self.heard
            .note(records.newest_us, readable, self.context.clock());
        self.follow_documents_in_force();
        let wanted = self.engines.without_profile(readable);
        self.ask_for_profiles(wanted).await;
        if !self.judge_deferred_within_bound().await {
            return Answer::Ended;
        }
        let (readable, later) = self.divide(records);
        let readable = &*readable;
        let span = tracing::info_span!("evaluate", records = readable.len());
        // The batch has one span, in the trace of its first traced sample.
        let mut samples = readable.iter().flat_map(|(_, _, record)| &record.samples);
        if let Some(traced) = samples.find(|sample| !sample.traceparent.is_empty()) {
            continue_trace(&span, &traced.traceparent);
        }
        let now_us = self.now_us();
        let evaluation = span.in_scope(|| self.engines.evaluate(readable, now_us));
        if evaluation.transitions.is_empty() {
            self.engines.keep();
            self.unstored_records += readable.len().max(1);
        } else {
            self.writer.audit(&evaluation.acknowledged, now_us).await;
            let held = later.hold(progress);
            let written = self.write(evaluation.transitions, &held);
            let outcome = written.instrument(span).await;
            if let Some(answer) = self.answer(outcome, progress).await {
                return answer;
            }
        }
        metrics::counter!("braid_alerting_samples_total").increment(evaluation.samples);
        metrics::counter!("braid_alerting_skipped_samples_total").increment(evaluation.skipped);
        let reached = progress.iter().map(|it| (it.partition, it.next_offset));
        self.positions.extend(reached);
        self.deferred.add(later);
        if self.unstored_records >= UNSTORED_RECORDS_MAX && !self.store_unstored().await {
            return Answer::Ended;
        }
        Answer::Taken
    }

    /// `None`: the batch is stored.
    async fn answer(&mut self, outcome: Outcome, progress: &[Progress]) -> Option<Answer> {
        match outcome {
            Outcome::Stored => None,
            // The engines have adopted the stored rows, so the next attempt continues from them.
            Outcome::Conflict { .. } => Some(Answer::Contradicts("other transitions".to_owned())),
            Outcome::Fenced(lost) => {
                self.fenced(lost.iter().copied());
                let is_own = progress.iter().any(|it| lost.contains(&it.partition));
                Some(match is_own {
                    true => Answer::Fenced(lost.into_iter().collect()),
                    // Unstored progress of other partitions was fenced and is dropped.
                    false => Answer::Contradicts("other partitions were fenced".to_owned()),
                })
            }
            // Unstored states may be the reason, so they are written first, without these records.
            Outcome::Refused(reason) if self.has_unstored() => {
                tracing::error!(reason, "the store refuses a batch with unstored states");
                let is_stored = self.store_unstored().await;
                Some(match is_stored {
                    true => Answer::Contradicts(reason),
                    false => Answer::Ended,
                })
            }
            Outcome::Refused(reason) => Some(Answer::Refused(reason)),
            Outcome::Ended => Some(Answer::Ended),
        }
    }

    fn has_unstored(&self) -> bool {
        self.unstored_records > 0 || self.engines.has_unstored()
    }

    /// Writes the running attempt of the engines with all unstored states and progress. Undone
    /// unless it is stored.
    async fn write(&mut self, transitions: Vec<Alert>, of_batch: &[Progress]) -> Outcome {
        let before = self.positions.iter().map(|(p, next)| (*p, *next));
        let reached = before.chain(of_batch.iter().map(|it| (it.partition, it.next_offset)));
        let first = self.deferred.first_offsets();
        let held = reached.map(|(partition, next)| (partition, held_to(&first, partition, next)));
        let held = held.map(|(partition, next)| (Topic::Vitals, partition, next));
        let progress = self.claims.progress_to(held);
        let states = self.engines.states();
        let batch = AlertsBatch {
            transitions,
            states,
        };
        let outcome = self.writer.write(&batch, &progress, &self.turns).await;
        if let Outcome::Stored = outcome {
            self.engines.stored();
            self.unstored_records = 0;
            self.claims.stored(&progress);
            count_transitions(&batch);
            return outcome;
        }
        self.engines.undo();
        if let Outcome::Conflict { stored, unreadable } = &outcome {
            metrics::counter!("braid_alerting_conflicts_total").increment(1);
            stored.iter().for_each(|alert| self.engines.adopt(alert));
            for id in unreadable {
                let said = batch.transitions.iter().filter(|alert| alert.id == *id);
                self.engines
                    .pass_over(&said.cloned().collect::<Vec<Alert>>());
            }
        }
        outcome
    }

    /// False: the store did not answer before the service ended.
    async fn store_unstored(&mut self) -> bool {
        for _ in 0..ANSWERS_MAX {
            if !self.has_unstored() {
                return true;
            }
            match self.write(Vec::new(), &[]).await {
                Outcome::Stored => {}
                Outcome::Fenced(partitions) => self.fenced(partitions),
                Outcome::Refused(reason) => {
                    tracing::error!(reason, "the store refuses rule states");
                    break;
                }
                // A conflict concerns transitions, and this write has none.
                Outcome::Conflict { .. } => break,
                Outcome::Ended => return false,
            }
        }
        self.store_each_state().await
    }

    fn now_us(&self) -> i64 {
        self.context.clock().now_us()
    }

    fn follow_documents_in_force(&mut self) {
        if self.in_force.has_changed().unwrap_or(false) {
            let in_force = Arc::clone(&self.in_force.borrow_and_update());
            self.engines.set_documents_in_force(in_force);
        }
    }

    async fn on_tick(&mut self) {
        self.follow_documents_in_force();
        let now_us = self.now_us();
        self.refresh_profiles(now_us);
        let waiting = self.engines.waiting_without_profile(now_us);
        self.ask_beside(waiting);
        self.apply_answers();
        if !self.judge_deferred().await {
            return;
        }
        self.show_deferred();
        for _ in 0..ANSWERS_MAX {
            let transitions = self.engines.on_time(now_us, self.heard_us);
            if transitions.is_empty() {
                self.engines.keep();
                self.store_unstored().await;
                return;
            }
            match self.write(transitions, &[]).await {
                // The engines have adopted the stored rows, so the next attempt continues from
                // them.
                Outcome::Conflict { .. } => {}
                Outcome::Fenced(partitions) => self.fenced(partitions),
                Outcome::Refused(reason) => {
                    tracing::error!(reason, "the store refuses transitions raised by time");
                    self.store_unstored().await;
                    break;
                }
                Outcome::Stored | Outcome::Ended => return,
            }
        }
        let transitions = self.engines.on_time(now_us, self.heard_us);
        self.store_each_transition(transitions, now_us).await;
    }
}

fn read(delivery: &Delivery) -> Result<Readable, String> {
    let record = VitalsRecord::decode(delivery.value.clone())
        .map_err(|error| format!("no VitalsRecord: {error}"))?;
    // No store accepts NUL in a name, and the state would block all others.
    let mut names = record.samples.iter().map(|sample| &sample.patient);
    if delivery.key.contains('\0') || names.any(|patient| patient.contains('\0')) {
        return Err("a patient's name contains NUL".to_owned());
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
