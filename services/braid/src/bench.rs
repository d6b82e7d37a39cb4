//! `braid bench`: figures of this machine, each beside its target. Starts `braid up` as a process of its own on a fresh data
//! directory, so that what is measured is what people run.

pub mod bare;
mod line;
mod sink;
mod speed;

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use contracts::vitals::gateway_service_client::GatewayServiceClient;
use contracts::vitals::{Metric, RecordRequest, Sample, sample::Reading};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::process::{Failure, block_on};
use crate::register::now_us;
use crate::up::Addresses;

/// Longest wait for anything that `braid up` is to do.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Memory is read after this long with patients sending.
const SETTLE: Duration = Duration::from_secs(10);
const SAMPLES_PER_REQUEST: u64 = 500;
/// Requests that wait for the gateway's answer; at this many the sender waits.
const REQUESTS_WAITING_MAX: usize = 16;

/// `braid bench`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  braid bench\n  braid bench --only embedded.samples_per_s --seconds 30\n  braid bench --json > figures.json"
)]
pub struct BenchCommand {
    /// Measure only this figure, or this group of them, such as `speed`; may be repeated.
    #[arg(long, value_name = "ID")]
    only: Vec<String>,
    /// How long throughput is measured.
    #[arg(long, value_name = "NUMBER", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
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

const IDS: [&str; 5] = [
    "up.first_sample",
    "up.memory",
    "up.drain",
    "embedded.samples_per_s",
    "ingest.sink_vs_copy",
];

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
        let mut figures = Vec::new();
        if IDS[..3].iter().any(|id| self.wants(id)) {
            eprintln!(
                "bench: braid up with three patients, {} s",
                SETTLE.as_secs()
            );
            figures.extend(start_and_end()?);
        }
        if self.wants(IDS[3]) {
            eprintln!("bench: throughput on one core, {} s", self.seconds);
            figures.push(throughput(Duration::from_secs(self.seconds))?);
        }
        if self.wants(IDS[4]) {
            eprintln!("bench: TimescaleDB's sink beside a raw COPY");
            let measured = sink::measure()?;
            let copy_per_s = measured.copy_per_s();
            let figure =
                Figure::at_least(IDS[4], "samples/s", measured.sink_per_s(), 0.8 * copy_per_s);
            figures.push(figure.against(copy_per_s));
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

/// Three significant digits of small values, none behind the point of large ones.
fn readable(value: f64) -> String {
    match value.abs() {
        ..10.0 => format!("{value:.3}"),
        ..1000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// A `braid up` under measurement; killed and its data removed when dropped.
struct Up {
    child: Child,
    data: PathBuf,
    admin: SocketAddr,
    started: Instant,
}

impl Up {
    /// `core`: the only processor it may run on.
    fn start(name: &str, patients: u32, core: Option<u32>) -> Result<Up, Failure> {
        let data = std::env::temp_dir().join(format!("braid-bench-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&data).map_err(|error| unusable(&data, &error))?;
        // Free a moment ago; somebody who takes it in between makes `braid up` say so and the bench fail.
        let admin = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .map_err(Failure::other)?;
        let braid = std::env::current_exe().map_err(Failure::other)?;
        let mut command = match core {
            Some(core) => {
                let mut pinned = Command::new("taskset");
                pinned.args(["--cpu-list", &core.to_string()]).arg(braid);
                pinned
            }
            None => Command::new(braid),
        };
        command
            .arg("up")
            .arg("--data")
            .arg(&data)
            .args(["--patients", &patients.to_string()])
            .args(["--listen", "127.0.0.1:0", "--sensors", "127.0.0.1:0"])
            .args(["--admin", &admin.to_string()])
            // Figures must not depend on the links of the demonstration.
            .args(["--wifi-mbit-per-s", "1000", "--lte-mbit-per-s", "1000"])
            .stdout(Stdio::null())
            .stdin(Stdio::null());
        let started = Instant::now();
        let child = command
            .spawn()
            .map_err(|error| Failure::other(format!("cannot start braid up: {error}")))?;
        Ok(Up {
            child,
            data,
            admin,
            started,
        })
    }

    /// A metric's value, summed over the labels that `name` leaves open; 0 while nobody answers or it does not exist.
    async fn metric(&self, name: &str) -> f64 {
        let text = scrape(self.admin).await.unwrap_or_default();
        text.lines()
            .filter(|line| {
                line.strip_prefix(name)
                    .is_some_and(|rest| rest.starts_with(['{', ' ']))
            })
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }

    async fn until(&mut self, name: &str, at_least: f64) -> Result<Duration, Failure> {
        loop {
            if self.metric(name).await >= at_least {
                return Ok(self.started.elapsed());
            }
            if let Some(status) = self.child.try_wait().map_err(Failure::other)? {
                return Err(Failure::other(format!("braid up ended: {status}")));
            }
            if self.started.elapsed() > PATIENCE {
                return Err(Failure::other(format!(
                    "{name} did not reach {at_least} within {PATIENCE:?}"
                )));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Resident memory in MiB.
    fn memory(&self) -> Result<f64, Failure> {
        let path = format!("/proc/{}/status", self.child.id());
        let text = std::fs::read_to_string(&path).map_err(|error| unusable(&path, &error))?;
        text.lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok())
            .map(|kib| kib / 1024.0)
            .ok_or_else(|| Failure::other(format!("{path} has no VmRSS")))
    }

    /// Ctrl-C to exit.
    async fn drain(mut self) -> Result<Duration, Failure> {
        let asked = Instant::now();
        let interrupted = Command::new("kill")
            .args(["-INT", &self.child.id().to_string()])
            .status()
            .map_err(Failure::other)?;
        if !interrupted.success() {
            return Err(Failure::other(
                "braid up was gone before it was asked to end",
            ));
        }
        while asked.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().map_err(Failure::other)? {
                return match status.success() {
                    true => Ok(asked.elapsed()),
                    false => Err(Failure::other(format!("braid up drained with {status}"))),
                };
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Err(Failure::other("braid up did not end"))
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

fn start_and_end() -> Result<Vec<Figure>, Failure> {
    block_on(async {
        let mut up = Up::start("start", 3, None)?;
        let first = up
            .until(r#"braid_dashboard_records_total{topic="vitals"}"#, 1.0)
            .await?;
        tokio::time::sleep(SETTLE).await;
        let memory = up.memory()?;
        let drain = up.drain().await?;
        Ok(vec![
            Figure::at_most(IDS[0], "s", first.as_secs_f64(), 3.0),
            Figure::plain(IDS[1], "MiB", memory),
            Figure::at_most(IDS[2], "s", drain.as_secs_f64(), 5.0),
        ])
    })?
}

/// Samples that reach the store in a second when everything, from the sensor's request to the row, shares one core.
fn throughput(length: Duration) -> Result<Figure, Failure> {
    block_on(async {
        let mut up = Up::start("throughput", 1, Some(0))?;
        up.until("braid_ingest_stored_rows_total", 1.0).await?;
        let sensors = Addresses::read(&up.data)?
            .sensors
            .ok_or_else(|| Failure::other("braid up has no gateway"))?;
        let sender = tokio::spawn(pour(sensors));
        // The first second fills the queues.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let before = up.metric("braid_ingest_stored_rows_total").await;
        let since = Instant::now();
        tokio::time::sleep(length).await;
        let rows = up.metric("braid_ingest_stored_rows_total").await - before;
        let per_s = rows / since.elapsed().as_secs_f64();
        if sender.is_finished() {
            return match sender.await {
                Ok(Err(failure)) => Err(failure),
                _ => Err(Failure::other("the sender ended early")),
            };
        }
        sender.abort();
        Ok(Figure::plain(IDS[3], "samples/s", per_s))
    })?
}

/// Sends readings of the guest's sensor as fast as the gateway acknowledges them.
async fn pour(sensors: SocketAddr) -> Result<(), Failure> {
    let mut client = GatewayServiceClient::connect(format!("http://{sensors}"))
        .await
        .map_err(Failure::other)?;
    let (requests, waiting) = mpsc::channel(REQUESTS_WAITING_MAX);
    let mut answers = client
        .record(tokio_stream::wrappers::ReceiverStream::new(waiting))
        .await
        .map_err(Failure::other)?
        .into_inner();
    let feed = async {
        for request in 0_u64.. {
            let samples = (0..SAMPLES_PER_REQUEST)
                .map(|n| reading(request * SAMPLES_PER_REQUEST + n))
                .collect();
            if requests
                .send(RecordRequest { request, samples })
                .await
                .is_err()
            {
                break;
            }
        }
    };
    let check = async {
        while let Some(answer) = answers.message().await.map_err(Failure::other)? {
            if let Some(refused) = answer.rejections.first() {
                return Err(Failure::other(format!("refused: {}", refused.reason)));
            }
        }
        Ok(())
    };
    tokio::select! {
        () = feed => Ok(()),
        outcome = check => outcome,
    }
}

fn reading(sequence: u64) -> Sample {
    Sample {
        device: "guest-sensor".to_owned(),
        metric: Metric::HeartRate.into(),
        device_time_us: now_us(),
        sensor_sequence: Some(sequence + 1),
        reading: Some(Reading::Value(60.0 + (sequence % 20) as f64)),
        ..Sample::default()
    }
}

async fn scrape(admin: SocketAddr) -> std::io::Result<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(admin).await?;
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nhost: braid\r\nconnection: close\r\n\r\n")
        .await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

fn unusable(path: impl AsRef<Path>, error: &std::io::Error) -> Failure {
    Failure::other(format!("{}: {error}", path.as_ref().display()))
}
