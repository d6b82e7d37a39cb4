//! The canaries' readings, their one rule and their turns. Sans-IO.
//!
//! Every minute of the wall clock has two halves: the first reading raises the test alert, the
//! second clears it. A reading depends on its half and its canary alone. So all replicas of ingest
//! send the same reading, and the second one counts as a repetition.
//!
//! Each partition has a canary. Where there are more than [`AT_ONCE_MAX`], they take turns by the
//! minute, so the number of test alerts is bounded.

use std::ops::Range;

use contracts::{
    canary::NAME,
    vitals::{Metric, Priority, Sample, sample::Reading},
};

use crate::{Condition, Rule, RuleSet, fill_defaults};

/// Half of the period in which the test alert is raised and cleared.
pub const HALF_US: i64 = 30_000_000;

/// Test alerts of one minute. If there are more partitions, each has its turn after some minutes.
pub const AT_ONCE_MAX: u32 = 64;

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
            // A high one would last until somebody acknowledges it.
            priority: Priority::Medium,
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

/// Minutes after which a partition has its turn again.
pub fn turns(partitions: u32) -> u32 {
    partitions.div_ceil(AT_ONCE_MAX).max(1)
}

/// The partitions whose turn it is in the minute that contains this time.
pub fn in_turn(partitions: u32, now_us: i64) -> Range<u32> {
    let minute = now_us.div_euclid(2 * HALF_US);
    let turn = minute.rem_euclid(i64::from(turns(partitions)));
    let first = u32::try_from(turn).unwrap_or(0) * AT_ONCE_MAX;
    first..partitions.min(first + AT_ONCE_MAX)
}

/// The reading of a canary in the half that contains this time.
pub fn reading(patient: &str, now_us: i64) -> Sample {
    let half = now_us.div_euclid(HALF_US);
    let value = if half.rem_euclid(2) == 0 {
        HIGH
    } else {
        NORMAL
    };
    let mut sample = Sample {
        device: NAME.to_owned(),
        gateway: NAME.to_owned(),
        patient: patient.to_owned(),
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
    fn each_partition_has_its_turn_and_no_minute_has_too_many() {
        for partitions in [1, 8, 64, 65, 1000] {
            let mut seen = std::collections::BTreeSet::new();
            for minute in 0..i64::from(turns(partitions)) {
                let halves = [0, 1].map(|half| (2 * minute + half) * HALF_US);
                let both = halves.map(|half_us| in_turn(partitions, half_us));
                assert_eq!(both[0], both[1], "one minute is one turn");
                assert!(both[0].len() <= AT_ONCE_MAX as usize);
                seen.extend(both[0].clone());
            }
            assert!(seen.into_iter().eq(0..partitions));
        }
    }

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
                let alerts = engine.on_sample(&reading(NAME, now_us + replica * 1_000));
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
