//! The stretches of falls, from accelerations alone: an impact, then stillness that begins within
//! some seconds and lasts until the person moves. Rest without an impact is no fall.

use crate::{
    oracle::{Stretch, Timing},
    scenario::FALL,
};

/// Beyond this many times the distance of stillness a person moves. In between they may breathe.
const MOVES_FROM: f64 = 2.5;

pub fn timing() -> Timing {
    Timing {
        rule: FALL.id,
        for_us: i64::from(FALL.for_s) * 1_000_000,
        clear_us: i64::from(FALL.clear_for_s) * 1_000_000,
        is_latched: true,
    }
}

/// `readings` are time and acceleration in g, sorted by time.
pub fn stretches(readings: &[(i64, f64)]) -> Vec<Stretch> {
    let timing = timing();
    let within_us = i64::from(FALL.within_s) * 1_000_000;
    let mut found: Vec<Stretch> = Vec::new();
    let mut impact_us: Option<i64> = None;
    for &(time_us, value) in readings {
        if value >= FALL.impact_g {
            impact_us = Some(time_us);
        }
        let off_g = (value - 1.0).abs();
        let (is_still, moves) = (off_g <= FALL.still_g, off_g > MOVES_FROM * FALL.still_g);
        // A person who lies down again at once after a fall has not recovered.
        let is_again = found.last().is_some_and(|last| {
            let is_short = last
                .ended_us
                .is_some_and(|it| time_us - it < timing.clear_us);
            is_short && timing.alerts(*last)
        });
        let is_after_impact = impact_us.is_some_and(|it| time_us - it <= within_us);
        let open = found.last_mut().filter(|last| last.ended_us.is_none());
        match open {
            Some(open) if is_still => open.last_us = time_us,
            Some(open) if moves => open.ended_us = Some(time_us),
            None if is_still && (is_after_impact || is_again) => found.push(Stretch {
                since_us: time_us,
                last_us: time_us,
                ended_us: None,
            }),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::{State, episodes};

    const BLOW: f64 = 3.2;
    const STILL: f64 = 1.02;
    const MOVING: f64 = 1.5;
    const BREATH: f64 = 1.2;

    fn falls(parts: &[(usize, f64)]) -> Vec<(i64, State)> {
        let values = parts
            .iter()
            .flat_map(|&(count, value)| std::iter::repeat_n(value, count));
        let readings: Vec<(i64, f64)> = (0..).map(|s| s * 1_000_000).zip(values).collect();
        let now_us = readings.last().map_or(0, |(time_us, _)| *time_us);
        episodes("ada", timing(), &stretches(&readings), now_us, |_| None)
            .into_iter()
            .map(|due| (due.since_us / 1_000_000, due.state))
            .collect()
    }

    #[test]
    fn a_fall_is_an_impact_and_then_stillness() {
        let lies = falls(&[(3, MOVING), (1, BLOW), (8, STILL)]);
        assert_eq!(lies, [(4, State::Active)]);
        let got_up = falls(&[(3, MOVING), (1, BLOW), (2, MOVING), (8, STILL), (9, MOVING)]);
        assert_eq!(got_up, [(6, State::Latched)]);
        let breathes = falls(&[(1, BLOW), (2, STILL), (2, BREATH), (4, STILL)]);
        assert_eq!(breathes, [(1, State::Active)]);
    }

    #[test]
    fn rest_a_stumble_and_a_late_rest_are_no_falls() {
        assert_eq!(falls(&[(3, MOVING), (20, STILL), (9, MOVING)]), []);
        assert_eq!(falls(&[(3, MOVING), (1, BLOW), (20, MOVING)]), []);
        assert_eq!(falls(&[(1, BLOW), (12, MOVING), (20, STILL)]), []);
    }

    #[test]
    fn who_lies_down_again_at_once_has_one_fall() {
        let again = falls(&[(1, BLOW), (20, STILL), (2, MOVING), (8, STILL), (9, MOVING)]);
        assert_eq!(again, [(1, State::Latched)]);
    }
}
