//! A line of newline-delimited JSON.

use contracts::vitals::{Sample, Waveform, sample::Reading};
use serde::Deserialize;
use vitals::Invalid;

const EXAMPLE: &str = r#"{"device":"d1","metric":"heart-rate","value":72}"#;

/// The fields of a sensor's line. Unit, time and stream have defaults.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    device: String,
    metric: String,
    value: Option<f64>,
    waveform: Option<Readings>,
    #[serde(default)]
    unit: String,
    /// RFC 3339.
    time: Option<String>,
    /// Microseconds since the Unix epoch, instead of `time`.
    device_time_us: Option<i64>,
    #[serde(default)]
    stream: String,
    #[serde(default)]
    patient: String,
    sensor_sequence: Option<u64>,
    #[serde(default)]
    traceparent: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Readings {
    period_us: u32,
    values: Vec<f32>,
}

pub fn parse(line: &[u8]) -> Result<Sample, Invalid> {
    // The parser would read an array as the fields in their order, and blame their types.
    if line.first() == Some(&b'[') {
        let reason = "is a JSON array; send each sample as an object on a line of its own";
        return Err(Invalid::new("line", reason, EXAMPLE));
    }
    let line: Line = serde_json::from_slice(line)
        .map_err(|error| Invalid::new("line", format!("is not a sample: {error}"), EXAMPLE))?;
    let Some(entry) = vitals::by_name(&line.metric) else {
        let known: Vec<_> = vitals::entries().iter().map(|entry| entry.name).collect();
        return Err(Invalid::new(
            "metric",
            format!("is unknown; there are {}", known.join(", ")),
            "\"heart-rate\"",
        ));
    };
    let device_time_us = match (line.time, line.device_time_us) {
        (Some(_), Some(_)) => {
            return Err(Invalid::new(
                "time",
                "is given as time and as device_time_us",
                "\"2026-03-01T12:00:00.250Z\"",
            ));
        }
        (Some(text), None) => calendar::parse_rfc3339_us(&text).ok_or_else(|| {
            Invalid::new("time", "is not RFC 3339", "\"2026-03-01T12:00:00.250Z\"")
        })?,
        (None, Some(us)) => us,
        (None, None) => 0,
    };
    let reading = match (line.value, line.waveform) {
        (Some(_), Some(_)) => {
            return Err(Invalid::new(
                "value",
                "is given beside a waveform; a sample has one of them",
                entry.example.to_string(),
            ));
        }
        (Some(value), None) => Some(Reading::Value(value)),
        (None, Some(waveform)) => Some(Reading::Waveform(Waveform {
            period_us: waveform.period_us,
            values: waveform.values,
        })),
        (None, None) => None,
    };
    Ok(Sample {
        device: line.device,
        stream: line.stream,
        metric: entry.metric.into(),
        unit: line.unit,
        device_time_us,
        reading,
        patient: line.patient,
        sensor_sequence: line.sensor_sequence,
        traceparent: line.traceparent,
        ..Sample::default()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use contracts::vitals::Metric;

    use super::*;

    #[test]
    fn the_shortest_line_is_enough() {
        let sample = parse(EXAMPLE.as_bytes()).unwrap();
        assert_eq!(sample.metric(), Metric::HeartRate);
        assert_eq!(sample.reading, Some(Reading::Value(72.0)));
        assert_eq!(sample.device_time_us, 0);
    }

    #[test]
    fn a_refusal_names_the_field() {
        let field = |line: &str| parse(line.as_bytes()).unwrap_err().field;
        assert_eq!(field("{"), "line");
        let array = format!("[{EXAMPLE}]");
        let reason = parse(array.as_bytes()).unwrap_err().reason;
        assert!(reason.contains("is a JSON array"), "{reason}");
        assert_eq!(
            field(r#"{"device":"d","metric":"heart-rate","valeu":1}"#),
            "line"
        );
        assert_eq!(
            field(r#"{"device":"d","metric":"pulse","value":1}"#),
            "metric"
        );
        assert_eq!(
            field(r#"{"device":"d","metric":"spo2","value":1,"time":"noon"}"#),
            "time"
        );
        assert_eq!(
            field(
                r#"{"device":"d","metric":"ecg","value":1,"waveform":{"period_us":1,"values":[]}}"#
            ),
            "value"
        );
    }
}
