//! How many samples a second go through the embedded bus and store: publish, consume, write rows
//! with progress.
//!
//! `cargo run --release -p store --example throughput [-- SAMPLES]` prints one line of JSON.
//! `per_cpu_second` divides by the processor time that the process used, so it shows what one core
//! does even on a busy machine. Pin it to one core (`taskset -c 0`) to measure that directly.

#![allow(clippy::unwrap_used)]

use std::{sync::Arc, time::Instant};

use bus::{Bus, EmbeddedBus, EmbeddedOptions, Event, Record, StartAt, Topic};
use contracts::vitals::{Metric, Sample, VitalsRecord, Waveform, sample::Reading};
use prost::Message;
use store::{Claims, SqliteStore, Store, VitalsBatch};

const PATIENTS: u64 = 50;
/// Seconds of data in one upload of a gateway.
const UPLOAD_S: u64 = 10;
const METRICS: [Metric; 7] = [
    Metric::HeartRate,
    Metric::RespirationRate,
    Metric::Spo2,
    Metric::Temperature,
    Metric::SystolicPressure,
    Metric::DiastolicPressure,
    Metric::Ecg,
];

fn sample(patient: u64, metric: Metric, sequence: u64, start_us: i64) -> Sample {
    let time = start_us + sequence.cast_signed() * 1_000_000;
    let reading = if metric == Metric::Ecg {
        Reading::Waveform(Waveform {
            period_us: 4000,
            values: (0..250).map(|n| n as f32 / 250.0).collect(),
        })
    } else {
        Reading::Value(70.0 + (sequence % 10) as f64)
    };
    Sample {
        device: format!("device-{patient}"),
        stream: format!("{metric:?}"),
        sequence,
        metric: metric.number(),
        unit: "/min".into(),
        device_time_us: time,
        gateway_time_us: time + 3000,
        ingest_time_us: time + 60_000,
        reading: Some(reading),
        patient: format!("patient-{patient}"),
        gateway: format!("gateway-{patient}"),
        ..Sample::default()
    }
}

fn cpu_s() -> f64 {
    // utime and stime are the 14th and 15th field, in ticks of 1/100 s.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<f64> = stat
        .rsplit(") ")
        .next()
        .unwrap()
        .split(' ')
        .skip(11)
        .take(2)
        .map(|field| field.parse().unwrap())
        .collect();
    (fields[0] + fields[1]) / 100.0
}

#[tokio::main]
async fn main() {
    let wanted: u64 = std::env::args()
        .nth(1)
        .map_or(350_000, |samples| samples.parse().unwrap());
    let dir = std::env::temp_dir().join(format!("braid-throughput-{}", std::process::id()));
    let bus: Arc<dyn Bus> = Arc::new(EmbeddedBus::open(&dir, EmbeddedOptions::default()).unwrap());
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&dir).unwrap());
    let now_us = std::time::UNIX_EPOCH.elapsed().unwrap().as_micros() as i64;

    // Uploads as ingest would publish them, made before the clock starts.
    let rounds = wanted / (PATIENTS * UPLOAD_S * METRICS.len() as u64) + 1;
    let mut total = 0;
    let mut uploads: Vec<Vec<Record>> = Vec::new();
    for round in 0..rounds {
        let mut records = Vec::new();
        for patient in 0..PATIENTS {
            let mut record = VitalsRecord::default();
            for sequence in round * UPLOAD_S + 1..=(round + 1) * UPLOAD_S {
                for metric in METRICS {
                    record
                        .samples
                        .push(sample(patient, metric, sequence, now_us));
                }
            }
            total += record.samples.len() as u64;
            records.push(Record::new(
                format!("patient-{patient}"),
                record.encode_to_vec(),
            ));
        }
        uploads.push(records);
    }

    let (started, cpu) = (Instant::now(), cpu_s());
    let publisher = tokio::spawn({
        let bus = bus.clone();
        async move {
            for records in uploads {
                bus.publish(Topic::Vitals, records).await.unwrap();
            }
            (started.elapsed().as_secs_f64(), cpu_s() - cpu)
        }
    });
    let claims = Claims::new(bus.clone(), store.clone(), "throughput");
    let start = claims.clone() as Arc<dyn StartAt>;
    let mut consumer = bus
        .subscribe(Topic::Vitals, "throughput", start)
        .await
        .unwrap();
    let mut stored = 0;
    while stored < total {
        let Event::Batch(deliveries) = consumer.next(250).await.unwrap() else {
            continue;
        };
        let mut batch = VitalsBatch::default();
        for delivery in &deliveries {
            let record = VitalsRecord::decode(delivery.value.clone()).unwrap();
            batch.samples.extend(record.samples);
        }
        let written = store
            .write_vitals(Arc::new(batch), claims.progress(&deliveries))
            .await
            .unwrap();
        stored += written.new;
    }
    let (wall, cpu) = (started.elapsed().as_secs_f64(), cpu_s() - cpu);
    let (published_wall, published_cpu) = publisher.await.unwrap();
    drop((consumer, bus, store));
    let bytes = |file: &str| std::fs::metadata(dir.join(file)).map_or(0, |m| m.len());
    println!(
        "{{\"samples\":{total},\"wall_s\":{wall:.2},\"cpu_s\":{cpu:.2},\"per_second\":{:.0},\"per_cpu_second\":{:.0},\
         \"published_wall_s\":{published_wall:.2},\"published_cpu_s\":{published_cpu:.2},\"bus_bytes\":{},\"store_bytes\":{}}}",
        total as f64 / wall,
        total as f64 / cpu,
        bytes("bus.db"),
        bytes("store.db"),
    );
    std::fs::remove_dir_all(&dir).unwrap();
}
