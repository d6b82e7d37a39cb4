//! Reads the latest signs of life from the store, and writes alerts about silence and lost paths.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use contracts::paths::PathReport;
use service_kit::{Context, Warning};
use store::{
    AlertsQuery, Assignment, Of, QueryError, Scope, Silent, SilentBatch, Store, Watched,
    WriteError, each_assignment_at, each_latest_path, each_latest_vital, each_silent,
};
use tokio::{sync::Notify, time::MissedTickBehavior};
use vitals::{RuleSet, silence};

use super::{Arrival, Known, Open, Report, Signals, Worn, assess, has_ended, subject_of};
use crate::{
    last_received::LastReceived, present::Present, signs_of_life::Signs, stalled::LOOP_SILENCE_MAX,
};

/// Interval between two rounds.
const ROUND: Duration = Duration::from_secs(5);
/// Transitions of one step, written in one transaction.
const STEP_TRANSITIONS_MAX: usize = 256;
/// Steps of one round. The rest follows in the next round.
const STEPS_MAX: usize = 40;
/// Attempts to write a step. Each leaves out at least one alert that another member wrote.
const ATTEMPTS_MAX: usize = 8;
/// Open silences of which a round asks the register whether their assignment is over. The rest
/// follows in the next rounds, because those that are over end.
const ENDINGS_MAX: usize = 1_000;
/// Open alerts read once in each life, to take over silences of a version that kept no evidence.
/// Those beyond are not taken over.
const TAKEN_OVER_MAX: usize = 100_000;
/// A look without an arrival for longer is noted. While arrivals come, they show the time.
const QUIET_US: i64 = 10_000_000;
/// Time after an admission or a resumption that is told apart from the beginning of an assignment.
/// A cuff that is used twice a day is not missed before it.
const RESUMED_US: i64 = 86_400_000_000;
/// Sensors of one question whether they ever sent.
const ASKED_MAX: usize = 500;

#[derive(Debug, thiserror::Error)]
enum RoundError {
    #[error("{0}")]
    Query(#[from] QueryError),
    #[error("{0}")]
    Write(#[from] WriteError),
}

/// One member's watch for silence.
pub(crate) struct SilenceWatch {
    pub store: Arc<dyn Store>,
    pub outbox: Arc<Notify>,
    pub rules: Arc<RuleSet>,
    pub heard: Arc<LastReceived>,
    pub silent_after_us: i64,
    pub context: Context,
}

/// State that a round leaves for the next round. Its loss with the process ends no silence. It
/// delays a verdict by one `silent_after` at most, or that about one signal up to the rules' limit.
struct Memory {
    /// Since when this member knows each open silence, by alert id.
    known: BTreeMap<String, i64>,
    /// Assigned sensors that are without a newest reading, and have sent.
    sent: BTreeSet<String>,
    has_taken_over: bool,
    /// By patient and metric.
    arrivals: Signs<(String, i32)>,
    /// By gateway, path and end.
    reports: Signs<(String, String, i32)>,
    signals: Signals,
    present: Present,
}

impl Memory {
    fn new(silent_after_us: i64) -> Memory {
        Memory {
            known: BTreeMap::new(),
            sent: BTreeSet::new(),
            has_taken_over: false,
            arrivals: Signs::new(silent_after_us),
            reports: Signs::new(silent_after_us),
            signals: Signals::default(),
            present: Present::new(silent_after_us),
        }
    }

    /// The open silences, each with the time since when this member knows it.
    fn open(&mut self, silent: Vec<Silent>, monotonic_us: i64) -> Vec<Open> {
        let known = std::mem::take(&mut self.known);
        let mut open = Vec::with_capacity(silent.len());
        for silent in silent {
            let id = &silent.alert.id;
            let known_us = known.get(id).copied().unwrap_or(monotonic_us);
            self.known.insert(id.clone(), known_us);
            open.push(Open {
                silent,
                known_us,
                has_ended: false,
            });
        }
        open
    }
}

/// Patients whose silence is judged differently, by id.
struct Watches(BTreeMap<String, Watched>);

impl Watches {
    /// The assignment as silence is judged by it. `None`: nobody misses its readings, because the
    /// patient is expected or paused.
    fn of(&self, assignment: Assignment) -> Option<Assignment> {
        match self.0.get(&assignment.patient) {
            None => Some(assignment),
            Some(Watched::No) => None,
            Some(Watched::Since(since_us)) => Some(Assignment {
                from_us: assignment.from_us.max(*since_us),
                ..assignment
            }),
        }
    }
}

/// Result of a round.
#[derive(Debug, PartialEq, Eq)]
enum Round {
    Written(u64),
    /// A clock stepped recently, so no age is certain.
    Held,
}

pub(crate) async fn run(watch: SilenceWatch) {
    let context = &watch.context;
    let check = context.health().check("silence");
    let turns = context.health().progress("silence", LOOP_SILENCE_MAX);
    let warning = context.health().warning("silence-held");
    let shutdown = context.shutdown().clone();
    let period = ROUND.min(Duration::from_micros(watch.silent_after_us.unsigned_abs()));
    let mut tick = tokio::time::interval(period);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut memory = Memory::new(watch.silent_after_us);
    loop {
        tokio::select! {
            () = shutdown.requested() => return,
            _ = tick.tick() => turns.beat(),
        }
        let round = watch.round(&mut memory).await;
        let is_held = matches!(round, Ok(Round::Held));
        metrics::gauge!("braid_alerting_silence_held").set(f64::from(u8::from(is_held)));
        warning.set(is_held.then(|| Warning {
            says: format!(
                "the clock of this machine stepped, or this process did not run: silence is judged again after {} s without a clock step",
                watch.silent_after_us / 1_000_000
            ),
            to_do: "check the clock of this machine (NTP) if this warning persists".to_owned(),
        }));
        match round {
            Ok(Round::Held | Round::Written(_)) => check.ok(),
            Err(error) => check.failing(error.to_string()),
        }
    }
}

impl SilenceWatch {
    /// Judges by the clock that stamps arrivals, continued on the monotonic clock, because this
    /// machine's wall clock may be wrong.
    async fn round(&self, memory: &mut Memory) -> Result<Round, RoundError> {
        let clock = self.context.clock();
        self.end_departed(clock.now_us()).await?;
        if !clock.is_steady_for(self.silent_after_us) {
            return Ok(Round::Held);
        }
        if !memory.has_taken_over {
            self.take_over().await?;
            memory.has_taken_over = true;
        }
        let store = self.store.as_ref();
        // The open silences first: what comes between is then later than what is known of them.
        let mut silent = Vec::new();
        each_silent(store, |it| silent.push(it)).await?;
        let open_us = clock.monotonic_us();
        let (mut latest, mut reports) = (Vec::new(), Vec::new());
        each_latest_vital(store, &Scope::Service, |value| latest.push(value)).await?;
        each_latest_path(store, &Scope::Service, 0, |report| {
            reports.push(what_silence_needs(report));
        })
        .await?;
        let looked_us = match memory.present.has_looked() {
            true => None,
            false => store.silent_look_us().await?,
        };
        let (own_us, monotonic_us) = (clock.now_us(), clock.monotonic_us());
        let newest_us = latest.iter().map(|latest| latest.ingest_time_us).max();
        let present = &mut memory.present;
        let now_us = present.now_us(newest_us, looked_us, own_us, monotonic_us);
        let arrived = latest.iter().map(|row| {
            let key = (row.patient.clone(), i32::from(row.metric));
            (key, row.ingest_time_us)
        });
        let arrived = memory.arrivals.of_round(arrived, now_us, monotonic_us);
        let latest = latest.into_iter().zip(arrived);
        let mut latest: Vec<Arrival> = latest.map(|(row, at)| Arrival::new(row, at)).collect();
        let reported = reports.iter().map(|report| {
            let key = (report.gateway.clone(), report.path.clone(), report.end);
            (key, report.time_us)
        });
        let reported = memory.reports.of_round(reported, now_us, monotonic_us);
        let reports = reports.into_iter().zip(reported);
        let reports: Vec<Report> = reports
            .map(|(report, sign)| Report { report, sign })
            .collect();
        // Asked again: the clock may have stepped while the store answered.
        if !clock.is_steady_for(self.silent_after_us) {
            return Ok(Round::Held);
        }
        self.heard.move_forward(&mut latest, now_us, monotonic_us);
        let watches = store.watches(now_us.saturating_sub(RESUMED_US)).await?;
        let watches = Watches(watches.into_iter().collect());
        let mut worn = Worn::default();
        each_assignment_at(store, &Scope::Service, now_us, |it| {
            if let Some(it) = watches.of(it) {
                worn.add(it, now_us);
            }
        })
        .await?;
        let mut latest = worn.attribute(latest);
        let hidden = worn.without(&latest);
        let hidden = self.heard.of_devices(&hidden, now_us, monotonic_us);
        latest.extend(worn.heard(hidden));
        latest.extend(self.unheard(&worn, &latest, &mut memory.sent).await?);
        memory.signals.look(&latest);
        let mut open = memory.open(silent, open_us);
        self.ask_for_endings(&mut open, &worn, &watches, now_us)
            .await?;
        let known = Known {
            latest: &latest,
            signals: &memory.signals,
            reports: &reports,
            open: &open,
            rules: &self.rules,
            silent_after_us: self.silent_after_us,
            now_us,
            monotonic_us,
        };
        let batch = assess(&known);
        for silent in &batch.begun {
            memory.known.insert(silent.alert.id.clone(), monotonic_us);
        }
        let written = self.write(batch).await?;
        if let (Some(at_us), Some(newest_us)) = (memory.present.at_least_us(), newest_us)
            && at_us.saturating_sub(newest_us) > QUIET_US
        {
            store.note_silent_look(at_us).await?;
        }
        Ok(Round::Written(written))
    }

    /// Ends what readings that were under way raised about patients who have departed.
    async fn end_departed(&self, now_us: i64) -> Result<(), RoundError> {
        let ended = self.store.end_departed(now_us).await?;
        if ended > 0 {
            tracing::info!(ended, "alerts of patients who have departed are ended");
            self.outbox.notify_one();
        }
        Ok(())
    }

    /// Silences of a version that kept no evidence have their last sign of life as evidence.
    async fn take_over(&self) -> Result<(), RoundError> {
        let query = AlertsQuery {
            limit: TAKEN_OVER_MAX,
            ..AlertsQuery::default()
        };
        let open = self.store.alerts(&Scope::Service, &query).await?;
        let mut known = BTreeSet::new();
        each_silent(self.store.as_ref(), |it| {
            known.insert(it.alert.id);
        })
        .await?;
        let begun = open
            .into_iter()
            .filter(|alert| silence::ALL.contains(&alert.rule.as_str()))
            .filter(|alert| !known.contains(&alert.id))
            .map(|alert| Silent {
                subject: subject_of(&alert),
                reading_us: alert.since_us,
                report_us: alert.since_us,
                alert,
            })
            .collect();
        let batch = SilentBatch {
            begun,
            ended: Vec::new(),
        };
        self.write(batch).await.map(|_| ())
    }

    /// Assigned sensors that have never sent. The newest values show one sensor for each metric of
    /// a patient, so a sensor that is not among them may have sent.
    async fn unheard(
        &self,
        worn: &Worn,
        latest: &[Arrival],
        sent: &mut BTreeSet<String>,
    ) -> Result<Vec<Arrival>, QueryError> {
        let mut without = worn.without(latest);
        sent.retain(|device| without.contains(device));
        without.retain(|device| !sent.contains(device));
        let asked: Vec<String> = without.iter().cloned().collect();
        for devices in asked.chunks(ASKED_MAX) {
            for device in self.store.which_sent(devices).await? {
                without.remove(&device);
                sent.insert(device);
            }
        }
        Ok(worn.unheard(&without))
    }

    /// Asks the register about open silences that no present assignment has.
    async fn ask_for_endings(
        &self,
        open: &mut [Open],
        worn: &Worn,
        watches: &Watches,
        now_us: i64,
    ) -> Result<(), QueryError> {
        let lacking = open.iter_mut().filter(|it| worn.lacks(&it.silent.alert));
        for open in lacking.take(ENDINGS_MAX) {
            let alert = &open.silent.alert;
            let of = match alert.rule.as_str() {
                silence::PIPELINE => Of::Everything,
                silence::GATEWAY | silence::PATH => Of::Gateway(&alert.gateway),
                _ => Of::Device(&alert.device),
            };
            let assignments = self.store.assignments(&Scope::Service, of).await?;
            let assignments = assignments.into_iter().filter_map(|it| watches.of(it));
            let assignments: Vec<Assignment> = assignments.collect();
            open.has_ended = has_ended(alert, &assignments, now_us);
        }
        Ok(())
    }

    /// Writes all transitions of the round step by step, so that no site's silences wait for those
    /// of others until the next round.
    async fn write(&self, batch: SilentBatch) -> Result<u64, RoundError> {
        // A subject ends one silence before it begins the next.
        let mut ended = VecDeque::from(batch.ended);
        let mut begun = VecDeque::from(batch.begun);
        let mut written = 0;
        for _ in 0..STEPS_MAX {
            let of_ended = ended.len().min(STEP_TRANSITIONS_MAX);
            let of_begun = begun.len().min(STEP_TRANSITIONS_MAX - of_ended);
            let step = SilentBatch {
                ended: ended.drain(..of_ended).collect(),
                begun: begun.drain(..of_begun).collect(),
            };
            if step == SilentBatch::default() || self.context.shutdown().is_requested() {
                break;
            }
            written += self.write_step(step).await?;
        }
        Ok(written)
    }

    async fn write_step(&self, mut step: SilentBatch) -> Result<u64, RoundError> {
        for _ in 0..ATTEMPTS_MAX {
            if step == SilentBatch::default() {
                return Ok(0);
            }
            match self.store.write_silent(step.clone()).await {
                Ok(written) => {
                    metrics::counter!("braid_alerting_silence_transitions_total")
                        .increment(written.new);
                    if written.new > 0 {
                        self.outbox.notify_one();
                    }
                    return Ok(written.new);
                }
                // Another member, or a person, was first. The other alerts are still written.
                Err(WriteError::Conflict(ids)) => {
                    step.ended.retain(|alert| !ids.contains(&alert.id));
                    step.begun.retain(|silent| !ids.contains(&silent.alert.id));
                }
                Err(error) => return Err(error.into()),
            }
        }
        // The next round goes on from here.
        Ok(0)
    }
}

/// Keeps only the fields of a path report that a round needs.
fn what_silence_needs(report: PathReport) -> PathReport {
    PathReport {
        gateway: report.gateway,
        path: report.path,
        end: report.end,
        state: report.state,
        time_us: report.time_us,
        ..PathReport::default()
    }
}

#[cfg(test)]
#[path = "from_store_tests.rs"]
mod tests;
