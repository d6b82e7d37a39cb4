//! Computes the due alerts from readings and thresholds alone.
//!
//! It works on whole histories: the readings of one series are split into stretches in which the
//! condition holds, and the stretches into episodes. The rule engine is a state machine over single
//! readings and is not called here, so a fault of the engine cannot hide itself.
//!
//! - A stretch begins with the first reading at the limit and lasts until a reading beyond `clear`;
//!   readings in between change nothing.
//! - A stretch alerts when one of its readings is `for_s` or more after its beginning.
//! - An alert ends when the readings stay beyond `clear` for `clear_for_s`; a stretch that begins
//!   sooner belongs to the same alert.
//! - A latched alert never ends here, because it is never acknowledged: later stretches belong to
//!   it.

use crate::scenario::{Rule, Side};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Active,
    Latched,
    Resolved,
}

/// An alert that must be raised exactly once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    pub patient: String,
    pub rule: &'static str,
    pub since_us: i64,
    /// Event time of the last reading that belongs to the alert; `i64::MAX` while it is open or
    /// latched.
    pub until_us: i64,
    pub state: State,
}

/// A stretch in which the condition holds: times of its first reading, of its last reading before
/// the end, and of the end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stretch {
    pub since_us: i64,
    pub last_us: i64,
    pub ended_us: Option<i64>,
}

/// `readings` are time and value of one series, sorted by time.
pub fn due(patient: &str, rule: &Rule, readings: &[(i64, f64)]) -> Vec<Due> {
    let now_us = readings.last().map_or(0, |(time_us, _)| *time_us);
    let clear_us = i64::from(rule.clear_for_s) * 1_000_000;
    let mut found: Vec<Due> = Vec::new();
    // Time at which the last alert's condition ended; `None` while it holds.
    let mut last_end_us: Option<i64> = None;
    for stretch in stretches(rule, readings) {
        let open = found.last_mut().filter(|_| match last_end_us {
            Some(ended_us) => rule.is_latched || stretch.since_us - ended_us < clear_us,
            None => false,
        });
        match open {
            Some(open) => open.until_us = stretch.last_us,
            None if alerts(rule, stretch) => found.push(Due {
                patient: patient.to_owned(),
                rule: rule.id,
                since_us: stretch.since_us,
                until_us: stretch.last_us,
                state: State::Active,
            }),
            None => continue,
        }
        last_end_us = stretch.ended_us;
        if let Some(due) = found.last_mut() {
            let is_over = last_end_us.is_some_and(|ended_us| now_us - ended_us >= clear_us);
            due.state = match (is_over, rule.is_latched) {
                (false, _) => State::Active,
                (true, true) => State::Latched,
                (true, false) => State::Resolved,
            };
        }
    }
    for due in &mut found {
        if due.state != State::Resolved {
            due.until_us = i64::MAX;
        }
    }
    found
}

fn alerts(rule: &Rule, stretch: Stretch) -> bool {
    stretch.last_us - stretch.since_us >= i64::from(rule.for_s) * 1_000_000
}

pub(crate) fn stretches(rule: &Rule, readings: &[(i64, f64)]) -> Vec<Stretch> {
    let mut found: Vec<Stretch> = Vec::new();
    for &(time_us, value) in readings {
        let open = found.last_mut().filter(|last| last.ended_us.is_none());
        match (open, holds(rule, value), has_ended(rule, value)) {
            (Some(open), true, _) => open.last_us = time_us,
            (Some(open), false, true) => open.ended_us = Some(time_us),
            (None, true, _) => found.push(Stretch {
                since_us: time_us,
                last_us: time_us,
                ended_us: None,
            }),
            _ => {}
        }
    }
    found
}

fn holds(rule: &Rule, value: f64) -> bool {
    match rule.side {
        Side::Above => value >= rule.limit,
        Side::Below => value <= rule.limit,
    }
}

fn has_ended(rule: &Rule, value: f64) -> bool {
    match rule.side {
        Side::Above => value < rule.clear,
        Side::Below => value > rule.clear,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::RULES;

    const HIGH: f64 = 130.0;
    const WELL: f64 = 70.0;
    const BETWEEN: f64 = 117.0;

    /// One reading a second; the begin and the state of every alert of the pulse rule (3 s, clear 3
    /// s).
    fn pulse(values: &[f64]) -> Vec<(i64, State)> {
        judged(&RULES[0], values)
    }

    fn judged(rule: &Rule, values: &[f64]) -> Vec<(i64, State)> {
        let readings: Vec<(i64, f64)> = (0..)
            .map(|s| s * 1_000_000)
            .zip(values.iter().copied())
            .collect();
        due("ada", rule, &readings)
            .into_iter()
            .map(|due| (due.since_us / 1_000_000, due.state))
            .collect()
    }

    fn series(parts: &[(usize, f64)]) -> Vec<f64> {
        parts
            .iter()
            .flat_map(|&(count, value)| std::iter::repeat_n(value, count))
            .collect()
    }

    #[test]
    fn a_stretch_shorter_than_the_delay_is_not_due() {
        assert_eq!(pulse(&series(&[(5, WELL), (3, HIGH), (9, WELL)])), []);
        let due = pulse(&series(&[(5, WELL), (4, HIGH), (9, WELL)]));
        assert_eq!(due, [(5, State::Resolved)]);
    }

    #[test]
    fn readings_between_the_limits_neither_begin_nor_end_it() {
        assert_eq!(pulse(&series(&[(9, BETWEEN), (9, WELL)])), []);
        let due = pulse(&series(&[
            (2, WELL),
            (1, HIGH),
            (5, BETWEEN),
            (1, HIGH),
            (9, WELL),
        ]));
        assert_eq!(due, [(2, State::Resolved)]);
        // Only a reading at the limit makes the stretch long enough.
        assert_eq!(
            pulse(&series(&[(2, WELL), (1, HIGH), (9, BETWEEN), (9, WELL)])),
            []
        );
    }

    #[test]
    fn a_short_recovery_is_the_same_alert_and_a_long_one_ends_it() {
        let due = pulse(&series(&[(4, HIGH), (2, WELL), (4, HIGH), (9, WELL)]));
        assert_eq!(due, [(0, State::Resolved)]);
        let due = pulse(&series(&[(4, HIGH), (5, WELL), (4, HIGH)]));
        assert_eq!(due, [(0, State::Resolved), (9, State::Active)]);
    }

    #[test]
    fn an_alert_without_delays_may_be_one_reading_long() {
        let fever = &RULES[2];
        let due = judged(fever, &[36.7, 39.6, 36.7, 39.6, 36.7]);
        assert_eq!(due, [(1, State::Resolved), (3, State::Resolved)]);
    }

    #[test]
    fn a_latched_alert_takes_in_every_later_stretch() {
        let breath = &RULES[4];
        let twice = series(&[(4, 35.0), (9, 14.0), (4, 35.0), (9, 14.0)]);
        assert_eq!(judged(breath, &twice), [(0, State::Latched)]);
        let again = series(&[(4, 35.0), (9, 14.0), (4, 35.0)]);
        assert_eq!(judged(breath, &again), [(0, State::Active)]);
    }
}
