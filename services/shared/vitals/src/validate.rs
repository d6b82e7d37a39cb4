//! Plausibility of samples. The gateway checks before it journals, ingest before it publishes.
//!
//! A refusal names the field, the reason and an accepted value, because the reader may be a person
//! with a sensor and `curl`.

use contracts::vitals::{Sample, Waveform, sample};

use crate::{
    catalogue::{Entry, Reading, entry},
    refusal::{Invalid, clip, validate_identifier, validate_text},
};

/// Readings in one waveform chunk: 40 s of ECG at 250 Hz. Longer chunks are refused.
pub const WAVEFORM_VALUES_MAX: usize = 10_000;
/// Spacing of a waveform: 10 us (100 kHz) to 10 s.
const WAVEFORM_PERIOD_US: (u32, u32) = (10, 10_000_000);
/// Bytes of a traceparent. W3C defines 55, and later versions may append to it.
pub const TRACEPARENT_BYTES_MAX: usize = 256;

/// Bytes of the unit of an unknown metric.
const UNIT_BYTES_MAX: usize = 80;

/// The store's integers are signed.
const SENSOR_SEQUENCE_MAX: u64 = i64::MAX as u64;

const SECOND_US: i64 = 1_000_000;

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
    let Some(entry) = entry(sample.metric()) else {
        return validate_unknown(sample);
    };
    let accepted = match sample.unit == entry.unit {
        true => None,
        false => Some(entry.accepted(&sample.unit).ok_or_else(|| {
            let units: Vec<_> = entry.units().collect();
            let reason = format!("{:?} is no unit of {}", clip(&sample.unit), entry.name);
            Invalid::new("unit", reason, units.join(" or "))
        })?),
    };
    match (&sample.reading, entry.reading) {
        (Some(sample::Reading::Value(value)), Reading::Value) => match accepted {
            None => {
                in_range(entry, *value)?;
                precise(*value, entry.document.decimals, entry.unit)
            }
            Some(accepted) => {
                in_range(entry, accepted.convert(*value))?;
                precise(*value, accepted.decimals, &accepted.unit)
            }
        },
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
            validate_waveform(waveform, axes)?;
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

fn validate_waveform(waveform: &Waveform, axes: usize) -> Result<(), Invalid> {
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
    Ok(())
}

/// A metric that this program does not know is passed on as it came: its catalogue may be older
/// than the sender's. It needs a unit, so that no later reader has to guess.
fn validate_unknown(sample: &Sample) -> Result<(), Invalid> {
    if !sample.metric().is_of_key() {
        let reason = format!("{} is unknown", sample.metric);
        return Err(Invalid::new("metric", reason, "heart-rate"));
    }
    validate_text("unit", &sample.unit, UNIT_BYTES_MAX, "\"mmol/L\"")?;
    let is_finite = match &sample.reading {
        Some(sample::Reading::Value(value)) => value.is_finite(),
        Some(sample::Reading::Waveform(waveform)) => {
            validate_waveform(waveform, 1)?;
            waveform.values.iter().all(|value| value.is_finite())
        }
        None => false,
    };
    if is_finite {
        return Ok(());
    }
    Err(Invalid::new("value", "is missing or not a number", "5.6"))
}

/// Refuses a reading without a unit if sensors of the metric use more than one. A guess could be
/// wrong by a factor of 18.
pub fn validate_unit_stated(sample: &Sample) -> Result<(), Invalid> {
    let entry = entry(sample.metric()).filter(|it| !it.document.accepted.is_empty());
    let Some(entry) = entry.filter(|_| sample.unit.is_empty()) else {
        return Ok(());
    };
    let units: Vec<_> = entry.units().collect();
    let reason = format!("is missing, and sensors of {} use several", entry.name);
    Err(Invalid::new("unit", reason, units.join(" or ")))
}

/// The single value of a sample in its metric's own unit. `None`: a waveform, an unknown metric or
/// an unknown unit. Without a unit it is the metric's own, because no door lets such a reading in
/// where two units are common.
pub fn own_value(sample: &Sample) -> Option<f64> {
    let Some(sample::Reading::Value(value)) = sample.reading else {
        return None;
    };
    let entry = entry(sample.metric())?;
    if sample.unit == entry.unit || sample.unit.is_empty() {
        return Some(value);
    }
    Some(entry.accepted(&sample.unit)?.convert(value))
}

/// Converts a valid reading to the unit of its metric, and keeps what came beside it. A reading in
/// the metric's own unit stays as it is, so a second call changes nothing.
pub fn convert(sample: &mut Sample) {
    let Some(entry) = entry(sample.metric()) else {
        return;
    };
    if let Some(accepted) = entry.accepted(&sample.unit)
        && let Some(sample::Reading::Value(value)) = sample.reading
    {
        sample.reading = Some(sample::Reading::Value(accepted.convert(value)));
        sample.original_value = Some(value);
        sample.original_unit = std::mem::replace(&mut sample.unit, entry.unit.to_owned());
    } else if entry.accepted(&sample.original_unit).is_none() {
        sample.original_value = None;
        sample.original_unit.clear();
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

/// Fills fields that a sensor may omit: the unit, and the stream if the device has one per metric.
/// [`validate_unit_stated`] comes before it where sensors of other makers speak.
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

/// Refuses digits that the sensor cannot have measured.
fn precise(value: f64, decimals: Option<u8>, unit: &str) -> Result<(), Invalid> {
    let Some(decimals) = decimals else {
        return Ok(());
    };
    let shifted = value * 10_f64.powi(i32::from(decimals));
    // A sensor's own arithmetic has single precision.
    if (shifted - shifted.round()).abs() <= 1e-6 * shifted.abs().max(1.0) {
        return Ok(());
    }
    Err(Invalid::new(
        "value",
        format!("{value} has more than the {decimals} decimals of a reading in {unit}"),
        format!("{value:.*}", usize::from(decimals)),
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use contracts::vitals::{Metric, Waveform};

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
        for entry in crate::entries() {
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
        assert_eq!(change(|s| s.metric = -1), "metric");
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

    fn reading(key: &str, value: f64, unit: &str) -> Sample {
        Sample {
            metric: Metric::of_key(key).into(),
            stream: key.into(),
            unit: unit.into(),
            ..heart_rate(value)
        }
    }

    #[test]
    fn a_reading_in_an_accepted_unit_is_converted_and_what_came_is_kept() {
        let mut sample = reading("glucose", 126.0, "mg/dL");
        assert_eq!(validate(&sample, NOW_US), Ok(()));
        convert(&mut sample);
        let converted = Some(sample::Reading::Value(1_260_000.0 / 180_156.0));
        assert_eq!((&sample.reading, &*sample.unit), (&converted, "mmol/L"));
        let came = (sample.original_value, sample.original_unit.clone());
        assert_eq!(came, (Some(126.0), "mg/dL".to_owned()));
        let once = sample.clone();
        convert(&mut sample);
        assert_eq!(sample, once, "a second time");
        let mut own = reading("glucose", 5.6, "mmol/L");
        own.original_value = Some(1.0);
        own.original_unit = "furlong".into();
        convert(&mut own);
        assert_eq!(
            own,
            reading("glucose", 5.6, "mmol/L"),
            "nothing was converted"
        );
    }

    #[test]
    fn a_unit_is_never_guessed_where_two_are_common() {
        for (key, unit) in [
            ("glucose", "mmol/L or mg/dL"),
            ("temperature", "Cel or [degF]"),
        ] {
            let refused = validate_unit_stated(&reading(key, 37.0, "")).unwrap_err();
            assert_eq!((refused.field, &*refused.example), ("unit", unit));
            let other = validate(&reading(key, 37.0, "furlong"), NOW_US).unwrap_err();
            assert_eq!((other.field, &*other.example), ("unit", unit));
        }
        assert_eq!(
            validate_unit_stated(&reading("heart-rate", 72.0, "")),
            Ok(())
        );
        // Each of these would be plausible in the other unit.
        for (key, value, unit) in [("glucose", 126.0, "mmol/L"), ("temperature", 98.6, "Cel")] {
            let refused = validate(&reading(key, value, unit), NOW_US).unwrap_err();
            assert_eq!(refused.field, "value", "{key}");
        }
        assert!(validate(&reading("glucose", 0.4, "mg/dL"), NOW_US).is_err());
    }

    #[test]
    fn a_reading_has_no_more_digits_than_its_sensor_measures() {
        let refused = validate(&reading("glucose", 126.25, "mg/dL"), NOW_US).unwrap_err();
        assert_eq!(
            refused.reason,
            "126.25 has more than the 1 decimals of a reading in mg/dL"
        );
        let single = f64::from(5.6_f32);
        assert_eq!(
            validate(&reading("glucose", single, "mmol/L"), NOW_US),
            Ok(())
        );
    }

    #[test]
    fn an_unknown_metric_is_passed_on_with_its_unit() {
        let unknown = reading("ketones", 1.5, "mmol/L");
        assert_eq!(validate(&unknown, NOW_US), Ok(()));
        let mut passed = unknown.clone();
        convert(&mut passed);
        assert_eq!(passed, unknown);
        assert_eq!(field_of(&reading("ketones", 1.5, "")), "unit");
        assert_eq!(field_of(&reading("ketones", f64::NAN, "mmol/L")), "value");
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
