//! The watcher: measures at its own interval, and reports to health checks, warnings and metrics.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bus::{Bus, Topic};
use clocks::CheckedClock;
use service_kit::{CheckHandle, Context, Warning, WarningHandle};
use store::{Claims, Store};
use tokio::time::MissedTickBehavior;

use crate::{
    duty::{Duty, Kept},
    measure::{Asked, Missed, Source, measure},
    standing::{Judge, Moment, Standing},
};

/// The defaults stay below the promised 30 s. A standstill is known after `patience + every +
/// within` at the latest.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    pub every: Duration,
    /// Time without progress after which a consumer stands still.
    pub patience: Duration,
    /// Time limit of one measurement. A later answer counts as none.
    pub within: Duration,
    /// Further time of a standstill after which `/healthz` fails, if bus and store answer, so that
    /// the service is restarted.
    pub restart_after: Duration,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            every: Duration::from_secs(3),
            patience: Duration::from_secs(15),
            within: Duration::from_secs(5),
            restart_after: Duration::from_secs(120),
        }
    }
}

/// Measures one consumer.
pub struct Watcher<S: ?Sized> {
    bus: Arc<dyn Bus>,
    store: Arc<S>,
    source: Source,
    pace: Pace,
    clock: CheckedClock,
    judge: Judge,
}

impl<S: Asked + ?Sized> Watcher<S> {
    /// A step of the machine's clock makes no consumer stand still, and no notice overdue.
    pub fn new(
        bus: Arc<dyn Bus>,
        store: Arc<S>,
        source: Source,
        pace: Pace,
        clock: CheckedClock,
    ) -> Watcher<S> {
        let judge = Judge::new(pace.patience, Moment::by(&clock));
        Watcher {
            bus,
            store,
            source,
            pace,
            clock,
            judge,
        }
    }

    /// One measurement, which takes at most [`Pace::within`].
    pub async fn look(&mut self) -> Standing {
        let (bus, store) = (self.bus.as_ref(), self.store.as_ref());
        let (now_us, within) = (self.clock.now_us(), self.pace.within);
        match measure(bus, store, &self.source, now_us, within).await {
            Ok(partitions) => self.judge.on_measured(&partitions, Moment::by(&self.clock)),
            Err(Missed { reason, done }) => {
                let reason = reason.to_string();
                self.judge
                    .on_unanswered(reason, &done, Moment::by(&self.clock));
            }
        }
        self.judge.standing(Moment::by(&self.clock))
    }
}

/// The text of a standing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub says: String,
    pub since: Moment,
}

impl Report {
    /// `None` while all is well. The text stays the same while the standing lasts.
    pub fn new(stands: &str, does: &str, of: &str, standing: &Standing) -> Option<Report> {
        match standing {
            Standing::Unknown | Standing::Well { .. } => None,
            Standing::Still {
                since, partitions, ..
            } => {
                let partitions: Vec<String> = partitions.iter().map(u32::to_string).collect();
                let partitions = partitions.join(", ");
                let says = format!(
                    "{stands} since {}: records wait in {of} (partition {partitions}), and the stored position does not move",
                    since.utc()
                );
                let since = *since;
                Some(Report { says, since })
            }
            Standing::Unanswered { since, reason } => {
                let says = format!(
                    "since {} it is unknown whether {does}: {reason}",
                    since.utc()
                );
                let since = *since;
                Some(Report { says, since })
            }
        }
    }
}

/// Effect of a standstill on the readiness of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// The check fails: another replica may do better, or the service is useless meanwhile.
    Failing,
    /// A warning only. Taking the service out would stop more than the duty that stands still.
    Warning,
}

/// One consumer of this process.
pub struct Own {
    /// Name of check, warning and loop.
    pub name: &'static str,
    pub source: Source,
    pub stands: &'static str,
    pub does: &'static str,
    pub lag_metric: &'static str,
    pub still_metric: &'static str,
    /// Labels of the metrics, for a service that watches several consumers.
    pub label: Option<(&'static str, &'static str)>,
    pub still: Level,
    pub unanswered: Level,
    /// Partitions of this replica. A standstill of other partitions is a warning only. If this
    /// replica has none, its subscription may be lost, so the standstill counts.
    pub held: Option<Arc<Claims<dyn Store>>>,
    pub to_do: &'static str,
    /// Called with every measurement.
    pub heard: Option<Heard>,
}

pub type Heard = Arc<dyn Fn(&Standing) + Send + Sync>;

impl Own {
    pub fn duty(duty: Duty, level: Level, held: Option<Arc<Claims<dyn Store>>>) -> Own {
        Own {
            name: duty.name,
            source: Source::Duty(duty),
            stands: duty.stands,
            does: duty.does,
            lag_metric: duty.lag_metric,
            still_metric: duty.still_metric,
            label: None,
            still: level,
            unanswered: level,
            held,
            to_do: match duty.kept {
                Kept::Notices => {
                    "see infra/runbooks.md#noticesnottried; the store keeps what waits"
                }
                _ => "see infra/runbooks.md#standingstill; the bus keeps what waits",
            },
            heard: None,
        }
    }

    fn topic(&self) -> Topic {
        match &self.source {
            Source::Duty(duty) => duty.topic,
            Source::Reader { topic, .. } => *topic,
        }
    }

    fn is_ours(&self, partitions: &[u32]) -> bool {
        let Some(claims) = &self.held else {
            return true;
        };
        let held: BTreeSet<u32> = claims.held(self.topic());
        held.is_empty() || partitions.iter().any(|it| held.contains(it))
    }

    fn level(&self, standing: &Standing) -> Level {
        match standing {
            Standing::Unknown | Standing::Well { .. } => Level::Warning,
            Standing::Still { partitions, .. } if self.is_ours(partitions) => self.still,
            Standing::Still { .. } => Level::Warning,
            Standing::Unanswered { .. } => self.unanswered,
        }
    }

    fn measure_out(&self, standing: &Standing, now: Moment) {
        let labels: Vec<(&'static str, &'static str)> = self.label.into_iter().collect();
        let since = match standing {
            Standing::Unknown => None,
            Standing::Well { behind } => {
                metrics::gauge!(self.lag_metric, &labels).set(*behind as f64);
                None
            }
            Standing::Still { behind, since, .. } => {
                metrics::gauge!(self.lag_metric, &labels).set(*behind as f64);
                Some(since)
            }
            Standing::Unanswered { since, .. } => Some(since),
        };
        let lasts = since.map(|since| now.at.saturating_duration_since(since.at));
        let seconds = lasts.unwrap_or_default().as_secs_f64();
        metrics::gauge!(self.still_metric, &labels).set(seconds);
    }
}

/// Watches one consumer of this process until shutdown. Run it beside the consumer, never inside.
pub async fn watch<S: Asked + ?Sized>(
    bus: Arc<dyn Bus>,
    store: Arc<S>,
    own: Own,
    pace: Pace,
    context: Context,
) {
    let health = context.health();
    let check = health.check(own.name);
    let warning = health.warning(own.name);
    let turns = health.progress(own.name, pace.restart_after);
    let mut watcher = Watcher::new(
        bus,
        store,
        own.source.clone(),
        pace,
        context.clock().clone(),
    );
    let mut ticks = tokio::time::interval(pace.every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = context.shutdown().requested() => return,
            _ = ticks.tick() => {}
        }
        let standing = tokio::select! {
            () = context.shutdown().requested() => return,
            standing = watcher.look() => standing,
        };
        own.measure_out(&standing, Moment::by(context.clock()));
        // A restart helps a consumer that is stuck while the engines answer, and only in its own
        // replica.
        let is_stuck = match &standing {
            Standing::Still { partitions, .. } => own.is_ours(partitions),
            _ => false,
        };
        if !is_stuck {
            turns.beat();
        }
        say(&own, &standing, &check, &warning);
        if let Some(heard) = &own.heard {
            heard(&standing);
        }
    }
}

fn say(own: &Own, standing: &Standing, check: &CheckHandle, warning: &WarningHandle) {
    let report = Report::new(own.stands, own.does, own.source.of(), standing);
    match report {
        None if *standing == Standing::Unknown => {}
        None => {
            check.ok();
            warning.set(None);
        }
        Some(report) if own.level(standing) == Level::Failing => {
            check.failing(report.says);
            warning.set(None);
        }
        Some(report) => {
            check.ok();
            warning.set(Some(Warning {
                says: report.says,
                to_do: own.to_do.to_owned(),
            }));
        }
    }
}
