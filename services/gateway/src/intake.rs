//! The processing of samples between a sensor's request and the answer: validate, judge by the edge
//! rules, journal.
//!
//! Alerts are on disk before the sample that raised them. After a crash in between the sensor sends
//! the sample again. The core, with the same rules, merges a repeated alert by its event time. The
//! other order could lose an alert. A slow disk holds up no alert: it leaves meanwhile (`early`).

mod acknowledge;
mod begin;
mod early;
mod in_memory;
mod request;
mod spared;
mod states;
mod unknown;
mod unsettled;

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use contracts::vitals::{EdgeAlert, Sample};
use parking_lot::Mutex;
use service_kit::{Backoff, Shutdown, Warning, WarningHandle};
use tokio::{
    sync::{Notify, mpsc, watch},
    time::{Instant, sleep_until, timeout},
};
use vitals::{ClockBounds, Invalid};

pub use acknowledge::AcknowledgeError;
pub use early::EARLY_WAITING_MAX;
use request::Arrival;
pub use request::{
    Begun, Late, NOT_REGISTERED, Patience, RecordError, Recorded, Refused, SAMPLES_PER_REQUEST_MAX,
};
use unsettled::Unsettled;

use crate::{
    alarms::Alarms,
    carers::Newest,
    clock::{CoreClock, Moment, SteadyClock},
    core_followed::CoreFollowed,
    edge_rules::EdgeRules,
    journal::{AppendError, Condition, Disk, Journal, STALLED_AFTER, StageError, Staged},
    open_alerts::OpenAlerts,
    reserve::Reserve,
    revocation::Revocation,
    rule_states::StateLog,
    rules_in_force::RulesInForce,
    unjournaled::{UNJOURNALED_ALERTS_MAX, Unjournaled, UnjournaledId},
};

/// First pause between attempts to store refused alerts. Each attempt is one write on a full disk.
const AGAIN_INITIAL: Duration = Duration::from_millis(500);
/// Longest pause between attempts to store refused alerts.
const AGAIN_MAX: Duration = Duration::from_secs(30);

pub struct Intake<D: Disk> {
    gateway: String,
    vitals: Journal<D>,
    alerts: Journal<D>,
    rules: Arc<Mutex<EdgeRules>>,
    unsettled: Arc<Unsettled>,
    /// `None`: states are not kept.
    states: Option<Arc<tokio::sync::Mutex<StateLog<D>>>>,
    /// `None`: no space is kept.
    reserve: Option<Reserve<D>>,
    core: Arc<CoreClock>,
    /// `None`: no request has come since the start.
    steady: Mutex<Option<SteadyClock>>,
    alarms: Alarms,
    open_alerts: OpenAlerts,
    newest: Newest,
    /// While the core reports the gateway's devices, other devices are refused. Otherwise the core
    /// attributes their readings later.
    following: CoreFollowed,
    /// Counts changes of the rules in force.
    changes: watch::Sender<u64>,
    /// End of the wait for each device.
    waited_for: Mutex<HashMap<String, Instant>>,
    /// Raised alerts that the disk refused; the next request stores them first, or
    /// [`Self::try_again`].
    held: Mutex<Unjournaled>,
    held_count: watch::Sender<usize>,
    /// One attempt at a time, so that the journal does not get them twice.
    keeping: tokio::sync::Mutex<()>,
    /// Told of each alert, so that its readings do not wait for their freshness.
    urgent: Arc<Notify>,
    /// Alerts that leave before they are on disk.
    early: mpsc::Sender<Vec<EdgeAlert>>,
    revocation: Revocation,
}

impl<D: Disk> Intake<D> {
    pub fn new(gateway: String, vitals: Journal<D>, alerts: Journal<D>, rules: EdgeRules) -> Self {
        Self {
            gateway,
            vitals,
            alerts,
            rules: Arc::new(Mutex::new(rules)),
            unsettled: Arc::default(),
            states: None,
            reserve: None,
            core: Arc::default(),
            steady: Mutex::default(),
            alarms: Alarms::default(),
            open_alerts: OpenAlerts::default(),
            newest: Newest::default(),
            following: CoreFollowed::default(),
            changes: watch::Sender::new(0),
            waited_for: Mutex::default(),
            held: Mutex::default(),
            held_count: watch::Sender::new(0),
            keeping: tokio::sync::Mutex::new(()),
            urgent: Arc::default(),
            early: mpsc::channel(1).0,
            revocation: Revocation::default(),
        }
    }

    /// Sensors' times are checked against the core's clock once it is known.
    #[must_use]
    pub fn with_core(self, core: Arc<CoreClock>) -> Self {
        Self { core, ..self }
    }

    /// Refuses every reading once the core has revoked this gateway.
    #[must_use]
    pub fn unless(self, revocation: Revocation) -> Self {
        Self { revocation, ..self }
    }

    pub fn is_revoked(&self) -> bool {
        self.revocation.is_heard()
    }

    #[must_use]
    pub fn with_alarms(self, alarms: Alarms) -> Self {
        Self { alarms, ..self }
    }

    /// The moment with the time that the readings of a request get.
    fn named(&self, now: Moment) -> Moment {
        let mut steady = self.steady.lock();
        let steady = steady.get_or_insert_with(|| {
            let newest = self.rules.lock().newest();
            SteadyClock::resume(newest, now)
        });
        steady.name(now)
    }

    /// Shows alerts and values to the people beside the gateway.
    #[must_use]
    pub fn showing(self, open_alerts: OpenAlerts, newest: Newest) -> Self {
        Self {
            open_alerts,
            newest,
            ..self
        }
    }

    pub fn open_alerts(&self) -> &OpenAlerts {
        &self.open_alerts
    }

    /// Puts the core's rules in force, from the next sample on.
    pub fn judge_by(&self, in_force: RulesInForce) {
        self.rules.lock().judge_by(in_force);
        self.waited_for.lock().clear();
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// The states that the disk would have after a request.
    #[cfg(test)]
    pub fn states_of_rules(&self) -> crate::rule_states::States {
        self.rules.lock().take_all()
    }

    /// Refuses devices that the core does not know, while the core reports the ones that it knows.
    #[must_use]
    pub fn while_following(mut self, following: CoreFollowed) -> Self {
        self.following = following;
        self
    }

    /// Returns once every accepted sample is on disk. `from` is the sender's address, if it is
    /// known.
    pub async fn record(
        &self,
        samples: Vec<Sample>,
        now: Moment,
        patience: Patience,
        from: Option<IpAddr>,
        parent: Option<&str>,
    ) -> Result<Recorded, RecordError> {
        let known = |_: &str| false;
        let begun = self.begin(samples, now, patience, (from, parent), known);
        match begun.await? {
            Begun::Done(recorded) => Ok(recorded),
            Begun::Late(late) => {
                self.until_known(&late).await;
                self.finish(*late).await
            }
        }
    }

    /// Stores samples of a request, each with its index there, and notes the outcomes.
    async fn store(
        &self,
        samples: impl ExactSizeIterator<Item = (usize, Sample)>,
        arrival: &Arrival,
        recorded: &mut Recorded,
    ) -> Result<(), RecordError> {
        let mut valid = Vec::with_capacity(samples.len());
        let mut indices = Vec::with_capacity(samples.len());
        for (index, mut sample) in samples {
            match self.prepare(&mut sample, arrival) {
                Ok(()) => {
                    self.note_apart(index, &sample, recorded);
                    valid.push(sample);
                    indices.push(index);
                }
                Err(invalid) => recorded.refused.push((index, invalid.into())),
            }
        }
        if valid.is_empty() {
            return Ok(());
        }
        self.newest.note(&valid, arrival.at);
        let touched = self.raise(&valid, arrival.at).await?;
        let appended = async {
            self.room_for_readings()?;
            match arrival.patience {
                Patience::Wait => self.vitals.append(valid, arrival.from).await,
                Patience::Refuse => self.vitals.try_append(valid, arrival.from).await,
            }
        };
        // A disk that stalls costs a restart its states, like one that refuses.
        let states = timeout(STALLED_AFTER, self.keep_states(touched));
        let (outcomes, _) = tokio::join!(appended, states);
        let outcomes = outcomes.map_err(|error| match error {
            AppendError::Busy => RecordError::Busy,
            error => RecordError::Journal(error),
        })?;
        for (index, outcome) in indices.into_iter().zip(outcomes) {
            match outcome {
                Ok(Staged::New { .. } | Staged::Retry) => recorded.accepted += 1,
                Err(StageError::Storage(error)) => {
                    return Err(RecordError::Journal(AppendError::Storage(error.into())));
                }
                Err(error) => recorded.refused.push((index, Refused::Journal(error))),
            }
        }
        Ok(())
    }

    fn prepare(&self, sample: &mut Sample, arrival: &Arrival) -> Result<(), Invalid> {
        let now = arrival.at;
        let latest_us = now.wall_us.max(arrival.clock_us);
        if sample.device_time_us == 0 {
            if sample.sensor_sequence.is_some() {
                // Without its own time, a sensor with a restarted count cannot be distinguished
                // from one that repeats itself.
                return Err(Invalid::new(
                    "device_time_us",
                    "is missing, and a sensor_sequence needs it",
                    now.wall_us.to_string(),
                ));
            }
            sample.device_time_us = now.wall_us;
        }
        vitals::validate_unit_stated(sample)?;
        vitals::fill_defaults(sample);
        vitals::validate_reading(sample)?;
        if self.is_unknown(&sample.device) {
            return Err(Invalid::new(
                "device",
                format!("{:?} {NOT_REGISTERED}", sample.device),
                "a device that `braid register` has entered for it",
            ));
        }
        match self.core.now_us(now) {
            // A sensor may use the gateway's clock, and be as far ahead.
            Some(core_us) => {
                let latest_us = core_us.max(latest_us);
                vitals::validate_time(sample, latest_us, ClockBounds::GATEWAY)?;
            }
            // A clock that was never set judges no other clock.
            None if now.is_set() => {
                vitals::validate_time(sample, latest_us, ClockBounds::UNCHECKED_GATEWAY)?;
            }
            None => {}
        }
        sample.gateway_time_us = now.wall_us;
        sample.gateway_uptime_us = now.uptime_us;
        sample.gateway_boot = now.boot;
        sample.gateway_behind_us = self.core.behind_us(now);
        sample.gateway.clone_from(&self.gateway);
        sample.sequence = 0;
        sample.ingest_time_us = 0;
        if sample.traceparent.is_empty()
            && let Some(traceparent) = &arrival.traceparent
        {
            sample.traceparent.clone_from(traceparent);
        }
        Ok(())
    }

    /// A device whose alerts the disk refused is refused as well, until they are stored or
    /// delivered. Other devices go on. Returns the subjects of the samples.
    async fn raise(&self, samples: &[Sample], at: Moment) -> Result<BTreeSet<String>, RecordError> {
        let waits = {
            let held = self.held.lock();
            held.is_full() || samples.iter().any(|it| held.concerns(&it.device))
        };
        if waits {
            self.keep_held().await?;
        }
        let (raised, _on_the_way) = {
            let mut rules = self.rules.lock();
            let mut raised = rules.raise(samples);
            let on_the_way = self.unsettled.enter(raised.of_alerts.clone());
            // Under the lock, so that the list has the transitions in their order.
            let transitions = std::mem::take(&mut raised.transitions).into_iter();
            let noted = transitions.zip(raised.alerts.iter().cloned()).collect();
            self.open_alerts.note(noted, at);
            (raised, on_the_way)
        };
        if !raised.alerts.is_empty() {
            self.urgent.notify_one();
        }
        self.keep(raised.alerts).await?;
        Ok(raised.touched)
    }

    /// A person says that it was no fall; returns once that is on disk. Returns false if there is
    /// no fall, or somebody was notified already.
    pub async fn cancel_fall(&self, device: &str, patient: &str) -> Result<bool, RecordError> {
        let (mut cancelled, on_the_way) = {
            let mut rules = self.rules.lock();
            let cancelled = rules.cancel_falls(device, patient);
            let on_the_way = self.unsettled.enter(cancelled.of_alerts.clone());
            (cancelled, on_the_way)
        };
        for alert in &mut cancelled.alerts {
            alert.gateway.clone_from(&self.gateway);
        }
        let is_cancelled = !cancelled.alerts.is_empty();
        self.keep(cancelled.alerts).await?;
        drop(on_the_way);
        self.keep_states(cancelled.touched).await;
        if is_cancelled {
            metrics::counter!("braid_gateway_falls_cancelled_total").increment(1);
        }
        Ok(is_cancelled)
    }

    async fn keep(&self, alerts: Vec<EdgeAlert>) -> Result<(), RecordError> {
        if alerts.is_empty() {
            return Ok(());
        }
        self.alarms.note(&alerts, std::time::Instant::now());
        let raised = |alerts: &[EdgeAlert]| {
            let raised = alerts.iter().filter(|it| it.acknowledged_by.is_empty());
            raised.count()
        };
        let count = raised(&alerts);
        let mut unkept = Unkept {
            intake: self,
            alerts,
        };
        let appended = self.append_alerts(&unkept.alerts).await;
        let outcomes = appended.map_err(|error| RecordError::Alerts(error.to_string()))?;
        let mut reason = None;
        let mut outcomes = outcomes.into_iter();
        unkept.alerts.retain(|_| match outcomes.next() {
            Some(Err(error)) => {
                reason = Some(error.to_string());
                true
            }
            _ => false,
        });
        metrics::counter!("braid_gateway_alerts_raised_total")
            .increment((count - raised(&unkept.alerts)) as u64);
        match reason {
            None => Ok(()),
            Some(reason) => Err(RecordError::Alerts(reason)),
        }
    }

    /// Held alerts stay until the journal has them, whichever caller waits here. The oldest is
    /// tried first: if the disk refuses it, the others need no attempt.
    async fn keep_held(&self) -> Result<(), RecordError> {
        if self.held.lock().is_empty() {
            return Ok(());
        }
        let _alone = self.keeping.lock().await;
        for count in [1, usize::MAX] {
            let (ids, alerts): (Vec<UnjournaledId>, Vec<EdgeAlert>) =
                self.first_held(count).into_iter().unzip();
            let appended = self.journal_alerts(alerts).await;
            let outcomes = appended.map_err(|error| RecordError::Alerts(error.to_string()))?;
            let mut kept = Vec::new();
            let mut reason = None;
            for (id, outcome) in ids.into_iter().zip(outcomes) {
                match outcome {
                    Ok(_) => kept.push(id),
                    Err(error) => reason = Some(error.to_string()),
                }
            }
            metrics::counter!("braid_gateway_alerts_raised_total").increment(kept.len() as u64);
            self.let_go(&kept);
            if let Some(reason) = reason {
                return Err(RecordError::Alerts(reason));
            }
        }
        Ok(())
    }

    /// Repeats refused writes until shutdown, since a refused device may send no more. Without held
    /// alerts it tests whether a failed journal would fail again.
    pub async fn try_again(&self, warning: WarningHandle, shutdown: Shutdown) {
        let mut held = self.held();
        let mut condition = self.alerts.condition();
        let mut backoff = Backoff::new(AGAIN_INITIAL, AGAIN_MAX);
        let mut again_at: Option<Instant> = None;
        loop {
            let count = *held.borrow_and_update();
            condition.mark_unchanged();
            let failing = self.alerts.trouble();
            metrics::gauge!("braid_gateway_alerts_held").set(count as f64);
            warning.set((count > 0).then(|| Warning {
                says: format!(
                    "{count} alerts are in memory only, at most {UNJOURNALED_ALERTS_MAX} fit: the journal takes none ({}); the core is told of them \
                     when it can be reached, and what it was not told is lost when the gateway ends",
                    failing.as_deref().unwrap_or("it is full")
                ),
                to_do: "make room on the disk of --data-dir, or replace it".to_owned(),
            }));
            if count == 0 && failing.is_none() {
                backoff.reset();
                again_at = None;
            } else {
                again_at = again_at.or_else(|| Some(Instant::now() + backoff.next_delay()));
            }
            tokio::select! {
                () = shutdown.requested() => return,
                Ok(()) = held.changed() => {}
                Ok(()) = condition.changed() => {
                    // Another write has shown that the disk takes some.
                    if *condition.borrow() == Condition::Writable {
                        again_at = Some(Instant::now());
                    }
                }
                () = sleep_until(again_at.unwrap_or_else(Instant::now)), if again_at.is_some() => {
                    again_at = None;
                    // An empty write makes the journal begin a new segment.
                    let tried = if count > 0 {
                        self.keep_held().await
                    } else {
                        let probe = self.alerts.append_alerts(Vec::new()).await;
                        probe.map(drop).map_err(|error| RecordError::Alerts(error.to_string()))
                    };
                    if let Err(error) = tried {
                        tracing::debug!(%error, "the journal of alerts still refuses writes");
                    }
                }
            }
        }
    }
}

/// Alerts whose storage is not confirmed yet. Dropping this holds them, even if the sensor closed
/// the connection before the disk answered. The rules will not raise them again, while the core
/// merges duplicates.
struct Unkept<'a, D: Disk> {
    intake: &'a Intake<D>,
    alerts: Vec<EdgeAlert>,
}

impl<D: Disk> Drop for Unkept<'_, D> {
    fn drop(&mut self) {
        if !self.alerts.is_empty() {
            self.intake.hold(std::mem::take(&mut self.alerts));
        }
    }
}

#[cfg(test)]
mod speed_tests;
