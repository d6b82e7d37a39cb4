//! A patient's device: sends each reading when it is due, stores unsent ones, and sends all of them
//! in one request.

use std::{
    fmt::Write,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{task::JoinHandle, time::Instant};

use super::{clock, http};
use crate::facts::Reading;

/// Interval at which a device looks for due readings.
const LOOK: Duration = Duration::from_millis(200);
/// Wait for a gateway's answer; then the request is repeated.
const ANSWER_WITHIN: Duration = Duration::from_secs(8);
/// Readings in one request, half of a gateway's bound.
const READINGS_MAX: usize = 5_000;
/// Refusals that are kept for the report; further ones are dropped.
const REFUSALS_MAX: usize = 20;

#[derive(Default)]
pub(super) struct Counts {
    pub accepted: AtomicU64,
    /// Answers of gateways that did not accept readings.
    pub refusals: Mutex<Vec<String>>,
}

pub(super) struct Device {
    pub device: String,
    pub gateway: SocketAddr,
    /// Sorted by time.
    pub readings: Vec<Reading>,
    pub is_away: Arc<AtomicBool>,
    /// The register does not know the next wearer yet, so the device sends nothing.
    pub is_held: Arc<AtomicBool>,
    pub counts: Arc<Counts>,
}

impl Device {
    /// Ends when everything is accepted, or at the deadline. Returns the readings, and the number
    /// of accepted ones from the first on.
    pub fn start(self, deadline: Instant) -> JoinHandle<(Vec<Reading>, usize)> {
        tokio::spawn(self.run(deadline))
    }

    async fn run(self, deadline: Instant) -> (Vec<Reading>, usize) {
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut accepted = 0;
        while accepted < self.readings.len() && Instant::now() < deadline {
            look.tick().await;
            let now_us = clock::now_us();
            let due = self
                .readings
                .partition_point(|reading| reading.time_us <= now_us);
            let due = due.min(accepted + READINGS_MAX);
            if due > accepted
                && !self.is_away.load(Ordering::Relaxed)
                && !self.is_held.load(Ordering::Relaxed)
                && self.send(&self.readings[accepted..due]).await
            {
                self.counts
                    .accepted
                    .fetch_add((due - accepted) as u64, Ordering::Relaxed);
                accepted = due;
            }
        }
        (self.readings, accepted)
    }

    /// False: it is unknown whether the gateway has the readings, so they are sent again; their
    /// numbers identify them.
    async fn send(&self, readings: &[Reading]) -> bool {
        let body = lines(&self.device, readings);
        let answer = http::request(self.gateway, "POST", "/v1/samples", &body, ANSWER_WITHIN).await;
        match answer {
            Ok((200, _)) => true,
            // The gateway has no room or no disk, and the device tries again.
            Ok((408 | 429 | 503, _)) | Err(_) => false,
            Ok((status, text)) => {
                let mut refusals = self.counts.refusals.lock();
                if refusals.len() < REFUSALS_MAX {
                    refusals.push(format!("{}: {status} {text}", self.device));
                }
                false
            }
        }
    }
}

/// A reading as the body of a request.
pub(super) fn body(device: &str, reading: &Reading) -> String {
    lines(device, std::slice::from_ref(reading))
}

fn lines(device: &str, readings: &[Reading]) -> String {
    let mut text = String::new();
    for reading in readings {
        let Reading {
            metric,
            number,
            time_us,
            value,
            ..
        } = reading;
        // Thermometers use several units, so a temperature names its own.
        let unit = match *metric {
            "temperature" => ",\"unit\":\"Cel\"",
            _ => "",
        };
        // Writing into a String cannot fail.
        let _ = writeln!(
            text,
            "{{\"device\":\"{device}\",\"metric\":\"{metric}\",\"value\":{value}{unit},\"device_time_us\":{time_us},\"sensor_sequence\":{number}}}"
        );
    }
    text
}
