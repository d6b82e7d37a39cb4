//! The rules engine as gateway and alerting use it: samples in, transitions out.

use std::sync::Arc;

use contracts::{
    alerts::{Alert, AlertState},
    vitals::{EdgeAlert, Metric, Priority, Sample, sample},
};
use proptest::prelude::*;
use vitals::{
    Condition, Engine, Origin, Profile, Rule, RuleSet, edge_alert, episode_id, fill_defaults,
    rules::metric_name,
};

const S: i64 = 1_000_000;
const T0: i64 = 1_800_000_000 * S;

fn rule(id: &str, priority: Priority, for_s: u64) -> Rule {
    Rule {
        id: id.into(),
        priority,
        condition: Condition::Above {
            metric: Metric::HeartRate,
            limit: 130.0,
            clear: 120.0,
        },
        for_ms: for_s * 1000,
        clear_for_ms: for_s * 1000,
    }
}

fn set(rules: Vec<Rule>) -> Arc<RuleSet> {
    let set = RuleSet {
        name: "test".into(),
        version: 3,
        stale_after_s: [("heart-rate".to_owned(), 60)].into(),
        rules,
    };
    set.validate().unwrap();
    Arc::new(set)
}

fn engine(rules: Vec<Rule>) -> Engine {
    Engine::new("patient-1", set(rules), Profile::default(), Origin::Core)
}

fn reading(metric: Metric, sequence: u64, at_s: i64, value: f64) -> Sample {
    let mut sample = Sample {
        device: "belt-1".into(),
        gateway: "gateway-1".into(),
        sequence,
        metric: metric.into(),
        device_time_us: T0 + at_s * S,
        reading: Some(sample::Reading::Value(value)),
        ..Sample::default()
    };
    fill_defaults(&mut sample);
    sample
}

fn pulse(sequence: u64, at_s: i64, value: f64) -> Sample {
    reading(Metric::HeartRate, sequence, at_s, value)
}

/// Feeds (second, heart rate) pairs.
fn feed(engine: &mut Engine, pulses: &[(i64, f64)]) -> Vec<Alert> {
    pulses
        .iter()
        .flat_map(|(at_s, value)| {
            let sequence = (*at_s + 1000) as u64;
            engine.on_sample(&pulse(sequence, *at_s, *value))
        })
        .collect()
}

fn states(alerts: &[Alert]) -> Vec<AlertState> {
    alerts.iter().map(Alert::state).collect()
}

#[test]
fn alerts_after_the_delay_and_resolves_after_the_other() {
    let mut engine = engine(vec![rule("fast", Priority::Medium, 10)]);
    assert!(
        feed(
            &mut engine,
            &[(0, 80.0), (1, 131.0), (5, 135.0), (10, 140.0)]
        )
        .is_empty()
    );
    let raised = feed(&mut engine, &[(11, 141.0)]);
    assert_eq!(states(&raised), [AlertState::Active]);
    let alert = &raised[0];
    assert_eq!(alert.since_us, T0 + S);
    assert_eq!(alert.changed_us, T0 + 11 * S);
    assert_eq!(alert.id, episode_id("patient-1", "fast", T0 + S));
    assert_eq!(
        alert.summary,
        "Heart rate 141 /min, at or above 130 for 10 s"
    );
    assert_eq!((alert.revision, alert.rule_version), (1, 3));
    assert!(alert.from_core && !alert.from_edge);
    assert_eq!(alert.device, "belt-1");
    assert_eq!(alert.gateway, "gateway-1");

    // Between the limits nothing changes, and a relapse restarts the clearing delay.
    assert!(
        feed(
            &mut engine,
            &[(12, 125.0), (13, 110.0), (20, 131.0), (21, 110.0)]
        )
        .is_empty()
    );
    let resolved = feed(&mut engine, &[(31, 100.0)]);
    assert_eq!(states(&resolved), [AlertState::Resolved]);
    assert_eq!(resolved[0].id, alert.id);
    assert_eq!(resolved[0].revision, 2);
}

#[test]
fn an_interrupted_stretch_does_not_alert() {
    let mut engine = engine(vec![rule("fast", Priority::Medium, 10)]);
    let pulses = [(0, 140.0), (8, 140.0), (9, 100.0), (10, 140.0), (19, 140.0)];
    assert!(feed(&mut engine, &pulses).is_empty());
    // The last reading still counts when the delay is over.
    let later = feed(&mut engine, &[(100, 100.0), (110, 100.0)]);
    assert_eq!(states(&later), [AlertState::Active, AlertState::Resolved]);
    assert_eq!(later[0].changed_us, T0 + 20 * S);
    // A silence longer than the staleness limit breaks a stretch.
    let mut engine = self::engine(vec![rule("fast", Priority::Medium, 70)]);
    assert!(feed(&mut engine, &[(0, 140.0), (65, 140.0), (130, 140.0)]).is_empty());
    let raised = feed(&mut engine, &[(190, 140.0)]);
    assert_eq!(raised.len(), 0);
    assert_eq!(engine.on_time(T0 + 200 * S + 1)[0].since_us, T0 + 130 * S);
}

#[test]
fn high_priority_latches_until_acknowledged() {
    let mut engine = engine(vec![rule("fast", Priority::High, 0)]);
    let alerts = feed(
        &mut engine,
        &[(0, 140.0), (1, 100.0), (2, 140.0), (3, 100.0)],
    );
    use AlertState::{Acknowledged, Active, Latched, Resolved};
    assert_eq!(states(&alerts), [Active, Latched, Active, Latched]);
    assert!(alerts.iter().all(|alert| alert.id == alerts[0].id));
    assert!(engine.has_open_alert());
    let acknowledged = engine.acknowledge(&alerts[0].id, "Ada", "on my way", T0 + 4 * S);
    assert_eq!(states(&acknowledged), [Resolved]);
    assert_eq!(acknowledged[0].acknowledged_by, "Ada");
    assert_eq!(acknowledged[0].revision, 5);
    assert!(!engine.has_open_alert());
    assert!(
        engine
            .acknowledge(&alerts[0].id, "Bob", "", T0 + 5 * S)
            .is_empty()
    );

    // The next one is an episode of its own. Acknowledged while active, it ends without a latch.
    let next = feed(&mut engine, &[(10, 150.0)]);
    assert_ne!(next[0].id, alerts[0].id);
    assert_eq!(next[0].revision, 1);
    assert_eq!(
        states(&engine.acknowledge(&next[0].id, "Ada", "", T0 + 11 * S)),
        [Acknowledged]
    );
    assert_eq!(states(&feed(&mut engine, &[(12, 90.0)])), [Resolved]);
}

#[test]
fn time_alone_activates_and_clears() {
    let mut engine = engine(vec![rule("fast", Priority::Medium, 10)]);
    feed(&mut engine, &[(0, 140.0)]);
    // A reading at that very time may still come.
    assert!(engine.on_time(T0 + 10 * S).is_empty());
    let raised = engine.on_time(T0 + 13 * S);
    assert_eq!(states(&raised), [AlertState::Active]);
    assert_eq!(raised[0].changed_us, T0 + 10 * S, "the end of the delay");
    assert_eq!(raised[0].device, "belt-1");
    assert_eq!(raised[0].gateway, "gateway-1");
    assert!(engine.on_time(T0 + 14 * S).is_empty());
    feed(&mut engine, &[(20, 100.0)]);
    let ended = engine.on_time(T0 + 31 * S);
    assert_eq!(states(&ended), [AlertState::Resolved]);
    assert_eq!(ended[0].changed_us, T0 + 30 * S);

    // A pending stretch does not outlive its readings.
    let mut engine = self::engine(vec![rule("fast", Priority::Medium, 61)]);
    feed(&mut engine, &[(50, 140.0)]);
    assert!(engine.on_time(T0 + 200 * S).is_empty());
}

#[test]
fn duplicates_and_stragglers_change_nothing() {
    let mut engine = engine(vec![rule("fast", Priority::High, 0)]);
    feed(&mut engine, &[(0, 80.0), (10, 140.0)]);
    let before = engine.state();
    assert!(feed(&mut engine, &[(10, 140.0), (5, 80.0), (0, 80.0)]).is_empty());
    assert_eq!(engine.state(), before);
    assert_eq!(engine.skipped(), 3);
}

#[test]
fn a_clock_that_steps_back_does_not_deafen_the_rules() {
    let mut engine = engine(vec![rule("fast", Priority::Medium, 10)]);
    engine.on_sample(&pulse(1, 0, 80.0));
    let hour = 3600;
    assert!(engine.on_sample(&pulse(2, -hour, 140.0)).is_empty());
    assert!(engine.on_sample(&pulse(3, -hour + 5, 140.0)).is_empty());
    assert_eq!(engine.on_sample(&pulse(4, -hour + 10, 140.0)).len(), 1);
}

#[test]
fn a_core_whose_clock_is_set_back_calls_again() {
    let ahead = 3 * 3600;
    for backfill in [false, true] {
        let mut engine = engine(vec![rule("fast", Priority::Medium, 0)]);
        let first = engine.on_sample(&pulse(1, ahead, 140.0)).remove(0);
        engine.set_backfill(backfill);
        let ended = feed(&mut engine, &[(1, 80.0), (20, 80.0)]);
        let again = feed(&mut engine, &[(600, 140.0)]);
        if backfill {
            assert!(ended.is_empty(), "readings of before end nothing");
            continue;
        }
        assert_eq!(states(&ended), [AlertState::Resolved]);
        assert!(ended[0].changed_us >= ended[0].since_us);
        assert_eq!(states(&again), [AlertState::Active]);
        assert_ne!(again[0].id, first.id);
    }
}

#[test]
fn a_sequence_that_begins_anew_does_not_deafen_the_rules() {
    let mut engine = engine(vec![rule("fast", Priority::Medium, 0)]);
    engine.on_sample(&pulse(5000, 0, 80.0));
    assert_eq!(engine.on_sample(&pulse(1, 10, 140.0)).len(), 1);
    assert_eq!(engine.skipped(), 0);
}

#[test]
fn the_edge_and_the_core_share_one_episode() {
    let rules = || vec![rule("fast", Priority::Medium, 10)];
    let pulses = [(0, 140.0), (5, 140.0), (10, 145.0)];
    let mut edge = Engine::new("patient-1", set(rules()), Profile::default(), Origin::Edge);
    let at_edge = feed(&mut edge, &pulses);
    let raised = edge_alert(&at_edge[0], 1).unwrap();
    let ended_at = |at_s: i64| EdgeAlert {
        time_us: T0 + at_s * S,
        resolved: true,
        ..raised.clone()
    };
    let resolved = ended_at(40);

    // The core has seen the samples first: the same id, and one more revision that names both.
    let mut core = engine(rules());
    let in_core = feed(&mut core, &pulses);
    assert_eq!(in_core[0].id, at_edge[0].id);
    let merged = core.on_edge_alert(&raised);
    assert_eq!(merged.len(), 1);
    assert!(merged[0].from_edge && merged[0].from_core);
    assert_eq!(merged[0].id, in_core[0].id);
    assert!(core.on_edge_alert(&raised).is_empty());
    feed(&mut core, &[(20, 145.0)]);
    assert!(
        core.on_edge_alert(&ended_at(15)).is_empty(),
        "the core has seen it later"
    );
    let ended = core.on_edge_alert(&resolved);
    assert_eq!(states(&ended), [AlertState::Resolved]);

    // The alert overtakes its samples, with healthy ones from before: still one episode.
    let mut core = engine(rules());
    feed(&mut core, &[(-10, 80.0)]);
    let first = core.on_edge_alert(&raised);
    assert_eq!(states(&first), [AlertState::Active]);
    assert!(first[0].from_edge && !first[0].from_core);
    let later = feed(
        &mut core,
        &[(-5, 80.0), (0, 140.0), (5, 140.0), (10, 145.0)],
    );
    assert_eq!(later.len(), 1);
    assert_eq!(later[0].id, first[0].id);
    assert!(later[0].from_edge && later[0].from_core);

    // Its samples never arrive, so the report of the edge ends it.
    let mut core = engine(rules());
    let first = core.on_edge_alert(&raised);
    let last = core.on_edge_alert(&resolved);
    assert_eq!(states(&last), [AlertState::Resolved]);
    assert_eq!(last[0].id, first[0].id);

    // The report comes after the core's episode has ended. It is recorded there and opens none.
    let mut core = engine(rules());
    let all = feed(
        &mut core,
        &[(0, 140.0), (10, 145.0), (20, 80.0), (30, 80.0)],
    );
    assert_eq!(states(&all), [AlertState::Active, AlertState::Resolved]);
    let late = core.on_edge_alert(&raised);
    assert_eq!(states(&late), [AlertState::Resolved]);
    assert_eq!(late[0].id, all[0].id);
    assert!(late[0].from_edge);
}

/// An acknowledgement repeats the report that raised the alert. It may overtake that report, and
/// the end of the episode, on another link.
#[test]
fn an_acknowledgement_at_the_gateway_counts_once_in_any_order() {
    let raised = EdgeAlert {
        gateway: "gateway-1".into(),
        rule: "fast".into(),
        since_us: T0,
        time_us: T0 + 10 * S,
        priority: Priority::High.into(),
        ..EdgeAlert::default()
    };
    let acknowledged = EdgeAlert {
        acknowledged_by: "Ada Carer".into(),
        acknowledged_us: T0 + 20 * S,
        ..raised.clone()
    };
    let ended = EdgeAlert {
        time_us: T0 + 40 * S,
        resolved: true,
        ..raised.clone()
    };
    let orders = [
        [&raised, &acknowledged, &ended],
        [&raised, &ended, &acknowledged],
        [&acknowledged, &raised, &ended],
        [&acknowledged, &ended, &raised],
        [&ended, &acknowledged, &raised],
        [&ended, &raised, &acknowledged],
    ];
    for order in orders {
        let mut core = engine(vec![rule("fast", Priority::High, 10)]);
        let mut alerts = Vec::new();
        for edge in order {
            alerts.extend(core.on_edge_alert(edge));
            assert!(core.on_edge_alert(edge).is_empty(), "repeated: {edge:?}");
        }
        let last = alerts.last().unwrap();
        assert_eq!(last.state(), AlertState::Resolved);
        assert_eq!(last.acknowledged_by, "Ada Carer, at the gateway");
        assert_eq!(last.note, "acknowledged at the gateway gateway-1");
        assert!(alerts.iter().all(|alert| alert.id == last.id), "{alerts:?}");
        let by_person = alerts.iter().filter(|it| it.changed_us == T0 + 20 * S);
        assert_eq!(by_person.count(), 1);
    }
}

#[test]
fn an_edge_rule_unknown_here_is_recorded() {
    let mut core = engine(vec![rule("fast", Priority::Medium, 0)]);
    let alerts = core.on_edge_alert(&EdgeAlert {
        rule: "from-the-future".into(),
        time_us: T0,
        priority: Priority::High.into(),
        ..EdgeAlert::default()
    });
    assert_eq!(alerts.len(), 1);
    assert_eq!(alerts[0].rule, "from-the-future");
    assert_eq!(alerts[0].patient, "patient-1");
}

#[test]
fn a_rule_that_is_gone_ends_its_alert() {
    let mut engine = engine(vec![rule("old", Priority::High, 0)]);
    let raised = feed(&mut engine, &[(0, 140.0)]);
    let mut next = Engine::restore(
        "patient-1",
        set(vec![rule("new", Priority::Medium, 60)]),
        Profile::default(),
        Origin::Core,
        &engine.state(),
    )
    .unwrap();
    let alerts = feed(&mut next, &[(1, 140.0)]);
    assert_eq!(states(&alerts), [AlertState::Resolved]);
    assert_eq!(alerts[0].id, raised[0].id);
    assert!(feed(&mut next, &[(2, 140.0)]).is_empty());
}

#[test]
fn news2_rises_from_medium_to_high_and_survives_staleness() {
    let mut engine = Engine::new(
        "patient-1",
        Arc::new(RuleSet::default_set()),
        Profile::default(),
        Origin::Core,
    );
    let mut sequence = 0;
    let mut at = |engine: &mut Engine, metric, at_s, value| {
        sequence += 1;
        engine
            .on_sample(&reading(metric, sequence, at_s, value))
            .into_iter()
            .filter(|alert| alert.rule.starts_with("news2"))
            .map(|alert| {
                (
                    alert.rule.clone(),
                    alert.state(),
                    alert.value,
                    alert.summary,
                )
            })
            .collect::<Vec<_>>()
    };
    assert!(at(&mut engine, Metric::RespirationRate, 0, 22.0).is_empty());
    assert!(at(&mut engine, Metric::Spo2, 1, 93.0).is_empty());
    assert!(at(&mut engine, Metric::HeartRate, 2, 105.0).is_empty());
    let medium = at(&mut engine, Metric::HeartRate, 12, 105.0);
    assert_eq!(
        medium,
        [(
            "news2-medium".to_owned(),
            AlertState::Active,
            5.0,
            "NEWS2 at least 5 (without Supplemental oxygen, Systolic blood pressure, Consciousness (ACVPU), Body temperature)"
                .to_owned()
        )]
    );
    assert!(at(&mut engine, Metric::Temperature, 13, 39.5).is_empty());
    let high = at(&mut engine, Metric::HeartRate, 23, 105.0);
    assert_eq!(high[0].0, "news2-high");
    assert_eq!(high[0].1, AlertState::Active);
    assert!(at(&mut engine, Metric::HeartRate, 24, 105.0).is_empty());
    let resolved = at(&mut engine, Metric::HeartRate, 55, 105.0);
    assert_eq!(resolved[0].0, "news2-medium");
    assert_eq!(resolved[0].1, AlertState::Resolved);

    // Respiration and oxygen become stale. Their last values still give a 7, so the alert stays.
    assert!(at(&mut engine, Metric::HeartRate, 5000, 105.0).is_empty());
    assert!(at(&mut engine, Metric::HeartRate, 5100, 105.0).is_empty());
    assert!(engine.news2(T0 + 5100 * S).is_partial());
}

#[test]
fn thresholds_of_the_default_set_fire() {
    let cases: [(Metric, f64, &str); 12] = [
        (Metric::HeartRate, 135.0, "heart-rate-very-high"),
        (Metric::HeartRate, 115.0, "heart-rate-high"),
        (Metric::HeartRate, 38.0, "heart-rate-very-low"),
        (Metric::HeartRate, 44.0, "heart-rate-low"),
        (Metric::Spo2, 84.0, "spo2-very-low"),
        (Metric::Spo2, 89.0, "spo2-low"),
        (Metric::RespirationRate, 26.0, "respiration-rate-high"),
        (Metric::Temperature, 39.2, "temperature-very-high"),
        (Metric::Temperature, 34.9, "temperature-low"),
        (Metric::SystolicPressure, 88.0, "systolic-pressure-low"),
        (Metric::Consciousness, 2.0, "consciousness-lowered"),
        (Metric::Battery, 10.0, "battery-low"),
    ];
    for (metric, value, rule) in cases {
        let mut engine = Engine::new(
            "p",
            Arc::new(RuleSet::default_set()),
            Profile::default(),
            Origin::Core,
        );
        let raised: Vec<String> = (0..90)
            .flat_map(|second| engine.on_sample(&reading(metric, second as u64 + 1, second, value)))
            .map(|alert| alert.rule)
            .collect();
        assert!(raised.iter().any(|id| id == rule), "{rule}: {raised:?}");
    }
}

#[test]
fn a_backfill_is_marked_until_a_live_reading_confirms_it() {
    let mut engine = engine(vec![rule("medium", Priority::Medium, 0)]);
    engine.set_backfill(true);
    let past = feed(&mut engine, &[(0, 140.0), (1, 100.0), (2, 140.0)]);
    assert!(past.iter().all(|alert| alert.backfill), "{past:?}");
    assert_eq!(past.len(), 3);
    engine.set_backfill(false);
    let live = feed(&mut engine, &[(3, 140.0), (4, 140.0)]);
    assert_eq!(states(&live), [AlertState::Active]);
    assert!(live.iter().all(|alert| !alert.backfill));
}

#[test]
fn a_high_alert_from_a_backfill_calls_people_without_a_live_reading() {
    for broken in [false, true] {
        let mut engine = self::engine(vec![rule("high", Priority::High, 0)]);
        engine.set_backfill(true);
        let readings = [(0, 140.0), (1, 100.0)];
        let past = feed(&mut engine, &readings[..if broken { 1 } else { 2 }]);
        assert!(past.iter().all(|alert| !alert.backfill), "{past:?}");
        assert_eq!(past[0].changed_us, T0, "with its true time");
        // Live readings say nothing again.
        engine.set_backfill(false);
        let live = feed(&mut engine, &[(2, if broken { 140.0 } else { 100.0 })]);
        assert_eq!(states(&live), []);
    }
}

#[test]
fn an_acknowledgement_written_by_somebody_else_is_adopted() {
    let mut engine = engine(vec![rule("fast", Priority::High, 0)]);
    let raised = feed(&mut engine, &[(0, 140.0)]).remove(0);
    let stored = Alert {
        revision: 2,
        state: AlertState::Acknowledged.into(),
        acknowledged_by: "Ada".into(),
        ..raised.clone()
    };
    engine.adopt(&stored);
    let ended = feed(&mut engine, &[(1, 100.0)]);
    assert_eq!(states(&ended), [AlertState::Resolved]);
    assert_eq!(
        (ended[0].revision, ended[0].acknowledged_by.as_str()),
        (3, "Ada")
    );

    let next = feed(&mut engine, &[(2, 140.0), (3, 100.0)]);
    assert_eq!(states(&next), [AlertState::Active, AlertState::Latched]);
    engine.adopt(&Alert {
        revision: 3,
        state: AlertState::Resolved.into(),
        acknowledged_by: "Ada".into(),
        ..next[1].clone()
    });
    let after = feed(&mut engine, &[(4, 140.0)]);
    assert_ne!(after[0].id, next[0].id);
}

#[test]
fn a_fall_that_was_cancelled_at_the_edge_is_none_in_the_core() {
    let activity: Vec<(i64, f64)> = (0..40)
        .map(|second| (second, if second == 5 { 3.4 } else { 1.0 }))
        .collect();
    let feed = |engine: &mut Engine, from: usize, until: usize| {
        let alerts: Vec<Alert> = activity[from..until]
            .iter()
            .flat_map(|(second, value)| {
                let sequence = *second as u64 + 1;
                engine.on_sample(&reading(Metric::Activity, sequence, *second, *value))
            })
            .collect();
        states(&alerts)
    };
    let fresh = || {
        Engine::new(
            "p",
            Arc::new(RuleSet::default_set()),
            Profile::default(),
            Origin::Core,
        )
    };
    let cancelled = EdgeAlert {
        rule: "fall".into(),
        time_us: T0 + 12 * S,
        resolved: true,
        cancelled: true,
        ..EdgeAlert::default()
    };
    assert_eq!(feed(&mut fresh(), 0, 40), [AlertState::Active]);
    // The cancellation comes during the stillness, or before the impact itself; also across a
    // restart.
    for seen in [10, 0] {
        let mut engine = fresh();
        assert_eq!(feed(&mut engine, 0, seen), []);
        assert_eq!(engine.on_edge_alert(&cancelled), []);
        let rules = Arc::new(RuleSet::default_set());
        let state = engine.state();
        let mut engine =
            Engine::restore("p", rules, Profile::default(), Origin::Core, &state).unwrap();
        assert_eq!(feed(&mut engine, seen, 40), []);
    }
    // An alert that has notified people stays.
    let mut engine = fresh();
    assert_eq!(feed(&mut engine, 0, 30), [AlertState::Active]);
    assert_eq!(engine.on_edge_alert(&cancelled), []);
    assert!(engine.has_open_alert());
    // The core's clock was three hours ahead at the cancellation and was then set back.
    let ahead = EdgeAlert {
        time_us: T0 + 3 * 3600 * S,
        ..cancelled.clone()
    };
    for (backfill, falls) in [(true, vec![]), (false, vec![AlertState::Active])] {
        let mut engine = fresh();
        assert_eq!(engine.on_edge_alert(&ahead), []);
        engine.set_backfill(backfill);
        assert_eq!(feed(&mut engine, 0, 40), falls);
    }
    // A rule that no set has raises no alert.
    let unknown = EdgeAlert {
        rule: "x".into(),
        ..cancelled
    };
    assert_eq!(engine.on_edge_alert(&unknown), []);
}

#[test]
fn a_fall_is_a_blow_and_then_stillness() {
    let run = |activity: &[f64]| {
        let mut engine = Engine::new(
            "p",
            Arc::new(RuleSet::default_set()),
            Profile::default(),
            Origin::Core,
        );
        let alerts: Vec<Alert> = activity
            .iter()
            .enumerate()
            .flat_map(|(second, value)| {
                let second = second as i64;
                engine.on_sample(&reading(
                    Metric::Activity,
                    second as u64 + 1,
                    second,
                    *value,
                ))
            })
            .collect();
        states(&alerts)
    };
    let join = |parts: &[(usize, f64)]| -> Vec<f64> {
        parts
            .iter()
            .flat_map(|(count, value)| vec![*value; *count])
            .collect()
    };
    use AlertState::{Active, Latched};
    // Walking, an impact, a few seconds of struggle, then stillness. Later the patient is helped
    // up.
    let fall = join(&[
        (30, 1.5),
        (1, 3.4),
        (5, 1.4),
        (20, 1.01),
        (5, 1.2),
        (10, 1.01),
    ]);
    assert_eq!(run(&fall), [Active]);
    let helped = join(&[(5, 1.5), (1, 3.4), (20, 1.0), (40, 1.6)]);
    assert_eq!(run(&helped), [Active, Latched]);
    // A stumble without stillness; a rest without an impact; a rest long after an impact.
    assert_eq!(run(&join(&[(5, 1.5), (1, 3.0), (90, 1.5), (90, 1.0)])), []);
    assert_eq!(run(&join(&[(5, 1.5), (200, 1.0)])), []);
    assert_eq!(
        run(&join(&[
            (5, 1.5),
            (1, 3.0),
            (8, 1.0),
            (70, 1.6),
            (200, 1.0)
        ])),
        []
    );
}

#[test]
fn names_in_rule_files_are_checked() {
    #[derive(serde::Deserialize)]
    struct Holder {
        #[serde(with = "metric_name")]
        metric: Metric,
    }
    let holder: Holder = serde_json::from_str(r#"{"metric":"spo2"}"#).unwrap();
    assert_eq!(holder.metric, Metric::Spo2);
    assert!(serde_json::from_str::<Holder>(r#"{"metric":"pulse"}"#).is_err());
}

#[derive(Clone, Debug)]
enum Step {
    Sample { gap_s: i64, value: f64 },
    Duplicate,
    Time { gap_s: i64 },
    Acknowledge,
    Edge { back_s: i64, resolved: bool },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1_i64..30, 90.0_f64..150.0).prop_map(|(gap_s, value)| Step::Sample { gap_s, value }),
        1 => Just(Step::Duplicate),
        1 => (0_i64..30).prop_map(|gap_s| Step::Time { gap_s }),
        1 => Just(Step::Acknowledge),
        1 => (0_i64..20, any::<bool>()).prop_map(|(back_s, resolved)| Step::Edge { back_s, resolved }),
    ];
    prop::collection::vec(step, 1..120)
}

/// Runs the steps. `interrupt` stores and restores the engine after each step.
fn run(steps: &[Step], interrupt: bool) -> (Vec<Alert>, Vec<u8>) {
    let rules = set(vec![
        rule("high", Priority::High, 10),
        rule("medium", Priority::Medium, 0),
    ]);
    let mut engine = Engine::new("p", Arc::clone(&rules), Profile::default(), Origin::Core);
    let (mut at_s, mut sequence, mut value) = (0, 0, 100.0);
    let mut all: Vec<Alert> = Vec::new();
    for step in steps {
        let alerts = match step {
            Step::Sample { gap_s, value: new } => {
                (at_s, sequence, value) = (at_s + gap_s, sequence + 1, *new);
                engine.on_sample(&pulse(sequence, at_s, value))
            }
            Step::Duplicate if sequence > 0 => engine.on_sample(&pulse(sequence, at_s, value)),
            Step::Duplicate => Vec::new(),
            Step::Time { gap_s } => engine.on_time(T0 + (at_s + gap_s) * S),
            Step::Acknowledge => match all.last() {
                Some(alert) => {
                    let id = alert.id.clone();
                    engine.acknowledge(&id, "Ada", "", T0 + at_s * S)
                }
                None => Vec::new(),
            },
            Step::Edge { back_s, resolved } => engine.on_edge_alert(&EdgeAlert {
                rule: "high".into(),
                time_us: T0 + (at_s - back_s) * S,
                resolved: *resolved,
                ..EdgeAlert::default()
            }),
        };
        all.extend(alerts);
        if interrupt {
            let state = engine.state();
            engine = Engine::restore(
                "p",
                Arc::clone(&rules),
                Profile::default(),
                Origin::Core,
                &state,
            )
            .unwrap();
        }
    }
    (all, engine.state())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Storing and restoring at any point changes nothing.
    #[test]
    fn state_is_complete(steps in steps()) {
        prop_assert_eq!(run(&steps, false), run(&steps, true));
    }

    /// Revisions of an episode rise by one. It starts active and never leaves resolved, and its
    /// beginning only moves to an earlier time. An episode of high priority is resolved only by a
    /// person.
    #[test]
    fn episodes_are_well_formed(steps in steps()) {
        let (alerts, _) = run(&steps, false);
        let mut last: std::collections::HashMap<&str, &Alert> = Default::default();
        for alert in &alerts {
            match last.insert(&alert.id, alert) {
                None => {
                    prop_assert_eq!(alert.revision, 1);
                    prop_assert_eq!(alert.state(), AlertState::Active);
                }
                Some(previous) => {
                    prop_assert_eq!(alert.revision, previous.revision + 1);
                    prop_assert!(alert.since_us <= previous.since_us);
                    prop_assert!(!previous.from_edge || alert.from_edge);
                    prop_assert!(!previous.from_core || alert.from_core);
                    if previous.state() == AlertState::Resolved {
                        prop_assert_eq!(alert.state(), AlertState::Resolved);
                    }
                }
            }
            if alert.priority() == Priority::High && alert.state() == AlertState::Resolved {
                prop_assert!(!alert.acknowledged_by.is_empty());
            }
            prop_assert!(alert.from_edge || alert.from_core);
        }
    }
}

/// A fever, and the sensor's clock is set back by an hour within it or after it. The next fever is
/// an episode of its own at its time, at the edge and in the core.
#[test]
fn a_clock_that_is_set_back_keeps_no_episode_and_swallows_none() {
    const HOUR: i64 = 3600;
    for (origin, back_at) in [Origin::Edge, Origin::Core]
        .iter()
        .flat_map(|origin| [15, 25, 39, 45].map(|second| (*origin, second)))
    {
        let rules = set(vec![rule("fast", Priority::Medium, 5)]);
        let mut engine = Engine::new("p", rules, Profile::default(), origin);
        let mut raised = Vec::new();
        for second in 0..150_i64 {
            let is_ill = (20..40).contains(&second) || (90..110).contains(&second);
            let is_back = second >= back_at;
            let time = second - if is_back { HOUR } else { 0 };
            // The edge counts steps; the core has the numbers of the gateway.
            let sequence = match origin {
                Origin::Edge => 1 + u64::from(is_back),
                Origin::Core => second as u64 + 1,
            };
            let value = if is_ill { 140.0 } else { 100.0 };
            let alerts = engine.on_sample(&reading(Metric::HeartRate, sequence, time, value));
            raised.extend(alerts.into_iter().map(|alert| (second, alert)));
        }
        let states: Vec<(i64, AlertState)> = raised.iter().map(|it| (it.0, it.1.state())).collect();
        use AlertState::{Active, Resolved};
        assert_eq!(states.len(), 4, "{origin:?} {back_at}: {states:?}");
        // A delay that is under way at the step begins anew.
        for (state, at) in
            states
                .iter()
                .zip([(25, Active), (45, Resolved), (95, Active), (115, Resolved)])
        {
            let is_in_time = state.1 == at.1 && (at.0..=at.0 + 5).contains(&state.0);
            assert!(is_in_time, "{origin:?} {back_at}: {states:?}");
        }
        assert_eq!(raised[2].1.since_us, T0 + (90 - HOUR) * S);
    }
}

#[test]
fn a_reading_is_judged_in_its_metrics_own_unit() {
    let glucose = Metric::of_key("glucose");
    let low = Condition::Below {
        metric: glucose,
        limit: 3.9,
        clear: 4.2,
    };
    let rule = Rule {
        id: "glucose-low".into(),
        priority: Priority::High,
        condition: low,
        for_ms: 0,
        clear_for_ms: 0,
    };
    let mut engine = engine(vec![rule]);
    engine.settle();
    let mut measured = |sequence: u64, value: f64, unit: &str| {
        let sample = Sample {
            unit: unit.into(),
            ..reading(glucose, sequence, sequence as i64, value)
        };
        let alerts = engine.on_sample(&sample);
        alerts.first().map(|alert| (alert.state(), alert.value))
    };
    assert_eq!(measured(1, 5.6, "mmol/L"), None);
    assert_eq!(
        measured(2, 3.0, "furlong"),
        None,
        "an unknown unit says nothing"
    );
    // The value as it came is above the limit by far.
    let low = measured(3, 63.0, "mg/dL");
    assert_eq!(low, Some((AlertState::Active, 630_000.0 / 180_156.0)));
}
