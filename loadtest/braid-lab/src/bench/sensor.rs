//! Time from a sensor's reading to the call of the webhook. The gateway is behind two emulated
//! access networks that lose packets, one of which is also cut.
//!
//! The gateway runs in this process with its networks; proxy, ingest and alerting are processes on
//! real engines. Probes are those of `alerts`, sent to the gateway like a sensor's readings; the
//! gateway's own rules see them first. The time begins before the reading is sent.
//!
//! Beside it the bytes of a patient's vitals are counted, without an alert and while one is open.

use std::time::{Duration, Instant};

use contracts::vitals::gateway_service_client::GatewayServiceClient;
use contracts::vitals::{Metric, RecordRequest, RecordResponse, Sample, sample::Reading};
use emulated_link::LinkControl;
use service_kit::Context;
use service_kit::telemetry::metrics_handle;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::alerts::{Calls, DATED_BACK, PROBES_PER_S, TOO_FAST, receive, times_of};
use super::core::{Core, METRICS};
use super::end_to_end::usual;
use super::line::free_port;
use super::lossy_gateway::LossyGateway;
use crate::failure::{Failure, block_on};

pub(super) const GATEWAY: &str = "home";
const LOSS: f64 = 0.03;
/// Last byte of its addresses on the loopback device.
const ADDRESS: u8 = 77;
const SEED: u64 = 1;
/// Length of a cut of one network.
const CUT: Duration = Duration::from_secs(1);
const WHOLE: Duration = Duration::from_secs(3);
/// A high alert a day, and how long it takes until somebody acknowledges it.
pub(super) const OPEN_A_DAY: Duration = Duration::from_secs(300);
/// Bytes are counted for so long, and before that links and sessions settle.
const COUNTED: Duration = Duration::from_secs(20);
const SETTLE: Duration = Duration::from_secs(20);
/// Sum of all paths and directions.
const PATH_BYTES: &str = "braid_gateway_path_bytes_total{";
/// Readings that wait for the gateway; at the bound the sensor waits.
const REQUESTS_WAITING_MAX: usize = 16;

/// The times of the probes, sorted.
pub(super) struct Measured {
    pub(super) whole: Vec<Duration>,
    pub(super) cut: Vec<Duration>,
    /// Bytes a second of a patient's vitals without an alert, and while one is open.
    pub(super) quiet: f64,
    pub(super) open: f64,
}

pub(super) fn measure(length: Duration) -> Result<Measured, Failure> {
    let calls = Calls::default();
    let url = format!("http://{}/", receive(calls.clone())?);
    let cuts = length.as_secs().clamp(1, 100) as u32;
    let per_cut = (CUT.as_secs_f64() * PROBES_PER_S as f64) as u32;
    let probes = cuts * per_cut;
    block_on(async {
        let mut core = Core::start().await?;
        let listen = free_port()?.to_string();
        core.serve("alerting", &["--listen", &listen, "--webhook", &url])
            .await?;
        core.register(GATEWAY, 2 * probes + 2).await?;
        metrics_handle();
        let mut home = Home::start(&mut core).await?;
        let patient = 2 * probes + 1;
        home.vitals(patient, SETTLE).await?;
        let quiet = home.vitals(patient, COUNTED).await?;
        // The first probe is sent when the connection is established.
        let first = [home.probe(2 * probes).await?];
        times_of(&calls, &first).await?;
        home.vitals(patient, WHOLE).await?;
        let open = home.vitals(patient, COUNTED).await?;
        let mut whole = Vec::new();
        let mut tick = ticks();
        for probe in 0..probes {
            tick.tick().await;
            whole.push(home.probe(probe).await?);
        }
        let mut cut = Vec::new();
        for round in 0..cuts {
            let link = &home.links[round as usize % home.links.len()].clone();
            tokio::time::sleep(WHOLE).await;
            link.set_up(false);
            let mut tick = ticks();
            for probe in 0..per_cut {
                tick.tick().await;
                cut.push(home.probe(probes + round * per_cut + probe).await?);
            }
            link.set_up(true);
        }
        Ok(Measured {
            whole: times_of(&calls, &whole).await?,
            cut: times_of(&calls, &cut).await?,
            quiet,
            open,
        })
    })?
}

pub(super) fn ticks() -> tokio::time::Interval {
    let mut tick = tokio::time::interval(Duration::from_secs(1) / PROBES_PER_S as u32);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tick
}

/// A gateway, its links and a sensor beside it.
pub(super) struct Home {
    pub(super) links: Vec<LinkControl>,
    requests: mpsc::Sender<RecordRequest>,
    answers: Streaming<RecordResponse>,
    request: u64,
    context: Context,
}

impl Home {
    pub(super) async fn start(core: &mut Core) -> Result<Home, Failure> {
        let proxy = core.proxy().await?;
        let gateway =
            LossyGateway::start(core, &proxy.to_string(), GATEWAY, ADDRESS, LOSS, SEED).await?;
        let mut client = GatewayServiceClient::connect(format!("http://{}", gateway.sensors))
            .await
            .map_err(Failure::other)?;
        let (requests, waiting) = mpsc::channel(REQUESTS_WAITING_MAX);
        let answers = client.record(ReceiverStream::new(waiting)).await;
        Ok(Home {
            links: gateway.links,
            requests,
            answers: answers.map_err(Failure::other)?.into_inner(),
            request: 0,
            context: gateway.context,
        })
    }

    /// Six readings a second of one patient, each in a request of its own. Returns how many bytes a
    /// second the paths carried.
    async fn vitals(&mut self, device: u32, length: Duration) -> Result<f64, Failure> {
        let device = format!("{GATEWAY}-{device}");
        let (since, before) = (Instant::now(), path_bytes());
        let mut tick = tokio::time::interval(Duration::from_secs(1) / METRICS.len() as u32);
        let mut metrics = METRICS.into_iter().cycle();
        while since.elapsed() < length {
            tick.tick().await;
            let Some((metric, _, unit)) = metrics.next() else {
                break;
            };
            let sample = Sample {
                device: device.clone(),
                metric: metric.into(),
                unit: unit.to_owned(),
                device_time_us: contracts::now_us(),
                reading: Some(Reading::Value(usual(metric))),
                ..Sample::default()
            };
            self.send(vec![sample]).await?;
        }
        Ok((path_bytes() - before) / since.elapsed().as_secs_f64())
    }

    /// Two readings of one patient, the first dated back; returns the patient and the time of
    /// sending.
    pub(super) async fn probe(&mut self, device: u32) -> Result<(String, Instant), Failure> {
        let device = format!("{GATEWAY}-{device}");
        let now_us = contracts::now_us();
        let reading = |sensor_sequence: u64, device_time_us: i64| Sample {
            device: device.clone(),
            metric: Metric::HeartRate.into(),
            device_time_us,
            sensor_sequence: Some(sensor_sequence),
            reading: Some(Reading::Value(TOO_FAST)),
            ..Sample::default()
        };
        let dated_back = reading(1, now_us - DATED_BACK.as_micros() as i64);
        let sent = Instant::now();
        self.send(vec![dated_back, reading(2, now_us)]).await?;
        Ok((device, sent))
    }

    /// Returns when the gateway has accepted the samples.
    pub(super) async fn send(&mut self, samples: Vec<Sample>) -> Result<(), Failure> {
        self.request += 1;
        let request = RecordRequest {
            request: self.request,
            samples,
        };
        let ended = || Failure::other("the gateway has ended the sensor's stream");
        self.requests.send(request).await.map_err(|_| ended())?;
        let answer = self.answers.message().await.map_err(Failure::other)?;
        let answer = answer.ok_or_else(ended)?;
        match answer.rejections.first() {
            Some(refused) => Err(Failure::other(format!("refused: {}", refused.reason))),
            None => Ok(()),
        }
    }
}

/// Bytes of all paths of the gateway in this process, as its metrics show them.
fn path_bytes() -> f64 {
    let text = metrics_handle().render();
    let lines = text.lines().filter(|line| line.starts_with(PATH_BYTES));
    let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.sum()
}

impl Drop for Home {
    fn drop(&mut self) {
        self.context.shutdown().request();
    }
}
