//! Measures the way from an admitted upload to the bus for `braid-lab bench`. Uploads of many
//! gateways enter the lane as gateways' streams do, each with a bounded number in flight. An upload
//! counts when the bus holds it.

use std::{sync::Arc, time::Duration, time::Instant};

use bus::Bus;
use contracts::vitals::{Metric, Sample, VitalsRecord, sample::Reading};
use prost::Message;
use service_kit::Context;

use crate::{
    from_gateway::IN_FLIGHT_MAX,
    to_bus::{Lane, Lanes, Records},
};

const METRICS: [Metric; 6] = [
    Metric::HeartRate,
    Metric::RespirationRate,
    Metric::Spo2,
    Metric::Temperature,
    Metric::SystolicPressure,
    Metric::DiastolicPressure,
];

/// The shape of the published data.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Gateways, each with a stream and a patient of its own.
    pub gateways: u64,
    /// Seconds of data in one record: six values a second.
    pub record_s: u64,
    /// Records in all.
    pub records: u64,
}

impl Shape {
    /// Size of one record's value on the bus.
    pub fn record_bytes(self) -> usize {
        record(0, 0, self.record_s).encoded_len()
    }
}

fn record(gateway: u64, second: u64, length_s: u64) -> VitalsRecord {
    let now_us = contracts::now_us();
    let sample = |metric: &Metric, second: u64| Sample {
        device: format!("device-{gateway:04}"),
        stream: format!("{metric:?}"),
        sequence: now_us.cast_unsigned() + second,
        metric: metric.number(),
        unit: "/min".into(),
        device_time_us: now_us,
        gateway_time_us: now_us + 3000,
        ingest_time_us: now_us + 60_000,
        reading: Some(Reading::Value(70.0 + (second % 10) as f64)),
        patient: format!("patient-{gateway:04}"),
        gateway: format!("gateway-{gateway:04}"),
        ..Sample::default()
    };
    let samples = (second..second + length_s)
        .flat_map(|second| METRICS.iter().map(move |metric| sample(metric, second)));
    VitalsRecord {
        samples: samples.collect(),
        ..VitalsRecord::default()
    }
}

/// Publishes all records and returns the time until the bus held the last one.
pub async fn publish(bus: &Arc<dyn Bus>, shape: Shape) -> Result<Duration, String> {
    let context = Context::new("ingest");
    let lanes = Lanes::start(bus, &context);
    let each = shape.records / shape.gateways.max(1);
    // Made before the measurement starts, because uploads arrive decoded.
    let uploads: Vec<Vec<VitalsRecord>> = (0..shape.gateways)
        .map(|gateway| {
            let seconds = (0..each).map(|n| n * shape.record_s);
            seconds
                .map(|second| record(gateway, second, shape.record_s))
                .collect()
        })
        .collect();
    let started = Instant::now();
    let mut streams = tokio::task::JoinSet::new();
    for (gateway, uploads) in (0_u64..).zip(uploads) {
        let lanes = lanes.clone();
        streams.spawn(async move {
            let mut waiting = std::collections::VecDeque::new();
            for record in uploads {
                if waiting.len() >= IN_FLIGHT_MAX
                    && let Some(first) = waiting.pop_front()
                {
                    held(first).await?;
                }
                let records = Records::from([(format!("patient-{gateway:04}"), record)]);
                waiting.push_back(lanes.publish(Lane::Bulk, records).await);
            }
            for left in waiting {
                held(left).await?;
            }
            Ok::<(), String>(())
        });
    }
    while let Some(ended) = streams.join_next().await {
        ended.map_err(|e| e.to_string())??;
    }
    let took = started.elapsed();
    drop(lanes);
    context.drain_tasks().await;
    Ok(took)
}

async fn held(
    published: tokio::sync::oneshot::Receiver<Result<(), crate::to_bus::NotPublished>>,
) -> Result<(), String> {
    match published.await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(refused)) => Err(format!("{refused:?}")),
        Err(_) => Err("the lane has ended".to_owned()),
    }
}
