//! Computes the due alerts from readings and thresholds alone.
//!
//! It works on whole histories: the readings of one series are split into stretches in which the
//! condition holds, and the stretches into episodes. The rule engine is a state machine over single
//! readings and is not called here, so a fault of the engine cannot hide itself.
//!
//! - A stretch begins with the first reading at the limit and lasts until a reading beyond `clear`;
//!   readings in between change nothing.
//! - A stretch alerts when it lasts for `for_s`: a reading in it is that late, or the reading that
//!   ends it is later.
//! - An alert ends when the readings stay beyond `clear` for `clear_for_s`; a stretch that begins
//!   sooner belongs to the same alert.
//! - A latched alert stays until it is acknowledged. Until then later stretches belong to it.
//!
//! Falls and NEWS2 have their own stretches, see [`crate::falls`] and [`crate::news2`].

use crate::scenario::{Rule, Side};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Active,
    /// Active, and a person has acknowledged it.
    Acknowledged,
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
    /// When the alert is due: the delay of its rule has ended.
    pub due_us: i64,
    pub acknowledged_us: Option<i64>,
    /// Beginnings of later stretches of a latched alert that are long enough for an alert. When the
    /// edge's reports overtake each other, such a return is an alert of its own.
    pub returns_us: Vec<i64>,
}

/// Delays of a rule, which turn its stretches into alerts.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    pub rule: &'static str,
    pub for_us: i64,
    pub clear_us: i64,
    pub is_latched: bool,
}

impl Timing {
    pub fn of(rule: &Rule) -> Timing {
        Timing {
            rule: rule.id,
            for_us: i64::from(rule.for_s) * 1_000_000,
            clear_us: i64::from(rule.clear_for_s) * 1_000_000,
            is_latched: rule.is_latched,
        }
    }

    pub(crate) fn alerts(&self, stretch: Stretch) -> bool {
        let ended_us = stretch.ended_us.unwrap_or(stretch.last_us);
        stretch.last_us - stretch.since_us >= self.for_us
            || ended_us - stretch.since_us > self.for_us
    }
}

/// A stretch in which the condition holds: times of its first reading, of its last reading before
/// the end, and of the end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stretch {
    pub since_us: i64,
    pub last_us: i64,
    pub ended_us: Option<i64>,
}

/// The alerts of one patient and rule. `now_us` is the time of the last reading, and
/// `acknowledged_us` says when the alert with that beginning was acknowledged.
pub fn episodes(
    patient: &str,
    timing: Timing,
    stretches: &[Stretch],
    now_us: i64,
    acknowledged_us: impl Fn(i64) -> Option<i64>,
) -> Vec<Due> {
    let mut found: Vec<Due> = Vec::new();
    // Time at which the last alert's condition ended; `None` while it holds.
    let mut last_end_us: Option<i64> = None;
    for stretch in stretches {
        let open = found.last_mut().filter(|last| match last_end_us {
            Some(ended_us) => {
                let is_free = last.acknowledged_us.is_some_and(|it| it < stretch.since_us);
                let waits = timing.is_latched && !is_free;
                waits || stretch.since_us - ended_us < timing.clear_us
            }
            None => false,
        });
        match open {
            Some(open) => {
                open.until_us = stretch.last_us;
                if timing.is_latched && timing.alerts(*stretch) {
                    open.returns_us.push(stretch.since_us);
                }
            }
            None if timing.alerts(*stretch) => found.push(Due {
                patient: patient.to_owned(),
                rule: timing.rule,
                since_us: stretch.since_us,
                until_us: stretch.last_us,
                state: State::Active,
                due_us: stretch.since_us + timing.for_us,
                acknowledged_us: acknowledged_us(stretch.since_us),
                returns_us: Vec::new(),
            }),
            None => continue,
        }
        last_end_us = stretch.ended_us;
        if let Some(due) = found.last_mut() {
            let is_over = last_end_us.is_some_and(|ended_us| now_us - ended_us >= timing.clear_us);
            due.state = match (is_over, due.acknowledged_us) {
                (false, None) => State::Active,
                (false, Some(_)) => State::Acknowledged,
                (true, None) if timing.is_latched => State::Latched,
                (true, _) => State::Resolved,
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

/// `readings` are time and value of one series, sorted by time.
pub(crate) fn stretches(rule: &Rule, readings: &[(i64, f64)]) -> Vec<Stretch> {
    let readings = readings.iter().map(|&(time_us, value)| {
        let is_held = match (holds(rule, value), has_ended(rule, value)) {
            (true, _) => Some(true),
            (false, true) => Some(false),
            (false, false) => None,
        };
        (time_us, is_held)
    });
    stretches_of(readings)
}

/// `readings` are times, and whether the condition holds. `None`: it neither begins nor ends.
pub(crate) fn stretches_of(readings: impl Iterator<Item = (i64, Option<bool>)>) -> Vec<Stretch> {
    let mut found: Vec<Stretch> = Vec::new();
    for (time_us, is_held) in readings {
        let open = found.last_mut().filter(|last| last.ended_us.is_none());
        match (open, is_held) {
            (Some(open), Some(true)) => open.last_us = time_us,
            (Some(open), Some(false)) => open.ended_us = Some(time_us),
            (None, Some(true)) => found.push(Stretch {
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
        acknowledged(rule, values, |_| None)
    }

    fn acknowledged(
        rule: &Rule,
        values: &[f64],
        at_us: impl Fn(i64) -> Option<i64>,
    ) -> Vec<(i64, State)> {
        let readings: Vec<(i64, f64)> = (0..)
            .map(|s| s * 1_000_000)
            .zip(values.iter().copied())
            .collect();
        let now_us = readings.last().map_or(0, |(time_us, _)| *time_us);
        let stretches = stretches(rule, &readings);
        episodes("ada", Timing::of(rule), &stretches, now_us, at_us)
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
        // The delay ends in between.
        assert_eq!(
            pulse(&series(&[(2, WELL), (1, HIGH), (9, BETWEEN), (9, WELL)])),
            [(2, State::Resolved)]
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

    #[test]
    fn an_acknowledged_alert_ends_and_the_next_stretch_is_another_one() {
        let breath = &RULES[4];
        let twice = series(&[(4, 35.0), (9, 14.0), (4, 35.0), (9, 14.0)]);
        let at = |time_s: i64| {
            acknowledged(breath, &twice, move |since_us| {
                (since_us == 0).then_some(time_s * 1_000_000)
            })
        };
        assert_eq!(at(8), [(0, State::Resolved), (13, State::Latched)]);
        // The second stretch had begun when the person acknowledged, so it is the same alert.
        assert_eq!(at(14), [(0, State::Resolved)]);
        let open = acknowledged(&RULES[0], &series(&[(9, HIGH)]), |_| Some(5_000_000));
        assert_eq!(open, [(0, State::Acknowledged)]);
    }
}
