//! Readings that the journal took under numbers of sensors, the newest of each stream.
//!
//! A sensor that repeats a number repeats its reading. Another reading under the same number would
//! be answered as accepted and never stored, so it is refused. Beyond the bounds, and after a
//! restart for readings that the core has, a repeated number counts as a repetition.

use std::{
    collections::{HashMap, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
};

use contracts::vitals::{Sample, sample::Reading};

/// Numbers remembered of each stream. Beyond it the oldest is forgotten.
const NUMBERS_MAX: usize = 32;
/// Streams with numbers. Beyond it all are forgotten.
const STREAMS_MAX: usize = super::streams::STREAMS_MAX;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Content {
    Value(f64),
    /// Digest of the waveform.
    Waveform(u64),
}

#[derive(Debug, Default)]
pub(super) struct Numbered(HashMap<(String, String), VecDeque<(u64, Content)>>);

impl Numbered {
    /// The journal took the sample.
    pub(super) fn note(&mut self, sample: &Sample) {
        let (Some(number), Some(content)) = (sample.sensor_sequence, content(sample)) else {
            return;
        };
        let key = (sample.device.clone(), sample.stream.clone());
        if self.0.len() >= STREAMS_MAX && !self.0.contains_key(&key) {
            self.0.clear();
        }
        let known = self.0.entry(key).or_default();
        // After a batch that did not reach the disk, or in a new run of the sensor.
        known.retain(|(of, _)| *of != number);
        if known.len() >= NUMBERS_MAX {
            known.pop_front();
        }
        known.push_back((number, content));
    }

    /// The known reading of the sample's number, if the sample has another one.
    pub(super) fn contradicted(&self, sample: &Sample) -> Option<String> {
        let number = sample.sensor_sequence?;
        let key = (sample.device.clone(), sample.stream.clone());
        let known = self.0.get(&key)?.iter().find(|(of, _)| *of == number)?;
        match (known.1, content(sample)?) {
            (known, given) if known == given => None,
            (Content::Value(value), _) => Some(value.to_string()),
            (Content::Waveform(_), _) => Some("another waveform".to_owned()),
        }
    }
}

fn content(sample: &Sample) -> Option<Content> {
    match sample.reading.as_ref()? {
        Reading::Value(value) => Some(Content::Value(*value)),
        Reading::Waveform(waveform) => {
            let mut hasher = DefaultHasher::new();
            waveform.period_us.hash(&mut hasher);
            waveform
                .values
                .iter()
                .for_each(|value| value.to_bits().hash(&mut hasher));
            Some(Content::Waveform(hasher.finish()))
        }
    }
}

#[cfg(test)]
mod tests {
    use contracts::vitals::Waveform;

    use super::*;

    fn pulse(number: u64, value: f64) -> Sample {
        Sample {
            device: "belt".into(),
            sensor_sequence: Some(number),
            reading: Some(Reading::Value(value)),
            ..Sample::default()
        }
    }

    #[test]
    fn another_reading_under_a_known_number_is_found() {
        let mut numbered = Numbered::default();
        numbered.note(&pulse(1, 72.0));
        assert_eq!(numbered.contradicted(&pulse(1, 72.0)), None);
        let known = numbered.contradicted(&pulse(1, 150.0));
        assert_eq!(known.as_deref(), Some("72"));
        assert_eq!(numbered.contradicted(&pulse(2, 150.0)), None);
        let other = Sample {
            device: "patch".into(),
            ..pulse(1, 150.0)
        };
        assert_eq!(numbered.contradicted(&other), None);
        let waveform = |values: &[f32]| Sample {
            reading: Some(Reading::Waveform(Waveform {
                period_us: 4_000,
                values: values.to_vec(),
            })),
            ..pulse(9, 0.0)
        };
        numbered.note(&waveform(&[0.1, 0.2]));
        assert_eq!(numbered.contradicted(&waveform(&[0.1, 0.2])), None);
        assert!(numbered.contradicted(&waveform(&[0.1, 0.3])).is_some());
    }

    #[test]
    fn the_tables_are_bounded() {
        let mut numbered = Numbered::default();
        for number in 0..=NUMBERS_MAX as u64 {
            numbered.note(&pulse(number, 72.0));
        }
        assert_eq!(numbered.contradicted(&pulse(0, 150.0)), None);
        assert!(numbered.contradicted(&pulse(1, 150.0)).is_some());
        for name in 0..STREAMS_MAX {
            let sample = Sample {
                device: name.to_string(),
                ..pulse(1, 72.0)
            };
            numbered.note(&sample);
        }
        assert_eq!(numbered.0.len(), 1);
    }
}
