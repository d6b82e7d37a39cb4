//! The readings of each sensor, second by second, computed from the seed before the run.
//!
//! Every series alternates between stretches without an alert and one of the shapes below. All
//! lengths keep [`MARGIN_S`] away from the delays of the rules. So the due alerts do not depend on
//! rounding.

mod falls;
mod lengths;

pub use falls::moves;

use rand::{Rng, RngExt};

use lengths::{LEFT_OPEN, MARGIN_S, OPEN_S_MIN, QUIET_FIRST_S, QUIET_LAST_S};

use crate::scenario::{ACTIVITY, RULES, Rule, Side};

/// Readings a second of each series.
pub const PER_SECOND: u32 = 1;
/// Seconds without an alert between two shapes, beyond the time that clears the rule.
const QUIET_S: std::ops::Range<u32> = 3..16;
/// Length in seconds of short alerts, beyond the rule's delay.
const SECONDS_S: std::ops::Range<u32> = 2..9;
const MINUTES_S: std::ops::Range<u32> = 60..100;

/// Distance of a reading beyond the limit.
const BEYOND: f64 = 2.0;

/// The shape of a series outside of the normal range.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Too short to alert.
    Artefact,
    Seconds,
    Minutes,
    /// Recovers for a moment that is too short to end the alert.
    Flap,
    /// Returns between the two limits first, which does not end the alert.
    Hover,
}

/// One value per second of one patient's metric.
pub fn series(random: &mut impl Rng, metric: &str, normal: f64, seconds: u32) -> Vec<f64> {
    if metric == ACTIVITY {
        return falls::series(random, seconds);
    }
    let rules: Vec<&Rule> = RULES.iter().filter(|rule| rule.metric == metric).collect();
    let mut values = vec![normal; random.random_range(QUIET_FIRST_S) as usize];
    loop {
        let rule = rules[random.random_range(0..rules.len())];
        let mut next = shape(random, rule, normal);
        let quiet_s = slowest_clear_s(&rules) + MARGIN_S + random.random_range(QUIET_S);
        next.extend(std::iter::repeat_n(normal, quiet_s as usize));
        if values.len() + next.len() + QUIET_LAST_S as usize > seconds as usize {
            break;
        }
        values.append(&mut next);
    }
    let left_s = seconds.saturating_sub(values.len() as u32);
    let rule = rules[random.random_range(0..rules.len())];
    let open_s = (rule.for_s + 2 * MARGIN_S).max(OPEN_S_MIN);
    let is_open = random.random_bool(LEFT_OPEN) && left_s > open_s;
    let open_s = if is_open { open_s } else { 0 };
    values.extend(std::iter::repeat_n(normal, (left_s - open_s) as usize));
    values.extend(std::iter::repeat_n(beyond(rule), open_s as usize));
    values
}

/// The stretches between two alerts clear every rule of the metric.
fn slowest_clear_s(rules: &[&Rule]) -> u32 {
    rules.iter().map(|rule| rule.clear_for_s).max().unwrap_or(0)
}

fn shape(random: &mut impl Rng, rule: &Rule, normal: f64) -> Vec<f64> {
    let shapes = [
        Shape::Artefact,
        Shape::Seconds,
        Shape::Seconds,
        Shape::Minutes,
        Shape::Flap,
        Shape::Hover,
    ];
    let chosen = shapes[random.random_range(0..shapes.len())];
    let alerting = |seconds: u32| vec![beyond(rule); (rule.for_s + seconds) as usize];
    let mut values = alerting(random.random_range(SECONDS_S));
    match chosen {
        Shape::Artefact if rule.for_s > MARGIN_S => {
            let length_s = rule.for_s.saturating_sub(MARGIN_S).max(1);
            values = vec![beyond(rule); random.random_range(1..=length_s) as usize];
        }
        // A rule without a delay alerts at its first reading.
        Shape::Artefact if rule.for_s == 0 => values = vec![beyond(rule)],
        Shape::Artefact | Shape::Seconds => {}
        Shape::Minutes => values = alerting(random.random_range(MINUTES_S)),
        Shape::Flap if rule.clear_for_s > MARGIN_S => {
            let length_s = random.random_range(1..=rule.clear_for_s - MARGIN_S);
            values.extend(std::iter::repeat_n(normal, length_s as usize));
            values.extend(alerting(random.random_range(SECONDS_S)));
        }
        Shape::Flap | Shape::Hover => {
            let between = (rule.limit + rule.clear) / 2.0;
            values.extend(std::iter::repeat_n(between, random.random_range(3..9)));
        }
    }
    values
}

fn beyond(rule: &Rule) -> f64 {
    match rule.side {
        Side::Above => rule.limit + BEYOND / 2.0,
        Side::Below => rule.limit - BEYOND,
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::{
        oracle::{self, Stretch, Timing, episodes},
        scenario::METRICS,
    };

    const SECONDS: u32 = 600;

    fn timed(values: &[f64]) -> Vec<(i64, f64)> {
        (0..)
            .map(|s| s * 1_000_000)
            .zip(values.iter().copied())
            .collect()
    }

    /// Later readings may be a second off on either side of a delay without changing the due
    /// alerts.
    #[test]
    fn no_length_is_near_a_delay_of_its_rule() {
        let second = 1_000_000;
        for seed in 0..200 {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            for (_, metric, normal) in METRICS {
                let values = timed(&series(&mut random, metric, normal, SECONDS));
                assert_eq!(values.len(), SECONDS as usize);
                for rule in RULES.iter().filter(|rule| rule.metric == metric) {
                    let (for_us, clear_us) = (
                        i64::from(rule.for_s) * second,
                        i64::from(rule.clear_for_s) * second,
                    );
                    let found = oracle::stretches(rule, &values);
                    for stretch in &found {
                        let held_us = stretch.last_us - stretch.since_us;
                        assert!(
                            for_us == 0 || (held_us - for_us).abs() >= second,
                            "{seed} {rule:?} {stretch:?}"
                        );
                    }
                    for pair in found.windows(2) {
                        let [
                            Stretch {
                                ended_us: Some(ended_us),
                                ..
                            },
                            next,
                        ] = pair
                        else {
                            panic!("only the last stretch may be open");
                        };
                        let well_us = next.since_us - ended_us;
                        assert!(
                            clear_us == 0 || (well_us - clear_us).abs() >= second,
                            "{seed} {rule:?} {pair:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn runs_of_three_minutes_have_every_kind_of_alert() {
        use oracle::State;
        for seed in 0..20 {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            let mut dues = Vec::new();
            for _ in crate::scenario::patients() {
                for (_, metric, normal) in METRICS {
                    let values = timed(&series(&mut random, metric, normal, 180));
                    let rules = RULES.iter().filter(|rule| rule.metric == metric);
                    dues.extend(rules.flat_map(|rule| {
                        let stretches = oracle::stretches(rule, &values);
                        episodes("ada", Timing::of(rule), &stretches, 179_000_000, |_| None)
                    }));
                }
            }
            for state in [State::Active, State::Latched, State::Resolved] {
                assert!(
                    dues.iter().any(|due| due.state == state),
                    "{seed}: none is {state:?}"
                );
            }
            for rule in &RULES {
                assert!(
                    dues.iter().any(|due| due.rule == rule.id),
                    "{seed}: {}",
                    rule.id
                );
            }
        }
    }
}
