//! Sensors that are worn, and their readings in the store.
#![allow(dead_code, reason = "each test file uses its part")]

use std::sync::Arc;

use contracts::vitals::{Metric, Sample, sample::Reading};
use store::{DeviceEntry, Store, VitalsBatch};

/// A sensor, who wears it, and at which gateway.
#[derive(Clone, Copy)]
pub struct Sensor<'a> {
    pub device: &'a str,
    pub patient: &'a str,
    pub gateway: &'a str,
}

impl<'a> Sensor<'a> {
    /// Patient and gateway have the name of the sensor.
    pub fn named(name: &'a str) -> Sensor<'a> {
        Sensor::worn_by(name, name)
    }

    /// The gateway has the name of the patient.
    pub fn worn_by(patient: &'a str, device: &'a str) -> Sensor<'a> {
        Sensor {
            device,
            patient,
            gateway: patient,
        }
    }

    pub async fn wear(self, store: &dyn Store, from_us: i64) {
        let entry = DeviceEntry {
            id: self.device.into(),
            tenant: "t".into(),
            gateway: self.gateway.into(),
            patient: self.patient.into(),
            registered_us: from_us,
        };
        store.put_device(&entry).await.unwrap();
    }

    fn reading(self, at_us: i64) -> Sample {
        Sample {
            device: self.device.into(),
            patient: self.patient.into(),
            gateway: self.gateway.into(),
            sequence: at_us as u64,
            metric: Metric::HeartRate.into(),
            device_time_us: at_us,
            ingest_time_us: at_us,
            reading: Some(Reading::Value(70.0)),
            ..Sample::default()
        }
    }
}

/// A reading of each sensor, which arrived when it was taken.
pub async fn hear(store: &dyn Store, sensors: impl Iterator<Item = Sensor<'_>>, at_us: i64) {
    let batch = VitalsBatch {
        samples: sensors.map(|sensor| sensor.reading(at_us)).collect(),
        ..VitalsBatch::default()
    };
    store
        .write_vitals(Arc::new(batch), Vec::new())
        .await
        .unwrap();
}
