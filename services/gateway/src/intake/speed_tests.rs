//! Samples that one core takes into the journal: validated, judged by the edge rules, synced to
//! disk.
//!
//! `cargo test --release -p gateway --lib speed -- --ignored --nocapture` prints one JSON line per
//! figure. Counted per second of CPU time of the whole process, so that the writer's thread and the
//! runtime's share one core. `per_wall_second` is the rate that this disk's fsync permits.

use std::{
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use contracts::vitals::{Metric, Sample, sample::Reading};
use vitals::RuleSet;

use crate::{
    clock::Moment,
    edge_rules::EdgeRules,
    intake::{Intake, Patience},
    journal::{Directory, Journal, Limits, Options, Overflow},
};

/// Concurrent requests, and samples of each, like a ward's sensors that report every few seconds.
const WRITERS: usize = 32;
const SAMPLES_PER_REQUEST: usize = 50;
const DURATION: Duration = Duration::from_secs(3);

#[test]
#[ignore = "a measurement, alone on the machine"]
fn samples_of_one_core() {
    let directory = tempfile::tempdir().unwrap();
    let open = |class, overflow| {
        let options = Options {
            class,
            limits: Limits {
                bytes_max: 256 << 20,
                segment_bytes: 4 << 20,
                overflow,
            },
            gather: Duration::ZERO,
        };
        let disk = Directory::open(&directory.path().join(class)).unwrap();
        Journal::open(disk, options).unwrap().0
    };
    let intake = Arc::new(Intake::new(
        "g1".into(),
        open("vitals", Overflow::DropOldest),
        open("alerts", Overflow::Refuse),
        EdgeRules::new(RuleSet::default_set()),
    ));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let cpu = cpu_seconds();
    let start = Instant::now();
    let accepted: usize = runtime.block_on(async {
        let writers =
            (0..WRITERS).map(|writer| tokio::spawn(write(Arc::clone(&intake), writer, start)));
        let mut accepted = 0;
        for writer in writers.collect::<Vec<_>>() {
            accepted += writer.await.unwrap();
        }
        accepted
    });
    let wall = start.elapsed().as_secs_f64();
    let cpu = cpu_seconds() - cpu;
    println!(
        r#"{{"id":"gateway.intake","unit":"samples/core-s","measured":{:.0},"per_wall_second":{:.0},"samples":{accepted},"cpu_s":{cpu:.2}}}"#,
        accepted as f64 / cpu,
        accepted as f64 / wall,
    );
}

async fn write(intake: Arc<Intake<Directory>>, writer: usize, start: Instant) -> usize {
    let mut accepted = 0;
    let mut number = 0;
    while start.elapsed() < DURATION {
        let now = Moment::now();
        let samples = (0..SAMPLES_PER_REQUEST)
            .map(|_| {
                number += 1;
                Sample {
                    device: format!("d{writer}"),
                    metric: Metric::HeartRate.into(),
                    device_time_us: now.wall_us - 1_000 + number as i64 % 1_000,
                    reading: Some(Reading::Value(70.0 + (number % 10) as f64)),
                    sensor_sequence: Some(number),
                    ..Sample::default()
                }
            })
            .collect();
        let recorded = intake
            .record(samples, now, Patience::Wait, None, None)
            .await
            .unwrap();
        assert!(recorded.refused.is_empty());
        accepted += recorded.accepted;
    }
    accepted
}

/// User and system time of all threads, from the 14th and 15th field of /proc/self/stat in ticks of
/// 10 ms.
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    ticks as f64 / 100.0
}
