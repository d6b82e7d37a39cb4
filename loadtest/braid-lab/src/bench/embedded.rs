//! `up.*` and `embedded.*`: starts `braid up` as a separate process on a fresh data directory, as
//! in normal use.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use contracts::vitals::gateway_service_client::GatewayServiceClient;
use contracts::vitals::{Metric, RecordRequest, Sample, sample::Reading};
use tokio::sync::mpsc;

use super::figure::Figure;
use super::line::free_port;
use super::readings::{PATIENCE, POLL_INTERVAL, memory_mib, metric, unusable};
use crate::failure::{Failure, block_on};

/// Figures of the start.
pub(super) const START_IDS: [&str; 3] = ["up.first_sample", "up.memory", "up.drain"];
pub(super) const SAMPLES_PER_S: &str = "embedded.samples_per_s";
/// Target: seconds from the start until the first sample is shown.
const FIRST_SAMPLE_S_MAX: f64 = 3.0;
/// Target: seconds from the request to end until the process has ended.
const DRAIN_S_MAX: f64 = 5.0;
/// Memory is read after this long with patients sending.
pub(super) const SETTLE: Duration = Duration::from_secs(10);
const SAMPLES_PER_REQUEST: u64 = 500;
/// Unanswered requests to the gateway; at the bound the sender waits.
const REQUESTS_WAITING_MAX: usize = 16;

/// A `braid up` under measurement; dropping it kills the process and removes its data.
struct Up {
    child: Child,
    data: PathBuf,
    admin: SocketAddr,
    /// Address for sensors of the first gateway.
    sensors: SocketAddr,
    started: Instant,
}

impl Up {
    /// `core`: the only processor that it may use.
    fn start(name: &str, patients: u32, core: Option<u32>) -> Result<Up, Failure> {
        let data = std::env::temp_dir().join(format!("braid-bench-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&data).map_err(|error| unusable(&data, &error))?;
        let (admin, sensors) = (free_port()?, free_port()?);
        let braid = lab::shipped::braid().map_err(Failure::other)?;
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
            .args(["--listen", "127.0.0.1:0", "--sensors", &sensors.to_string()])
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
            sensors,
            started,
        })
    }

    async fn metric(&self, name: &str) -> f64 {
        metric(self.admin, name).await
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

    fn memory(&self) -> Result<f64, Failure> {
        memory_mib(&self.child)
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

pub(super) fn start_and_end() -> Result<Vec<Figure>, Failure> {
    block_on(async {
        let mut up = Up::start("start", 3, None)?;
        let first = up
            .until(r#"braid_dashboard_records_total{topic="vitals"}"#, 1.0)
            .await?;
        tokio::time::sleep(SETTLE).await;
        let memory = up.memory()?;
        let drain = up.drain().await?;
        let [first_sample_id, memory_id, drain_id] = START_IDS;
        Ok(vec![
            Figure::at_most(
                first_sample_id,
                "s",
                first.as_secs_f64(),
                FIRST_SAMPLE_S_MAX,
            ),
            Figure::plain(memory_id, "MiB", memory),
            Figure::at_most(drain_id, "s", drain.as_secs_f64(), DRAIN_S_MAX),
        ])
    })?
}

/// Samples a second that reach the store while everything, from the sensor's request to the row,
/// shares one core.
pub(super) fn throughput(length: Duration) -> Result<Figure, Failure> {
    block_on(async {
        let mut up = Up::start("throughput", 1, Some(0))?;
        up.until("braid_ingest_stored_rows_total", 1.0).await?;
        let sender = tokio::spawn(pour(up.sensors));
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
        Ok(Figure::plain(SAMPLES_PER_S, "samples/s", per_s))
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
        device_time_us: contracts::now_us(),
        sensor_sequence: Some(sequence + 1),
        reading: Some(Reading::Value(60.0 + (sequence % 20) as f64)),
        ..Sample::default()
    }
}
