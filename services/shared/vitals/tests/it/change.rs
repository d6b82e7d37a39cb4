//! Rules about change: sudden variation, deviation from a patient's own mean, and trends.

use std::sync::Arc;

use contracts::{
    alerts::{Alert, AlertState},
    vitals::{Metric, Priority, Sample, sample},
};
use proptest::prelude::*;
use vitals::{Condition, Direction, Engine, Origin, Profile, Rule, RuleSet, fill_defaults};

const S: i64 = 1_000_000;
const T0: i64 = 1_800_000_000 * S;

fn set(condition: Condition) -> Arc<RuleSet> {
    let set = RuleSet {
        name: "test".into(),
        version: 1,
        stale_after_s: [("heart-rate".to_owned(), 3600)].into(),
        rules: vec![Rule {
            id: "rule".into(),
            priority: Priority::Medium,
            condition,
            for_ms: 0,
            clear_for_ms: 0,
        }],
    };
    set.validate().unwrap();
    Arc::new(set)
}

fn engine(condition: Condition) -> Engine {
    Engine::new("p", set(condition), Profile::default(), Origin::Core)
}

fn pulse(at_s: i64, value: f64) -> Sample {
    let mut sample = Sample {
        device: "belt".into(),
        sequence: (at_s + 10_000_000) as u64,
        metric: Metric::HeartRate.into(),
        device_time_us: T0 + at_s * S,
        reading: Some(sample::Reading::Value(value)),
        ..Sample::default()
    };
    fill_defaults(&mut sample);
    sample
}

/// The (second, state) of each transition.
fn transitions(
    engine: &mut Engine,
    pulses: impl IntoIterator<Item = (i64, f64)>,
) -> Vec<(i64, AlertState)> {
    let alerts = pulses
        .into_iter()
        .flat_map(|(at_s, value)| engine.on_sample(&pulse(at_s, value)));
    alerts
        .map(|alert: Alert| ((alert.changed_us - T0) / S, alert.state()))
        .collect()
}

fn change(direction: Direction) -> Condition {
    Condition::Change {
        metric: Metric::HeartRate,
        direction,
        by: 30.0,
        clear: 15.0,
        within_ms: 64_000,
    }
}

#[test]
fn a_jump_alerts_and_a_slow_climb_to_the_same_level_does_not() {
    let jump = (0..60)
        .map(|s| (s, 70.0))
        .chain((60..200).map(|s| (s, 105.0)));
    let seen = transitions(&mut engine(change(Direction::Rise)), jump);
    // The alert ends when less than a quarter of the window, 16 s, lies before the jump.
    assert_eq!(seen[0], (60, AlertState::Active));
    assert_eq!(seen[1].1, AlertState::Resolved);
    assert!((104..=112).contains(&seen[1].0), "{seen:?}");
    assert_eq!(seen.len(), 2);
    // 35 /min in 300 s is 7.5 in any 64 s.
    let climb = (0..300).map(|s| (s, 70.0 + 35.0 * s as f64 / 300.0));
    assert_eq!(transitions(&mut engine(change(Direction::Rise)), climb), []);
}

#[test]
fn each_direction_sees_its_own() {
    let fall = || {
        (0..60)
            .map(|s| (s, 110.0))
            .chain((60..70).map(|s| (s, 70.0)))
    };
    let at_60 = [(60, AlertState::Active)];
    assert_eq!(
        transitions(&mut engine(change(Direction::Drop)), fall()),
        at_60
    );
    assert_eq!(
        transitions(&mut engine(change(Direction::Either)), fall()),
        at_60
    );
    assert_eq!(
        transitions(&mut engine(change(Direction::Rise)), fall()),
        []
    );
}

#[test]
fn coming_back_from_an_artefact_is_no_change() {
    let spike = (0..200).map(|s| (s, if (100..112).contains(&s) { 180.0 } else { 70.0 }));
    let seen = transitions(&mut engine(change(Direction::Drop)), spike);
    assert_eq!(seen, []);
}

#[test]
fn a_clock_that_steps_back_an_hour_begins_a_new_window() {
    let mut engine = engine(change(Direction::Rise));
    assert_eq!(transitions(&mut engine, (0..60).map(|s| (s, 60.0))), []);
    // A higher sequence at an earlier time. Readings of the hour ahead are not compared.
    let mut early = pulse(-3600, 100.0);
    early.sequence = 20_000_000;
    assert!(engine.on_sample(&early).is_empty());
}

fn deviation() -> Condition {
    Condition::Deviation {
        metric: Metric::HeartRate,
        direction: Direction::Either,
        z: 4.0,
        clear_z: 3.0,
        floor: 2.0,
        half_life_ms: 600_000,
    }
}

#[test]
fn what_is_unusual_depends_on_the_person() {
    // Both rise by 15 /min: a steady patient, and a patient whose pulse varies by 10.
    let of = |swing: f64| {
        let usual = move |s: i64| 70.0 + swing * (s as f64 / 7.0).sin();
        let pulses = (0..1800)
            .map(move |s| (s, usual(s)))
            .chain((1800..1860).map(move |s| (s, usual(s) + 15.0)));
        transitions(&mut engine(deviation()), pulses)
    };
    assert_eq!(of(0.0), [(1800, AlertState::Active)]);
    assert_eq!(of(10.0), []);
}

#[test]
fn nothing_is_unusual_before_the_usual_is_known() {
    let early = (0..500).map(|s| (s, if s < 300 { 60.0 } else { 120.0 }));
    assert_eq!(transitions(&mut engine(deviation()), early), []);
    // After a silence of ten half-lives the baseline restarts.
    let after_silence = (0..1800).map(|s| (s, 60.0)).chain([(8000, 120.0)]);
    assert_eq!(transitions(&mut engine(deviation()), after_silence), []);
}

#[test]
fn an_episode_does_not_soon_become_the_usual_but_a_new_life_does() {
    let pulses = (0..1800)
        .map(|s| (s, 60.0))
        .chain((1800..90_000).map(|s| (s, 90.0)));
    let seen = transitions(&mut engine(deviation()), pulses);
    assert_eq!(seen[0], (1800, AlertState::Active));
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert_eq!(seen[1].1, AlertState::Resolved);
    // Not before a half-life, but within a day.
    assert!((2400..88_200).contains(&seen[1].0), "{seen:?}");
}

fn trend(per_hour: f64) -> Condition {
    Condition::Trend {
        metric: Metric::HeartRate,
        per_hour,
        clear_per_hour: per_hour / 2.0,
        window_ms: 3_600_000,
    }
}

#[test]
fn a_trend_is_seen_through_noise_and_not_in_noise() {
    let noisy = |per_hour: f64| {
        (0..120).map(move |minute| {
            let noise = if minute % 2 == 0 { 4.0 } else { -4.0 };
            let hours = minute as f64 / 60.0;
            (minute * 60, 70.0 + per_hour * hours + noise)
        })
    };
    let up = transitions(&mut engine(trend(10.0)), noisy(15.0));
    assert_eq!(up.len(), 1);
    assert_eq!(up[0].1, AlertState::Active);
    // Half a window is the shortest that counts.
    assert!((1800..5400).contains(&up[0].0), "{up:?}");
    assert_eq!(transitions(&mut engine(trend(10.0)), noisy(0.0)), []);
    assert_eq!(transitions(&mut engine(trend(10.0)), noisy(-15.0)), []);
    assert_eq!(
        transitions(&mut engine(trend(-10.0)), noisy(-15.0)).len(),
        1
    );
}

#[test]
fn senseless_conditions_are_refused() {
    let refused = |condition: Condition| {
        let mut set = (*set(change(Direction::Rise))).clone();
        set.rules[0].condition = condition;
        set.validate().unwrap_err().to_string()
    };
    let with = |by, clear, within_ms| Condition::Change {
        metric: Metric::HeartRate,
        direction: Direction::Rise,
        by,
        clear,
        within_ms,
    };
    assert!(refused(with(30.0, 40.0, 60_000)).contains("not between 0 and 30"));
    assert!(refused(with(-30.0, 0.0, 60_000)).contains("not above 0"));
    assert!(refused(with(f64::NAN, 0.0, 60_000)).contains("not above 0"));
    assert!(refused(with(30.0, 15.0, 10)).contains("outside 1000"));
    assert!(refused(trend(0.0)).contains("not above 0"));
    let sharp = Condition::Trend {
        metric: Metric::HeartRate,
        per_hour: -5.0,
        clear_per_hour: 5.0,
        window_ms: 3_600_000,
    };
    assert!(refused(sharp).contains("not between 0 and 5"));
    let text = r#"{"name":"x","version":1,"rules":[{"id":"a","priority":"low","condition":
        {"kind":"deviation","metric":"ecg","direction":"rise","z":3,"clear_z":2,"floor":1,"half_life_ms":60000}}]}"#;
    let error = RuleSet::from_json(text).unwrap_err().to_string();
    assert!(error.contains("no single number"), "{error}");
}

proptest! {
    /// An engine that is stored and restored at any point continues unchanged.
    #[test]
    fn memory_survives_being_stored(
        values in prop::collection::vec(40.0_f64..160.0, 30..120),
        cut in 1_usize..29,
        kind in 0..3,
    ) {
        let condition = [change(Direction::Either), deviation(), trend(10.0)][kind as usize].clone();
        let step = [7, 60, 300][kind as usize];
        let pulses: Vec<(i64, f64)> = values
            .iter()
            .enumerate()
            .map(|(index, value)| (index as i64 * step, *value))
            .collect();
        let mut whole = engine(condition.clone());
        let mut first = engine(condition.clone());
        let expected = transitions(&mut whole, pulses.iter().copied());
        let mut seen = transitions(&mut first, pulses[..cut].iter().copied());
        let mut second = Engine::restore("p", set(condition), Profile::default(), Origin::Core, &first.state()).unwrap();
        seen.extend(transitions(&mut second, pulses[cut..].iter().copied()));
        prop_assert_eq!(seen, expected);
        prop_assert_eq!(second.state(), whole.state());
        prop_assert!(whole.state().len() < 12_000);
    }
}
