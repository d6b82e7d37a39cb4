//! The measurements of `braid-lab bench` in the order of its table, each with its figures and
//! targets.

use std::time::Duration;

use super::command::BenchCommand;
use super::figure::{Figure, quantile_ms};
use super::{
    alerts, drain, embedded, end_to_end, fleet, flood, publish, sensor, sink, speed, through_tun,
};
use crate::failure::Failure;

const SINK: &str = "ingest.sink_vs_copy";
const PUBLISH: &str = "ingest.kafka_vs_producer";
const STORED: &str = "end_to_end.samples_per_s";
const GROWTH: &str = "end_to_end.memory_growth";
const TOLD: &str = "alerts.accepted_to_told_p99";
const HIGH_IN_FLOOD: &str = "alerts.high_beside_10000_open_p99";
const DELIVERIES: &str = "alerts.deliveries_per_second";
const SENSOR: &str = "alerts.sensor_to_webhook_p99";
const SENSOR_CUT: &str = "alerts.sensor_to_webhook_cut_p99";
const COPIES: &str = "alerts.copies_of_month";
const DRAIN: &str = "drain.times_real_time";
const DRAIN_ALERTS: &str = "drain.sensor_to_webhook_p99";

/// Target as a share of the reference.
const SINK_TARGET: f64 = 0.8;
const PUBLISH_TARGET: f64 = 0.7;
const END_TO_END_PER_S: f64 = 100_000.0;
/// Largest growth: noise of the allocator.
const MEMORY_GROWTH_MAX: f64 = 1.1;
/// Target: milliseconds from an accepted upload to the webhook, 99th percentile.
const TOLD_MS_MAX: f64 = 50.0;
/// The same for high alerts while 10,000 others are raised and delivered.
const HIGH_IN_FLOOD_MS_MAX: f64 = 1_000.0;
const DELIVERIES_PER_S: f64 = 500.0;
/// With 3 % loss on both paths, and while one of them is cut.
const SENSOR_MS_MAX: f64 = 40.0;
const SENSOR_CUT_MS_MAX: f64 = 100.0;
/// Backlog of 13 hours without a network, in its own time per time of the drain.
const DRAIN_TIMES_MIN: f64 = 50.0;
/// Alerts meanwhile.
const DRAIN_ALERTS_MS_MAX: f64 = 250.0;
/// More bytes of a month with one high alert a day that is open for [`sensor::OPEN_A_DAY`].
const COPIES_PERCENT_MAX: f64 = 2.0;

/// Figures of one measurement.
pub(super) struct Measurement {
    pub(super) ids: &'static [&'static str],
    /// Whether it needs Kafka or TimescaleDB, which scripts of the sources start.
    pub(super) needs_engines: bool,
    pub(super) measure: fn(&BenchCommand) -> Result<Vec<Figure>, Failure>,
}

impl Measurement {
    const fn new(
        ids: &'static [&'static str],
        needs_engines: bool,
        measure: fn(&BenchCommand) -> Result<Vec<Figure>, Failure>,
    ) -> Measurement {
        Measurement {
            ids,
            needs_engines,
            measure,
        }
    }
}

pub(super) const PLAN: [Measurement; 12] = [
    Measurement::new(&embedded::START_IDS, false, |_| start()),
    Measurement::new(&[embedded::SAMPLES_PER_S], false, throughput),
    Measurement::new(&[SINK], true, |_| sink()),
    Measurement::new(&[PUBLISH], true, |_| publish()),
    Measurement::new(&[STORED, GROWTH], true, end_to_end),
    Measurement::new(&[TOLD], true, told),
    Measurement::new(&[HIGH_IN_FLOOD, DELIVERIES], true, |_| in_flood()),
    Measurement::new(&[SENSOR, SENSOR_CUT, COPIES], true, sensor),
    Measurement::new(&[DRAIN, DRAIN_ALERTS], true, |_| drain()),
    Measurement::new(&fleet::IDS, true, fleet),
    Measurement::new(&speed::IDS, false, |_| speed()),
    Measurement::new(&through_tun::IDS, false, |_| through_tun()),
];

/// Whether `only` is this figure or its group: `speed` names `speed.bulk_up_vs_noq`, `store` the
/// measurements on the database.
pub(super) fn names(only: &str, id: &str) -> bool {
    if only == "store" {
        return id == SINK;
    }
    let rest = id.strip_prefix(only.trim_end_matches('.'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn start() -> Result<Vec<Figure>, Failure> {
    eprintln!(
        "bench: braid up with three patients, {} s",
        embedded::SETTLE.as_secs()
    );
    embedded::start_and_end()
}

fn throughput(command: &BenchCommand) -> Result<Vec<Figure>, Failure> {
    eprintln!("bench: throughput on one core, {} s", command.seconds);
    Ok(vec![embedded::throughput(command.length())?])
}

fn sink() -> Result<Vec<Figure>, Failure> {
    eprintln!("bench: TimescaleDB's sink beside a raw COPY");
    let measured = sink::measure()?;
    let copy_per_s = measured.copy_per_s();
    let target = SINK_TARGET * copy_per_s;
    let figure = Figure::at_least(SINK, "samples/s", measured.sink_per_s(), target);
    Ok(vec![figure.against(copy_per_s)])
}

fn publish() -> Result<Vec<Figure>, Failure> {
    eprintln!("bench: ingest's way to Kafka beside Kafka's own producer benchmark");
    let measured = publish::measure()?;
    let target = PUBLISH_TARGET * measured.producer_per_s;
    let figure = Figure::at_least(PUBLISH, "records/s", measured.ingest_per_s, target);
    Ok(vec![figure.against(measured.producer_per_s)])
}

fn end_to_end(command: &BenchCommand) -> Result<Vec<Figure>, Failure> {
    eprintln!(
        "bench: gRPC, ingest, Kafka, TimescaleDB, {} s",
        command.seconds
    );
    let measured = end_to_end::measure(command.length())?;
    let (stored_per_s, growth) = (measured.stored_per_s, measured.memory_growth);
    Ok(vec![
        Figure::at_least(STORED, "samples/s", stored_per_s, END_TO_END_PER_S),
        Figure::at_most(GROWTH, "ratio", growth, MEMORY_GROWTH_MAX),
    ])
}

fn told(command: &BenchCommand) -> Result<Vec<Figure>, Failure> {
    eprintln!("bench: from upload to webhook, {} s", command.seconds);
    let times = alerts::measure(command.length())?;
    Ok(vec![p99(TOLD, &times, TOLD_MS_MAX)])
}

fn in_flood() -> Result<Vec<Figure>, Failure> {
    eprintln!("bench: from upload to webhook for high alerts beside 10,000 others");
    let measured = flood::measure()?;
    Ok(vec![
        p99(HIGH_IN_FLOOD, &measured.high, HIGH_IN_FLOOD_MS_MAX),
        Figure::at_least(
            DELIVERIES,
            "notices/s",
            measured.deliveries_per_s,
            DELIVERIES_PER_S,
        ),
    ])
}

fn sensor(command: &BenchCommand) -> Result<Vec<Figure>, Failure> {
    eprintln!("bench: from sensor to webhook over two lossy paths, then with one cut");
    let measured = sensor::measure(command.length())?;
    Ok(vec![
        p99(SENSOR, &measured.whole, SENSOR_MS_MAX),
        p99(SENSOR_CUT, &measured.cut, SENSOR_CUT_MS_MAX),
        copies(&measured),
    ])
}

fn drain() -> Result<Vec<Figure>, Failure> {
    eprintln!("bench: drain of 13 hours without a network, with live alerts");
    let measured = drain::measure()?;
    let times = measured.times_real_time;
    Ok(vec![
        Figure::at_least(DRAIN, "times", times, DRAIN_TIMES_MIN),
        p99(DRAIN_ALERTS, &measured.alerts, DRAIN_ALERTS_MS_MAX),
    ])
}

fn copies(measured: &sensor::Measured) -> Figure {
    let sensor::Measured { quiet, open, .. } = measured;
    let share = sensor::OPEN_A_DAY.as_secs_f64() / 86_400.0;
    let percent = (open / quiet - 1.0) * share * 100.0;
    eprintln!(
        "bench: {COPIES}: {quiet:.0} bytes/s without an alert, {open:.0} while one is open, which \
         counts {} s a day",
        sensor::OPEN_A_DAY.as_secs()
    );
    Figure::at_most(COPIES, "%", percent, COPIES_PERCENT_MAX)
}

fn fleet(command: &BenchCommand) -> Result<Vec<Figure>, Failure> {
    eprintln!(
        "bench: {} gateways of people who move, {} s",
        command.gateways, command.seconds
    );
    fleet::figures(command.gateways, command.length(), &command.plot)
}

fn speed() -> Result<Vec<Figure>, Failure> {
    eprintln!("bench: gateway and proxy beside a bare pair of the library");
    speed::measure()
}

fn through_tun() -> Result<Vec<Figure>, Failure> {
    eprintln!("bench: TCP by the gateway's TUN device beside SOCKS5");
    through_tun::measure()
}

/// The times must be sorted.
fn p99(id: &'static str, times: &[Duration], target_ms: f64) -> Figure {
    let [p50, p90, p99, longest] = [0.5, 0.9, 0.99, 1.0].map(|q| quantile_ms(times, q));
    eprintln!(
        "bench: {id}: {} alerts, p50 {p50:.1} ms, p90 {p90:.1} ms, p99 {p99:.1} ms, longest {longest:.1} ms",
        times.len()
    );
    Figure::at_most(id, "ms", p99, target_ms)
}
