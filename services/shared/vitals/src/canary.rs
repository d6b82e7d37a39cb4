//! The canary's readings and its one rule. Sans-IO.
//!
//! Every minute of the wall clock has two halves: the first reading raises the test alert, the
//! second clears it. A reading depends on its half alone. So all replicas of ingest send the same
//! reading, and the second one counts as a repetition.

use contracts::{
    canary::NAME,
    vitals::{Metric, Priority, Sample, sample::Reading},
};

use crate::{Condition, Rule, RuleSet, fill_defaults};

/// Half of the period in which the test alert is raised and cleared.
pub const HALF_US: i64 = 30_000_000;

/// Above any body temperature, and within the range of a temperature sensor.
const HIGH: f64 = 45.0;
const LIMIT: f64 = 44.0;
const NORMAL: f64 = 36.6;

/// Patients' rules do not apply to the canary, so no document of an operator can silence it.
pub fn rules() -> RuleSet {
    RuleSet {
        name: NAME.to_owned(),
        version: 1,
        stale_after_s: [].into(),
        rules: vec![Rule {
            id: NAME.to_owned(),
            priority: Priority::Low,
            condition: Condition::Above {
                metric: Metric::Temperature,
                limit: LIMIT,
                clear: LIMIT,
            },
            for_ms: 0,
            clear_for_ms: 0,
        }],
    }
}

/// Start of the next half.
pub fn next_us(now_us: i64) -> i64 {
    (now_us.div_euclid(HALF_US) + 1) * HALF_US
}

/// The reading of the half that contains this time.
pub fn reading(now_us: i64) -> Sample {
    let half = now_us.div_euclid(HALF_US);
    let value = if half.rem_euclid(2) == 0 {
        HIGH
    } else {
        NORMAL
    };
    let mut sample = Sample {
        device: NAME.to_owned(),
        gateway: NAME.to_owned(),
        patient: NAME.to_owned(),
        sequence: u64::try_from(half).unwrap_or(0),
        metric: Metric::Temperature.into(),
        device_time_us: half * HALF_US,
        gateway_time_us: half * HALF_US,
        ingest_time_us: now_us,
        reading: Some(Reading::Value(value)),
        ..Sample::default()
    };
    fill_defaults(&mut sample);
    sample
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use contracts::alerts::AlertState;

    use super::*;
    use crate::{Engine, Origin, Profile};

    #[test]
    fn each_minute_raises_one_alert_and_clears_it_and_a_second_replica_adds_nothing() {
        let rules = Arc::new(rules());
        rules.validate().unwrap();
        let mut engine = Engine::new(NAME, rules, Profile::default(), Origin::Core);
        engine.settle();
        let mut now_us = next_us(1_800_000_000_000_000);
        let mut states = Vec::new();
        for _ in 0..6 {
            for replica in 0..2 {
                let alerts = engine.on_sample(&reading(now_us + replica * 1_000));
                states.extend(alerts.iter().map(|alert| alert.state()));
            }
            now_us = next_us(now_us);
        }
        use AlertState::{Active, Resolved};
        let first = states.iter().position(|state| *state == Active).unwrap();
        let rest = &states[first..];
        assert!(rest.len() >= 5, "{states:?}");
        for (at, state) in rest.iter().enumerate() {
            let expected = if at % 2 == 0 { Active } else { Resolved };
            assert_eq!(*state, expected, "{states:?}");
        }
    }
}
