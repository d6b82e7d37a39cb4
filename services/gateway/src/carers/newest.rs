//! The newest value of each stream, with its age. Pure.
//!
//! The age counts from the arrival at this gateway, by the machine's uptime. So no wrong clock
//! makes an old value look new.

use std::{collections::BTreeMap, sync::Arc};

use contracts::vitals::{Metric, Sample, sample::Reading};
use parking_lot::Mutex;

use crate::clock::Moment;

/// Streams with a value. Beyond it the stream that was silent for longest is forgotten.
pub const VALUES_MAX: usize = 128;
const SECOND_US: i64 = 1_000_000;
/// A stream is not late before this time.
const LATE_US_MIN: i64 = 60 * SECOND_US;
/// A stream of which one arrival is known is late after this time.
const LATE_US_FIRST: i64 = 600 * SECOND_US;
/// A stream is late after so many of its intervals.
const LATE_INTERVALS: i64 = 3;

/// Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Newest(Arc<Mutex<BTreeMap<(String, String), Value>>>);

#[derive(Clone, Debug)]
struct Value {
    metric: Metric,
    unit: String,
    value: f64,
    event_us: i64,
    arrived: Moment,
    /// Between the last two arrivals; 0: not known.
    interval_us: i64,
}

/// A value for people.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    pub device: String,
    pub metric: Metric,
    pub unit: String,
    pub value: f64,
    pub age_ms: i64,
    /// Longer ago than the rhythm of the stream permits.
    pub is_late: bool,
}

impl Newest {
    pub fn clear(&self) {
        self.0.lock().clear();
    }

    pub fn note(&self, samples: &[Sample], at: Moment) {
        let mut values = self.0.lock();
        for sample in samples {
            // A reading of an unknown metric is shown in the unit in which it came.
            let own = vitals::entry(sample.metric()).zip(vitals::own_value(sample));
            let (value, unit) = match (own, &sample.reading) {
                (Some((entry, value)), _) => (value, entry.unit),
                (None, Some(Reading::Value(value))) => (*value, sample.unit.as_str()),
                _ => continue,
            };
            let key = (sample.device.clone(), sample.stream.clone());
            let known = values.get(&key);
            // Stored readings of a sensor come after newer ones. A repetition changes nothing.
            if known.is_some_and(|it| it.event_us >= sample.device_time_us) {
                continue;
            }
            let interval_us = known.map_or(0, |it| {
                let passed_us = at.uptime_us.saturating_sub(it.arrived.uptime_us);
                if passed_us > 0 {
                    passed_us
                } else {
                    it.interval_us
                }
            });
            if known.is_none() && values.len() >= VALUES_MAX {
                let oldest = values.iter().min_by_key(|(_, it)| it.arrived.uptime_us);
                if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                    values.remove(&oldest);
                }
            }
            values.insert(
                key,
                Value {
                    metric: sample.metric(),
                    unit: unit.to_owned(),
                    value,
                    event_us: sample.device_time_us,
                    arrived: at,
                    interval_us,
                },
            );
        }
    }

    pub fn list(&self, now: Moment) -> Vec<Shown> {
        let values = self.0.lock();
        let shown = values.iter().map(|((device, _), it)| {
            let age_us = now.uptime_us.saturating_sub(it.arrived.uptime_us).max(0);
            let late_us = match it.interval_us {
                0 => LATE_US_FIRST,
                interval_us => LATE_US_MIN.max(interval_us.saturating_mul(LATE_INTERVALS)),
            };
            Shown {
                device: device.clone(),
                metric: it.metric,
                unit: it.unit.clone(),
                value: it.value,
                age_ms: age_us / 1000,
                is_late: age_us > late_us,
            }
        });
        shown.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Moment {
        Moment {
            uptime_us: second * SECOND_US,
            ..Moment::default()
        }
    }

    fn pulse(device: &str, event_s: i64, value: f64) -> Sample {
        let mut sample = Sample {
            device: device.into(),
            metric: Metric::HeartRate.into(),
            device_time_us: event_s * SECOND_US,
            reading: Some(Reading::Value(value)),
            ..Sample::default()
        };
        vitals::fill_defaults(&mut sample);
        sample
    }

    #[test]
    fn a_value_is_late_by_the_rhythm_of_its_stream() {
        let newest = Newest::default();
        let late = |second| newest.list(at(second))[0].is_late;
        newest.note(&[pulse("belt", 1, 70.0)], at(1));
        assert_eq!([late(600), late(602)], [false, true]);
        newest.note(&[pulse("belt", 2, 71.0)], at(2));
        assert_eq!([late(62), late(63)], [false, true]);
        newest.note(&[pulse("belt", 902, 71.0)], at(902));
        assert_eq!([late(902 + 2_700), late(902 + 2_701)], [false, true]);
    }

    #[test]
    fn stored_readings_do_not_replace_a_newer_one_and_the_table_is_bounded() {
        let newest = Newest::default();
        newest.note(&[pulse("belt", 100, 70.0)], at(100));
        newest.note(&[pulse("belt", 50, 190.0)], at(101));
        assert_eq!(newest.list(at(101))[0].value, 70.0);
        let many = (0..i64::try_from(VALUES_MAX).unwrap_or_default())
            .map(|number| (number, pulse(&format!("belt-{number}"), 200, 80.0)));
        for (number, sample) in many {
            newest.note(&[sample], at(200 + number));
        }
        let shown = newest.list(at(400));
        assert_eq!(shown.len(), VALUES_MAX);
        assert!(
            shown.iter().all(|it| it.device != "belt"),
            "the oldest went"
        );
    }
}
