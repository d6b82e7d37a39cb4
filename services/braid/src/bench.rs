//! `braid bench`: figures of this machine, each beside its target, and beside its reference where the target is a ratio, measured
//! in the same run. What is measured runs as people run it: services are processes, engines are real.

mod alerts;
pub mod bare;
mod core;
mod embedded;
mod end_to_end;
mod fleet;
mod line;
mod publish;
mod sensor;
mod sink;
mod speed;

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode};
use std::time::Duration;

use serde::Serialize;

use crate::process::Failure;

/// Longest wait for anything that a process is to do.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// `braid bench`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  braid bench\n  braid bench --only embedded.samples_per_s --seconds 30\n  braid bench --json > figures.json\n\nKafka and TimescaleDB are started by scripts of Braid's sources: work in them, or name their folder in BRAID_SOURCES."
)]
pub struct BenchCommand {
    /// Measure only this figure, or this group of them, such as `speed`; may be repeated.
    #[arg(long, value_name = "ID")]
    only: Vec<String>,
    /// How long throughput is measured; the target of `end_to_end` is for 300.
    #[arg(long, value_name = "NUMBER", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Gateways of `fleet`, each with two paths and 10 samples/s.
    #[arg(long, value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=5000))]
    gateways: u32,
    /// Where `fleet` draws what became of its samples, second by second.
    #[arg(long, value_name = "FILE", default_value = "target/fleet.svg")]
    plot: PathBuf,
    /// Print a JSON array instead of a table.
    #[arg(long)]
    json: bool,
    /// Where the JSON array is written besides.
    #[arg(long, value_name = "FILE", default_value = "target/bench.json")]
    out: PathBuf,
}

/// One row of the table.
#[derive(Debug, Serialize)]
struct Figure {
    id: &'static str,
    unit: &'static str,
    /// Measured in the same run, where the target is a ratio to it.
    reference: Option<f64>,
    target: Option<f64>,
    measured: f64,
    met: bool,
}

impl Figure {
    fn at_most(id: &'static str, unit: &'static str, measured: f64, target: f64) -> Figure {
        Figure {
            id,
            unit,
            reference: None,
            target: Some(target),
            measured,
            met: measured <= target,
        }
    }

    fn at_least(id: &'static str, unit: &'static str, measured: f64, target: f64) -> Figure {
        Figure {
            met: measured >= target,
            ..Figure::at_most(id, unit, measured, target)
        }
    }

    /// Measured in the same run on what it is compared with.
    fn against(self, reference: f64) -> Figure {
        Figure {
            reference: Some(reference),
            ..self
        }
    }

    fn plain(id: &'static str, unit: &'static str, measured: f64) -> Figure {
        Figure {
            id,
            unit,
            reference: None,
            target: None,
            measured,
            met: true,
        }
    }
}

const IDS: [&str; 18] = [
    "up.first_sample",
    "up.memory",
    "up.drain",
    "embedded.samples_per_s",
    "ingest.sink_vs_copy",
    "ingest.kafka_vs_producer",
    "end_to_end.samples_per_s",
    "end_to_end.memory_growth",
    "alerts.accepted_to_told_p99",
    "alerts.sensor_to_webhook_p99",
    "alerts.sensor_to_webhook_cut_p99",
    "fleet.lost",
    "fleet.doubled",
    "fleet.samples_per_s",
    "fleet.to_ingest_p50",
    "fleet.to_ingest_p99",
    "fleet.handovers",
    "fleet.gateways_per_core",
];
/// Shares of the reference that are asked for.
const SINK_TARGET: f64 = 0.8;
const PUBLISH_TARGET: f64 = 0.7;
const END_TO_END_PER_S: f64 = 100_000.0;
/// Flat: what noise of an allocator may add.
const MEMORY_GROWTH_MAX: f64 = 1.1;
const TOLD_MS_MAX: f64 = 50.0;
/// At 3 % loss on both paths, and while one of them is cut.
const SENSOR_MS_MAX: f64 = 250.0;
const SENSOR_CUT_MS_MAX: f64 = 600.0;

/// Whether `only` is this figure or the group that it belongs to: `speed` names `speed.bulk_up_vs_noq`, `store` what is measured
/// on the database.
fn names(only: &str, id: &str) -> bool {
    if only == "store" {
        return id == IDS[4];
    }
    let rest = id.strip_prefix(only.trim_end_matches('.'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

impl BenchCommand {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let all = || IDS.iter().chain(&speed::IDS);
        if let Some(unknown) = self
            .only
            .iter()
            .find(|only| !all().any(|id| names(only, id)))
        {
            let all: Vec<&str> = all().copied().collect();
            return Err(Failure::other(format!(
                "no figure {unknown:?}; there are {}",
                all.join(", ")
            )));
        }
        if IDS[4..].iter().any(|id| self.wants(id)) {
            // Their scripts start the engines; said before minutes are spent on other figures.
            testkit::sources::file(testkit::kafka::SCRIPT).map_err(Failure::other)?;
        }
        let mut figures = Vec::new();
        if IDS[..3].iter().any(|id| self.wants(id)) {
            eprintln!(
                "bench: braid up with three patients, {} s",
                embedded::SETTLE.as_secs()
            );
            figures.extend(embedded::start_and_end()?);
        }
        if self.wants(IDS[3]) {
            eprintln!("bench: throughput on one core, {} s", self.seconds);
            figures.push(embedded::throughput(Duration::from_secs(self.seconds))?);
        }
        if self.wants(IDS[4]) {
            eprintln!("bench: TimescaleDB's sink beside a raw COPY");
            let measured = sink::measure()?;
            let copy_per_s = measured.copy_per_s();
            let target = SINK_TARGET * copy_per_s;
            let figure = Figure::at_least(IDS[4], "samples/s", measured.sink_per_s(), target);
            figures.push(figure.against(copy_per_s));
        }
        if self.wants(IDS[5]) {
            eprintln!("bench: ingest's way to Kafka beside Kafka's own producer benchmark");
            let measured = publish::measure()?;
            let target = PUBLISH_TARGET * measured.producer_per_s;
            let figure = Figure::at_least(IDS[5], "records/s", measured.ingest_per_s, target);
            figures.push(figure.against(measured.producer_per_s));
        }
        if IDS[6..8].iter().any(|id| self.wants(id)) {
            eprintln!(
                "bench: gRPC, ingest, Kafka, TimescaleDB, {} s",
                self.seconds
            );
            let measured = end_to_end::measure(Duration::from_secs(self.seconds))?;
            figures.push(Figure::at_least(
                IDS[6],
                "samples/s",
                measured.stored_per_s,
                END_TO_END_PER_S,
            ));
            figures.push(Figure::at_most(
                IDS[7],
                "ratio",
                measured.memory_growth,
                MEMORY_GROWTH_MAX,
            ));
        }
        if self.wants(IDS[8]) {
            eprintln!("bench: from upload to webhook, {} s", self.seconds);
            let times = alerts::measure(Duration::from_secs(self.seconds))?;
            figures.push(p99(IDS[8], &times, TOLD_MS_MAX));
        }
        if IDS[9..11].iter().any(|id| self.wants(id)) {
            eprintln!("bench: from sensor to webhook over two lossy paths, then with one cut");
            let measured = sensor::measure(Duration::from_secs(self.seconds))?;
            figures.push(p99(IDS[9], &measured.whole, SENSOR_MS_MAX));
            figures.push(p99(IDS[10], &measured.cut, SENSOR_CUT_MS_MAX));
        }
        if IDS[11..].iter().any(|id| self.wants(id)) {
            eprintln!(
                "bench: {} gateways of people who move, {} s",
                self.gateways, self.seconds
            );
            figures.extend(fleet::figures(
                self.gateways,
                Duration::from_secs(self.seconds),
                &self.plot,
            )?);
        }
        if speed::IDS.iter().any(|id| self.wants(id)) {
            eprintln!("bench: gateway and proxy beside a bare pair of the library");
            figures.extend(speed::measure()?);
        }
        figures.retain(|figure| self.wants(figure.id));
        self.tell(&figures)?;
        Ok(match figures.iter().all(|figure| figure.met) {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }

    fn wants(&self, id: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| names(only, id))
    }

    fn tell(&self, figures: &[Figure]) -> Result<(), Failure> {
        let json = serde_json::to_string_pretty(figures).map_err(Failure::other)?;
        if let Some(folder) = self.out.parent() {
            std::fs::create_dir_all(folder).map_err(|error| unusable(folder, &error))?;
        }
        std::fs::write(&self.out, &json).map_err(|error| unusable(&self.out, &error))?;
        let mut text = String::new();
        if self.json {
            text = json + "\n";
        } else {
            text += &format!(
                "{:<28} {:>12} {:>12} {:>12}  {:<10} {}\n",
                "figure", "reference", "target", "measured", "unit", "met"
            );
            for figure in figures {
                text += &format!(
                    "{:<28} {:>12} {:>12} {:>12}  {:<10} {}\n",
                    figure.id,
                    figure.reference.map_or("-".to_owned(), readable),
                    figure.target.map_or("-".to_owned(), readable),
                    readable(figure.measured),
                    figure.unit,
                    match (figure.target, figure.met) {
                        (None, _) => "",
                        (Some(_), true) => "yes",
                        (Some(_), false) => "NO",
                    }
                );
            }
        }
        std::io::stdout()
            .write_all(text.as_bytes())
            .map_err(Failure::other)
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Of sorted times.
fn p99(id: &'static str, times: &[Duration], target_ms: f64) -> Figure {
    let [p50, p90, p99, longest] = [0.5, 0.9, 0.99, 1.0].map(|q| quantile_ms(times, q));
    eprintln!(
        "bench: {id}: {} alerts, p50 {p50:.1} ms, p90 {p90:.1} ms, p99 {p99:.1} ms, longest {longest:.1} ms",
        times.len()
    );
    Figure::at_most(id, "ms", p99, target_ms)
}

/// Of sorted samples.
fn quantile_ms(samples: &[Duration], share: f64) -> f64 {
    let rank = (samples.len() as f64 * share).ceil() as usize;
    let sample = samples.get(rank.saturating_sub(1));
    sample.map_or(f64::NAN, |sample| sample.as_secs_f64() * 1e3)
}

/// Three significant digits of small values, none behind the point of large ones.
fn readable(value: f64) -> String {
    match value.abs() {
        ..10.0 => format!("{value:.3}"),
        ..1000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Resident memory.
fn memory_mib(child: &Child) -> Result<f64, Failure> {
    let path = format!("/proc/{}/status", child.id());
    let text = std::fs::read_to_string(&path).map_err(|error| unusable(&path, &error))?;
    text.lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok())
        .map(|kib| kib / 1024.0)
        .ok_or_else(|| Failure::other(format!("{path} has no VmRSS")))
}

/// A metric's value, summed over the labels that `name` leaves open; 0 while nobody answers or it does not exist.
async fn metric(admin: SocketAddr, name: &str) -> f64 {
    let text = scrape(admin).await.unwrap_or_default();
    text.lines()
        .filter(|line| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(['{', ' ']))
        })
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

async fn is_ready(admin: SocketAddr) -> bool {
    let answer = ask(admin, "/readyz").await;
    answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 "))
}

async fn scrape(admin: SocketAddr) -> std::io::Result<String> {
    ask(admin, "/metrics").await
}

async fn ask(admin: SocketAddr, path: &str) -> std::io::Result<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(admin).await?;
    stream
        .write_all(
            format!("GET {path} HTTP/1.1\r\nhost: braid\r\nconnection: close\r\n\r\n").as_bytes(),
        )
        .await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

fn unusable(path: impl AsRef<Path>, error: &std::io::Error) -> Failure {
    Failure::other(format!("{}: {error}", path.as_ref().display()))
}
