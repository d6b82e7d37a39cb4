//! A sensor that shows exactly one value for too long raises a low alert of its own.

use std::sync::Arc;

use contracts::{
    alerts::{Alert, AlertState},
    vitals::{Metric, Priority, Sample, Waveform, sample},
};
use proptest::prelude::*;
use vitals::{Condition, Engine, Origin, Profile, RuleSet, fill_defaults};

const S: i64 = 1_000_000;
const T0: i64 = 1_800_000_000 * S;
const MIN: i64 = 60;
const HOUR: i64 = 3_600;

/// The built-in rules about frozen sensors alone, because these tests feed days of readings.
fn rules() -> Arc<RuleSet> {
    let mut set = RuleSet::default_set();
    let is_frozen = |it: &Condition| matches!(it, Condition::Frozen { .. });
    set.rules.retain(|rule| is_frozen(&rule.condition));
    Arc::new(set)
}

fn engine(origin: Origin) -> Engine {
    Engine::new("ada", rules(), Profile::default(), origin)
}

fn restart(engine: &Engine) -> Engine {
    let profile = Profile::default();
    Engine::restore("ada", rules(), profile, Origin::Core, &engine.state()).unwrap()
}

fn reading(device: &str, metric: Metric, at_us: i64, reading: sample::Reading) -> Sample {
    let mut sample = Sample {
        device: device.into(),
        sequence: (at_us / 1_000) as u64,
        metric: metric.into(),
        device_time_us: at_us,
        reading: Some(reading),
        ..Sample::default()
    };
    fill_defaults(&mut sample);
    sample
}

fn value(device: &str, metric: Metric, at_s: i64, value: f64) -> Sample {
    let value = sample::Reading::Value(value);
    reading(device, metric, T0 + at_s * S, value)
}

/// A second of ECG.
fn chunk(at_s: i64, value_of: impl Fn(i64) -> f32) -> Sample {
    let waveform = Waveform {
        period_us: 4_000,
        values: (0..250).map(value_of).collect(),
    };
    let waveform = sample::Reading::Waveform(waveform);
    reading("patch", Metric::Ecg, T0 + at_s * S, waveform)
}

/// The alerts about frozen sensors.
fn feed(engine: &mut Engine, sample: &Sample) -> Vec<Alert> {
    let mut alerts = engine.on_sample(sample);
    alerts.retain(|alert| alert.rule.ends_with("-frozen"));
    alerts
}

fn states(alerts: &[Alert]) -> Vec<(&str, AlertState)> {
    let one = |alert: &'_ Alert| alert.state();
    alerts
        .iter()
        .map(|it| (it.rule.as_str(), one(it)))
        .collect()
}

#[test]
fn each_metric_has_its_time_and_ends_with_a_reading_that_differs() {
    // Metric, seconds between readings, the value, another one, and the time.
    let table = [
        (Metric::HeartRate, 1, 72.0, 73.0, 30 * MIN),
        (Metric::HeartRate, 30, 72.0, 72.1, 30 * MIN),
        (Metric::Spo2, 1, 97.0, 96.0, HOUR),
        (Metric::RespirationRate, 2, 14.0, 14.1, HOUR),
        (Metric::Temperature, 60, 36.8, 36.9, 12 * HOUR),
    ];
    for (metric, every_s, shown, other, length_s) in table {
        let mut engine = engine(Origin::Core);
        let rule = format!("{}-frozen", vitals::name(metric));
        for at_s in (0..length_s).step_by(every_s) {
            let early = feed(&mut engine, &value("d", metric, at_s, shown));
            assert_eq!(early, [], "{rule} at {at_s} s");
        }
        let raised = feed(&mut engine, &value("d", metric, length_s, shown));
        assert_eq!(states(&raised), [(rule.as_str(), AlertState::Active)]);
        assert_eq!(raised[0].priority(), Priority::Low);
        assert_eq!((raised[0].device.as_str(), raised[0].value), ("d", shown));
        let next_s = length_s + every_s as i64;
        let again = feed(&mut engine, &value("d", metric, next_s, shown));
        assert_eq!(again, [], "raised once");
        let ended = feed(&mut engine, &value("d", metric, next_s + 1, other));
        assert_eq!(ended.len(), 1, "{rule}: {ended:?}");
        assert_ne!(ended[0].state(), AlertState::Active);
        assert_eq!(ended[0].id, raised[0].id);
    }
}

#[test]
fn the_alert_says_what_is_shown_and_for_how_long() {
    let mut engine = engine(Origin::Core);
    let readings = (0..=HOUR).map(|at_s| value("clip", Metric::Spo2, at_s, 97.0));
    let alerts: Vec<Alert> = readings
        .flat_map(|sample| feed(&mut engine, &sample))
        .collect();
    let says = "Oxygen saturation has shown exactly 97 % for 60 min: is the sensor still on?";
    assert_eq!(alerts[0].summary, says);
}

#[test]
fn what_may_rest_is_not_judged() {
    let rests = [
        (Metric::Consciousness, 0.0),
        (Metric::SupplementalOxygen, 1.0),
        (Metric::Battery, 80.0),
        (Metric::SystolicPressure, 120.0),
        (Metric::DiastolicPressure, 80.0),
        (Metric::Activity, 1.0),
        // A healthy saturation, and one on oxygen, stays at the end of the range.
        (Metric::Spo2, 100.0),
    ];
    let mut engine = engine(Origin::Core);
    for at_s in (0..26 * HOUR).step_by(30) {
        for (metric, rest) in rests {
            assert_eq!(feed(&mut engine, &value("d", metric, at_s, rest)), []);
        }
    }
    // Readings too far apart: a sensor that measures now and then.
    for at_s in (26 * HOUR..72 * HOUR).step_by(300) {
        assert_eq!(feed(&mut engine, &value("d", Metric::Spo2, at_s, 97.0)), []);
    }
}

#[test]
fn a_gap_counts_for_nothing_and_time_alone_raises_nothing() {
    let mut engine = engine(Origin::Core);
    let pulse = |at_s| value("belt", Metric::HeartRate, at_s, 70.0);
    for at_s in 0..29 * MIN {
        assert_eq!(feed(&mut engine, &pulse(at_s)), []);
    }
    let is_frozen = |alert: &Alert| alert.rule.ends_with("-frozen");
    assert!(!engine.on_time(T0 + HOUR * S).iter().any(is_frozen));
    // Twenty minutes later the minute that lacks is still needed.
    let begin_s = 49 * MIN;
    for at_s in begin_s..begin_s + MIN {
        assert_eq!(feed(&mut engine, &pulse(at_s)), [], "{at_s}");
    }
    assert_eq!(feed(&mut engine, &pulse(begin_s + MIN + 1)).len(), 1);
}

#[test]
fn late_readings_neither_raise_nor_end() {
    let mut engine = engine(Origin::Core);
    let pulse = |at_s, rate| value("belt", Metric::HeartRate, at_s, rate);
    // Live readings, and each minute the backlog of the minute an hour before.
    for minute in 0..29 {
        for at_s in minute * MIN..(minute + 1) * MIN {
            assert_eq!(feed(&mut engine, &pulse(HOUR + at_s, 70.0)), []);
        }
        for at_s in minute * MIN..(minute + 1) * MIN {
            assert_eq!(feed(&mut engine, &pulse(at_s, 70.0)), []);
        }
    }
    let last_s = HOUR + 29 * MIN;
    let raised = (last_s..=last_s + MIN).flat_map(|at_s| feed(&mut engine, &pulse(at_s, 70.0)));
    assert_eq!(raised.count(), 1);
    assert_eq!(feed(&mut engine, &pulse(last_s - 10, 75.0)), []);
}

#[test]
fn a_working_sensor_hides_no_frozen_one_and_outlives_it() {
    let mut engine = engine(Origin::Core);
    let mut alerts = Vec::new();
    let living = |at_s: i64| value("watch", Metric::HeartRate, at_s, (70 + at_s % 3) as f64);
    for at_s in 0..=31 * MIN {
        alerts.extend(feed(
            &mut engine,
            &value("belt", Metric::HeartRate, at_s, 70.0),
        ));
        alerts.extend(feed(&mut engine, &living(at_s)));
    }
    assert_eq!(
        states(&alerts),
        [("heart-rate-frozen", AlertState::Active)],
        "raised once, and not ended"
    );
    assert_eq!(alerts[0].device, "belt");
    // The belt is put away. Its silence is another alert.
    let ended_s = (31 * MIN..50 * MIN).find(|at_s| !feed(&mut engine, &living(*at_s)).is_empty());
    assert_eq!(ended_s, Some(41 * MIN + 1));
}

#[test]
fn an_ecg_without_any_noise_is_a_flat_line_after_a_minute() {
    let mut engine = engine(Origin::Core);
    let noisy = |at: i64| (at % 7) as f32 / 100.0;
    for at_s in 0..300 {
        assert_eq!(feed(&mut engine, &chunk(at_s, noisy)), []);
    }
    let flat: Vec<Alert> = (300..361)
        .flat_map(|at_s| feed(&mut engine, &chunk(at_s, |_| 0.0)))
        .collect();
    assert_eq!(states(&flat), [("ecg-frozen", AlertState::Active)]);
    let says = "Electrocardiogram has been a flat line for 60 s: is the sensor still on?";
    assert_eq!(flat[0].summary, says);
    // A late block with noise does not end it, the next one does.
    assert_eq!(feed(&mut engine, &chunk(310, noisy)), []);
    assert_eq!(feed(&mut engine, &chunk(361, noisy)).len(), 1);
}

#[test]
fn only_the_core_judges_sensors() {
    let mut edge = engine(Origin::Edge);
    for at_s in 0..2 * HOUR {
        let sample = value("belt", Metric::HeartRate, at_s, 70.0);
        assert_eq!(feed(&mut edge, &sample), []);
        assert_eq!(feed(&mut edge, &chunk(at_s, |_| 0.0)), []);
    }
}

/// A program that does not know the kind ignores unknown fields, but refuses an unknown kind.
#[test]
fn a_program_without_this_kind_reads_the_state_of_a_frozen_sensor() {
    let mut engine = engine(Origin::Core);
    for at_s in 0..=31 * MIN {
        engine.on_sample(&value("belt", Metric::HeartRate, at_s, 70.0));
    }
    assert_eq!(engine.active_alerts().len(), 1);
    let state: serde_json::Value = serde_json::from_slice(&engine.state()).unwrap();
    for known in ["machines", "memories", "foreign"] {
        assert!(!state[known].to_string().contains("frozen"), "{known}");
    }
    let mut restored = restart(&engine);
    assert_eq!(restored.active_alerts(), engine.active_alerts());
    let differs = value("belt", Metric::HeartRate, 32 * MIN, 71.0);
    assert_eq!(feed(&mut restored, &differs).len(), 1);
}

#[test]
fn a_document_gives_another_time_and_wrong_ones_are_refused() {
    let document = |metric: &str, unchanged_ms: u64| {
        let text = format!(
            r#"{{"name":"ada","version":1,"extends":"built-in","rules":[{{"id":"heart-rate-frozen",
            "priority":"low","condition":{{"kind":"frozen","metric":"{metric}",
            "unchanged_ms":{unchanged_ms}}}}}]}}"#
        );
        vitals::RuleDocument::from_json(&text).map(|document| (text, document.resolve()))
    };
    let (text, set) = document("heart-rate", 7_200_000).unwrap();
    let frozen = |set: &RuleSet| {
        let is_frozen = |it: &Condition| matches!(it, Condition::Frozen { .. });
        let all = set.rules.iter();
        all.filter(|rule| is_frozen(&rule.condition)).count()
    };
    let built_in = RuleSet::default_set();
    assert_eq!(
        (set.rules.len(), frozen(&set)),
        (built_in.rules.len(), frozen(&built_in))
    );
    let mut engine = Engine::new("ada", Arc::new(set), Profile::default(), Origin::Core);
    let pulses = (0..=2 * HOUR).map(|at_s| value("belt", Metric::HeartRate, at_s, 60.0));
    let at_s: Vec<i64> = pulses
        .flat_map(|sample| feed(&mut engine, &sample))
        .map(|alert| (alert.changed_us - T0) / S)
        .collect();
    assert_eq!(at_s, [2 * HOUR]);
    // A gateway of any version reads what it is sent.
    assert!(!vitals::for_gateway(&text, true).contains("frozen"));
    let alone = r#"{"name":"a","version":1,"extends":"none","rules":[{"id":"a","priority":"low",
        "condition":{"kind":"frozen","metric":"spo2","unchanged_ms":60000}}]}"#;
    assert_eq!(vitals::for_gateway(alone, true), alone);
    for (metric, unchanged_ms, field) in [
        ("heart-rate", 9_999, "rules.unchanged_ms"),
        ("heart-rate", 86_400_001, "rules.unchanged_ms"),
        ("consciousness", 60_000, "rules.metric"),
        ("supplemental-oxygen", 60_000, "rules.metric"),
        ("acceleration", 60_000, "rules.metric"),
    ] {
        assert_eq!(document(metric, unchanged_ms).unwrap_err().field, field);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Noise raises nothing, and constancy raises once it has covered its time. The interval, gaps
    /// and restarts change neither.
    #[test]
    fn noise_never_raises_and_constancy_always_does(
        every_s in 1_i64..=30,
        steps in prop::collection::vec((0.0_f64..1.0, 0.0_f64..1.0, 0.0_f64..1.0), 2_400),
    ) {
        let mut noisy = engine(Origin::Core);
        let mut frozen = engine(Origin::Core);
        let (mut at_s, mut covered_s, mut changed_s, mut rate) = (0, 0, 0, 70.0);
        let mut raised_after_s = None;
        for (moves, gap, cut) in steps {
            // One reading in 200 comes after a gap.
            let is_gap = gap < 0.005;
            let passed_s = if is_gap { 31 + (gap * 200_000.0) as i64 } else { every_s };
            at_s += passed_s;
            covered_s += if is_gap { 0 } else { passed_s };
            if cut < 0.01 {
                noisy = restart(&noisy);
                frozen = restart(&frozen);
            }
            if moves < 0.002 || covered_s - changed_s >= 1_760 {
                (rate, changed_s) = (141.0 - rate, covered_s);
            }
            let sample = value("d", Metric::HeartRate, at_s, rate);
            prop_assert_eq!(feed(&mut noisy, &sample), []);
            let sample = value("d", Metric::HeartRate, at_s, 70.0);
            let alerts = feed(&mut frozen, &sample);
            // A bus delivers twice.
            prop_assert_eq!(feed(&mut frozen, &sample), []);
            if !alerts.is_empty() {
                prop_assert_eq!(raised_after_s.replace(covered_s), None, "raised twice");
            }
        }
        let raised_s = raised_after_s.unwrap_or(i64::MAX);
        prop_assert!((1_800..1_800 + 2 * every_s).contains(&raised_s), "{raised_s}");
    }
}
