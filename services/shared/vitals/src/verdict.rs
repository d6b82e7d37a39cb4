//! What one condition says of one reading, and how that is put into words.

use crate::{
    catalogue::{Reading, entry},
    machine::Verdict,
    news2::{self, Score},
    rules::{Condition, Rule},
};

/// Of a threshold or a score; a fall also depends on what was before, see `fall`.
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

/// Of mean acceleration: at rest it is gravity alone. Stillness counts only after a blow, or once it has begun to count; the
/// second of the blow itself is neither.
pub(crate) fn fall(value_g: f64, still_g: f64, counts: bool) -> Verdict {
    let off_g = (value_g - 1.0).abs();
    if off_g <= still_g {
        return if counts {
            Verdict::Holds
        } else {
            Verdict::Ended
        };
    }
    // Between still and moving: somebody who breathes hard is not up.
    if off_g <= 2.5 * still_g {
        Verdict::Unknown
    } else {
        Verdict::Ended
    }
}

/// Stale readings that would still satisfy the condition leave it unknown; missing ones never do.
fn news2_verdict(score: &Score, satisfied: impl Fn(u32) -> bool) -> Verdict {
    if satisfied(score.aggregate) {
        Verdict::Holds
    } else if score.with_stale > score.aggregate && satisfied(score.with_stale) {
        Verdict::Unknown
    } else {
        Verdict::Ended
    }
}

pub(crate) fn describe(rule: &Rule, value: f64, score: Option<&Score>) -> String {
    let metric = rule.condition.metric();
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
        (Condition::Fall { impact_g, .. }, _) => {
            format!("A blow of {impact_g} g or more, then no movement{lasting}")
        }
        (Condition::News2Red, Some(score)) => {
            let red: Vec<&str> = score
                .red
                .iter()
                .map(|metric| crate::name(*metric))
                .collect();
            format!("{}, 3 points for {}", score.describe(), red.join(", "))
        }
        (Condition::News2 { .. } | Condition::News2Red, score) => {
            score.map(Score::describe).unwrap_or_default()
        }
    }
}
