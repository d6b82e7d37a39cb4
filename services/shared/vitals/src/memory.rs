//! Memory of rules about change, in bounded space.
//!
//! A [`Window`] keeps a stretch of readings as the means of `BUCKETS` equal buckets of time. It
//! gives the distance from a level held in the stretch, and the slope of the stretch. A
//! [`Baseline`] keeps a smoothed mean and spread of this patient. Both run on event time, and a
//! reading older than the newest changes nothing.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::{
    condition::{Condition, Direction},
    machine::{Verdict, delay_us, exact},
};

/// Parts of a window. The oldest is dropped as the window moves, so a window covers 15/16 to all of
/// its length.
const BUCKETS: i64 = 16;
/// Buckets for which a level must be held before it counts. A return from an artefact is no change.
const HELD_BUCKETS: usize = 4;
/// A slope over fewer buckets, or over less than half the window, does not count.
const TREND_BUCKETS_MIN: usize = 6;
/// A baseline of fewer readings, or of less than one half-life, is not used.
const BASELINE_READINGS_MIN: u32 = 20;
/// Half-lives without a reading after which a baseline restarts. Its weight is below a thousandth
/// by then.
const BASELINE_FORGOTTEN_AFTER: f64 = 10.0;
const US_PER_HOUR: f64 = 3_600e6;

/// Memory of one rule for one patient.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub(crate) enum Memory {
    Window(Window),
    Baseline(Baseline),
}

impl Memory {
    /// `None`: the condition needs the current reading only.
    pub(crate) fn of(condition: &Condition) -> Option<Memory> {
        match condition {
            Condition::Change {
                within_ms: window_ms,
                ..
            }
            | Condition::Trend { window_ms, .. } => Some(Memory::Window(Window::new(*window_ms))),
            Condition::Deviation { half_life_ms, .. } => {
                Some(Memory::Baseline(Baseline::new(*half_life_ms)))
            }
            _ => None,
        }
    }

    /// Whether the memory matches this condition, and not one of the same name with another length.
    pub(crate) fn fits(&self, condition: &Condition) -> bool {
        match (self, Memory::of(condition)) {
            (Memory::Window(own), Some(Memory::Window(new))) => own.bucket_us == new.bucket_us,
            (Memory::Baseline(own), Some(Memory::Baseline(new))) => {
                own.half_life_us == new.half_life_us
            }
            _ => false,
        }
    }

    /// Judges a reading by the readings before it, then adds it.
    pub(crate) fn judge(&mut self, condition: &Condition, time_us: i64, value: f64) -> Verdict {
        match (self, condition) {
            (
                Memory::Window(window),
                Condition::Change {
                    direction,
                    by,
                    clear,
                    ..
                },
            ) => {
                window.push(time_us, value);
                let change = match direction {
                    Direction::Rise => window.rise(value),
                    Direction::Drop => window.drop(value),
                    Direction::Either => window.rise(value).max(window.drop(value)),
                };
                between(change, *by, *clear)
            }
            (
                Memory::Window(window),
                Condition::Trend {
                    per_hour,
                    clear_per_hour,
                    ..
                },
            ) => {
                window.push(time_us, value);
                // A falling trend is a rising one with the sign inverted.
                let sign = per_hour.signum();
                window.slope_per_hour().map_or(Verdict::Unknown, |slope| {
                    between(slope * sign, per_hour * sign, clear_per_hour * sign)
                })
            }
            (
                Memory::Baseline(baseline),
                Condition::Deviation {
                    direction,
                    z,
                    clear_z,
                    floor,
                    ..
                },
            ) => {
                let deviation = baseline.deviation(time_us, value, *floor);
                baseline.push(time_us, value, *z * baseline.spread().max(*floor));
                let Some(deviation) = deviation else {
                    return Verdict::Unknown;
                };
                let deviation = match direction {
                    Direction::Rise => deviation,
                    Direction::Drop => -deviation,
                    Direction::Either => deviation.abs(),
                };
                between(deviation, *z, *clear_z)
            }
            _ => Verdict::Unknown,
        }
    }
}

fn between(value: f64, limit: f64, clear: f64) -> Verdict {
    if value >= limit {
        Verdict::Holds
    } else if value < clear {
        Verdict::Ended
    } else {
        Verdict::Unknown
    }
}

/// The readings of the last stretch, reduced to buckets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Window {
    #[serde(rename = "slot_us")]
    bucket_us: i64,
    /// Oldest first, at most `BUCKETS`. Buckets without a reading are not kept.
    #[serde(rename = "slots")]
    buckets: VecDeque<Bucket>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Bucket {
    number: i64,
    #[serde(with = "exact")]
    sum: f64,
    count: u32,
}

impl Bucket {
    fn mean(&self) -> f64 {
        self.sum / f64::from(self.count)
    }
}

impl Window {
    fn new(length_ms: u64) -> Window {
        Window {
            bucket_us: (delay_us(length_ms) / BUCKETS).max(1),
            buckets: VecDeque::new(),
        }
    }

    fn push(&mut self, time_us: i64, value: f64) {
        let number = time_us.div_euclid(self.bucket_us);
        // The clock stepped back by more than the window, so the stored buckets lie in the future.
        if self
            .buckets
            .back()
            .is_some_and(|newest| number <= newest.number - BUCKETS)
        {
            self.buckets.clear();
        }
        match self.buckets.back_mut() {
            Some(newest) if number <= newest.number => {
                newest.sum += value;
                newest.count = newest.count.saturating_add(1);
            }
            _ => self.buckets.push_back(Bucket {
                number,
                sum: value,
                count: 1,
            }),
        }
        let newest = self.buckets.back().map_or(number, |newest| newest.number);
        self.buckets
            .retain(|bucket| bucket.number > newest - BUCKETS);
    }

    /// Height of a reading above the lowest level held.
    fn rise(&self, value: f64) -> f64 {
        self.held(f64::total_cmp).map_or(0.0, |level| value - level)
    }

    /// Depth of a reading below the highest level held.
    fn drop(&self, value: f64) -> f64 {
        let highest_first = |a: &f64, b: &f64| b.total_cmp(a);
        self.held(highest_first).map_or(0.0, |level| level - value)
    }

    /// The most extreme level that `HELD_BUCKETS` buckets reached.
    fn held(&self, order: impl Fn(&f64, &f64) -> std::cmp::Ordering) -> Option<f64> {
        let mut means: Vec<f64> = self.buckets.iter().map(Bucket::mean).collect();
        means.sort_by(order);
        means.get(HELD_BUCKETS - 1).copied()
    }

    /// Least squares through the means of the buckets. `None`: too few buckets.
    fn slope_per_hour(&self) -> Option<f64> {
        let (first, last) = (self.buckets.front()?, self.buckets.back()?);
        let spans_half = last.number - first.number >= BUCKETS / 2;
        if self.buckets.len() < TREND_BUCKETS_MIN || !spans_half {
            return None;
        }
        let count = self.buckets.len() as f64;
        let hours_of = |bucket: &Bucket| {
            (bucket.number - first.number) as f64 * self.bucket_us as f64 / US_PER_HOUR
        };
        let hours = self.buckets.iter().map(hours_of).sum::<f64>() / count;
        let mean = self.buckets.iter().map(Bucket::mean).sum::<f64>() / count;
        let (mut joint, mut square) = (0.0, 0.0);
        for bucket in &self.buckets {
            let off = hours_of(bucket) - hours;
            joint += off * (bucket.mean() - mean);
            square += off * off;
        }
        (square > 0.0).then(|| joint / square)
    }
}

/// Usual values of this patient: exponentially weighted mean and variance, by elapsed time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Baseline {
    half_life_us: i64,
    since_us: i64,
    time_us: i64,
    readings: u32,
    #[serde(with = "exact")]
    mean: f64,
    #[serde(with = "exact")]
    variance: f64,
}

impl Baseline {
    fn new(half_life_ms: u64) -> Baseline {
        Baseline {
            half_life_us: delay_us(half_life_ms).max(1),
            since_us: 0,
            time_us: 0,
            readings: 0,
            mean: 0.0,
            variance: 0.0,
        }
    }

    fn spread(&self) -> f64 {
        self.variance.sqrt()
    }

    fn deviation(&self, time_us: i64, value: f64, floor: f64) -> Option<f64> {
        let known_for_us = self.time_us - self.since_us;
        let is_known = self.readings >= BASELINE_READINGS_MIN
            && known_for_us >= self.half_life_us
            && !self.is_forgotten(time_us);
        is_known.then(|| (value - self.mean) / self.spread().max(floor))
    }

    fn half_lives_until(&self, time_us: i64) -> f64 {
        (time_us - self.time_us) as f64 / self.half_life_us as f64
    }

    /// True also when the clock stepped back by more than a half-life.
    fn is_forgotten(&self, time_us: i64) -> bool {
        !(-1.0..=BASELINE_FORGOTTEN_AFTER).contains(&self.half_lives_until(time_us))
    }

    /// A reading further from the mean than `reach` moves the mean as a reading at `reach` would,
    /// and leaves the spread. So an episode does not soon become usual, but a new usual value is
    /// learned within some half-lives.
    fn push(&mut self, time_us: i64, value: f64, reach: f64) {
        if self.readings == 0 || self.is_forgotten(time_us) {
            self.since_us = time_us;
            self.time_us = time_us;
            self.readings = 1;
            self.mean = value;
            self.variance = 0.0;
            return;
        }
        let elapsed = self.half_lives_until(time_us);
        if elapsed < 0.0 {
            return;
        }
        self.time_us = time_us;
        self.readings = self.readings.saturating_add(1);
        let off = value - self.mean;
        if self.readings <= BASELINE_READINGS_MIN {
            // The first readings weigh the same. Otherwise the first reading would still dominate
            // the mean after half a half-life.
            self.learn(1.0 / f64::from(self.readings), off);
            return;
        }
        let weight = 1.0 - (-elapsed * std::f64::consts::LN_2).exp();
        if off.abs() > reach {
            self.mean += weight * reach.copysign(off);
        } else {
            self.learn(weight, off);
        }
    }

    fn learn(&mut self, weight: f64, off: f64) {
        self.mean += weight * off;
        self.variance = (1.0 - weight) * (self.variance + weight * off * off);
    }
}
