//! Reads the latest signs of life from the store, and writes alerts about silence and lost paths.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use clocks::Arrivals;
use contracts::{alerts::Alert, paths::PathReport};
use service_kit::{Context, Warning};
use store::{
    AlertsBatch, AlertsQuery, QueryError, Scope, Store, WriteError, each_assignment_at,
    each_latest_path, each_latest_vital,
};
use tokio::{sync::Notify, time::MissedTickBehavior};
use vitals::RuleSet;

use crate::{
    heard::Heard,
    signs::Signs,
    silence_watch::{Known, Worn, assess},
    turns::SILENCE_MAX,
};

/// Interval between two rounds.
const ROUND: Duration = Duration::from_secs(5);
/// Open alerts read in one round. A silence beyond them is not raised twice, and is judged when
/// others have ended.
const OPEN_MAX: usize = 10_000;
/// Transitions of one step, written in one transaction.
const STEP_TRANSITIONS_MAX: usize = 256;
/// Steps of one round, for as many alerts as a round reads. The rest follows in the next round.
const STEPS_MAX: usize = 40;
/// Attempts to write a step. Each leaves out at least one alert that another member wrote.
const ATTEMPTS_MAX: usize = 8;
/// Remembered silences that are open beyond [`OPEN_MAX`]. Past it all are learned again by
/// conflicts.
const RAISED_BEFORE_MAX: usize = 100_000;

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
    pub heard: Arc<Heard>,
    pub silent_after_us: i64,
    pub context: Context,
}

/// State that a round leaves for the next round.
struct Memory {
    /// Ids of stored silences that are not among the open alerts that were read.
    raised_before: BTreeSet<String>,
    /// By patient and metric.
    arrivals: Signs<(String, i32)>,
    /// By gateway, path and end.
    reports: Signs<(String, String, i32)>,
    newest: Arrivals,
}

impl Memory {
    fn new(silent_after_us: i64) -> Memory {
        Memory {
            raised_before: BTreeSet::new(),
            arrivals: Signs::new(silent_after_us),
            reports: Signs::new(silent_after_us),
            newest: Arrivals::default(),
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
    let turns = context.health().progress("silence", SILENCE_MAX);
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
        if !clock.is_steady_for(self.silent_after_us) {
            return Ok(Round::Held);
        }
        let query = AlertsQuery {
            limit: OPEN_MAX,
            ..AlertsQuery::default()
        };
        let open = self.store.alerts(&Scope::Service, &query).await?;
        let store = self.store.as_ref();
        let (mut latest, mut reports) = (Vec::new(), Vec::new());
        each_latest_vital(store, &Scope::Service, |value| latest.push(value)).await?;
        each_latest_path(store, &Scope::Service, 0, |report| {
            reports.push(what_silence_needs(report));
        })
        .await?;
        let (own_us, monotonic_us) = (clock.now_us(), clock.monotonic_us());
        let newest_us = latest.iter().map(|latest| latest.ingest_time_us).max();
        let now_us = newest_us.map_or(own_us, |newest_us| {
            own_us.min(memory.newest.observe(newest_us, monotonic_us))
        });
        let arrived = latest.iter_mut().map(|row| {
            let key = (row.patient.clone(), i32::from(row.metric));
            (key, &mut row.ingest_time_us)
        });
        memory.arrivals.put_right(arrived, now_us, monotonic_us);
        let reported = reports.iter_mut().map(|report| {
            let key = (report.gateway.clone(), report.path.clone(), report.end);
            (key, &mut report.time_us)
        });
        memory.reports.put_right(reported, now_us, monotonic_us);
        // Asked again: the clock may have stepped while the store answered.
        if !clock.is_steady_for(self.silent_after_us) {
            return Ok(Round::Held);
        }
        self.heard.move_forward(&mut latest, now_us, monotonic_us);
        let mut worn = Worn::default();
        each_assignment_at(store, &Scope::Service, now_us, |it| worn.add(it)).await?;
        let latest = worn.attribute(latest);
        let known = Known {
            latest: &latest,
            worn: &worn,
            reports: &reports,
            open: &open,
            rules: &self.rules,
            silent_after_us: self.silent_after_us,
            now_us,
        };
        self.write(&known, &mut memory.raised_before)
            .await
            .map(Round::Written)
    }

    /// Writes all transitions of the round step by step, so that no site's silences wait for those
    /// of others until the next round.
    async fn write(
        &self,
        known: &Known<'_>,
        raised_before: &mut BTreeSet<String>,
    ) -> Result<u64, RoundError> {
        let mut rest = assess(known, raised_before);
        let mut written = 0;
        for _ in 0..STEPS_MAX {
            if rest.is_empty() || self.context.shutdown().is_requested() {
                break;
            }
            let later = rest.split_off(rest.len().min(STEP_TRANSITIONS_MAX));
            written += self.write_step(rest, raised_before).await?;
            rest = later;
        }
        Ok(written)
    }

    async fn write_step(
        &self,
        mut transitions: Vec<Alert>,
        raised_before: &mut BTreeSet<String>,
    ) -> Result<u64, RoundError> {
        for _ in 0..ATTEMPTS_MAX {
            if transitions.is_empty() {
                return Ok(0);
            }
            let batch = AlertsBatch {
                transitions: transitions.clone(),
                states: Vec::new(),
            };
            match self.store.write_alerts(batch, Vec::new()).await {
                Ok(written) => {
                    metrics::counter!("braid_alerting_silence_transitions_total")
                        .increment(written.new);
                    if written.new > 0 {
                        self.outbox.notify_one();
                    }
                    return Ok(written.new);
                }
                // The alert is not in the list that was read: another member, or an
                // acknowledgement, was first. The other alerts are still written.
                Err(WriteError::Conflict(ids)) => {
                    if raised_before.len() >= RAISED_BEFORE_MAX {
                        raised_before.clear();
                    }
                    let contested = transitions.extract_if(.., |it| ids.contains(&it.id));
                    let raised = contested.filter(|it| it.revision == 1);
                    raised_before.extend(raised.map(|it| it.id));
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
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicI64, Ordering};

    use clocks::{CheckedClock, Moment};
    use contracts::{
        alerts::AlertState,
        vitals::{Metric, Sample, sample::Reading},
    };
    use store::{Change, DeviceEntry, SqliteStore, VitalsBatch};

    use super::*;

    const HOUR_US: i64 = 3_600_000_000;

    async fn hear(store: &dyn Store, device: &str, at_us: i64) {
        hear_all(store, &[device.to_owned()], at_us).await;
    }

    /// Patient and gateway have the same name as the sensor.
    async fn wear(store: &dyn Store, device: &str) {
        let entry = DeviceEntry {
            id: device.into(),
            tenant: "t".into(),
            gateway: device.into(),
            patient: device.into(),
            registered_us: i64::MIN,
        };
        store.put_device(&entry).await.unwrap();
    }

    async fn hear_all(store: &dyn Store, devices: &[String], at_us: i64) {
        let sample = |device: &String| Sample {
            device: device.clone(),
            patient: device.clone(),
            gateway: device.clone(),
            sequence: at_us as u64,
            metric: Metric::HeartRate.into(),
            device_time_us: at_us,
            ingest_time_us: at_us,
            reading: Some(Reading::Value(70.0)),
            ..Sample::default()
        };
        let batch = VitalsBatch {
            samples: devices.iter().map(sample).collect(),
            ..VitalsBatch::default()
        };
        store
            .write_vitals(Arc::new(batch), Vec::new())
            .await
            .unwrap();
    }

    fn watch(store: SqliteStore, context: Context) -> SilenceWatch {
        SilenceWatch {
            store: Arc::new(store),
            outbox: Arc::default(),
            rules: Arc::new(RuleSet::default_set()),
            heard: Arc::default(),
            silent_after_us: 60_000_000,
            context,
        }
    }

    #[tokio::test]
    async fn open_alerts_beyond_those_read_keep_no_silence_untold() {
        let directory = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(directory.path()).unwrap();
        let watch = watch(store, Context::new("alerting"));
        let store = watch.store.as_ref();
        let now_us = contracts::now_us();
        let mut memory = Memory::new(watch.silent_after_us);
        for device in ["first", "second", "well"] {
            wear(store, device).await;
        }
        hear(store, "first", now_us - HOUR_US).await;
        hear(store, "well", now_us).await;
        let first = watch.round(&mut memory).await.unwrap();
        assert!(matches!(first, Round::Written(1..)), "{first:?}");
        // So many newer alerts that the first silence is no longer among those read.
        let others = (0..OPEN_MAX).map(|number| Alert {
            id: format!("other-{number}"),
            patient: "other".into(),
            rule: "fall".into(),
            state: AlertState::Active.into(),
            since_us: now_us,
            revision: 1,
            ..Alert::default()
        });
        let batch = AlertsBatch {
            transitions: others.collect(),
            ..AlertsBatch::default()
        };
        store.write_alerts(batch, Vec::new()).await.unwrap();
        hear(store, "second", now_us - HOUR_US / 2).await;
        let second = watch.round(&mut memory).await.unwrap();
        assert!(matches!(second, Round::Written(1..)), "the second one's");
        let third = watch.round(&mut memory).await.unwrap();
        assert_eq!(third, Round::Written(0), "and none again");
    }

    /// Devices of one gateway each, silent for an hour, beside one that is heard.
    async fn silent_site(devices: usize) -> (tempfile::TempDir, SilenceWatch) {
        let directory = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(directory.path()).unwrap();
        let watch = watch(store, Context::new("alerting"));
        let store = watch.store.as_ref();
        let silent: Vec<String> = (0..devices).map(|number| format!("d{number}")).collect();
        for device in &silent {
            wear(store, device).await;
        }
        wear(store, "well").await;
        let now_us = contracts::now_us();
        hear_all(store, &silent, now_us - HOUR_US).await;
        hear(store, "well", now_us).await;
        (directory, watch)
    }

    #[tokio::test]
    async fn one_round_raises_every_silence_of_a_large_site() {
        let (_directory, watch) = silent_site(600).await;
        let mut memory = Memory::new(watch.silent_after_us);
        // Each device and its gateway.
        let first = watch.round(&mut memory).await.unwrap();
        assert_eq!(first, Round::Written(1200));
        let second = watch.round(&mut memory).await.unwrap();
        assert_eq!(second, Round::Written(0));
    }

    #[tokio::test]
    async fn silences_that_another_member_raised_first_keep_no_other_from_the_round() {
        let (_directory, watch) = silent_site(600).await;
        let mut memory = Memory::new(watch.silent_after_us);
        watch.round(&mut memory).await.unwrap();
        let query = AlertsQuery {
            limit: OPEN_MAX,
            ..AlertsQuery::default()
        };
        let raised = watch.store.alerts(&Scope::Service, &query).await.unwrap();
        // The other member dated some of them by its own clock.
        let (_directory, watch) = silent_site(0).await;
        let others = raised.iter().step_by(3).cloned().map(|alert| Alert {
            recorded_us: alert.recorded_us - 1,
            ..alert
        });
        let batch = AlertsBatch {
            transitions: others.collect(),
            ..AlertsBatch::default()
        };
        watch.store.write_alerts(batch, Vec::new()).await.unwrap();
        let mut told = BTreeSet::new();
        let mut written = 0;
        for step in raised.chunks(STEP_TRANSITIONS_MAX) {
            written += watch.write_step(step.to_vec(), &mut told).await.unwrap();
        }
        assert_eq!((written, told.len()), (800, 400));
    }

    #[tokio::test]
    async fn a_silence_follows_the_sensor_to_the_next_patient_and_ends_with_the_assignment() {
        let directory = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(directory.path()).unwrap();
        let watch = watch(store, Context::new("alerting"));
        let store = watch.store.as_ref();
        let now_us = contracts::now_us();
        let mut memory = Memory::new(watch.silent_after_us);
        for device in ["belt", "well"] {
            wear(store, device).await;
        }
        hear(store, "belt", now_us - HOUR_US).await;
        hear(store, "well", now_us).await;
        let open = async || {
            let query = AlertsQuery::default();
            let open = store.alerts(&Scope::Service, &query).await.unwrap();
            let of = |alert: &Alert| (alert.rule.clone(), alert.patient.clone(), alert.since_us);
            open.iter().map(of).collect::<Vec<_>>()
        };
        watch.round(&mut memory).await.unwrap();
        assert!(open().await.contains(&(
            "device-silent".to_owned(),
            "belt".to_owned(),
            now_us - HOUR_US
        )));
        // The belt went to another patient at another gateway half an hour ago.
        let handed_us = now_us - HOUR_US / 2;
        let entry = DeviceEntry {
            id: "belt".into(),
            tenant: "t".into(),
            gateway: "gw-2".into(),
            patient: "ben".into(),
            registered_us: handed_us,
        };
        store.put_device(&entry).await.unwrap();
        watch.round(&mut memory).await.unwrap();
        let expected = [("device-silent", "ben"), ("gateway-silent", "")];
        let mut found = open().await;
        found.sort();
        let named: Vec<(&str, &str)> = found.iter().map(|it| (&*it.0, &*it.1)).collect();
        assert_eq!(named, expected, "{found:?}");
        assert!(found.iter().all(|it| it.2 == handed_us), "{found:?}");
        // The patient was discharged, so no reading is expected.
        let change = Change::by_program("discharged");
        let scope = Scope::tenant("t");
        let ended = store.end_assignment(&scope, "belt", now_us - 1, &change);
        assert!(ended.await.unwrap().is_some());
        watch.round(&mut memory).await.unwrap();
        assert_eq!(open().await, []);
    }

    /// The true time is `T0_US` plus the monotonic time. The wall clock has an error.
    struct Machine {
        monotonic_us: Arc<AtomicI64>,
        error_us: Arc<AtomicI64>,
        clock: CheckedClock,
    }

    const T0_US: i64 = 1_800_000_000_000_000;

    impl Machine {
        fn new(error_us: i64) -> Machine {
            let (monotonic_us, error_us) = (
                Arc::new(AtomicI64::new(0)),
                Arc::new(AtomicI64::new(error_us)),
            );
            let clocks = (Arc::clone(&monotonic_us), Arc::clone(&error_us));
            let clock = CheckedClock::new(Arc::new(move || {
                let monotonic_us = clocks.0.load(Ordering::Relaxed);
                Moment {
                    wall_us: T0_US + monotonic_us + clocks.1.load(Ordering::Relaxed),
                    monotonic_us,
                }
            }));
            Machine {
                monotonic_us,
                error_us,
                clock,
            }
        }

        fn true_us(&self) -> i64 {
            T0_US + self.monotonic_us.load(Ordering::Relaxed)
        }

        fn pass(&self, seconds: i64) {
            for _ in 0..seconds {
                self.monotonic_us.fetch_add(1_000_000, Ordering::Relaxed);
                self.clock.now_us();
            }
        }
    }

    /// Twenty devices continue and one ends before the step. Returns the raised alerts with their
    /// delay in seconds.
    async fn raised_after_step(start_us: i64, by_us: i64) -> Vec<(i64, String)> {
        let machine = Machine::new(start_us);
        let directory = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(directory.path()).unwrap();
        let context = Context::with_clock("alerting", machine.clock.clone());
        let watch = watch(store, context);
        let mut memory = Memory::new(watch.silent_after_us);
        let mut raised = Vec::new();
        for device in (0..20).map(|n| format!("d{n}")) {
            wear(watch.store.as_ref(), &device).await;
        }
        wear(watch.store.as_ref(), "mute").await;
        for step in 0..40 {
            machine.pass(5);
            if step == 8 {
                machine.error_us.fetch_add(by_us, Ordering::Relaxed);
            }
            let mut devices: Vec<String> = (0..20).map(|n| format!("d{n}")).collect();
            if step < 8 {
                devices.push("mute".to_owned());
            }
            hear_all(watch.store.as_ref(), &devices, machine.true_us()).await;
            let before = raised.len();
            if let Round::Written(1..) = watch.round(&mut memory).await.unwrap() {
                let query = AlertsQuery::default();
                let open = watch.store.alerts(&Scope::Service, &query).await.unwrap();
                for alert in open.into_iter().skip(before) {
                    let what = format!("{} {}{}", alert.rule, alert.device, alert.gateway);
                    raised.push(((step - 8) * 5, what));
                }
            }
        }
        raised
    }

    #[tokio::test]
    async fn a_step_of_the_own_clock_calls_nobody_silent_and_hides_no_real_silence() {
        for start_us in [0, 3 * HOUR_US, -90_000_000] {
            for by_us in [0, 90_000_000, -90_000_000, HOUR_US, -HOUR_US] {
                let raised = raised_after_step(start_us, by_us).await;
                assert!(!raised.is_empty(), "{start_us} {by_us}");
                for (after_s, what) in &raised {
                    assert!(what.contains("mute"), "{start_us} {by_us}: {raised:?}");
                    // One silence, one round, and the interval of two readings.
                    assert!(
                        (60..=70).contains(after_s),
                        "{start_us} {by_us}: {raised:?}"
                    );
                }
            }
        }
    }
}
