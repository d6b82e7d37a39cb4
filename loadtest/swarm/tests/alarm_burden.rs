//! Alarm burden of the built-in rules: no alert for healthy patients, and always one for patients
//! who fall ill.

use std::{collections::BTreeMap, sync::Arc};

use contracts::alerts::AlertState;
use swarm::patient::{Episode, Patient, Profile};
use vitals::{Engine, Origin, RuleSet};

const START_US: i64 = 1_800_000_000_000_000;
const MINUTE_US: i64 = 60_000_000;

fn patient(seed: u64) -> Patient {
    let profile = Profile {
        ecg: false,
        episode_interval_s: 0.0,
        ..Profile::varied(seed, "belt")
    };
    Patient::new(seed, profile, START_US)
}

fn engine() -> Engine {
    let rules = Arc::new(RuleSet::default_set());
    Engine::new("p", rules, vitals::Profile::default(), Origin::Core)
}

/// Number of alerts by rule, up to this minute.
fn raised(patient: &mut Patient, engine: &mut Engine, until: i64) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for minute in 1..=until {
        for sample in patient.next(START_US + minute * MINUTE_US) {
            for alert in engine.on_sample(&sample) {
                if alert.state() == AlertState::Active {
                    *counts.entry(alert.rule).or_insert(0) += 1;
                }
            }
        }
    }
    counts
}

#[test]
fn no_alert_is_raised_in_eight_hours_of_three_healthy_patients() {
    for seed in 100..103 {
        assert_eq!(
            raised(&mut patient(seed), &mut engine(), 8 * 60),
            BTreeMap::new(),
            "seed {seed}"
        );
    }
}

#[test]
fn a_sudden_desaturation_raises_its_own_alert() {
    for seed in 200..203 {
        let mut patient = patient(seed);
        let mut engine = engine();
        assert_eq!(
            raised(&mut patient, &mut engine, 30),
            BTreeMap::new(),
            "seed {seed}"
        );
        assert!(patient.trigger(Episode::Desaturation));
        let counts = raised(&mut patient, &mut engine, 60);
        assert!(
            counts.contains_key("spo2-sudden-drop"),
            "seed {seed}: {counts:?}"
        );
    }
}
