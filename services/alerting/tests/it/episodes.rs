//! The built-in rules on simulated patients: each episode raises an alert, and a calm day is quiet.

use std::{collections::BTreeSet, sync::Arc};

use contracts::alerts::{Alert, AlertState};
use swarm::{Episode, Patient, Profile};
use vitals::{Engine, Origin, RuleSet};

const START_US: i64 = 1_800_000_000_000_000;
const S: i64 = 1_000_000;

fn calm() -> Profile {
    Profile {
        episode_interval_s: 0.0,
        ecg: false,
        ..Profile::adult("d1")
    }
}

fn engine() -> Engine {
    Engine::new(
        "p",
        Arc::new(RuleSet::default_set()),
        vitals::Profile::default(),
        Origin::Core,
    )
}

/// The samples from `from_s` to `until_s`, minute by minute.
fn run(engine: &mut Engine, patient: &mut Patient, from_s: i64, until_s: i64) -> Vec<Alert> {
    let mut alerts = Vec::new();
    for minute_s in (from_s..until_s).step_by(60) {
        let samples = patient.next(START_US + (minute_s + 60) * S);
        assert!(samples.len() >= 60);
        for mut sample in samples {
            sample.sequence = sample.sensor_sequence.unwrap();
            alerts.extend(engine.on_sample(&sample));
        }
    }
    assert_eq!(engine.skipped(), 0);
    alerts
}

#[test]
fn every_episode_is_noticed_and_passes() {
    let expected = [
        (Episode::Tachycardia, "heart-rate-high"),
        (Episode::Desaturation, "spo2-low"),
        (Episode::Fever, "temperature-high"),
        (Episode::Fall, "fall"),
    ];
    for (episode, rule) in expected {
        for seed in 0..4 {
            let mut patient = Patient::new(seed, calm(), START_US);
            let mut engine = engine();
            run(&mut engine, &mut patient, 0, 60);
            assert!(patient.trigger(episode));
            let alerts = run(&mut engine, &mut patient, 60, 1800);
            let raised = alerts
                .iter()
                .find(|alert| alert.rule == rule && alert.state() == AlertState::Active)
                .unwrap_or_else(|| panic!("seed {seed}: {rule} is not raised by {episode:?}"));
            assert!(
                raised.changed_us < START_US + 360 * S,
                "seed {seed}: {rule} {} s after the beginning",
                (raised.changed_us - START_US) / S - 60
            );
            // A fall's own alert lasts as long as the person stays down.
            let open: BTreeSet<&str> = alerts.iter().fold(BTreeSet::new(), |mut open, alert| {
                match alert.state() {
                    AlertState::Active => open.insert(alert.rule.as_str()),
                    _ => open.remove(alert.rule.as_str()),
                };
                open
            });
            assert!(
                !open.contains(rule) || rule == "fall",
                "seed {seed}: {open:?}"
            );
        }
    }
}

#[test]
fn a_calm_day_is_quiet() {
    for seed in 0..4 {
        let mut patient = Patient::new(seed, calm(), START_US);
        let alerts = run(&mut engine(), &mut patient, 0, 2 * 3600);
        let rules: Vec<&str> = alerts.iter().map(|alert| alert.rule.as_str()).collect();
        assert!(rules.is_empty(), "seed {seed}: {rules:?}");
    }
}
