//! Samples through gRPC, ingest and Kafka into TimescaleDB on this machine: the rate over the whole
//! length, and the growth of ingest's memory.
//!
//! Gateways offer a fixed rate above the target. Stored rows count, by ingest's own metric.

use std::time::{Duration, Instant};

use contracts::vitals::Metric;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::core::{Core, Gateway, METRICS};
use crate::failure::{Failure, block_on};

const GATEWAYS: u32 = 8;
const DEVICES: u32 = 200;
/// Devices in one upload.
const UPLOAD_DEVICES: u32 = 10;
const UPLOAD_READINGS: u64 = 10;
/// Rate offered by all gateways together.
const OFFERED_PER_S: u32 = 125_000;
/// Time after which keys and statements are cached, and queues are full.
const SETTLE: Duration = Duration::from_secs(10);
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

pub(super) struct Measured {
    pub(super) stored_per_s: f64,
    /// Ratio of the largest memory in the second half of the time to that in the first.
    pub(super) memory_growth: f64,
}

pub(super) fn measure(length: Duration) -> Result<Measured, Failure> {
    block_on(async {
        let core = Core::start().await?;
        let mut gateways = JoinSet::new();
        for n in 0..GATEWAYS {
            let gateway = core.gateway(&format!("gateway-{n}"), DEVICES).await?;
            gateways.spawn(offer(gateway));
        }
        tokio::time::sleep(SETTLE).await;
        let stored = || core.metric(0, "braid_ingest_stored_rows_total");
        let (before, since) = (stored().await, Instant::now());
        let mut memory = [0.0_f64; 2];
        while since.elapsed() < length {
            let half = &mut memory[usize::from(since.elapsed() > length / 2)];
            *half = half.max(core.memory(0)?);
            tokio::select! {
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
                Some(ended) = gateways.join_next() => {
                    return Err(match ended {
                        Ok(failure) => failure,
                        Err(panic) => Failure::other(panic),
                    });
                }
            }
        }
        let stored_per_s = (stored().await - before) / since.elapsed().as_secs_f64();
        let lag = core.metric(0, "braid_ingest_lag_records").await;
        eprintln!(
            "bench: {stored_per_s:.0} of {OFFERED_PER_S} samples/s stored; {lag:.0} records wait on the bus; ingest takes {:.0}, then {:.0} MiB",
            memory[0], memory[1]
        );
        Ok(Measured {
            stored_per_s,
            memory_growth: memory[1] / memory[0],
        })
    })?
}

/// Uploads at its share of the rate, or as fast as ingest acknowledges.
async fn offer(mut gateway: Gateway) -> Failure {
    let samples = u64::from(UPLOAD_DEVICES) * UPLOAD_READINGS * METRICS.len() as u64;
    let per_s = f64::from(OFFERED_PER_S) / f64::from(GATEWAYS) / samples as f64;
    let mut tick = tokio::time::interval(Duration::from_secs_f64(1.0 / per_s));
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    // A device's turn comes once in this time; its readings fill the time.
    let round = DEVICES / UPLOAD_DEVICES;
    let apart = Duration::from_secs_f64(f64::from(round) / per_s) / UPLOAD_READINGS as u32;
    loop {
        for part in 0..round {
            tick.tick().await;
            let devices = part * UPLOAD_DEVICES..(part + 1) * UPLOAD_DEVICES;
            let readings = gateway.readings(devices, UPLOAD_READINGS, apart, usual);
            if let Err(failure) = gateway.upload(readings).await {
                return failure;
            }
        }
    }
}

/// A value of a healthy patient.
pub(super) fn usual(metric: Metric) -> f64 {
    match metric {
        Metric::HeartRate => 70.0,
        Metric::RespirationRate => 15.0,
        Metric::Spo2 => 97.0,
        Metric::Temperature => 36.8,
        Metric::SystolicPressure => 125.0,
        _ => 80.0,
    }
}
