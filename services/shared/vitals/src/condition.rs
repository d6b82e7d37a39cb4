//! Conditions of rules: their definitions and their validation.

use contracts::vitals::Metric;
use serde::{Deserialize, Serialize};

use crate::catalogue::{Entry, Reading, entry, metric_name};

/// Longest delay of a rule: one day. A longer one is refused.
pub const DELAY_MS_MAX: u64 = 86_400_000;

/// Shortest time of a frozen sensor. A person who holds still varies less often than a shorter one.
const UNCHANGED_MS_MIN: u64 = 10_000;

/// Shortest window of a change. A shorter one would hold a single reading of most sensors.
const WINDOW_MS_MIN: u64 = 1_000;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Condition {
    /// Begins at `limit` or more and ends below `clear`. In between the state stays.
    Above {
        #[serde(with = "metric_name")]
        metric: Metric,
        limit: f64,
        clear: f64,
    },
    /// Begins at `limit` or less and ends above `clear`. In between the state stays.
    Below {
        #[serde(with = "metric_name")]
        metric: Metric,
        limit: f64,
        clear: f64,
    },
    /// Begins `by` or more from a level held for a quarter of the last `within_ms`. Ends less than
    /// `clear` from it, or when the window has passed the change. From then on a threshold must
    /// judge the level.
    Change {
        #[serde(with = "metric_name")]
        metric: Metric,
        direction: Direction,
        by: f64,
        clear: f64,
        within_ms: u64,
    },
    /// Begins `z` spreads from this patient's own mean, whose memory halves every `half_life_ms`. A
    /// spread below `floor` counts as `floor`, so that a very steady patient does not alert at the
    /// first variation.
    Deviation {
        #[serde(with = "metric_name")]
        metric: Metric,
        direction: Direction,
        z: f64,
        clear_z: f64,
        floor: f64,
        half_life_ms: u64,
    },
    /// Rises by `per_hour` or more over `window_ms`. A negative value means a fall.
    Trend {
        #[serde(with = "metric_name")]
        metric: Metric,
        per_hour: f64,
        clear_per_hour: f64,
        window_ms: u64,
    },
    /// A sensor has shown exactly the same value for `unchanged_ms`, in at least 60 readings. A gap
    /// counts for nothing. Ends with a reading that differs. Only the core judges it, because it
    /// has the readings of all gateways.
    Frozen {
        #[serde(with = "metric_name")]
        metric: Metric,
        unchanged_ms: u64,
    },
    /// An impact of `impact_g` or more, then stillness (within `still_g` of gravity) that begins
    /// within `within_ms`.
    Fall {
        impact_g: f64,
        still_g: f64,
        within_ms: u64,
    },
    /// The NEWS2 aggregate is in `from..=to`.
    News2 { from: u32, to: u32 },
    /// A single parameter scores 3 while the aggregate is below medium.
    News2Red,
}

/// Direction in which a change counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    Rise,
    Drop,
    Either,
}

impl Condition {
    /// The metric of a threshold. `Unspecified` for a score over several metrics.
    pub fn metric(&self) -> Metric {
        match self {
            Condition::Above { metric, .. }
            | Condition::Below { metric, .. }
            | Condition::Change { metric, .. }
            | Condition::Deviation { metric, .. }
            | Condition::Trend { metric, .. }
            | Condition::Frozen { metric, .. } => *metric,
            Condition::Fall { .. } => Metric::Activity,
            Condition::News2 { .. } | Condition::News2Red => Metric::Unspecified,
        }
    }

    pub fn depends_on(&self, metric: Metric) -> bool {
        match self {
            Condition::News2 { .. } | Condition::News2Red => {
                crate::news2::PARAMETERS.contains(&metric)
            }
            _ => self.metric() == metric,
        }
    }

    pub(crate) fn is_frozen(&self) -> bool {
        matches!(self, Condition::Frozen { .. })
    }
}

/// Reason why a condition is invalid.
#[derive(Debug, PartialEq)]
pub(crate) struct Flaw {
    pub(crate) field: &'static str,
    pub(crate) reason: String,
    pub(crate) example: String,
}

fn flaw<T>(field: &'static str, reason: String, example: impl ToString) -> Result<T, Flaw> {
    Err(Flaw {
        field,
        reason,
        example: example.to_string(),
    })
}

impl Condition {
    pub(crate) fn check(&self) -> Result<(), Flaw> {
        match *self {
            Condition::Above {
                metric,
                limit,
                clear,
            } => check_threshold(metric, limit, clear, clear <= limit),
            Condition::Below {
                metric,
                limit,
                clear,
            } => check_threshold(metric, limit, clear, clear >= limit),
            Condition::Change {
                metric,
                by,
                clear,
                within_ms,
                ..
            } => {
                let entry = number_of(metric)?;
                check_window("rules.within_ms", within_ms)?;
                let span = entry.range.1 - entry.range.0;
                check_pair("rules.by", by, clear, span)
            }
            Condition::Deviation {
                metric,
                z,
                clear_z,
                floor,
                half_life_ms,
                ..
            } => {
                let entry = number_of(metric)?;
                check_window("rules.half_life_ms", half_life_ms)?;
                let span = entry.range.1 - entry.range.0;
                if !(floor > 0.0 && floor <= span) {
                    return flaw(
                        "rules.floor",
                        format!("{floor} is not above 0 and at most {span} {}", entry.unit),
                        span / 100.0,
                    );
                }
                check_pair("rules.z", z, clear_z, 100.0)
            }
            Condition::Trend {
                metric,
                per_hour,
                clear_per_hour,
                window_ms,
            } => {
                let entry = number_of(metric)?;
                check_window("rules.window_ms", window_ms)?;
                let span = entry.range.1 - entry.range.0;
                let per_hour_max = span * 3_600_000.0 / window_ms as f64;
                check_pair(
                    "rules.per_hour",
                    per_hour.abs(),
                    clear_per_hour * per_hour.signum(),
                    per_hour_max,
                )
            }
            Condition::Frozen {
                metric,
                unchanged_ms,
            } => check_frozen(metric, unchanged_ms),
            Condition::Fall {
                impact_g,
                still_g,
                within_ms,
            } => {
                let is_sane = (1.5..=32.0).contains(&impact_g)
                    && (0.01..=0.5).contains(&still_g)
                    && within_ms <= DELAY_MS_MAX;
                if is_sane {
                    return Ok(());
                }
                flaw(
                    "rules.condition",
                    format!(
                        "{impact_g} g is outside 1.5 to 32, {still_g} g outside 0.01 to 0.5, or {within_ms} above {DELAY_MS_MAX}"
                    ),
                    "2.5, 0.1 and 60000",
                )
            }
            Condition::News2 { from, to } if from > to => flaw(
                "rules.condition",
                format!("{from} is above {to}"),
                "5 and 6",
            ),
            Condition::News2 { .. } | Condition::News2Red => Ok(()),
        }
    }
}

fn number_of(metric: Metric) -> Result<&'static Entry, Flaw> {
    let number = entry(metric).filter(|entry| !matches!(entry.reading, Reading::Waveform { .. }));
    match number {
        Some(entry) => Ok(entry),
        None => flaw(
            "rules.metric",
            "has no single number to compare".into(),
            "\"heart-rate\"",
        ),
    }
}

fn check_frozen(metric: Metric, unchanged_ms: u64) -> Result<(), Flaw> {
    let has_noise = entry(metric).is_some_and(|entry| match entry.reading {
        Reading::Value => true,
        Reading::Waveform { axes } => axes == 1,
        Reading::Step => false,
    });
    if !has_noise {
        return flaw(
            "rules.metric",
            "is no measurement of one channel that always varies".into(),
            "\"spo2\"",
        );
    }
    if (UNCHANGED_MS_MIN..=DELAY_MS_MAX).contains(&unchanged_ms) {
        return Ok(());
    }
    flaw(
        "rules.unchanged_ms",
        format!("{unchanged_ms} is outside {UNCHANGED_MS_MIN} to {DELAY_MS_MAX}"),
        1_800_000,
    )
}

fn check_threshold(metric: Metric, limit: f64, clear: f64, ordered: bool) -> Result<(), Flaw> {
    let entry = number_of(metric)?;
    let (low, high) = entry.range;
    if !(low..=high).contains(&limit) || !(low..=high).contains(&clear) {
        return flaw(
            "rules.limit",
            format!(
                "{limit} or {clear} is outside {low} to {high} {}",
                entry.unit
            ),
            entry.example,
        );
    }
    if !ordered {
        return flaw(
            "rules.clear",
            format!("{clear} is on the wrong side of the limit {limit}"),
            limit,
        );
    }
    Ok(())
}

fn check_window(field: &'static str, window_ms: u64) -> Result<(), Flaw> {
    if (WINDOW_MS_MIN..=DELAY_MS_MAX).contains(&window_ms) {
        return Ok(());
    }
    flaw(
        field,
        format!("{window_ms} is outside {WINDOW_MS_MIN} to {DELAY_MS_MAX}"),
        60_000,
    )
}

/// Checks a limit that begins the condition and a limit that ends it.
fn check_pair(field: &'static str, limit: f64, clear: f64, max: f64) -> Result<(), Flaw> {
    // NaN is in no range.
    if !(limit > 0.0 && limit <= max) {
        return flaw(
            field,
            format!("{limit} is not above 0 and at most {max}"),
            max / 10.0,
        );
    }
    if !(0.0..=limit).contains(&clear) {
        return flaw(
            field,
            format!("it would end at {clear}, which is not between 0 and {limit}"),
            limit / 2.0,
        );
    }
    Ok(())
}
