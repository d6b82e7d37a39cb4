//! How fast the sink is beside a raw binary COPY of the same rows into the same hypertable: the
//! figure of `braid-lab bench`.
//!
//! The sink is what ingest does: batch after batch, each in two transactions at once, of different
//! partitions and each with its offsets. The raw COPY knows the rows' keys, has encoded them before
//! the clock starts, and is one statement in one transaction. Before each run the hypertable is
//! emptied and has a chunk; runs alternate, and the medians are compared.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bus::Topic;
use contracts::vitals::{Metric, Sample, sample::Reading};

use super::{
    TimescaleOptions, TimescaleStore,
    copy::Rows,
    fault::{self, Fault},
    transaction,
    vitals::{self, COPY_SAMPLES},
};
use crate::{Claim, ProgressStore, VitalsBatch, VitalsStore, WriteError};

const METRICS: [Metric; 6] = [
    Metric::HeartRate,
    Metric::RespirationRate,
    Metric::Spo2,
    Metric::Temperature,
    Metric::SystolicPressure,
    Metric::DiastolicPressure,
];
/// Records of one batch, as ingest takes them.
const BATCH_RECORDS: u64 = 500;
/// Partitions, each written in a transaction of its own.
const PARTITIONS: u32 = 2;

/// The data to write.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub patients: u64,
    /// Seconds of data in one record: six values a second.
    pub record_s: u64,
    pub rows: u64,
    pub rounds: usize,
}

#[derive(Debug, Clone)]
pub struct Measured {
    pub rows: u64,
    pub sink: Vec<Duration>,
    pub copy: Vec<Duration>,
}

impl Measured {
    pub fn sink_per_s(&self) -> f64 {
        self.rows as f64 / median(&self.sink).as_secs_f64()
    }

    pub fn copy_per_s(&self) -> f64 {
        self.rows as f64 / median(&self.copy).as_secs_f64()
    }
}

fn median(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Needs an empty database.
pub async fn sink_vs_copy(options: &TimescaleOptions, shape: Shape) -> Result<Measured, String> {
    let store = TimescaleStore::open(options)
        .await
        .map_err(|e| e.to_string())?;
    // Roll-ups would run beside some of the runs only.
    store.background.abort();
    let batches = batches(shape);
    let samples = |batch: &Batch| batch.iter().map(|b| b.samples.len() as u64).sum::<u64>();
    let rows = batches.iter().map(samples).sum();
    let mut claims = Vec::new();
    let log = bus::Log {
        identity: "bench".to_owned(),
        next: None,
    };
    for partition in 0..PARTITIONS {
        let claim = store.claim("bench", Topic::Vitals, partition, &log).await;
        claims.push(claim.map_err(|e| e.to_string())?);
    }
    let refused = |e: WriteError| e.to_string();
    // Fills the caches of keys and statements.
    sink(&store, &batches[..1], &claims)
        .await
        .map_err(refused)?;
    let mut measured = Measured {
        rows,
        sink: Vec::new(),
        copy: Vec::new(),
    };
    for _ in 0..shape.rounds {
        reset(&store, &batches).await.map_err(refused)?;
        let started = Instant::now();
        sink(&store, &batches, &claims).await.map_err(refused)?;
        measured.sink.push(started.elapsed());
        reset(&store, &batches).await.map_err(refused)?;
        measured
            .copy
            .push(copy(&store, &batches).await.map_err(refused)?);
    }
    Ok(measured)
}

/// By partition.
type Batch = Vec<Arc<VitalsBatch>>;

fn batches(shape: Shape) -> Vec<Batch> {
    let start_us = contracts::now_us();
    let mut batches = Vec::new();
    let mut batch = vec![VitalsBatch::default(); PARTITIONS as usize];
    let (mut rows, mut records, mut second) = (0, 0, 0);
    while rows < shape.rows {
        for patient in 0..shape.patients {
            let part = &mut batch[(patient % u64::from(PARTITIONS)) as usize];
            for at in second..second + shape.record_s {
                let samples = METRICS.iter().map(|m| sample(patient, *m, at, start_us));
                part.samples.extend(samples);
            }
            records += 1;
            rows += shape.record_s * METRICS.len() as u64;
            if records % BATCH_RECORDS == 0 {
                let full = batch.iter_mut().map(std::mem::take);
                batches.push(full.map(Arc::new).collect());
            }
        }
        second += shape.record_s;
    }
    if records % BATCH_RECORDS > 0 {
        batches.push(batch.into_iter().map(Arc::new).collect());
    }
    batches
}

fn sample(patient: u64, metric: Metric, second: u64, start_us: i64) -> Sample {
    let time = start_us + second.cast_signed() * 1_000_000 + patient.cast_signed();
    Sample {
        device: format!("device-{patient}"),
        stream: format!("{metric:?}"),
        sequence: start_us.cast_unsigned() + second,
        metric: metric.number(),
        unit: "/min".into(),
        device_time_us: time,
        gateway_time_us: time + 3000,
        ingest_time_us: time + 60_000,
        reading: Some(Reading::Value(70.0 + (second % 10) as f64)),
        patient: format!("patient-{patient}"),
        gateway: format!("gateway-{patient}"),
        ..Sample::default()
    }
}

async fn sink(
    store: &TimescaleStore,
    batches: &[Batch],
    claims: &[Claim],
) -> Result<(), WriteError> {
    for (offset, batch) in (1..).zip(batches) {
        let parts = batch.iter().zip(claims).map(|(part, claim)| {
            store.write_vitals(Arc::clone(part), vec![claim.progress(offset)])
        });
        for written in futures::future::try_join_all(parts).await? {
            if written.duplicate > 0 {
                return Err(WriteError::Invalid("rows were there before".to_owned()));
            }
        }
    }
    Ok(())
}

/// Nothing stored, and a chunk to store into.
async fn reset(store: &TimescaleStore, batches: &[Batch]) -> Result<(), WriteError> {
    let first = batches.iter().flatten().next().map(|batch| VitalsBatch {
        samples: batch.samples[..1].to_vec(),
        ..VitalsBatch::default()
    });
    transaction!(store, tx => async {
        tx.batch_execute(
            "TRUNCATE samples, stream_runs; UPDATE device_heads SET head = '', stale_from = NULL, stale_to = NULL",
        )
        .await?;
        Ok::<_, Fault>(())
    })?;
    store
        .write_vitals(Arc::new(first.unwrap_or_default()), Vec::new())
        .await?;
    let connection = store.writer().await.map_err(Fault::into_write)?;
    connection
        .batch_execute("DELETE FROM samples; UPDATE device_heads SET head = ''")
        .await
        .map_err(|e| WriteError::Unavailable(fault::explain(&e)))?;
    connection
        .batch_execute("VACUUM device_heads")
        .await
        .map_err(|e| WriteError::Unavailable(fault::explain(&e)))?;
    connection
        .batch_execute("CHECKPOINT")
        .await
        .map_err(|e| WriteError::Unavailable(fault::explain(&e)))
}

async fn copy(store: &TimescaleStore, batches: &[Batch]) -> Result<Duration, WriteError> {
    let mut rows = Rows::new(10);
    for batch in batches.iter().flatten() {
        let sample_keys = store.sample_keys(batch).await.map_err(Fault::into_write)?;
        for (sample, keys) in batch.samples.iter().zip(sample_keys) {
            if let Some(Reading::Value(value)) = sample.reading {
                vitals::value_row(&mut rows, sample, keys, value);
            }
        }
    }
    let rows = parking_lot::Mutex::new(Some(rows));
    let started = Instant::now();
    transaction!(store, tx => async {
        let rows = rows.lock().take();
        match rows {
            Some(rows) => rows.send(tx, COPY_SAMPLES).await,
            None => Err(Fault::Unavailable("the COPY was interrupted".to_owned())),
        }
    })?;
    Ok(started.elapsed())
}
