#![allow(clippy::unwrap_used)]

use std::time::Duration;

use contracts::vitals::{Metric, Sample, sample::Reading};
use tokio::time::timeout;
use vitals::{Condition, RuleSet};

use super::*;
use crate::{
    clock::Moment,
    intake::Patience,
    journal::{
        Journal, Overflow,
        test_disk::{Stopping, entries, small},
    },
};

const START_US: i64 = 1_800_000_000_000_000;
/// Reached only by a failing test.
const STUCK_AFTER: Duration = Duration::from_secs(10);

struct Bench {
    intake: Arc<Intake<Stopping>>,
    alerts: Journal<Stopping>,
    of_alerts: Stopping,
    of_states: Stopping,
}

impl Bench {
    /// A single reading above 140 raises an alert.
    fn new() -> Self {
        let mut rules = RuleSet::default_set();
        rules.rules.retain(|rule| rule.id == "heart-rate-high");
        for rule in &mut rules.rules {
            rule.for_ms = 0;
            if let Condition::Above { limit, clear, .. } = &mut rule.condition {
                (*limit, *clear) = (140.0, 135.0);
            }
        }
        assert_eq!(rules.rules.len(), 1);
        let (of_alerts, of_states) = (Stopping::new(2), Stopping::new(3));
        let vitals = small(Stopping::new(1), "vitals", Overflow::DropOldest);
        let alerts = small(of_alerts.clone(), "alerts", Overflow::Refuse);
        let (log, _) = StateLog::open(of_states.clone()).unwrap();
        let intake = Intake::new("g".into(), vitals, alerts.clone(), EdgeRules::new(rules));
        Self {
            intake: Arc::new(intake.with_states(log)),
            alerts,
            of_alerts,
            of_states,
        }
    }

    async fn record(&self, device: &str, second: i64, value: f64) {
        record(&self.intake, device, second, value).await;
    }

    /// The states that a restart would find.
    fn kept(&self) -> States {
        StateLog::open(self.of_states.clone()).unwrap().1
    }

    fn keeps(&self, device: &str) -> bool {
        let kept = self.kept();
        kept.engines.get(device).is_some_and(|it| !it.is_empty())
    }
}

async fn record(intake: &Intake<Stopping>, device: &str, second: i64, value: f64) {
    let sample = Sample {
        device: device.into(),
        metric: Metric::HeartRate.into(),
        device_time_us: START_US + second * 1_000_000,
        reading: Some(Reading::Value(value)),
        ..Sample::default()
    };
    let now = Moment {
        wall_us: START_US + second * 1_000_000,
        ..Moment::now()
    };
    let recorded = intake.record(vec![sample], now, Patience::Wait, None, None);
    assert_eq!(recorded.await.unwrap().accepted, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_sensor_waits_for_the_slow_write_of_another_ones_alert() {
    let bench = Bench::new();
    bench.record("other", 0, 70.0).await;
    bench.of_alerts.stop(true);
    let intake = Arc::clone(&bench.intake);
    let alarm = tokio::spawn(async move { record(&intake, "alarming", 1, 180.0).await });
    let under_way = timeout(STUCK_AFTER, async {
        while !bench.intake.unsettled.has("alarming") {
            tokio::task::yield_now().await;
        }
    });
    under_way.await.expect("the alert is on its way");

    // Far enough apart that the state has changed each time.
    for second in [10, 20, 30] {
        let recorded = timeout(STUCK_AFTER, bench.record("other", second, 70.0));
        recorded.await.expect("it does not wait for the alert");
    }
    timeout(STUCK_AFTER, bench.record("new", 31, 70.0))
        .await
        .expect("a new sensor does not wait either");
    assert!(bench.keeps("other") && bench.keeps("new"));
    assert!(!bench.keeps("alarming"), "its alert is not durable");
    assert!(!alarm.is_finished() && entries(&bench.alerts).is_empty());

    bench.of_alerts.stop(false);
    timeout(STUCK_AFTER, alarm).await.unwrap().unwrap();
    assert_eq!(entries(&bench.alerts).len(), 1);
    assert!(bench.keeps("alarming"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sensor_that_goes_away_leaves_its_state_to_be_kept_later() {
    let bench = Bench::new();
    // The first write has all states, so it waits for the alert.
    bench.of_alerts.stop(true);
    let intake = Arc::clone(&bench.intake);
    let alarm = tokio::spawn(async move { record(&intake, "alarming", 1, 180.0).await });
    let intake = Arc::clone(&bench.intake);
    let leaving = tokio::spawn(async move { record(&intake, "leaving", 1, 70.0).await });
    let is_taken = || bench.intake.unsettled.is_being_written("leaving");
    let taken = timeout(STUCK_AFTER, async {
        while !is_taken() {
            tokio::task::yield_now().await;
        }
    });
    taken.await.expect("its state is about to be written");
    leaving.abort();
    assert!(leaving.await.is_err());
    assert!(!is_taken() && bench.intake.rules.lock().has_changed("leaving"));
    bench.of_alerts.stop(false);
    timeout(STUCK_AFTER, alarm).await.unwrap().unwrap();
    assert!(bench.keeps("alarming") && bench.keeps("leaving"));
}
