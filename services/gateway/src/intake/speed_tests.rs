//! Samples that one core takes into the journal: validated, judged by the edge rules, synced to
//! disk. Once in clear, and once encrypted.
//!
//! `cargo test --release -p gateway --lib speed -- --ignored --nocapture` prints one JSON line per
//! figure, measured beside its target. Counted per second of CPU time of the whole process, so that
//! the writer's thread and the runtime's share one core. `per_wall_second` is the rate that this
//! disk's fsync permits. The two kinds take turns, so that a busy machine meets both.

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
    sealing::Keys,
};

/// Concurrent requests, and samples of each, like a ward's sensors that report every few seconds.
const WRITERS: usize = 32;
const SAMPLES_PER_REQUEST: usize = 50;
const DURATION: Duration = Duration::from_secs(2);
const TURNS: usize = 4;
/// Smallest rate of the encrypted journal, as a share of the rate in clear.
const SHARE_MIN: f64 = 0.9;

#[derive(Default)]
struct Rates {
    accepted: usize,
    cpu_s: f64,
    wall_s: f64,
}

impl Rates {
    fn per_core_second(&self) -> f64 {
        self.accepted as f64 / self.cpu_s
    }

    fn print(&self, id: &str) {
        println!(
            r#"{{"id":"{id}","unit":"samples/core-s","measured":{:.0},"per_wall_second":{:.0},"samples":{},"cpu_s":{:.2}}}"#,
            self.per_core_second(),
            self.accepted as f64 / self.wall_s,
            self.accepted,
            self.cpu_s,
        );
    }
}

#[test]
#[ignore = "a measurement, alone on the machine"]
fn samples_of_one_core() {
    let (mut clear, mut encrypted) = (Rates::default(), Rates::default());
    for _ in 0..TURNS {
        measure(&Keys::none(), &mut clear);
        measure(&Keys::new(&[7; 32], b"", true), &mut encrypted);
    }
    clear.print("gateway.intake_in_clear");
    encrypted.print("gateway.intake");
    let share = encrypted.per_core_second() / clear.per_core_second();
    let met = share >= SHARE_MIN;
    println!(
        r#"{{"id":"gateway.intake_encrypted_share","unit":"of the rate in clear","target":{SHARE_MIN},"measured":{share:.3},"met":{met}}}"#
    );
}

fn measure(keys: &Keys, rates: &mut Rates) {
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
        let path = directory.path().join(class);
        let disk = Directory::open(&path, keys.for_folder(class)).unwrap();
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
    rates.accepted += runtime.block_on(async {
        let writers =
            (0..WRITERS).map(|writer| tokio::spawn(write(Arc::clone(&intake), writer, start)));
        let mut accepted = 0;
        for writer in writers.collect::<Vec<_>>() {
            accepted += writer.await.unwrap();
        }
        accepted
    });
    rates.wall_s += start.elapsed().as_secs_f64();
    rates.cpu_s += cpu_seconds() - cpu;
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
