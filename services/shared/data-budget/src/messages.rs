//! Sizes of a gateway's messages, measured with the encoder of the product.

use contracts::compact::Encoder;
use contracts::paths::{AccessUse, PathReport, ReportRequest, RuleUse};
use contracts::vitals::{Sample, UploadRequest, UploadResponse, Waveform, sample::Reading};
use prost::Message;

const START_US: i64 = 1_790_000_000_000_000;
/// Uploads that are measured; the result is their mean size.
const UPLOADS: u64 = 100;
/// Uploads at the start that are not measured, because the first sample of each stream on a link
/// carries all fields.
const UPLOADS_BEFORE: u64 = 5;

/// The streams of a patient at home.
const STREAMS: [(&str, &str, &str, f64); 6] = [
    ("oximeter-17", "spo2", "%", 97.0),
    ("oximeter-17", "pulse", "/min", 72.0),
    ("thermometer-3", "temperature", "Cel", 36.6),
    ("ecg-patch-9", "heart_rate", "/min", 71.0),
    ("cuff-2", "systolic", "mm[Hg]", 121.0),
    ("cuff-2", "diastolic", "mm[Hg]", 79.0),
];

/// Clocks jitter by up to 2 ms.
fn jitter(number: u64, salt: u64) -> i64 {
    ((number * 7_919 + salt * 104_729) % 2_000) as i64
}

fn sample(number: u64, index: u64, device: &str, stream: &str, reading: Reading) -> Sample {
    let time_us = START_US + number as i64 * 1_000_000;
    let arrival = 3_000 + jitter(number, index + 1);
    Sample {
        device: device.to_owned(),
        stream: stream.to_owned(),
        patient: "patient-12".to_owned(),
        gateway: "gateway-1".to_owned(),
        sequence: START_US as u64 + number,
        device_time_us: time_us + jitter(number, index),
        gateway_time_us: time_us + arrival,
        gateway_uptime_us: 900_000_000 + number as i64 * 1_000_000 + arrival,
        gateway_boot: 77,
        gateway_behind_us: Some(1_234 + jitter(number, 3) / 20),
        reading: Some(reading),
        ..Sample::default()
    }
}

/// Values of one second. The streams of further devices are like those of the first ones.
fn vitals(number: u64, streams: usize) -> Vec<Sample> {
    let all = (0..streams).zip(STREAMS.iter().cycle());
    let samples = all.map(|(index, (device, stream, unit, value))| {
        let reading = Reading::Value(value + (number % 3) as f64);
        let device = match index / STREAMS.len() {
            0 => (*device).to_owned(),
            further => format!("{device}-{further}"),
        };
        let made = sample(number, index as u64, &device, stream, reading);
        Sample {
            unit: (*unit).to_owned(),
            ..made
        }
    });
    samples.collect()
}

/// Millivolts of a heart at 72 beats a minute, at 16 bits over 10 mV, with noise of the electrode.
pub fn heart_mv(reading: u64) -> f32 {
    let second = reading as f64 / 250.0;
    let beat = (second * 1.2).fract();
    let wave = |at: f64, width: f64, height: f64| height * (-((beat - at) / width).powi(2)).exp();
    let clean = wave(0.2, 0.025, 0.15) - wave(0.37, 0.008, 0.1) + wave(0.4, 0.009, 1.1)
        - wave(0.43, 0.009, 0.2)
        + wave(0.65, 0.05, 0.3);
    let noise = ((reading * 7_919) % 21) as f64 / 2_048.0 - 0.005;
    // 1 / 4,096 mV is half the step of 16 bits over 10 mV.
    (((clean + noise * 0.2) * 4_096.0).round() / 4_096.0) as f32
}

fn electrocardiogram(number: u64) -> Sample {
    let values = (number * 250..(number + 1) * 250).map(heart_mv).collect();
    let reading = Reading::Waveform(Waveform {
        period_us: 4_000,
        values,
    });
    let made = sample(number, 9, "ecg-patch-9", "ecg", reading);
    Sample {
        unit: "mV".to_owned(),
        ..made
    }
}

/// Mean bytes of an upload of so many seconds: values of `streams` each second, and an
/// electrocardiogram.
pub fn upload_bytes(streams: usize, electrocardiogram: bool, seconds: u64) -> usize {
    let of_second = |number: u64| {
        let mut samples = vitals(number, streams);
        if electrocardiogram {
            samples.push(self::electrocardiogram(number));
        }
        samples
    };
    let mut encoder = Encoder::default();
    let mut bytes = 0;
    for number in 0..UPLOADS_BEFORE + UPLOADS {
        let seconds = number * seconds..(number + 1) * seconds;
        let mut request = UploadRequest {
            position: 1_000_000 + number * 600,
            samples: seconds.flat_map(of_second).collect(),
            sent_time_us: START_US,
            sent_uptime_us: 900_000_000,
            sent_boot: 77,
            ..UploadRequest::default()
        };
        encoder.compact(&mut request);
        if number >= UPLOADS_BEFORE {
            bytes += request.encoded_len();
        }
    }
    bytes / UPLOADS as usize
}

pub(crate) fn upload_answer_bytes() -> usize {
    let answer = UploadResponse {
        position: 1_000_000,
        core_time_us: START_US,
        ..UploadResponse::default()
    };
    answer.encoded_len()
}

/// A report of two paths.
pub fn report_bytes() -> usize {
    let report = |path: &str| PathReport {
        gateway: "gateway-1".to_owned(),
        path: path.to_owned(),
        end: 1,
        session: 3,
        path_id: 1,
        state: 2,
        time_us: START_US,
        interval_ms: 300_000,
        sent_bytes: 90_000,
        received_bytes: 70_000,
        sent_packets: 900,
        lost_packets: 1,
        rtt_ms: 31.25,
        rtt_min_ms: 29.5,
        congestion_window_bytes: 14_000,
        local_address: "192.168.178.23".to_owned(),
        remote_address: "203.0.113.17:4433".to_owned(),
        sequence: 900,
        journal_waiting: Some(6),
        journal_filled_permille: Some(1),
        access: Some(AccessUse {
            month_bytes: 900_000_000,
            cap_bytes: Some(5_000_000_000),
            reset_day: 15,
            time_zone: "Europe/Zurich".to_owned(),
            price_per_gb: 4.0,
            rank: 1,
            rules: vec![RuleUse {
                rule: "vitals".to_owned(),
                mode: "priority".to_owned(),
                bytes: 0,
            }],
            ..AccessUse::default()
        }),
        ..PathReport::default()
    };
    let mut first = report("wifi");
    first.rule_uses = vec![RuleUse {
        bytes: 160_000,
        ..RuleUse::default()
    }];
    let request = ReportRequest {
        reports: vec![first, report("lte")],
        sent_time_us: START_US,
    };
    request.encoded_len()
}
