//! The profile of a simulated patient: identity, sensors, and resting values.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The patient's identity, and the metrics of the sensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    pub device: String,
    /// Empty: only the core knows the wearer of the device.
    pub patient: String,
    pub heart_rate: f64,
    pub respiration_rate: f64,
    pub spo2: f64,
    pub temperature: f64,
    pub systolic: f64,
    pub diastolic: f64,
    pub on_oxygen: bool,
    pub ecg: bool,
    /// Mean time between episodes; zero: only triggered episodes.
    pub episode_interval_s: f64,
}

impl Profile {
    /// A resting adult.
    pub fn adult(device: impl Into<String>) -> Self {
        Self {
            device: device.into(),
            patient: String::new(),
            heart_rate: 68.0,
            respiration_rate: 14.0,
            spo2: 97.5,
            temperature: 36.7,
            systolic: 122.0,
            diastolic: 76.0,
            on_oxygen: false,
            ecg: true,
            episode_interval_s: 900.0,
        }
    }

    /// An adult with the seed's own resting values.
    pub fn varied(seed: u64, device: impl Into<String>) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(3);
        let adult = Self::adult(device);
        Self {
            heart_rate: rng.random_range(58.0..82.0),
            respiration_rate: rng.random_range(12.5..16.5),
            spo2: rng.random_range(96.3..98.8),
            temperature: rng.random_range(36.4..37.1),
            systolic: rng.random_range(112.0..138.0),
            diastolic: rng.random_range(68.0..84.0),
            ..adult
        }
    }
}
