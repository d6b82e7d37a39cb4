//! The accelerations of a person who moves, rests, stumbles and falls, second by second.

use rand::{Rng, RngExt};

use super::lengths::{LEFT_OPEN, MARGIN_S, OPEN_S_MIN, QUIET_FIRST_S, QUIET_LAST_S};
use crate::scenario::FALL;

const BLOW_G: f64 = 3.2;
const MOVING_G: [f64; 3] = [1.5, 1.4, 1.7];
const STILL_G: [f64; 3] = [1.0, 1.03, 0.97];
/// Between stillness and movement.
const BREATH_G: f64 = 1.2;
/// Seconds of movement after a fall, beyond the time that ends the condition. Somebody may
/// acknowledge the fall before the next.
const AFTER_FALL_S: std::ops::Range<u32> = 12..75;
const BETWEEN_S: std::ops::Range<u32> = 3..12;
const LIES_S: std::ops::Range<u32> = 2..40;
const RESTS_S: std::ops::Range<u32> = 5..15;

#[derive(Clone, Copy, Debug)]
enum Shape {
    Fall,
    /// Moves for a moment that is too short to end the alert, and lies again.
    LiesAgain,
    /// An impact without stillness.
    Stumble,
    /// Stillness without an impact.
    Rest,
    /// Stillness too long after the impact.
    LateRest,
}

/// One value per second.
pub fn series(random: &mut impl Rng, seconds: u32) -> Vec<f64> {
    let mut values = moving(random.random_range(QUIET_FIRST_S));
    loop {
        let shapes = [
            Shape::Fall,
            Shape::Fall,
            Shape::LiesAgain,
            Shape::Stumble,
            Shape::Rest,
            Shape::LateRest,
        ];
        let chosen = shapes[random.random_range(0..shapes.len())];
        let mut next = shape(random, chosen);
        let after_s = match chosen {
            Shape::Fall | Shape::LiesAgain => AFTER_FALL_S,
            Shape::Stumble | Shape::Rest | Shape::LateRest => BETWEEN_S,
        };
        let quiet_s = FALL.clear_for_s + MARGIN_S + random.random_range(after_s);
        next.extend(moving(quiet_s));
        if values.len() + next.len() + QUIET_LAST_S as usize > seconds as usize {
            break;
        }
        values.append(&mut next);
    }
    let left_s = seconds.saturating_sub(values.len() as u32);
    let is_open = random.random_bool(LEFT_OPEN) && left_s > OPEN_S_MIN + 1;
    let open_s = if is_open { OPEN_S_MIN } else { 0 };
    values.extend(moving(left_s - open_s));
    if is_open {
        values.push(BLOW_G);
        values.extend(lying(open_s - 1));
    }
    values
}

/// The time from an impact in which stillness would be a fall, and more.
const NOT_STILL_S: u32 = FALL.within_s + MARGIN_S;

fn shape(random: &mut impl Rng, chosen: Shape) -> Vec<f64> {
    let lies_s = FALL.for_s + random.random_range(LIES_S);
    let mut values = Vec::new();
    match chosen {
        Shape::Fall | Shape::LiesAgain => {
            values.push(BLOW_G);
            // The body rolls before it lies.
            values.extend(moving(random.random_range(0..3)));
            values.extend(lying(lies_s));
            if matches!(chosen, Shape::LiesAgain) {
                values.extend(moving(random.random_range(1..=FALL.clear_for_s - MARGIN_S)));
                values.extend(lying(lies_s));
            }
        }
        Shape::Stumble => {
            values.push(BLOW_G);
            values.extend(moving(NOT_STILL_S));
        }
        Shape::Rest => values.extend(lying(random.random_range(RESTS_S))),
        Shape::LateRest => {
            values.push(BLOW_G);
            values.extend(moving(NOT_STILL_S));
            values.extend(lying(random.random_range(RESTS_S)));
        }
    }
    values
}

/// Whether this is a reading of a person who moves, without an impact.
pub fn moves(value: f64) -> bool {
    MOVING_G.iter().any(|it| it.to_bits() == value.to_bits())
}

fn moving(seconds: u32) -> Vec<f64> {
    MOVING_G
        .iter()
        .copied()
        .cycle()
        .take(seconds as usize)
        .collect()
}

/// The first and the last second are still.
fn lying(seconds: u32) -> Vec<f64> {
    let value = |second: u32| {
        let is_breath = second % 5 == 3 && second + 1 < seconds;
        let still_g = STILL_G[second as usize % STILL_G.len()];
        if is_breath { BREATH_G } else { still_g }
    };
    (0..seconds).map(value).collect()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::{
        falls,
        oracle::{State, episodes},
    };

    #[test]
    fn falls_are_sure_and_a_run_of_three_minutes_has_some() {
        for seed in 0..200 {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            let (mut fallen, mut open) = (0, 0);
            for _ in crate::scenario::patients() {
                let values = series(&mut random, 180);
                assert_eq!(values.len(), 180);
                let readings: Vec<(i64, f64)> = (0..).map(|s| s * 1_000_000).zip(values).collect();
                let stretches = falls::stretches(&readings);
                for stretch in &stretches {
                    // A fall is told before it has lasted, so each one must last.
                    assert!(falls::timing().alerts(*stretch), "{seed}: {stretch:?}");
                }
                let dues = episodes("ada", falls::timing(), &stretches, 179_000_000, |_| None);
                fallen += dues.len();
                open += dues.iter().filter(|due| due.state == State::Active).count();
            }
            assert!(fallen > 0 && open <= fallen, "{seed}");
        }
    }
}
