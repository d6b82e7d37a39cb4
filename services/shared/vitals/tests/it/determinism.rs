//! Edge, core and replay raise the same alerts from the same readings, whatever the timing of ticks
//! and restarts.

use std::{collections::BTreeMap, sync::Arc};

use contracts::{
    alerts::{Alert, AlertState},
    vitals::{EdgeAlert, Metric, Priority, Sample, sample},
};
use proptest::prelude::*;
use vitals::{
    Condition, Direction, Engine, Origin, PRESENT_US, Profile, Rule, RuleSet, edge_alert,
    episode_id, fill_defaults, rehearsal::Rehearsal,
};

const S: i64 = 1_000_000;
const T0: i64 = 1_800_000_000 * S;
const PATIENT: &str = "p";

fn rules() -> Arc<RuleSet> {
    let rule = |id: &str, priority, condition, for_s: u64, clear_for_s: u64| Rule {
        id: id.into(),
        priority,
        condition,
        for_ms: for_s * 1000,
        clear_for_ms: clear_for_s * 1000,
    };
    let above = || Condition::Above {
        metric: Metric::HeartRate,
        limit: 130.0,
        clear: 120.0,
    };
    let change = Condition::Change {
        metric: Metric::HeartRate,
        direction: Direction::Rise,
        by: 40.0,
        clear: 20.0,
        within_ms: 60_000,
    };
    let below = Condition::Below {
        metric: Metric::Spo2,
        limit: 88.0,
        clear: 90.0,
    };
    let set = RuleSet {
        name: "test".into(),
        version: 3,
        stale_after_s: [("heart-rate".to_owned(), 30), ("spo2".to_owned(), 60)].into(),
        rules: vec![
            rule("at-once", Priority::Medium, above(), 0, 0),
            rule("later", Priority::High, above(), 10, 15),
            rule("rise", Priority::Low, change, 5, 5),
            rule("spo2", Priority::High, below, 12, 3),
            rule(
                "score",
                Priority::Medium,
                Condition::News2 { from: 3, to: 20 },
                7,
                9,
            ),
        ],
    };
    set.validate().unwrap();
    Arc::new(set)
}

fn readings(readings: &[(i64, bool, f64)]) -> Vec<Sample> {
    let mut at_us = T0;
    let samples = readings
        .iter()
        .enumerate()
        .map(|(index, (gap_ms, is_heart, share))| {
            at_us += gap_ms * 1000;
            let (metric, value) = if *is_heart {
                (Metric::HeartRate, 60.0 + 90.0 * share)
            } else {
                (Metric::Spo2, (84.0 + 14.0 * share).round())
            };
            let mut sample = Sample {
                device: "belt-1".into(),
                gateway: "gateway-1".into(),
                stream: format!("{metric:?}"),
                sequence: index as u64 + 1,
                metric: metric.into(),
                device_time_us: at_us,
                reading: Some(sample::Reading::Value(value)),
                ..Sample::default()
            };
            fill_defaults(&mut sample);
            sample
        });
    samples.collect()
}

/// Rule, time of raising, time of ending.
type Stretches = Vec<(String, i64, Option<i64>)>;

fn stretches(alerts: &[Alert]) -> Stretches {
    let mut found = Stretches::new();
    let mut newest: BTreeMap<&str, usize> = BTreeMap::new();
    for alert in alerts {
        let place = newest.get(alert.id.as_str()).copied();
        match alert.state() {
            AlertState::Active if place.is_none_or(|it| found[it].1 < alert.changed_us) => {
                newest.insert(&alert.id, found.len());
                found.push((alert.rule.clone(), alert.changed_us, None));
            }
            AlertState::Latched | AlertState::Resolved => {
                found[place.unwrap()].2.get_or_insert(alert.changed_us);
            }
            _ => {}
        }
    }
    found.sort();
    found
}

/// Acknowledges the alerts of the core. Without an acknowledgement an alert is active again with
/// the first reading of the next stretch, and the edge does not know acknowledgements.
fn answer(engine: &mut Engine, origin: Origin, raised: Vec<Alert>) -> Vec<Alert> {
    let active = raised.iter().filter(|it| it.state() == AlertState::Active);
    for alert in active.filter(|_| origin == Origin::Core) {
        engine.acknowledge(&alert.id, "Ada", "", alert.changed_us);
    }
    raised
}

/// Runs an engine over readings, with reports of the edge between them. Time advances up to the
/// next reading as `ticks` say. Every third time the engine is stored and restored.
fn run(
    origin: Origin,
    samples: &[Sample],
    edge: &[EdgeAlert],
    ticks: &[Option<u8>],
    lead: usize,
) -> Vec<Alert> {
    let new = || Engine::new(PATIENT, rules(), Profile::default(), origin);
    let mut engine = new();
    let mut edge = edge.iter();
    let mut ticks = ticks.iter().cycle();
    let mut alerts = Vec::new();
    let mut before_us = T0;
    for (index, sample) in samples.iter().enumerate() {
        for alert in edge.by_ref().take(lead) {
            let raised = engine.on_edge_alert(alert);
            alerts.extend(answer(&mut engine, origin, raised));
        }
        if let Some(Some(share)) = ticks.next() {
            let gap_us = sample.device_time_us - before_us;
            let raised = engine.on_time(before_us + gap_us * i64::from(*share) / 255);
            alerts.extend(answer(&mut engine, origin, raised));
        }
        let raised = engine.on_sample(sample);
        alerts.extend(answer(&mut engine, origin, raised));
        before_us = sample.device_time_us;
        if index % 3 == 0 {
            let (rules, profile) = (rules(), Profile::default());
            engine = Engine::restore(PATIENT, rules, profile, origin, &engine.state()).unwrap();
        }
    }
    alerts.extend(edge.flat_map(|alert| engine.on_edge_alert(alert)));
    alerts.extend(engine.on_time(before_us + PRESENT_US));
    alerts
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn edge_core_and_replay_agree(
        day in prop::collection::vec((1_i64..9_000, any::<bool>(), 0.0_f64..1.0), 1..120),
        ticks in prop::collection::vec(prop::option::of(any::<u8>()), 1..20),
        lead in 0_usize..4,
    ) {
        let samples = readings(&day);
        let at_edge = run(Origin::Edge, &samples, &[], &[None], 0);
        let reported: Vec<EdgeAlert> =
            at_edge.iter().filter_map(|alert| edge_alert(alert, 0)).collect();
        let expected = stretches(&at_edge);

        prop_assert_eq!(&stretches(&run(Origin::Edge, &samples, &[], &ticks, 0)), &expected);
        let alone = run(Origin::Core, &samples, &[], &ticks, 0);
        prop_assert_eq!(&stretches(&alone), &expected);
        let merged = run(Origin::Core, &samples, &reported, &ticks, lead);
        prop_assert_eq!(&stretches(&merged), &expected);
        // An alert that overtakes its readings has the same id and beginning as in the core.
        let begun = |alerts: &[Alert]| -> BTreeMap<String, i64> {
            alerts.iter().map(|alert| (alert.id.clone(), alert.since_us)).collect()
        };
        prop_assert_eq!(begun(&merged), begun(&alone));

        let mut rehearsal = Rehearsal::new(PATIENT, rules(), Profile::default());
        samples.iter().for_each(|sample| rehearsal.feed(sample));
        let (raised, _) = rehearsal.finish();
        let mut replayed: Stretches =
            raised.iter().map(|it| (it.rule.clone(), it.raised_us, it.ended_us)).collect();
        replayed.sort();
        prop_assert_eq!(&replayed, &expected);
        for raised in &raised {
            prop_assert_eq!(&raised.id, &episode_id(PATIENT, &raised.rule, raised.since_us));
            prop_assert!(at_edge.iter().any(|it| it.id == raised.id && it.since_us == raised.since_us));
        }
    }
}
