//! Notifies people: a log line for every alert, and notices by webhook, e-mail and MQTT as
//! configured.
//!
//! ```text
//! topic alerts --> decide (routing.rs) --> notices and timers in the store
//!                          ^ timers due ----------------'   |
//!                  one worker per channel (deliver.rs) <----'  --> people
//! ```
//!
//! The topic `alerts` is consumed in a group of its own, so pending decisions survive a restart. A
//! decision is stored before the record counts as done. Every member acts on due timers, and the
//! first to change a row wins.

mod channel;
mod channel_state;
pub mod config;
mod deliver;
mod email;
mod heartbeat;
mod message;
mod mqtt;
mod prove;
mod published;
mod restored;
mod subjects;
mod timers;
mod untold;
mod webhook;

use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bus::{Bus, Delivery};
use clocks::CheckedClock;
use consumer::{Answer, Away, Consumer, Decoded, Setup, Sink};
use consumer_health::{Level, duty};
use contracts::alerts::Alert;
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use prost::Message;
use service_kit::{
    Backoff, CheckHandle, ConfigError, Context, ProgressHandle, Shutdown, Warning, WarningHandle,
    telemetry::continue_trace,
};
use store::{
    EscalationTimer, NoticesBatch, Progress, QueryError, Store, WriteError, alert_of_timer,
    timer_of,
};
use tokio::sync::Notify;
use tracing::Instrument;

use crate::{
    canary::{self, is_canary},
    dead_letters::bury_alert,
    express::{Express, is_high},
    proof::Pace,
    routing::{Case, Channels, LastStep, Router, is_hastened, last_step},
    rules_in_force,
    stalled::LOOP_SILENCE_MAX,
};
use config::Options;
use published::Published;
use restored::Restored;
use subjects::{Subject, Subjects};

/// Interval between two looks at the timers.
const TICK: Duration = Duration::from_millis(500);

/// Alerts taken from the bus at once. More wait there.
const BATCH_MAX: usize = 64;
/// Alerts or timers decided concurrently. Revisions of one alert stay in order.
const DECIDED_AT_ONCE: usize = 16;
/// Attempts of one decision while another member changes the same timer.
const ATTEMPTS_MAX: u32 = 8;
/// Rounds of attempts, with a pause before each. Beyond it the alert becomes a dead letter.
const CONTESTED_MAX: u32 = 4;

/// The channels, built before anything starts, so that a wrong setting is refused at once.
pub(crate) struct People {
    router: Router,
    workers: Vec<deliver::Worker>,
    delivery: deliver::Delivery,
    pace: Pace,
}

impl People {
    pub(crate) fn new(options: &Options) -> Result<People, ConfigError> {
        let (channels, senders) = options.build()?;
        Ok(People {
            router: Router::new(channels),
            workers: senders.into_iter().map(deliver::Worker::new).collect(),
            delivery: deliver::Delivery {
                give_up_us: i64::try_from(options.give_up_s.saturating_mul(1_000_000))
                    .unwrap_or(i64::MAX),
                public_url: options.public_url().map(str::to_owned),
                restore: None,
            },
            pace: options.pace(),
        })
    }

    /// How channels are proven.
    pub(crate) fn pace(&self) -> &Pace {
        &self.pace
    }

    pub(crate) fn channels(&self) -> &Channels {
        self.router.channels()
    }

    pub(crate) async fn run(
        self,
        bus: Arc<dyn Bus>,
        store: Arc<dyn Store>,
        in_force: rules_in_force::Reader,
        express: Express,
        context: Context,
    ) {
        let says_no_link = !self.workers.is_empty() && self.delivery.public_url.is_none();
        let warning = context.health().warning("no-link");
        warning.set(says_no_link.then(|| {
            Warning {
                says:
                    "messages carry no link to the alert: the address of the page is not configured"
                        .to_owned(),
                to_do: "set --public-url of alerting to the address at which people open the page"
                    .to_owned(),
            }
        }));
        let prover = prove::Prover {
            channels: self.router.channels().clone(),
            pace: self.pace,
            public_url: self.delivery.public_url.clone(),
            senders: self.workers.iter().map(deliver::Worker::shared).collect(),
            store: Arc::clone(&store),
            context: context.clone(),
        };
        context.tasks().spawn(prover.run(in_force.clone()));
        let check = context.health().check("alerts");
        let Ok(restored) = restored::read(&bus, &*store, &check, &context).await else {
            return;
        };
        let delivery = deliver::Delivery {
            restore: restored.as_ref().map(Restored::restore),
            ..self.delivery
        };
        let mut wakes = Vec::new();
        let of_canaries = deliver::Worker::new(channel::Channel::Canary);
        for worker in self.workers.into_iter().chain([of_canaries]) {
            wakes.push(worker.wake());
            context.tasks().spawn(worker.run(
                Arc::clone(&store),
                delivery.clone(),
                context.clone(),
            ));
        }
        let setup = Setup {
            // The duty is watched from the start of the service.
            level: None,
            tick: TICK,
            silence_max: LOOP_SILENCE_MAX,
            ..Setup::new(duty::TELLING, Level::Failing, "people", BATCH_MAX)
        };
        let consumer = Consumer::new(Arc::clone(&bus), Arc::clone(&store), setup, context.clone());
        let decider = Decider {
            subjects: Subjects::new(Arc::clone(&store)),
            bus,
            store,
            in_force,
            router: Mutex::new(self.router),
            wakes,
            express,
            published: Published::default(),
            restored,
            failing: HashSet::new(),
            looked_ahead: None,
            clock: context.clock().clone(),
            followed_step: 0,
            turns: consumer.turns(),
            shutdown: context.shutdown().clone(),
            undecided: Undecided::new(&context),
            untold: context.health().warning("alerts-untold"),
        };
        let sink = NoticeSink {
            check,
            decider: tokio::sync::Mutex::new(decider),
        };
        consumer.run(sink).await;
    }
}

/// Sink of the consumer, which calls it from one task at a time.
struct NoticeSink {
    check: CheckHandle,
    decider: tokio::sync::Mutex<Decider>,
}

#[async_trait]
impl Sink for NoticeSink {
    type Batch = Vec<Alert>;

    fn decode(&self, delivery: &Delivery, alerts: &mut Vec<Alert>) -> Decoded {
        match Alert::decode(delivery.value.clone()) {
            Ok(alert) => {
                alerts.push(alert);
                Decoded::Whole
            }
            Err(error) => Decoded::Refused(format!("no Alert: {error}")),
        }
    }

    /// Decisions have ids of their own, so a repetition after a restart writes the same rows.
    async fn write(&self, alerts: Arc<Vec<Alert>>, _: &[Progress]) -> Answer {
        let mut decider = self.decider.lock().await;
        match decider.on_alerts(&alerts, &self.check).await {
            true => Answer::Stored,
            false => Answer::Ended,
        }
    }

    async fn on_another_log(&self) {
        self.decider.lock().await.tell_untold(&self.check).await;
    }

    fn on_away(&self, away: Away<'_>) {
        let (Away::Bus(reason) | Away::Store(reason)) = away;
        self.check.failing(reason);
    }

    fn on_well(&self) {
        self.check.ok();
    }

    async fn on_tick(&self, _: &mut dyn bus::Consumer) {
        let mut decider = self.decider.lock().await;
        // While the bus is away, high alerts come by the express lane alone.
        if !decider.on_alerts(&[], &self.check).await {
            return;
        }
        match decider.on_tick().await {
            Ok(()) => self.check.ok(),
            Err(error) => self.check.failing(error.to_string()),
        }
    }
}

/// Decisions that could not be stored. The warning stays until this process ends.
struct Undecided {
    count: AtomicU64,
    warning: WarningHandle,
}

impl Undecided {
    fn new(context: &Context) -> Undecided {
        Undecided {
            count: AtomicU64::new(0),
            warning: context.health().warning("undecided"),
        }
    }

    fn add(&self, alert: &str, reason: &str) {
        metrics::counter!("braid_alerting_undecided_total").increment(1);
        let count = 1 + self.count.fetch_add(1, Ordering::Relaxed);
        self.warning.set(Some(Warning {
            says: format!(
                "{count} decisions about alerts could not be stored, so nobody was notified; the last is about alert {alert}: {reason}"
            ),
            to_do: "look at the alert and call its people yourself; `braid dead-letters` has a copy of each, and the log has the reason".to_owned(),
        }));
    }
}

struct Decider {
    bus: Arc<dyn Bus>,
    store: Arc<dyn Store>,
    subjects: Subjects,
    in_force: rules_in_force::Reader,
    router: Mutex<Router>,
    /// One per channel.
    wakes: Vec<Arc<Notify>>,
    /// High alerts, which wait for no other alert of a batch.
    express: Express,
    published: Published,
    /// The store was restored from a backup lately.
    restored: Option<Restored>,
    /// Alerts whose timers failed. They are tried after the others.
    failing: HashSet<String>,
    looked_ahead: Option<Instant>,
    clock: CheckedClock,
    /// Number of the last clock step that timers were moved by.
    followed_step: u64,
    /// Beats with each decision and each attempt.
    turns: Arc<ProgressHandle>,
    shutdown: Shutdown,
    undecided: Undecided,
    /// Open alerts that reached nobody, as far as this member has decided them.
    untold: WarningHandle,
}

/// Why no decision was stored.
#[derive(Debug, thiserror::Error)]
enum DecideError {
    #[error("{0}")]
    Write(#[from] WriteError),
    #[error("{0}")]
    Query(#[from] QueryError),
    #[error("the alert's timer has changed under {ATTEMPTS_MAX} decisions")]
    Contested,
}

impl Decider {
    /// False: shutdown came before all were decided.
    async fn on_alerts(&mut self, alerts: &[Alert], check: &CheckHandle) -> bool {
        let mut episodes: BTreeMap<String, Vec<Alert>> = BTreeMap::new();
        for alert in alerts {
            if self.published.is_news(alert) {
                let of_episode = episodes.entry(alert.id.clone()).or_default();
                of_episode.push(alert.clone());
            }
        }
        let this = &*self;
        let mut waiting: Vec<Vec<Alert>> = episodes.into_values().collect();
        waiting.sort_by_key(|revisions| !revisions.iter().any(is_high));
        let mut waiting = waiting.into_iter();
        let next = || {
            this.express
                .next()
                .map(|it| vec![it])
                .or_else(|| waiting.next())
        };
        let deciding = stream::iter(std::iter::from_fn(next)).map(|revisions| async move {
            for alert in &revisions {
                if !this.on_alert(alert, check).await {
                    return false;
                }
            }
            true
        });
        deciding
            .buffer_unordered(DECIDED_AT_ONCE)
            .all(async |decided| decided)
            .await
    }

    /// False: shutdown came before the decision.
    async fn on_alert(&self, alert: &Alert, check: &CheckHandle) -> bool {
        if !is_canary(&alert.patient) {
            tracing::info!(
                alert = alert.id,
                revision = alert.revision,
                patient = alert.patient,
                rule = alert.rule,
                priority = alert.priority().as_str_name(),
                state = alert.state().as_str_name(),
                backfill = alert.backfill,
                summary = alert.summary,
                "alert"
            );
        }
        let span = tracing::info_span!("decide", alert = alert.id, revision = alert.revision);
        continue_trace(&span, &alert.traceparent);
        let shutdown = self.shutdown.clone();
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        let mut contested = 0;
        loop {
            self.turns.beat();
            match self.decide(alert, None).instrument(span.clone()).await {
                Ok(()) => {
                    let waited_s = (self.clock.now_us() - alert.recorded_us).max(0) as f64 / 1e6;
                    metrics::histogram!("braid_alerting_recorded_to_decided_seconds")
                        .record(waited_s);
                    return true;
                }
                Err(
                    error @ (DecideError::Write(WriteError::Invalid(_) | WriteError::Unfit(_))
                    | DecideError::Query(QueryError::Unreadable(_))),
                ) => return self.give_up(alert, &error).await,
                // Another member may decide about the same alert. A store that contradicts itself
                // must not block the others.
                Err(error @ DecideError::Contested) if contested >= CONTESTED_MAX => {
                    return self.give_up(alert, &error).await;
                }
                Err(DecideError::Contested) => contested += 1,
                Err(error) => check.failing(error.to_string()),
            }
            tokio::select! {
                () = shutdown.requested() => return false,
                () = backoff.wait() => {}
            }
        }
    }

    /// The decision can never be stored, so nobody is notified. False: shutdown came before the
    /// alert was among the dead letters.
    async fn give_up(&self, alert: &Alert, error: &DecideError) -> bool {
        let reason = error.to_string();
        tracing::error!(
            alert = alert.id,
            reason,
            "the decision cannot be stored; this alert notifies nobody"
        );
        self.undecided.add(&alert.id, &reason);
        let (group, now_us) = (duty::TELLING.group, self.clock.now_us());
        let ending = self.shutdown.requested();
        bury_alert(&*self.bus, alert, group, &reason, now_us, ending).await
    }

    /// Decides and stores: about `due` if it is set, otherwise about the alert's news. The trouble
    /// of one tenant keeps no other from being told.
    async fn decide(&self, alert: &Alert, due: Option<EscalationTimer>) -> Result<(), DecideError> {
        if is_canary(&alert.patient) {
            let batch = canary::decision(alert, self.clock.now_us());
            if self.store.write_notices(batch).await? > 0 {
                self.wakes.iter().for_each(|wake| wake.notify_one());
            }
            return Ok(());
        }
        let only = due.as_ref().map(|timer| timer.alert.clone());
        let only = only.as_ref().and_then(|timer| alert_of_timer(timer).1);
        let subjects = self.subjects.of(alert, only, self.clock.now_us()).await?;
        let mut failed = None;
        for subject in subjects {
            let decided = self.decide_for(alert, &subject, due.clone()).await;
            failed = decided.err().or(failed);
        }
        failed.map_or(Ok(()), Err)
    }

    async fn decide_for(
        &self,
        alert: &Alert,
        subject: &Subject,
        due: Option<EscalationTimer>,
    ) -> Result<(), DecideError> {
        let is_timer = due.is_some();
        let tenant = subject.tenant.as_str();
        let name = timer_of(alert, tenant);
        let mut timer = match due {
            Some(due) => Some(due),
            None => self.store.timer(&name).await?,
        };
        let has_departed = self.subjects.has_departed(alert).await?;
        for _ in 0..ATTEMPTS_MAX {
            let now_us = self.clock.now_us();
            let inhibited_by = self.subjects.inhibiting(alert, tenant, now_us).await?;
            let last_step = match &timer {
                Some(timer) if is_timer && is_hastened(timer) => {
                    let records = self.subjects.notices(&alert.id).await?;
                    last_step(&records, tenant, now_us)
                }
                _ => LastStep::default(),
            };
            let in_force = Arc::clone(&self.in_force.borrow());
            let case = Case {
                alert,
                tenant,
                patient_name: &subject.name,
                team: in_force.team(tenant),
                silence: in_force.silence(tenant, alert, now_us),
                inhibited_by: inhibited_by.as_deref(),
                timer: timer.as_ref(),
                unmonitored: &subject.unmonitored,
                last_step,
                has_departed,
                now_us,
            };
            let batch = {
                let mut router = self.router.lock();
                let batch = if is_timer {
                    router.on_timer(case)
                } else {
                    router.on_news(case)
                };
                self.warn_of_untold(&router);
                batch
            };
            let batch = match &self.restored {
                Some(restored) => restored.mind(alert, batch, is_timer, now_us),
                None => batch,
            };
            if batch == NoticesBatch::default() {
                return Ok(());
            }
            let withheld = batch.outcomes.len() as u64;
            match self.store.write_notices(batch).await {
                Ok(new) => {
                    metrics::counter!("braid_alerting_notices_total").increment(new);
                    metrics::counter!("braid_alerting_notices_withheld_total").increment(withheld);
                    if new > 0 {
                        self.wakes.iter().for_each(|wake| wake.notify_one());
                    }
                    return Ok(());
                }
                // Another member was first. A timer is then done; news is decided again on the new
                // row.
                Err(WriteError::Conflict(_)) if is_timer => return Ok(()),
                Err(WriteError::Conflict(_)) => timer = self.store.timer(&name).await?,
                Err(error) => return Err(error.into()),
            }
        }
        Err(DecideError::Contested)
    }

    fn warn_of_untold(&self, router: &Router) {
        let (count, first) = router.untold();
        metrics::gauge!("braid_alerting_alerts_untold").set(count as f64);
        self.untold.set(first.map(|first| Warning {
            says: format!("{count} open alerts reached nobody, among them {first}"),
            to_do: "put a team with people who have addresses (`braid alerts team put`), or configure --email-to; the alerts are tried again every minute".to_owned(),
        }));
    }
}

#[cfg(test)]
mod who_is_told_tests;
