//! Memory of a rule about a frozen sensor: how long each sensor of a patient has shown exactly one
//! value. Sans-IO and on event time, in bounded space.
//!
//! Invariants:
//! - Only time that readings cover counts. Two equal readings cover the time between them if it is
//!   at most a 60th of the rule's time. So at least [`READINGS_MIN`] readings agree, a gap counts
//!   for nothing, and a sensor that measures now and then is not judged.
//! - Each stream counts alone: a working sensor does not hide a frozen one of the same patient.
//! - Time counts once. A reading from before the newest one, as of a clock that stepped back, adds
//!   nothing.

use std::collections::BTreeMap;

use contracts::vitals::{Sample, Waveform, sample::Reading};
use serde::{Deserialize, Serialize};

use crate::{
    catalogue::entry,
    machine::{Verdict, exact},
};

/// Readings that must agree. The rule's time divided by this is the longest time between two.
const READINGS_MIN: i64 = 60;
/// Streams of one metric of one patient. Beyond it the one silent for longest is dropped, and its
/// time begins anew.
const STREAMS_MAX: usize = 16;

/// By stream: the value that it shows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Frozen {
    streams: BTreeMap<String, Run>,
}

/// Readings of one stream with one value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Run {
    #[serde(with = "exact")]
    value: f64,
    /// Time that the readings cover.
    covered_us: i64,
    /// The newest reading.
    until_us: i64,
}

/// A reading, or a block of a waveform.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shown {
    /// `None`: the block has different values, or the value is at an end of the metric's range. A
    /// healthy oxygen saturation stays at 100 %.
    value: Option<f64>,
    from_us: i64,
    until_us: i64,
    /// Between two values of a block.
    period_us: i64,
}

impl Shown {
    /// `None`: the sample has no reading.
    pub(crate) fn of(sample: &Sample) -> Option<Shown> {
        let from_us = sample.device_time_us;
        match sample.reading.as_ref()? {
            Reading::Value(value) => {
                let (low, high) = entry(sample.metric())?.range;
                let is_judged = *value > low && *value < high;
                Some(Shown {
                    value: is_judged.then_some(*value),
                    from_us,
                    until_us: from_us,
                    period_us: 0,
                })
            }
            Reading::Waveform(waveform) => Shown::of_block(from_us, waveform),
        }
    }

    fn of_block(from_us: i64, waveform: &Waveform) -> Option<Shown> {
        let (first, others) = waveform.values.split_first()?;
        let period_us = i64::from(waveform.period_us);
        let length_us = i64::try_from(others.len()).unwrap_or(i64::MAX);
        // Compared as bits, because a flat line has no noise at all.
        let is_flat = others.iter().all(|it| it.to_bits() == first.to_bits());
        Some(Shown {
            value: is_flat.then_some(f64::from(*first)),
            from_us,
            until_us: from_us.saturating_add(length_us.saturating_mul(period_us)),
            period_us,
        })
    }

    /// The value that does not change, or 0.
    pub(crate) fn value(&self) -> f64 {
        self.value.unwrap_or_default()
    }
}

impl Frozen {
    /// Judges a reading of the stream by a rule of this length. A frozen stream that fell silent
    /// less than `hold_us` ago keeps the alert, whatever other streams show.
    pub(crate) fn judge(
        &mut self,
        length_us: i64,
        hold_us: i64,
        stream: &str,
        shown: Shown,
    ) -> Verdict {
        let covered_us = self.count(length_us, stream, shown);
        if covered_us >= length_us {
            return Verdict::Holds;
        }
        let oldest_us = shown.from_us.saturating_sub(hold_us);
        let is_frozen = |run: &Run| run.covered_us >= length_us && run.until_us >= oldest_us;
        if self.streams.values().any(is_frozen) {
            Verdict::Unknown
        } else {
            Verdict::Ended
        }
    }

    /// Adds a reading, and returns the time that its value has covered.
    fn count(&mut self, length_us: i64, stream: &str, shown: Shown) -> i64 {
        let Some(value) = shown.value else {
            self.streams.remove(stream);
            return 0;
        };
        let longest_us = length_us / READINGS_MIN;
        let Some(run) = self.streams.get_mut(stream) else {
            self.make_room();
            let run = Run::new(value, shown, longest_us);
            let covered_us = run.covered_us;
            self.streams.insert(stream.to_owned(), run);
            return covered_us;
        };
        let gap_us = shown.from_us.saturating_sub(run.until_us);
        // After such a gap, or after a clock was set back as far, it is another sitting.
        let is_far = gap_us.saturating_abs() > length_us;
        if is_far || run.value.to_bits() != value.to_bits() {
            *run = Run::new(value, shown, longest_us);
        } else if shown.until_us > run.until_us {
            if (0..=longest_us).contains(&gap_us) {
                run.covered_us = run.covered_us.saturating_add(gap_us);
            }
            let from_us = shown.from_us.max(run.until_us);
            run.add_block(from_us, shown, longest_us);
        }
        run.covered_us
    }

    fn make_room(&mut self) {
        while self.streams.len() >= STREAMS_MAX {
            let oldest = self.streams.iter().min_by_key(|(_, run)| run.until_us);
            let Some(oldest) = oldest.map(|(stream, _)| stream.clone()) else {
                return;
            };
            self.streams.remove(&oldest);
        }
    }
}

impl Run {
    fn new(value: f64, shown: Shown, longest_us: i64) -> Run {
        let mut run = Run {
            value,
            covered_us: 0,
            until_us: shown.from_us,
        };
        run.add_block(shown.from_us, shown, longest_us);
        run
    }

    /// A block covers its time, unless its values lie too far apart.
    fn add_block(&mut self, from_us: i64, shown: Shown, longest_us: i64) {
        if shown.period_us <= longest_us {
            let inner_us = shown.until_us.saturating_sub(from_us);
            self.covered_us = self.covered_us.saturating_add(inner_us);
        }
        self.until_us = shown.until_us;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000;
    const T0: i64 = 1_800_000_000 * S;
    const LENGTH_US: i64 = 1_800 * S;

    fn shown(value: f64, at_us: i64) -> Shown {
        Shown {
            value: Some(value),
            from_us: at_us,
            until_us: at_us,
            period_us: 0,
        }
    }

    fn judge(frozen: &mut Frozen, stream: &str, value: f64, at_us: i64) -> Verdict {
        frozen.judge(LENGTH_US, 600 * S, stream, shown(value, at_us))
    }

    #[test]
    fn memory_is_bounded_and_drops_the_stream_that_is_silent_for_longest() {
        let mut frozen = Frozen::default();
        for number in 0..100 {
            judge(&mut frozen, &number.to_string(), 70.0, T0 + number * S);
        }
        assert_eq!(frozen.streams.len(), STREAMS_MAX);
        assert!(frozen.streams.contains_key("99") && !frozen.streams.contains_key("0"));
    }

    /// Readings of two clocks 25 s apart, in turn: each step forward is shorter than the longest
    /// gap. Ten minutes of them are ten minutes.
    #[test]
    fn time_counts_once_when_clocks_alternate() {
        let mut frozen = Frozen::default();
        for second in 0..600 {
            for behind in [25, 0] {
                let at_us = T0 + (second - behind) * S;
                assert_eq!(judge(&mut frozen, "a", 70.0, at_us), Verdict::Ended);
            }
        }
        assert!(frozen.streams["a"].covered_us <= 625 * S);
    }

    #[test]
    fn a_clock_that_was_set_back_begins_anew() {
        let mut frozen = Frozen::default();
        for day in [1, 0] {
            let begin_us = T0 + day * 86_400 * S;
            for second in 0..1_800 {
                let verdict = judge(&mut frozen, "a", 70.0, begin_us + second * S);
                assert_eq!(verdict, Verdict::Ended, "{day} {second}");
            }
            let last_us = begin_us + 1_800 * S;
            assert_eq!(judge(&mut frozen, "a", 70.0, last_us), Verdict::Holds);
        }
    }
}
