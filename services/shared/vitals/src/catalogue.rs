//! The catalogue of metrics: names, codes, units and the range that a working sensor can report.
//!
//! The plausible range is wide on purpose, because it separates readings from faults, not health
//! from illness. A heart rate of 0 is a reading (asystole), but an SpO2 of 0 is a probe on the
//! table.

use contracts::vitals::Metric;

/// Form of a metric: one number per sample, or a chunk of an evenly spaced waveform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    Value,
    /// An ordinal value: 0, 1, 2, ...
    Step,
    /// `axes` interleaved channels.
    Waveform {
        axes: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entry {
    pub metric: Metric,
    /// Kebab-case, used in URLs, rule files and stream names.
    pub name: &'static str,
    /// Display name.
    pub display: &'static str,
    pub loinc: Option<&'static str>,
    /// UCUM.
    pub unit: &'static str,
    pub reading: Reading,
    /// Inclusive.
    pub range: (f64, f64),
    /// An accepted reading, for error messages.
    pub example: f64,
}

const fn value(
    metric: Metric,
    name: &'static str,
    display: &'static str,
    loinc: Option<&'static str>,
    unit: &'static str,
    range: (f64, f64),
    example: f64,
) -> Entry {
    Entry {
        metric,
        name,
        display,
        loinc,
        unit,
        reading: Reading::Value,
        range,
        example,
    }
}

/// In the order of the `Metric` enum: entry `i` describes metric `i + 1`.
pub const ENTRIES: [Entry; 12] = [
    value(
        Metric::HeartRate,
        "heart-rate",
        "Heart rate",
        Some("8867-4"),
        "/min",
        (0.0, 350.0),
        72.0,
    ),
    value(
        Metric::RespirationRate,
        "respiration-rate",
        "Respiration rate",
        Some("9279-1"),
        "/min",
        (0.0, 120.0),
        16.0,
    ),
    // 59408-5 is measured by pulse oximetry. FHIR's vital-signs profile adds 2708-6.
    value(
        Metric::Spo2,
        "spo2",
        "Oxygen saturation",
        Some("59408-5"),
        "%",
        (10.0, 100.0),
        97.0,
    ),
    // The lowest survived core temperature was 11.8 Cel.
    value(
        Metric::Temperature,
        "temperature",
        "Body temperature",
        Some("8310-5"),
        "Cel",
        (11.0, 46.0),
        36.8,
    ),
    value(
        Metric::SystolicPressure,
        "systolic-pressure",
        "Systolic blood pressure",
        Some("8480-6"),
        "mm[Hg]",
        (20.0, 350.0),
        120.0,
    ),
    value(
        Metric::DiastolicPressure,
        "diastolic-pressure",
        "Diastolic blood pressure",
        Some("8462-4"),
        "mm[Hg]",
        (10.0, 250.0),
        80.0,
    ),
    value(
        Metric::Activity,
        "activity",
        "Activity",
        None,
        "[g]",
        (0.0, 32.0),
        1.02,
    ),
    Entry {
        metric: Metric::Ecg,
        name: "ecg",
        display: "Electrocardiogram",
        loinc: Some("11524-6"),
        unit: "mV",
        reading: Reading::Waveform { axes: 1 },
        range: (-50.0, 50.0),
        example: 0.8,
    },
    Entry {
        metric: Metric::Consciousness,
        name: "consciousness",
        display: "Consciousness (ACVPU)",
        loinc: Some("67775-7"),
        unit: "{score}",
        reading: Reading::Step,
        range: (0.0, 4.0),
        example: 0.0,
    },
    Entry {
        metric: Metric::SupplementalOxygen,
        name: "supplemental-oxygen",
        display: "Supplemental oxygen",
        loinc: None,
        unit: "{score}",
        reading: Reading::Step,
        range: (0.0, 1.0),
        example: 0.0,
    },
    value(
        Metric::Battery,
        "battery",
        "Battery",
        None,
        "%",
        (0.0, 100.0),
        85.0,
    ),
    Entry {
        metric: Metric::Acceleration,
        name: "acceleration",
        display: "Acceleration",
        loinc: None,
        unit: "[g]",
        reading: Reading::Waveform { axes: 3 },
        range: (-32.0, 32.0),
        example: 0.98,
    },
];

/// The catalogue's entry. `None` for `Metric::Unspecified`.
pub fn entry(metric: Metric) -> Option<&'static Entry> {
    let index = usize::try_from(metric as i32).ok()?.checked_sub(1)?;
    ENTRIES.get(index)
}

/// Kebab-case name. `unspecified` for `Metric::Unspecified`.
pub fn name(metric: Metric) -> &'static str {
    entry(metric).map_or("unspecified", |entry| entry.name)
}

/// Display name. Empty for `Metric::Unspecified`.
pub(crate) fn display(metric: Metric) -> &'static str {
    entry(metric).map_or("", |entry| entry.display)
}

pub fn by_name(name: &str) -> Option<&'static Entry> {
    ENTRIES.iter().find(|entry| entry.name == name)
}

/// Serialises a metric as its kebab-case name.
pub mod metric_name {
    use serde::Deserialize;

    use super::*;

    pub fn serialize<S: serde::Serializer>(metric: &Metric, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(name(*metric))
    }

    pub fn deserialize<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Metric, D::Error> {
        let text = String::deserialize(from)?;
        by_name(&text).map(|entry| entry.metric).ok_or_else(|| {
            serde::de::Error::custom(format!("{text:?} is no metric, for example \"heart-rate\""))
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_metric_has_its_entry_at_its_number() {
        for number in 1..=ENTRIES.len() as i32 {
            let metric = Metric::try_from(number).unwrap();
            let entry = entry(metric).unwrap();
            assert_eq!(entry.metric, metric);
            assert_eq!(by_name(entry.name).unwrap().metric, metric);
            assert!(entry.range.0 <= entry.example && entry.example <= entry.range.1);
        }
        assert!(Metric::try_from(ENTRIES.len() as i32 + 1).is_err());
        assert!(entry(Metric::Unspecified).is_none());
    }

    #[test]
    fn names_are_kebab_case_of_the_protobuf_name() {
        for entry in &ENTRIES {
            let expected = entry
                .metric
                .as_str_name()
                .trim_start_matches("METRIC_")
                .to_lowercase()
                .replace('_', "-");
            assert_eq!(entry.name, expected);
        }
    }
}
