//! Samples of one stream of uploads in a compact form.
//!
//! The samples of a stream differ in few fields, and in these by little. Both ends of a link keep a
//! table of the streams that passed it. A sample is the number of its stream, and what is new:
//! differences of times and of the sequence, and the reading. A stream that is new to the link
//! brings all fields. The samples are those that the gateway meant, field by field.
//!
//! Bounds: [`STREAMS_MAX`] streams of [`STREAM_BYTES_MAX`] in a table, [`SAMPLES_MAX`] samples in
//! an upload, and [`READINGS_MAX`] readings in one. An encoder that is at a bound leaves the
//! samples as they are.

use std::collections::HashMap;

use prost::Message;

use crate::vitals::{Sample, UploadRequest, Waveform, sample::Reading};

const STREAMS_MAX: usize = 1_024;
const STREAM_BYTES_MAX: usize = 1_024;
/// As many as ingest takes in one upload.
const SAMPLES_MAX: u64 = 20_000;
const READINGS_MAX: u64 = 1 << 20;
/// Readings that are whole numbers at one of these scales are sent as such.
const SCALES: [f64; 7] = [1.0, 10.0, 100.0, 1_000.0, 1_024.0, 4_096.0, 32_768.0];
/// The number of the scale of a reading in full.
const IN_FULL: u64 = 7;
/// Stands for the trace of a sample in the common fields; and the bytes of a trace.
const TRACED: &str = "t";
const TRACE_BYTES_MAX: usize = 256;
/// Common fields of all samples in one upload together.
const EXPANDED_BYTES_MAX: usize = 4 << 20;
/// Largest whole number that a scale is used for.
const WHOLE_MAX: f64 = 9e15;

/// Why an upload could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompactError {
    /// The bytes end within a sample.
    Cut,
    /// A number, a length or a table exceeds its bound.
    OutOfBounds,
    /// A stream's fields are no sample.
    NoSample,
}

impl std::fmt::Display for CompactError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Cut => "compact samples end within a sample",
            Self::OutOfBounds => "compact samples exceed a bound",
            Self::NoSample => "compact samples name a stream that is none",
        })
    }
}

impl std::error::Error for CompactError {}

/// The last sample sent of a stream.
#[derive(Debug, Clone, Copy, Default)]
struct Last {
    sequence: u64,
    device_us: i64,
    device_step_us: i64,
    /// The gateway's time less the device's, and its uptime less its time.
    gateway_us: i64,
    uptime_us: i64,
    behind_us: i64,
    sensor_sequence: u64,
}

/// The sending end of one link.
#[derive(Debug, Default)]
pub struct Encoder {
    numbers: HashMap<Vec<u8>, u64>,
    lasts: Vec<Last>,
}

/// The receiving end of one link.
#[derive(Debug, Default)]
pub struct Decoder {
    /// With the bytes of the common fields.
    streams: Vec<(Sample, Last, usize)>,
}

impl Encoder {
    /// Moves the samples of the request into their compact form, if they fit the bounds.
    pub fn compact(&mut self, request: &mut UploadRequest) {
        let count = request.samples.len() as u64;
        if count == 0 || count > SAMPLES_MAX {
            return;
        }
        let templates: Vec<Vec<u8>> = request.samples.iter().map(template).collect();
        let new = templates
            .iter()
            .filter(|it| !self.numbers.contains_key(*it));
        let small = |sample: &Sample| sample.traceparent.len() <= TRACE_BYTES_MAX;
        let fits = templates.iter().all(|it| it.len() <= STREAM_BYTES_MAX)
            && templates.iter().map(Vec::len).sum::<usize>() <= EXPANDED_BYTES_MAX
            && request.samples.iter().all(small);
        if !fits || self.lasts.len() + new.count() > STREAMS_MAX {
            return;
        }
        let mut out = Vec::with_capacity(16 * request.samples.len());
        put(&mut out, count);
        for (sample, template) in request.samples.iter().zip(templates) {
            let next = self.lasts.len() as u64;
            let number = *self.numbers.entry(template.clone()).or_insert(next);
            put(&mut out, number);
            if number == next {
                put(&mut out, template.len() as u64);
                out.extend_from_slice(&template);
                self.lasts.push(Last::default());
            }
            if let Some(last) = self.lasts.get_mut(number as usize) {
                encode(&mut out, last, sample);
            }
        }
        request.samples.clear();
        request.compact_samples = out.into();
    }
}

impl Decoder {
    /// Moves compact samples back. A request without any stays as it is.
    pub fn expand(&mut self, request: &mut UploadRequest) -> Result<(), CompactError> {
        if request.compact_samples.is_empty() {
            return Ok(());
        }
        let bytes = std::mem::take(&mut request.compact_samples);
        let mut rest = &bytes[..];
        let count = take(&mut rest)?;
        if count > SAMPLES_MAX {
            return Err(CompactError::OutOfBounds);
        }
        let mut expanded_bytes = 0;
        for _ in 0..count {
            let number = take(&mut rest)? as usize;
            if number == self.streams.len() && number < STREAMS_MAX {
                let length = take(&mut rest)? as usize;
                if length > STREAM_BYTES_MAX {
                    return Err(CompactError::OutOfBounds);
                }
                let (template, after) = rest.split_at_checked(length).ok_or(CompactError::Cut)?;
                let template = Sample::decode(template).map_err(|_| CompactError::NoSample)?;
                self.streams.push((template, Last::default(), length));
                rest = after;
            }
            let known = self.streams.get_mut(number);
            let (template, last, length) = known.ok_or(CompactError::OutOfBounds)?;
            expanded_bytes += *length;
            if expanded_bytes > EXPANDED_BYTES_MAX {
                return Err(CompactError::OutOfBounds);
            }
            request.samples.push(decode(&mut rest, template, last)?);
        }
        Ok(())
    }
}

/// The fields that the samples of a stream have in common, in protobuf.
fn template(sample: &Sample) -> Vec<u8> {
    let reading = match &sample.reading {
        Some(Reading::Value(_)) => Some(Reading::Value(0.0)),
        Some(Reading::Waveform(waveform)) => Some(Reading::Waveform(Waveform {
            period_us: waveform.period_us,
            values: Vec::new(),
        })),
        None => None,
    };
    let common = Sample {
        sequence: 0,
        device_time_us: 0,
        gateway_time_us: 0,
        gateway_uptime_us: 0,
        gateway_behind_us: sample.gateway_behind_us.map(|_| 0),
        sensor_sequence: sample.sensor_sequence.map(|_| 0),
        traceparent: if is_traced(sample) { TRACED } else { "" }.to_owned(),
        reading,
        ..sample.clone()
    };
    common.encode_to_vec()
}

/// Each trace is another one, so it is no common field.
fn is_traced(sample: &Sample) -> bool {
    !sample.traceparent.is_empty()
}

fn encode(out: &mut Vec<u8>, last: &mut Last, sample: &Sample) {
    put_signed(
        out,
        sample.sequence.wrapping_sub(last.sequence).wrapping_sub(1) as i64,
    );
    last.sequence = sample.sequence;
    let step = sample.device_time_us.wrapping_sub(last.device_us);
    put_signed(out, step.wrapping_sub(last.device_step_us));
    last.device_us = sample.device_time_us;
    last.device_step_us = step;
    let gateway = sample.gateway_time_us.wrapping_sub(sample.device_time_us);
    put_signed(out, gateway.wrapping_sub(last.gateway_us));
    last.gateway_us = gateway;
    let uptime = sample
        .gateway_uptime_us
        .wrapping_sub(sample.gateway_time_us);
    put_signed(out, uptime.wrapping_sub(last.uptime_us));
    last.uptime_us = uptime;
    if let Some(behind) = sample.gateway_behind_us {
        put_signed(out, behind.wrapping_sub(last.behind_us));
        last.behind_us = behind;
    }
    if let Some(sequence) = sample.sensor_sequence {
        put_signed(
            out,
            sequence.wrapping_sub(last.sensor_sequence).wrapping_sub(1) as i64,
        );
        last.sensor_sequence = sequence;
    }
    if is_traced(sample) {
        put(out, sample.traceparent.len() as u64);
        out.extend_from_slice(sample.traceparent.as_bytes());
    }
    match &sample.reading {
        Some(Reading::Value(value)) => put_value(out, *value),
        Some(Reading::Waveform(waveform)) => put_waveform(out, &waveform.values),
        None => {}
    }
}

fn decode(rest: &mut &[u8], template: &Sample, last: &mut Last) -> Result<Sample, CompactError> {
    let mut sample = template.clone();
    let sequence = take_signed(rest)? as u64;
    last.sequence = last.sequence.wrapping_add(sequence).wrapping_add(1);
    last.device_step_us = last.device_step_us.wrapping_add(take_signed(rest)?);
    last.device_us = last.device_us.wrapping_add(last.device_step_us);
    last.gateway_us = last.gateway_us.wrapping_add(take_signed(rest)?);
    last.uptime_us = last.uptime_us.wrapping_add(take_signed(rest)?);
    sample.sequence = last.sequence;
    sample.device_time_us = last.device_us;
    sample.gateway_time_us = last.device_us.wrapping_add(last.gateway_us);
    sample.gateway_uptime_us = sample.gateway_time_us.wrapping_add(last.uptime_us);
    if let Some(behind) = &mut sample.gateway_behind_us {
        last.behind_us = last.behind_us.wrapping_add(take_signed(rest)?);
        *behind = last.behind_us;
    }
    if let Some(sequence) = &mut sample.sensor_sequence {
        let step = take_signed(rest)? as u64;
        last.sensor_sequence = last.sensor_sequence.wrapping_add(step).wrapping_add(1);
        *sequence = last.sensor_sequence;
    }
    if is_traced(&sample) {
        let length = take(rest)? as usize;
        if length > TRACE_BYTES_MAX {
            return Err(CompactError::OutOfBounds);
        }
        let (trace, after) = rest.split_at_checked(length).ok_or(CompactError::Cut)?;
        let trace = std::str::from_utf8(trace).map_err(|_| CompactError::NoSample)?;
        sample.traceparent = trace.to_owned();
        *rest = after;
    }
    match &mut sample.reading {
        Some(Reading::Value(value)) => *value = take_value(rest)?,
        Some(Reading::Waveform(waveform)) => waveform.values = take_waveform(rest)?,
        None => {}
    }
    Ok(sample)
}

/// The value as a whole number at a scale, if that is the same value to the bit.
fn whole(value: f64, scale: f64) -> Option<i64> {
    let scaled = (value * scale).round();
    let fits = scaled.abs() < WHOLE_MAX && (scaled / scale).to_bits() == value.to_bits();
    fits.then_some(scaled as i64)
}

fn put_value(out: &mut Vec<u8>, value: f64) {
    let found = (0..)
        .zip(SCALES)
        .find_map(|(code, scale)| Some((code, whole(value, scale)?)));
    match found {
        // Three bits for the scale.
        Some((code, number)) => put(out, zigzag(number) << 3 | code),
        None => {
            put(out, IN_FULL);
            out.extend_from_slice(&value.to_le_bytes());
        }
    }
}

fn take_value(rest: &mut &[u8]) -> Result<f64, CompactError> {
    let code = take(rest)?;
    match SCALES.get((code & 7) as usize) {
        Some(scale) => Ok(unzigzag(code >> 3) as f64 / scale),
        None => Ok(f64::from_le_bytes(take_array(rest)?)),
    }
}

/// A reading of a waveform as a whole number at a scale, if that is the same reading to the bit.
fn whole_reading(value: f32, scale: f64) -> Option<i64> {
    let scaled = (f64::from(value) * scale).round();
    let same = ((scaled / scale) as f32).to_bits() == value.to_bits();
    (scaled.abs() < WHOLE_MAX && same).then_some(scaled as i64)
}

fn put_waveform(out: &mut Vec<u8>, values: &[f32]) {
    let at = |scale: f64| -> Option<Vec<i64>> {
        values
            .iter()
            .map(|value| whole_reading(*value, scale))
            .collect()
    };
    let found = (0..)
        .zip(SCALES)
        .find_map(|(code, scale)| Some((code, at(scale)?)));
    let count = (values.len() as u64) << 3;
    match found {
        Some((code, numbers)) => {
            put(out, count | code);
            let mut before = 0;
            for number in numbers {
                put_signed(out, number - before);
                before = number;
            }
        }
        None => {
            put(out, count | IN_FULL);
            out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
    }
}

fn take_waveform(rest: &mut &[u8]) -> Result<Vec<f32>, CompactError> {
    let head = take(rest)?;
    let count = head >> 3;
    // Each reading takes a byte or more.
    if count > READINGS_MAX || count > rest.len() as u64 {
        return Err(CompactError::OutOfBounds);
    }
    let mut values = Vec::with_capacity(count as usize);
    let mut before = 0_i64;
    for _ in 0..count {
        values.push(match SCALES.get((head & 7) as usize) {
            Some(scale) => {
                before = before.wrapping_add(take_signed(rest)?);
                (before as f64 / scale) as f32
            }
            None => f32::from_le_bytes(take_array(rest)?),
        });
    }
    Ok(values)
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_signed(out: &mut Vec<u8>, value: i64) {
    put(out, zigzag(value));
}

fn take(rest: &mut &[u8]) -> Result<u64, CompactError> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first().ok_or(CompactError::Cut)?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(CompactError::OutOfBounds)
}

fn take_signed(rest: &mut &[u8]) -> Result<i64, CompactError> {
    take(rest).map(unzigzag)
}

fn take_array<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], CompactError> {
    let (bytes, after) = rest.split_first_chunk().ok_or(CompactError::Cut)?;
    *rest = after;
    Ok(*bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START_US: i64 = 1_790_000_000_000_000;

    /// One second of six streams, with the jitter of real clocks.
    fn second(number: u64) -> Vec<Sample> {
        let streams = [
            ("oximeter-17", "spo2", "%", 97.0),
            ("oximeter-17", "pulse", "/min", 72.0),
            ("thermo-3", "temperature", "Cel", 36.6),
            ("ecg-patch-9", "heart_rate", "/min", 71.0),
            ("cuff-2", "systolic", "mm[Hg]", 121.0),
            ("cuff-2", "diastolic", "mm[Hg]", 79.0),
        ];
        let time_us = START_US + number as i64 * 1_000_000;
        let jitter = |index: i64| (number as i64 * 7_919 + index * 104_729) % 2_000;
        let samples = (0..)
            .zip(streams)
            .map(|(index, (device, stream, unit, value))| Sample {
                device: device.into(),
                stream: stream.into(),
                unit: unit.into(),
                patient: "patient-12".into(),
                sequence: START_US as u64 + number,
                device_time_us: time_us + jitter(index),
                gateway_time_us: time_us + 3_000 + jitter(index + 1),
                gateway_uptime_us: 900_000_000 + number as i64 * 1_000_000 + jitter(index + 1),
                gateway_boot: 77,
                gateway_behind_us: Some(1_234 + jitter(3) / 20),
                reading: Some(Reading::Value(value + (number % 3) as f64)),
                ..Sample::default()
            });
        samples.collect()
    }

    fn upload(samples: Vec<Sample>) -> UploadRequest {
        UploadRequest {
            position: 5,
            samples,
            ..UploadRequest::default()
        }
    }

    #[test]
    fn six_samples_take_at_most_fifteen_bytes_each_and_come_back_exactly() {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
        for number in 0..100 {
            let meant = upload(second(number));
            let mut request = meant.clone();
            encoder.compact(&mut request);
            assert!(request.samples.is_empty());
            let bytes = request.compact_samples.len();
            assert!(number < 3 || bytes <= 90, "{bytes}");
            assert_eq!(decoder.expand(&mut request), Ok(()));
            assert_eq!(request, meant);
        }
    }

    #[test]
    fn an_electrocardiogram_takes_less_than_its_raw_bits() {
        let values = |number: u32| -> Vec<f32> {
            let wave =
                |n: u32| (f64::from(n) / 9.0).sin() * 40.0 + (f64::from(n) / 70.0).cos() * 300.0;
            (0..250)
                .map(|n| (wave(number * 250 + n).round() / 1_000.0) as f32)
                .collect()
        };
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
        for number in 0..4 {
            let meant = upload(vec![Sample {
                device: "ecg-patch-9".into(),
                stream: "ecg".into(),
                reading: Some(Reading::Waveform(Waveform {
                    period_us: 4_000,
                    values: values(number),
                })),
                ..Sample::default()
            }]);
            let mut request = meant.clone();
            encoder.compact(&mut request);
            let bytes = request.compact_samples.len();
            assert!(bytes <= 350, "{bytes}");
            assert_eq!(decoder.expand(&mut request), Ok(()));
            assert_eq!(request, meant);
        }
    }

    #[test]
    fn odd_readings_and_extreme_fields_come_back_exactly() {
        let readings = [
            0.1,
            -0.0,
            1e300,
            f64::MIN_POSITIVE,
            36.65,
            -40.0,
            f64::INFINITY,
        ];
        let extremes = [i64::MIN, -1, 0, 1, i64::MAX];
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
        let mut samples = Vec::new();
        for value in readings {
            for time in extremes {
                samples.push(Sample {
                    device_time_us: time,
                    gateway_time_us: time.wrapping_neg(),
                    gateway_uptime_us: time / 3,
                    sequence: time as u64,
                    sensor_sequence: Some(time as u64),
                    gateway_behind_us: Some(time),
                    reading: Some(Reading::Value(value)),
                    ..Sample::default()
                });
            }
        }
        samples.push(Sample::default());
        for number in 0..3 {
            samples.push(Sample {
                traceparent: format!("00-{number:032x}-01"),
                ..Sample::default()
            });
        }
        let odd = vec![0.1, f32::MAX, -0.0, 1.0 / 3.0];
        for values in [odd, Vec::new()] {
            samples.push(Sample {
                reading: Some(Reading::Waveform(Waveform {
                    period_us: 1,
                    values,
                })),
                ..Sample::default()
            });
        }
        let meant = upload(samples);
        let mut request = meant.clone();
        encoder.compact(&mut request);
        assert_eq!(decoder.expand(&mut request), Ok(()));
        assert_eq!(request, meant);
    }

    #[test]
    fn damaged_bytes_are_an_error_and_never_more_than_the_bounds() {
        let mut whole = upload(second(1));
        Encoder::default().compact(&mut whole);
        let bytes = whole.compact_samples.clone();
        for length in 1..bytes.len() {
            let mut request = UploadRequest {
                compact_samples: bytes.slice(..length),
                ..UploadRequest::default()
            };
            assert!(Decoder::default().expand(&mut request).is_err(), "{length}");
        }
        for index in 0..bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[index] ^= 0xff;
            let mut request = UploadRequest {
                compact_samples: damaged.into(),
                ..UploadRequest::default()
            };
            // Reading ends for any input.
            let _ = Decoder::default().expand(&mut request);
            assert!(request.samples.len() <= SAMPLES_MAX as usize);
        }
    }

    #[test]
    fn streams_beyond_the_table_stay_as_they_are() {
        let mut encoder = Encoder::default();
        let of = |number: usize| Sample {
            device: format!("device-{number}"),
            ..Sample::default()
        };
        let mut full = upload((0..STREAMS_MAX).map(of).collect());
        encoder.compact(&mut full);
        assert!(full.samples.is_empty());
        let mut more = upload(vec![of(STREAMS_MAX)]);
        encoder.compact(&mut more);
        assert_eq!(more.samples.len(), 1);
        assert!(more.compact_samples.is_empty());
    }
}
