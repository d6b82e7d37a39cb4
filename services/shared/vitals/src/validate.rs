//! Plausibility of samples. The gateway checks before it journals, ingest before it publishes.
//!
//! A refusal names the field, the reason and an accepted value, because the reader may be a person
//! with a sensor and `curl`.

use contracts::vitals::{Metric, Sample, sample};

use crate::catalogue::{Entry, Reading, entry, name};

/// Bytes of an identifier of a device, stream or patient. Longer ones are refused.
pub const IDENTIFIER_BYTES_MAX: usize = 128;
/// Bytes of the name of a person at a gateway. Longer ones are refused.
pub const PERSON_BYTES_MAX: usize = 120;
/// Readings in one waveform chunk: 40 s of ECG at 250 Hz. Longer chunks are refused.
pub const WAVEFORM_VALUES_MAX: usize = 10_000;
/// Spacing of a waveform: 10 us (100 kHz) to 10 s.
const WAVEFORM_PERIOD_US: (u32, u32) = (10, 10_000_000);
/// Bytes of a traceparent. W3C defines 55, and later versions may append to it.
pub const TRACEPARENT_BYTES_MAX: usize = 256;

/// The store's integers are signed.
const SENSOR_SEQUENCE_MAX: u64 = i64::MAX as u64;

const SECOND_US: i64 = 1_000_000;

/// Reason of a refusal, and an accepted value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}; for example {example}")]
pub struct Invalid {
    pub field: &'static str,
    pub reason: String,
    pub example: String,
}

impl Invalid {
    pub fn new(
        field: &'static str,
        reason: impl Into<String>,
        example: impl Into<String>,
    ) -> Invalid {
        Invalid {
            field,
            reason: reason.into(),
            example: example.into(),
        }
    }
}

/// Tolerance for a device's clock against the reader's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockBounds {
    /// Older samples are refused, because the core has no partition for them.
    pub past_us: i64,
    /// Samples further ahead are refused. One of them would make every later true sample look late.
    pub future_us: i64,
}

impl ClockBounds {
    /// For a gateway that knows the core's time. A sensor may have buffered for a month.
    pub const GATEWAY: ClockBounds = ClockBounds {
        past_us: 31 * 24 * 3600 * SECOND_US,
        future_us: 120 * SECOND_US,
    };
    /// For a gateway that has not synchronised with the core since its start. Its own clock may be
    /// an hour behind, and it must not refuse a sensor whose clock is right. Ingest corrects times
    /// that are too far ahead.
    pub const UNCHECKED_GATEWAY: ClockBounds = ClockBounds {
        future_us: 2 * 3600 * SECOND_US,
        ..ClockBounds::GATEWAY
    };
    /// For ingest, after a time was corrected. Samples that a gateway accepted must not be lost.
    pub const INGEST: ClockBounds = ClockBounds {
        past_us: 400 * 24 * 3600 * SECOND_US,
        future_us: 120 * SECOND_US,
    };
}

/// Checks names, metric, unit and reading, which need no clock.
pub fn validate_reading(sample: &Sample) -> Result<(), Invalid> {
    validate_identifier("device", &sample.device, "chest-belt-7")?;
    validate_identifier("stream", &sample.stream, "heart-rate")?;
    if !sample.patient.is_empty() {
        validate_identifier("patient", &sample.patient, "patient-12")?;
    }
    if sample.traceparent.len() > TRACEPARENT_BYTES_MAX {
        return Err(Invalid::new(
            "traceparent",
            format!("is longer than {TRACEPARENT_BYTES_MAX} bytes"),
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ));
    }
    if sample
        .sensor_sequence
        .is_some_and(|number| number > SENSOR_SEQUENCE_MAX)
    {
        return Err(Invalid::new(
            "sensor_sequence",
            format!("is above {SENSOR_SEQUENCE_MAX}"),
            "1",
        ));
    }
    let entry = known(sample)?;
    if sample.unit != entry.unit {
        return Err(Invalid::new(
            "unit",
            format!("{:?} is not the unit of {}", clip(&sample.unit), entry.name),
            format!("{:?}", entry.unit),
        ));
    }
    match (&sample.reading, entry.reading) {
        (Some(sample::Reading::Value(value)), Reading::Value) => in_range(entry, *value),
        (Some(sample::Reading::Value(value)), Reading::Step) => {
            in_range(entry, *value)?;
            if value.fract() == 0.0 {
                return Ok(());
            }
            Err(Invalid::new(
                "value",
                format!("{value} is not a whole number, as {} must be", entry.name),
                entry.example.to_string(),
            ))
        }
        (Some(sample::Reading::Waveform(waveform)), Reading::Waveform { axes }) => {
            let count = waveform.values.len();
            if count == 0 || count > WAVEFORM_VALUES_MAX || !count.is_multiple_of(axes) {
                return Err(Invalid::new(
                    "waveform.values",
                    format!(
                        "{count} readings, where 1 to {WAVEFORM_VALUES_MAX} in multiples of {axes} are taken"
                    ),
                    format!("{}", 60 * axes),
                ));
            }
            let (low, high) = WAVEFORM_PERIOD_US;
            if !(low..=high).contains(&waveform.period_us) {
                return Err(Invalid::new(
                    "waveform.period_us",
                    format!("{} is outside {low} to {high}", waveform.period_us),
                    "4000",
                ));
            }
            waveform
                .values
                .iter()
                .try_for_each(|value| in_range(entry, f64::from(*value)))
        }
        (Some(_), Reading::Waveform { .. }) | (None, Reading::Waveform { .. }) => {
            Err(Invalid::new(
                "waveform",
                format!("{} is a waveform", entry.name),
                r#"{"period_us": 4000, "values": [0.1, 0.2]}"#,
            ))
        }
        (Some(_), _) | (None, _) => Err(Invalid::new(
            "value",
            format!("{} is a single number", entry.name),
            entry.example.to_string(),
        )),
    }
}

pub fn validate_time(sample: &Sample, now_us: i64, bounds: ClockBounds) -> Result<(), Invalid> {
    let ahead_us = sample.device_time_us.saturating_sub(now_us);
    let reason = if sample.device_time_us <= 0 {
        "is missing".to_owned()
    } else if ahead_us > bounds.future_us {
        format!(
            "is {} s ahead of this clock, more than the {} s allowed",
            ahead_us / SECOND_US,
            bounds.future_us / SECOND_US
        )
    } else if -ahead_us > bounds.past_us {
        format!(
            "is {} s behind this clock, more than the {} s allowed",
            -ahead_us / SECOND_US,
            bounds.past_us / SECOND_US
        )
    } else {
        return Ok(());
    };
    Err(Invalid::new("device_time_us", reason, now_us.to_string()))
}

/// Accepts letters, digits and `. _ : -`, because identifiers appear in keys, labels and file
/// names.
pub fn validate_identifier(
    field: &'static str,
    identifier: &str,
    example: &str,
) -> Result<(), Invalid> {
    let reason = if identifier.is_empty() {
        "is missing".to_owned()
    } else if identifier.len() > IDENTIFIER_BYTES_MAX {
        format!("is longer than {IDENTIFIER_BYTES_MAX} bytes")
    } else if !identifier
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte))
    {
        format!(
            "{:?} has characters other than letters, digits and . _ : -",
            clip(identifier)
        )
    } else {
        return Ok(());
    };
    Err(Invalid::new(field, reason, format!("{example:?}")))
}

/// Accepts the name that a person typed. Control and direction characters are refused, because the
/// name appears in lists, messages and terminals.
pub fn validate_person(field: &'static str, name: &str) -> Result<(), Invalid> {
    validate_text(field, name, PERSON_BYTES_MAX, "\"Ada Carer\"")
}

/// Accepts one line of text that is not empty.
pub fn validate_text(
    field: &'static str,
    text: &str,
    bytes_max: usize,
    example: &str,
) -> Result<(), Invalid> {
    let reason = if text.trim().is_empty() {
        "is missing".to_owned()
    } else if text.len() > bytes_max {
        format!("is longer than {bytes_max} bytes")
    } else if let Err(found) = contracts::text::check(text) {
        found.to_string()
    } else {
        return Ok(());
    };
    Err(Invalid::new(field, reason, example))
}

/// Fills fields that a sensor may omit: the unit, and the stream if the device has one per metric.
pub fn fill_defaults(sample: &mut Sample) {
    if let Some(entry) = entry(sample.metric()) {
        if sample.unit.is_empty() {
            sample.unit = entry.unit.to_owned();
        }
        if sample.stream.is_empty() {
            sample.stream = entry.name.to_owned();
        }
    }
}

fn known(sample: &Sample) -> Result<&'static Entry, Invalid> {
    Metric::try_from(sample.metric)
        .ok()
        .and_then(entry)
        .ok_or_else(|| {
            Invalid::new(
                "metric",
                format!("{} is unknown", sample.metric),
                name(Metric::HeartRate),
            )
        })
}

fn in_range(entry: &Entry, value: f64) -> Result<(), Invalid> {
    let (low, high) = entry.range;
    // NaN and infinities fail the comparison too.
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(Invalid::new(
        "value",
        format!(
            "{value} is outside {low} to {high} {}, what a working sensor of {} reports",
            entry.unit, entry.name
        ),
        entry.example.to_string(),
    ))
}

/// The beginning of a foreign text, for a message.
fn clip(text: &str) -> &str {
    let end = text
        .char_indices()
        .nth(32)
        .map_or(text.len(), |(index, _)| index);
    &text[..end]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use contracts::vitals::Waveform;

    use super::*;

    const NOW_US: i64 = 1_800_000_000_000_000;

    fn validate(sample: &Sample, now_us: i64) -> Result<(), Invalid> {
        validate_reading(sample)?;
        validate_time(sample, now_us, ClockBounds::GATEWAY)
    }

    fn heart_rate(value: f64) -> Sample {
        let mut sample = Sample {
            device: "belt-1".into(),
            metric: Metric::HeartRate.into(),
            device_time_us: NOW_US,
            reading: Some(sample::Reading::Value(value)),
            ..Sample::default()
        };
        fill_defaults(&mut sample);
        sample
    }

    fn field_of(sample: &Sample) -> &'static str {
        validate(sample, NOW_US).unwrap_err().field
    }

    #[test]
    fn every_entrys_example_passes() {
        for entry in &crate::ENTRIES {
            let mut sample = heart_rate(0.0);
            sample.metric = entry.metric.into();
            sample.unit = entry.unit.into();
            sample.reading = Some(match entry.reading {
                Reading::Waveform { axes } => sample::Reading::Waveform(Waveform {
                    period_us: 4000,
                    values: vec![entry.example as f32; axes],
                }),
                _ => sample::Reading::Value(entry.example),
            });
            assert_eq!(validate(&sample, NOW_US), Ok(()), "{}", entry.name);
        }
    }

    #[test]
    fn a_name_of_a_person_is_short_and_has_no_control_characters() {
        for name in ["Ada Carer", "Zo\u{eb} d'Arc-Li", "\u{5f20}\u{4f1f}"] {
            assert_eq!(validate_person("by", name), Ok(()), "{name}");
        }
        let long = "x".repeat(PERSON_BYTES_MAX + 1);
        for name in ["", "  ", "a\nb", "\u{1b}[2J", "\u{202e}adA", &long] {
            assert!(validate_person("by", name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn refusals_name_the_field() {
        assert_eq!(validate(&heart_rate(72.0), NOW_US), Ok(()));
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 351.0] {
            assert_eq!(field_of(&heart_rate(value)), "value");
        }
        let change = |edit: fn(&mut Sample)| {
            let mut sample = heart_rate(72.0);
            edit(&mut sample);
            field_of(&sample)
        };
        assert_eq!(change(|s| s.metric = 0), "metric");
        assert_eq!(change(|s| s.metric = 99), "metric");
        assert_eq!(change(|s| s.unit = "bpm".into()), "unit");
        assert_eq!(change(|s| s.device.clear()), "device");
        assert_eq!(change(|s| s.device = "a b".into()), "device");
        assert_eq!(change(|s| s.device = "x".repeat(129)), "device");
        assert_eq!(change(|s| s.patient = "../etc".into()), "patient");
        assert_eq!(change(|s| s.traceparent = "0".repeat(257)), "traceparent");
        assert_eq!(change(|s| s.reading = None), "value");
        assert_eq!(
            change(|s| s.reading = Some(sample::Reading::Waveform(Waveform::default()))),
            "value"
        );
        assert_eq!(change(|s| s.device_time_us = 0), "device_time_us");
        let mut ahead = heart_rate(72.0);
        ahead.device_time_us = NOW_US + ClockBounds::GATEWAY.future_us;
        assert_eq!(validate(&ahead, NOW_US), Ok(()));
        ahead.device_time_us += SECOND_US;
        assert_eq!(field_of(&ahead), "device_time_us");
        assert_eq!(
            change(|s| s.device_time_us = NOW_US - 32 * 86_400 * SECOND_US),
            "device_time_us"
        );
        assert_eq!(change(|s| s.device_time_us = i64::MIN), "device_time_us");
        assert_eq!(change(|s| s.device_time_us = i64::MAX), "device_time_us");
    }

    #[test]
    fn waveforms_are_bounded() {
        let ecg = |period_us, values| {
            let mut sample = heart_rate(0.0);
            sample.metric = Metric::Ecg.into();
            sample.unit = "mV".into();
            sample.reading = Some(sample::Reading::Waveform(Waveform { period_us, values }));
            validate(&sample, NOW_US).map_err(|invalid| invalid.field)
        };
        assert_eq!(ecg(4000, vec![0.1; WAVEFORM_VALUES_MAX]), Ok(()));
        assert_eq!(
            ecg(4000, vec![0.1; WAVEFORM_VALUES_MAX + 1]),
            Err("waveform.values")
        );
        assert_eq!(ecg(4000, vec![]), Err("waveform.values"));
        assert_eq!(ecg(0, vec![0.1]), Err("waveform.period_us"));
        assert_eq!(ecg(4000, vec![f32::NAN]), Err("value"));
    }

    #[test]
    fn a_message_reads_as_field_reason_example() {
        let message = validate(&heart_rate(900.0), NOW_US)
            .unwrap_err()
            .to_string();
        assert_eq!(
            message,
            "value: 900 is outside 0 to 350 /min, what a working sensor of heart-rate reports; for example 72"
        );
    }
}
