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

pub mod config;
mod deliver;
mod email;
mod message;
mod mqtt;
mod published;
mod timers;
mod tls;
mod webhook;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
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
    Backoff, CheckHandle, ConfigError, Context, ProgressHandle, Shutdown, Warning,
    telemetry::continue_trace,
};
use store::{
    AlertsQuery, EscalationTimer, NoticesBatch, Progress, QueryError, Scope, Store, WriteError,
};
use tokio::sync::Notify;
use tracing::Instrument;

use crate::{
    canary::is_canary,
    routing::{Case, Channels, Router},
    rules_in_force,
    turns::SILENCE_MAX,
};
use config::Options;
use published::Published;

/// Interval between two looks at the timers.
const TICK: Duration = Duration::from_millis(500);

/// Alerts taken from the bus at once. More wait there.
const BATCH_MAX: usize = 64;
/// Alerts or timers decided concurrently. Revisions of one alert stay in order.
const DECIDED_AT_ONCE: usize = 8;
/// Patients whose tenant is cached. Beyond it all are fetched again.
const TENANTS_MAX: usize = 50_000;
/// Maximum age of a cached tenant.
const TENANT_AGE_MAX_US: i64 = 60_000_000;
/// Attempts of one decision while another member changes the same timer.
const ATTEMPTS_MAX: u32 = 8;
/// Rounds of attempts, with a pause before each. Beyond it the alert is skipped and logged.
const CONTESTED_MAX: u32 = 4;
/// Open gateway alerts of a tenant that are searched for an inhibiting one.
const INHIBITING_MAX: usize = 1000;

/// The channels, built before anything starts, so that a wrong setting is refused at once.
pub(crate) struct People {
    router: Router,
    workers: Vec<deliver::Worker>,
    delivery: deliver::Delivery,
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
            },
        })
    }

    pub(crate) fn channels(&self) -> &Channels {
        self.router.channels()
    }

    pub(crate) async fn run(
        self,
        bus: Arc<dyn Bus>,
        store: Arc<dyn Store>,
        in_force: rules_in_force::Reader,
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
        let mut wakes = Vec::new();
        for worker in self.workers {
            wakes.push(worker.wake());
            context.tasks().spawn(worker.run(
                Arc::clone(&store),
                self.delivery.clone(),
                context.clone(),
            ));
        }
        let setup = Setup {
            // The duty is watched from the start of the service.
            level: None,
            tick: TICK,
            silence_max: SILENCE_MAX,
            ..Setup::new(duty::TELLING, Level::Failing, "people", BATCH_MAX)
        };
        let consumer = Consumer::new(bus, Arc::clone(&store), setup, context.clone());
        let decider = Decider {
            store,
            in_force,
            router: Mutex::new(self.router),
            wakes,
            published: Published::default(),
            tenants: Mutex::default(),
            failing: HashSet::new(),
            looked_ahead: None,
            clock: context.clock().clone(),
            followed_step: 0,
            turns: consumer.turns(),
            shutdown: context.shutdown().clone(),
        };
        let sink = NoticeSink {
            check: context.health().check("alerts"),
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
            Ok(alert) if is_canary(&alert.patient) => Decoded::Whole,
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

    fn on_away(&self, away: Away<'_>) {
        let (Away::Bus(reason) | Away::Store(reason)) = away;
        self.check.failing(reason);
    }

    fn on_well(&self) {
        self.check.ok();
    }

    async fn on_tick(&self, _: &mut dyn bus::Consumer) {
        match self.decider.lock().await.on_tick().await {
            Ok(()) => self.check.ok(),
            Err(error) => self.check.failing(error.to_string()),
        }
    }
}

/// Tenant and name of an alert's patient.
#[derive(Clone, Debug, Default)]
struct Subject {
    tenant: String,
    /// Name of the patient.
    name: String,
}

struct Decider {
    store: Arc<dyn Store>,
    in_force: rules_in_force::Reader,
    router: Mutex<Router>,
    /// One per channel.
    wakes: Vec<Arc<Notify>>,
    published: Published,
    /// By subject: the result, and when it was fetched.
    tenants: Mutex<HashMap<String, (Subject, i64)>>,
    /// Alerts whose timers failed. They are tried after the others.
    failing: HashSet<String>,
    looked_ahead: Option<Instant>,
    clock: CheckedClock,
    /// Number of the last clock step that timers were moved by.
    followed_step: u64,
    /// Beats with each decision and each attempt.
    turns: Arc<ProgressHandle>,
    shutdown: Shutdown,
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
        let deciding = stream::iter(episodes.into_values()).map(|revisions| async move {
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
                ) => {
                    tracing::error!(alert = alert.id, %error, "the decision cannot be stored; this alert notifies nobody");
                    return true;
                }
                // Another member may decide about the same alert. A store that contradicts itself
                // must not block the others.
                Err(error @ DecideError::Contested) if contested >= CONTESTED_MAX => {
                    tracing::error!(alert = alert.id, %error, "the decision stays contested; this alert notifies nobody");
                    metrics::counter!("braid_alerting_unpublishable_total").increment(1);
                    return true;
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

    /// Decides and stores: about `due` if it is set, otherwise about the alert's news.
    async fn decide(&self, alert: &Alert, due: Option<EscalationTimer>) -> Result<(), DecideError> {
        let is_timer = due.is_some();
        let timer = async {
            match due {
                Some(due) => Ok(Some(due)),
                None => Ok(self.store.timer(&alert.id).await?),
            }
        };
        let (subject, mut timer) = tokio::try_join!(self.subject(alert), timer)?;
        let Subject { tenant, name } = subject;
        for _ in 0..ATTEMPTS_MAX {
            let inhibited_by = self.inhibited_by(alert, &tenant).await?;
            let now_us = self.clock.now_us();
            let in_force = Arc::clone(&self.in_force.borrow());
            let case = Case {
                alert,
                tenant: &tenant,
                patient_name: &name,
                team: in_force.team(&tenant),
                silence: in_force.silence(&tenant, alert, now_us),
                inhibited_by: inhibited_by.as_deref(),
                timer: timer.as_ref(),
                now_us,
            };
            let batch = if is_timer {
                self.router.lock().on_timer(case)
            } else {
                self.router.lock().on_news(case)
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
                Err(WriteError::Conflict(_)) => timer = self.store.timer(&alert.id).await?,
                Err(error) => return Err(error.into()),
            }
        }
        Err(DecideError::Contested)
    }

    async fn subject(&self, alert: &Alert) -> Result<Subject, DecideError> {
        let now_us = self.clock.now_us();
        let key = if alert.patient.is_empty() {
            format!("gateway {}", alert.gateway)
        } else {
            alert.patient.clone()
        };
        if let Some((subject, asked_us)) = self.tenants.lock().get(&key)
            && now_us.abs_diff(*asked_us) < TENANT_AGE_MAX_US.unsigned_abs()
        {
            return Ok(subject.clone());
        }
        let known = if alert.patient.is_empty() {
            let gateways = self.store.gateways(&Scope::Service).await?;
            let own = gateways
                .into_iter()
                .find(|gateway| gateway.id == alert.gateway);
            own.map(|gateway| Subject {
                tenant: gateway.tenant,
                name: String::new(),
            })
        } else {
            let patient = self.store.patient(&Scope::Service, &alert.patient).await?;
            patient.map(|patient| Subject {
                tenant: patient.tenant,
                name: patient.name,
            })
        };
        // An unregistered patient belongs to no tenant and notifies no team.
        let subject = known.unwrap_or_default();
        let mut tenants = self.tenants.lock();
        if tenants.len() >= TENANTS_MAX {
            tenants.clear();
        }
        tenants.insert(key, (subject.clone(), now_us));
        Ok(subject)
    }

    /// The open gateway alert that explains a silent device behind it. Only silence is inhibited.
    async fn inhibited_by(
        &self,
        alert: &Alert,
        tenant: &str,
    ) -> Result<Option<String>, DecideError> {
        if !vitals::silence::is_below_gateway(&alert.rule) || alert.gateway.is_empty() {
            return Ok(None);
        }
        let query = AlertsQuery {
            patient: Some(String::new()),
            include_resolved: false,
            limit: INHIBITING_MAX,
            ..AlertsQuery::default()
        };
        let open = self.store.alerts(&Scope::tenant(tenant), &query).await?;
        let by = open.into_iter().find(|open| {
            open.gateway == alert.gateway && vitals::silence::is_of_gateway(&open.rule)
        });
        Ok(by.map(|alert| alert.id))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use contracts::alerts::AlertState;
    use store::{AlertsBatch, GatewayEntry, SqliteStore};

    use super::*;

    #[tokio::test]
    async fn one_tenants_many_silent_gateways_hide_no_others() {
        let directory = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(directory.path()).unwrap());
        for (id, tenant) in [("g-small", "small"), ("g-large", "large")] {
            let (id, tenant) = (id.to_owned(), tenant.to_owned());
            let entry = GatewayEntry { id, tenant };
            store.put_gateway(&entry).await.unwrap();
        }
        let silent = |gateway: &str, since_us: i64| Alert {
            id: format!("{gateway}-{since_us}"),
            gateway: gateway.into(),
            rule: vitals::silence::GATEWAY.into(),
            state: AlertState::Active.into(),
            since_us,
            revision: 1,
            ..Alert::default()
        };
        let mut transitions = vec![silent("g-small", 1)];
        transitions.extend((2..INHIBITING_MAX as i64 + 3).map(|n| silent("g-large", n)));
        let batch = AlertsBatch {
            transitions,
            ..AlertsBatch::default()
        };
        store.write_alerts(batch, Vec::new()).await.unwrap();
        let context = Context::new("alerting");
        let decider = Decider {
            store,
            in_force: tokio::sync::watch::channel(Arc::default()).1,
            router: Mutex::new(Router::new(Channels::default())),
            wakes: Vec::new(),
            published: Published::default(),
            tenants: Mutex::default(),
            failing: HashSet::new(),
            looked_ahead: None,
            clock: context.clock().clone(),
            followed_step: 0,
            turns: Arc::new(context.health().progress("people", SILENCE_MAX)),
            shutdown: context.shutdown().clone(),
        };
        let behind_it = Alert {
            rule: vitals::silence::DEVICE.into(),
            device: "belt".into(),
            ..silent("g-small", 1)
        };
        let by = decider.inhibited_by(&behind_it, "small").await.unwrap();
        assert_eq!(by.as_deref(), Some("g-small-1"));
    }
}
