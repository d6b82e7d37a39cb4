//! Sensors that send batches to a gateway without end, each batch until it is acknowledged.
#![allow(clippy::unwrap_used)]

use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::program::{PATIENCE, http};

const SAMPLES_PER_BATCH: u64 = 20;
/// Interval of batches: eight devices make at most 3,200 samples a second; the gateway's fsync sets
/// the real rate.
const PACE: Duration = Duration::from_millis(50);

pub struct Sensors {
    accepted: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Sensors {
    /// One sensor for each device; `heart_rate` is a function of the sample's number.
    pub fn start(to: SocketAddr, devices: &[String], heart_rate: fn(u64) -> u64) -> Sensors {
        let (accepted, stop) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let threads = devices
            .iter()
            .map(|device| {
                sensor(
                    to,
                    device.clone(),
                    heart_rate,
                    accepted.clone(),
                    stop.clone(),
                )
            })
            .collect();
        Sensors {
            accepted,
            stop,
            threads,
        }
    }

    /// Samples that the gateway has accepted.
    pub fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
        self.accepted.load(Ordering::Relaxed)
    }
}

fn sensor(
    to: SocketAddr,
    device: String,
    heart_rate: fn(u64) -> u64,
    accepted: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut number = 0;
        while !stop.load(Ordering::Relaxed) {
            let mut batch = String::new();
            for _ in 0..SAMPLES_PER_BATCH {
                number += 1;
                let value = heart_rate(number);
                writeln!(
                    batch,
                    "{{\"device\":\"{device}\",\"metric\":\"heart-rate\",\"value\":{value},\"device_time_us\":{},\"sensor_sequence\":{number}}}",
                    contracts::now_us(),
                )
                .unwrap();
            }
            let given_up = Instant::now() + PATIENCE;
            loop {
                match http(to, "POST", "/v1/samples", "", &batch) {
                    Ok((200, answer)) => {
                        let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
                        assert_eq!(answer["accepted"], SAMPLES_PER_BATCH, "{answer}");
                        accepted.fetch_add(SAMPLES_PER_BATCH, Ordering::Relaxed);
                        break;
                    }
                    // The gateway was killed in between: the batch may be lost, so it is sent
                    // again.
                    _ => pause(Duration::from_millis(50)),
                }
                assert!(
                    Instant::now() < given_up,
                    "{device}: the gateway did not come back"
                );
            }
            pause(PACE);
        }
    })
}

#[allow(
    clippy::disallowed_methods,
    reason = "a sensor's pace, in a thread of its own"
)]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}
