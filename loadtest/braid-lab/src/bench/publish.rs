//! Ingest's publishing to Kafka against Kafka's own producer benchmark: the same record size,
//! broker and number of partitions, acknowledged by all copies. Runs take turns and the medians are
//! compared. The start of Java and the generation of records do not count.

use std::process::{Command, Stdio};
use std::sync::Arc;

use bus::{Bus, KafkaBus, KafkaOptions, Topic};
use ingest::measure::{Shape, publish};
use testkit::kafka::{Cluster, SCRIPT};
use testkit::sources;

use crate::failure::{Failure, block_on};

/// Gateways that upload every second.
const SHAPE: Shape = Shape {
    gateways: 64,
    record_s: 1,
    records: 96_000,
};
/// Records of one run of Kafka's benchmark: Java needs some seconds to become fast.
const PRODUCER_RECORDS: u64 = 400_000;
const ROUNDS: usize = 3;

/// Records a second.
pub(super) struct Measured {
    pub(super) ingest_per_s: f64,
    pub(super) producer_per_s: f64,
}

pub(super) fn measure() -> Result<Measured, Failure> {
    let cluster = Cluster::start(1, "").ok_or_else(|| Failure::other("Kafka is not here"))?;
    let brokers = cluster.brokers();
    block_on(async {
        let mut options = KafkaOptions::new(brokers.clone());
        (options.replication, options.in_sync_min) = (1, 1);
        let topic = options.topic(Topic::Vitals);
        let bus = KafkaBus::open(options, |reason| eprintln!("bench: {reason}"))
            .await
            .map_err(Failure::other)?;
        let bus: Arc<dyn Bus> = Arc::new(bus);
        let bytes = SHAPE.record_bytes();
        eprintln!(
            "bench: {} records of {bytes} bytes, {ROUNDS} times each",
            SHAPE.records
        );
        let warm_up = Shape {
            records: SHAPE.records / 4,
            ..SHAPE
        };
        publish(&bus, warm_up).await.map_err(Failure::other)?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let took = publish(&bus, SHAPE).await.map_err(Failure::other)?;
            ours.push(SHAPE.records as f64 / took.as_secs_f64());
            theirs.push(producer(&brokers, &topic, bytes)?);
        }
        eprintln!("bench: ingest {ours:.0?}, Kafka's producer {theirs:.0?} records/s");
        Ok(Measured {
            ingest_per_s: super::figure::median(&mut ours),
            producer_per_s: super::figure::median(&mut theirs),
        })
    })?
}

/// Records a second of one run of Kafka's benchmark.
fn producer(brokers: &[String], topic: &str, bytes: usize) -> Result<f64, Failure> {
    let script = sources::file(SCRIPT).map_err(Failure::other)?;
    let output = Command::new(script)
        .args(["tool", "producer-perf", "--topic", topic])
        .args(["--num-records", &PRODUCER_RECORDS.to_string()])
        .args(["--record-size", &bytes.to_string()])
        .args(["--throughput", "-1", "--producer-props", "acks=all"])
        .arg(format!("bootstrap.servers={}", brokers.join(",")))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(Failure::other)?;
    let text = String::from_utf8_lossy(&output.stdout);
    summary(&text).ok_or_else(|| Failure::other(format!("Kafka's benchmark said: {text}")))
}

/// The last line describes the whole run: `50000 records sent, 23148.1 records/sec (11.04 MB/sec),
/// ...`.
fn summary(text: &str) -> Option<f64> {
    let last = text
        .lines()
        .rfind(|line| line.contains(" records sent, "))?;
    let (_, rest) = last.split_once(" records sent, ")?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_kafkas_benchmark_counts() {
        let text = "1000 records sent, 199.6 records/sec (0.10 MB/sec), 2.0 ms avg latency, 9.0 ms max latency.\n\
             5000 records sent, 1234.500000 records/sec (0.60 MB/sec), 1.0 ms avg latency\n";
        assert_eq!(summary(text), Some(1234.5));
        assert_eq!(summary("no broker\n"), None);
    }
}
