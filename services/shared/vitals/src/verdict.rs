//! Applies one condition to one reading, and describes the result in words.

use contracts::vitals::Metric;

use crate::{
    catalogue::{Reading, display as display_of, entry},
    condition::{Condition, Direction},
    machine::Verdict,
    news2::{self, Score},
    rules::Rule,
};

/// Verdict of a threshold or a score. A fall also depends on earlier readings, see `fall`.
pub(crate) fn of(condition: &Condition, value: f64, score: Option<&Score>) -> Verdict {
    match (condition, score) {
        (Condition::Above { limit, .. }, _) if value >= *limit => Verdict::Holds,
        (Condition::Above { clear, .. }, _) if value < *clear => Verdict::Ended,
        (Condition::Below { limit, .. }, _) if value <= *limit => Verdict::Holds,
        (Condition::Below { clear, .. }, _) if value > *clear => Verdict::Ended,
        (Condition::News2 { from, to }, Some(score)) => {
            news2_verdict(score, |aggregate| (*from..=*to).contains(&aggregate))
        }
        (Condition::News2Red, Some(score)) => {
            let is_red = !score.red.is_empty();
            news2_verdict(score, |aggregate| is_red && aggregate < news2::MEDIUM_FROM)
        }
        _ => Verdict::Unknown,
    }
}

/// Verdict on mean acceleration, which at rest is gravity alone. Stillness counts only after an
/// impact, or once the stretch has begun. The second of the impact itself counts as neither.
pub(crate) fn fall(value_g: f64, still_g: f64, counts: bool) -> Verdict {
    let off_g = (value_g - 1.0).abs();
    if off_g <= still_g {
        return if counts {
            Verdict::Holds
        } else {
            Verdict::Ended
        };
    }
    // Between still and moving: heavy breathing is not getting up.
    if off_g <= 2.5 * still_g {
        Verdict::Unknown
    } else {
        Verdict::Ended
    }
}

/// Stale readings that would still satisfy the condition leave it unknown. Missing readings never
/// do.
fn news2_verdict(score: &Score, satisfied: impl Fn(u32) -> bool) -> Verdict {
    if satisfied(score.aggregate) {
        Verdict::Holds
    } else if score.with_stale > score.aggregate && satisfied(score.with_stale) {
        Verdict::Unknown
    } else {
        Verdict::Ended
    }
}

/// A time in hours, minutes or seconds, whichever shows it exactly.
fn lasted(time_ms: u64) -> String {
    let seconds = time_ms / 1000;
    match seconds {
        _ if seconds >= 7_200 && seconds.is_multiple_of(3_600) => format!("{} h", seconds / 3_600),
        _ if seconds >= 120 && seconds.is_multiple_of(60) => format!("{} min", seconds / 60),
        _ => format!("{seconds} s"),
    }
}

fn rounded(value: f64, decimals: u8) -> f64 {
    let scale = 10_f64.powi(i32::from(decimals));
    (value * scale).round() / scale
}

pub(crate) fn describe(rule: &Rule, value: f64, score: Option<&Score>) -> String {
    let metric = rule.condition.metric();
    // A converted value has more digits than its sensor measured.
    let decimals = entry(metric).and_then(|entry| entry.document.decimals);
    let value = decimals.map_or(value, |decimals| rounded(value, decimals));
    let (display, unit) = entry(metric).map_or(("", ""), |entry| (entry.display, entry.unit));
    let lasting = match rule.for_ms / 1000 {
        0 => String::new(),
        seconds => format!(" for {seconds} s"),
    };
    let is_step = entry(metric).is_some_and(|entry| entry.reading == Reading::Step);
    match (&rule.condition, score) {
        (Condition::Above { .. }, _) if is_step => format!("{display}: {value}"),
        (Condition::Above { limit, .. }, _) => {
            format!("{display} {value} {unit}, at or above {limit}{lasting}")
        }
        (Condition::Below { limit, .. }, _) => {
            format!("{display} {value} {unit}, at or below {limit}{lasting}")
        }
        (
            Condition::Change {
                direction,
                by,
                within_ms,
                ..
            },
            _,
        ) => {
            let moved = match direction {
                Direction::Rise => "up",
                Direction::Drop => "down",
                Direction::Either => "changed",
            };
            let seconds = within_ms / 1000;
            format!("{display} {value} {unit}, {moved} by {by} or more within {seconds} s{lasting}")
        }
        (Condition::Deviation { direction, z, .. }, _) => {
            let side = match direction {
                Direction::Rise => "above",
                Direction::Drop => "below",
                Direction::Either => "from",
            };
            format!(
                "{display} {value} {unit}, {z} spreads or more {side} this person's mean{lasting}"
            )
        }
        (Condition::Trend { per_hour, .. }, _) => {
            let moved = if *per_hour < 0.0 { "falling" } else { "rising" };
            let size = per_hour.abs();
            format!("{display} {value} {unit}, {moved} by {size} or more an hour{lasting}")
        }
        (
            Condition::Frozen {
                metric: Metric::Ecg,
                unchanged_ms,
            },
            _,
        ) => {
            let time = lasted(*unchanged_ms);
            format!("{display} has been a flat line for {time}: is the sensor still on?")
        }
        (Condition::Frozen { unchanged_ms, .. }, _) => {
            let time = lasted(*unchanged_ms);
            format!(
                "{display} has shown exactly {value} {unit} for {time}: is the sensor still on?"
            )
        }
        (Condition::Fall { impact_g, .. }, _) => {
            format!("Fall: a blow of {impact_g} g or more, then no movement{lasting}")
        }
        (Condition::News2Red, Some(score)) => {
            let red: Vec<&str> = score.red.iter().map(|metric| display_of(*metric)).collect();
            format!("{}, 3 points for {}", score.describe(), red.join(", "))
        }
        (Condition::News2 { .. } | Condition::News2Red, score) => {
            score.map(Score::describe).unwrap_or_default()
        }
    }
}
