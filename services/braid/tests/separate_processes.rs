//! The separate-process shape under load: each service is killed once with SIGKILL and started again; every sample that the gateway
//! accepted is in the store exactly once.
#![allow(clippy::unwrap_used)]

#[path = "support/program.rs"]
mod program;
#[path = "support/separate.rs"]
mod separate;

use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use program::{eventually, http, now_us, rows};
use separate::{NOUNS, Separate};

const DEVICES: usize = 8;
const SAMPLES_PER_BATCH: u64 = 20;
/// Eight devices at this pace make 3,200 samples a second at most; the gateway's fsync sets the real pace.
const PACE: Duration = Duration::from_millis(50);
/// Samples that must be stored after a restart before the next service is killed.
const PROGRESS: u64 = 200;

/// A sensor that sends batches for ever, each until it is acknowledged.
fn sensor(
    to: SocketAddr,
    device: String,
    accepted: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut number = 0;
        while !stop.load(Ordering::Relaxed) {
            let mut batch = String::new();
            for _ in 0..SAMPLES_PER_BATCH {
                number += 1;
                let value = 60 + number % 40;
                writeln!(
                    batch,
                    "{{\"device\":\"{device}\",\"metric\":\"heart-rate\",\"value\":{value},\"device_time_us\":{},\"sensor_sequence\":{number}}}",
                    now_us(),
                )
                .unwrap();
            }
            let given_up = Instant::now() + program::PATIENCE;
            loop {
                match http(to, "POST", "/v1/samples", "", &batch) {
                    Ok((200, answer)) => {
                        let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
                        assert_eq!(answer["accepted"], SAMPLES_PER_BATCH, "{answer}");
                        accepted.fetch_add(SAMPLES_PER_BATCH, Ordering::Relaxed);
                        break;
                    }
                    // Killed in between: nobody knows whether the journal has it, so it goes again.
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
fn pause(time: Duration) {
    std::thread::sleep(time);
}

#[test]
fn killing_each_service_once_loses_and_doubles_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let devices: Vec<String> = (1..=DEVICES)
        .map(|number| format!("sensor-{number}"))
        .collect();
    let mut separate = Separate::prepare(dir.path(), &devices, &[]);
    for noun in NOUNS {
        separate.start(noun);
    }
    let accepted = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let sensors: Vec<JoinHandle<()>> = devices
        .iter()
        .map(|device| {
            sensor(
                separate.sensors(),
                device.clone(),
                accepted.clone(),
                stop.clone(),
            )
        })
        .collect();

    let data = separate.data.clone();
    let stored = || rows(&data, "sensor-%").0;
    eventually("the first rows", || stored() > PROGRESS);
    for noun in NOUNS {
        separate.kill(noun);
        // While it is away the others go on or wait; how far they get does not matter here.
        pause(Duration::from_millis(300));
        separate.start(noun);
        let then = stored();
        eventually(&format!("rows after {noun} was killed"), || {
            stored() >= then + PROGRESS
        });
    }
    eventually("the page", || {
        http(separate.page(), "GET", "/", "", "").is_ok_and(|(status, _)| status == 200)
    });

    stop.store(true, Ordering::Relaxed);
    for sensor in sensors {
        sensor.join().unwrap();
    }
    let accepted = accepted.load(Ordering::Relaxed);
    eventually(&format!("{accepted} accepted samples in the store"), || {
        stored() >= accepted
    });
    let (rows, readings) = rows(&data, "sensor-%");
    println!("accepted {accepted}, stored {rows} rows of {readings} different readings");
    assert_eq!(
        (rows, readings),
        (accepted, accepted),
        "stored and different, of those accepted"
    );
    separate.assert_all_running();
}
