//! The harness of an engine, which every check takes, and the samples that checks write.

use std::{fmt::Debug, sync::Arc};

use async_trait::async_trait;
use contracts::vitals::{Metric, Sample, Waveform, sample::Reading};

use crate::{Store, VitalsBatch};

/// An engine without rows.
#[async_trait]
pub trait Harness: Send + Sync {
    async fn start(&self) -> Process;
}

pub struct Process {
    pub store: Arc<dyn Store>,
    /// Ends the store as `kill -9` would.
    pub kill: Box<dyn FnOnce() + Send>,
}

/// Every engine can hold times from here on.
pub const START_US: i64 = 1_780_000_000_000_000;

pub const SECOND_US: i64 = 1_000_000;

/// A log that is as long as a position says.
pub fn log() -> bus::Log {
    bus::Log {
        identity: "a log".to_owned(),
        next: None,
    }
}

/// The value, or the check fails with the error.
#[track_caller]
pub fn ok<T, E: Debug>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|e| panic!("refused: {e:?}"))
}

/// A reading of 60 + sequence at START_US + sequence seconds.
pub fn sample(device: &str, patient: &str, metric: Metric, sequence: u64) -> Sample {
    let time = START_US + sequence.cast_signed() * SECOND_US;
    Sample {
        device: device.into(),
        stream: format!("{metric:?}"),
        sequence,
        metric: metric.number(),
        unit: "/min".into(),
        device_time_us: time,
        gateway_time_us: time + 5,
        gateway_uptime_us: 0,
        gateway_boot: 0,
        gateway_behind_us: None,
        ingest_time_us: time + 70,
        reading: Some(Reading::Value(60.0 + sequence as f64)),
        patient: patient.into(),
        gateway: "gw-1".into(),
        traceparent: String::new(),
        sensor_sequence: None,
        device_offset_us: None,
        original_value: None,
        original_unit: String::new(),
    }
}

pub fn waveform(device: &str, patient: &str, sequence: u64, values: Vec<f32>) -> Sample {
    Sample {
        unit: "mV".into(),
        reading: Some(Reading::Waveform(Waveform {
            period_us: 4000,
            values,
        })),
        ..sample(device, patient, Metric::Ecg, sequence)
    }
}

pub fn batch(samples: Vec<Sample>) -> Arc<VitalsBatch> {
    Arc::new(VitalsBatch {
        samples,
        ..VitalsBatch::default()
    })
}
