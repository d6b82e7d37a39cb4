//! The core on real engines for a measurement: a Kafka broker, a TimescaleDB that syncs every
//! commit, and each service as a process. Gateways in this process upload to it.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use contracts::vitals::ingest_service_client::IngestServiceClient;
use contracts::vitals::{Metric, Sample, UploadRequest, UploadResponse, sample::Reading};
use service_kit::grpc::channel;
use service_kit::tls::{Identity, IdentityFiles, PeerId};
use store::{DeviceEntry, Register, TimescaleOptions, TimescaleStore};
use testkit::kafka::Cluster;
use testkit::timescale_server::{PASSWORD, ServerOptions, TimescaleServer};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::line::{Process, Scratch, braid, free_port, with_identity};
use super::readings::{PATIENCE, POLL_INTERVAL, is_ready, metric};
use crate::failure::Failure;

/// Unacknowledged uploads of one gateway; at the bound it waits.
const UPLOADS_WAITING_MAX: usize = 16;

pub(super) const METRICS: [(Metric, &str, &str); 6] = [
    (Metric::HeartRate, "heart-rate", "/min"),
    (Metric::RespirationRate, "respiration-rate", "/min"),
    (Metric::Spo2, "spo2", "%"),
    (Metric::Temperature, "temperature", "Cel"),
    (Metric::SystolicPressure, "systolic-pressure", "mm[Hg]"),
    (Metric::DiastolicPressure, "diastolic-pressure", "mm[Hg]"),
];

pub(super) struct Core {
    services: Vec<(Process, SocketAddr)>,
    store: TimescaleStore,
    url: String,
    ingest: SocketAddr,
    brokers: Vec<String>,
    scratch: Scratch,
    // The last field, so that services end before the engines.
    _server: TimescaleServer,
    _cluster: Cluster,
}

impl Core {
    pub(super) async fn start() -> Result<Core, Failure> {
        let cluster = Cluster::start(1, "").ok_or_else(|| Failure::other("Kafka is not here"))?;
        let server = TimescaleServer::start(ServerOptions {
            durable: true,
            ..ServerOptions::default()
        });
        let url = server.database().await;
        let store = TimescaleStore::open(&TimescaleOptions::new(url.clone(), PASSWORD)).await;
        let mut core = Core {
            services: Vec::new(),
            store: store.map_err(Failure::other)?,
            url,
            ingest: free_port()?,
            brokers: cluster.brokers(),
            scratch: Scratch::new()?,
            _server: server,
            _cluster: cluster,
        };
        let listen = core.ingest.to_string();
        // A load gateway stands for many.
        let unlimited = [
            "--gateway-samples-per-s=0",
            "--gateway-bytes-per-s=0",
            "--gateway-alerts-per-s=0",
        ];
        let flags = [&["--listen", &listen], &unlimited[..]].concat();
        core.serve("ingest", &flags).await?;
        Ok(core)
    }

    /// Starts a service on the engines; returns once it is ready.
    pub(super) async fn serve(
        &mut self,
        noun: &'static str,
        flags: &[&str],
    ) -> Result<(), Failure> {
        let admin = free_port()?;
        let mut command = braid()?;
        command
            .args([noun, "--log", "warn", "--admin", &admin.to_string()])
            .args(["--bus", &format!("kafka://{}", self.brokers.join(","))])
            .args(["--bus-replication", "1", "--bus-in-sync-min", "1"])
            .args(["--store", &self.url, "--store-password", PASSWORD])
            .args(flags);
        let id = PeerId::service(noun);
        with_identity(&mut command, &self.scratch.identity(&id)?);
        let process = Process::spawn(noun, &mut command)?;
        self.ready(noun, process, admin).await
    }

    async fn ready(
        &mut self,
        noun: &str,
        mut process: Process,
        admin: SocketAddr,
    ) -> Result<(), Failure> {
        let asked = Instant::now();
        while !is_ready(admin).await {
            process.is_running()?;
            if asked.elapsed() > PATIENCE {
                return Err(Failure::other(format!("{noun} did not become ready")));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        self.services.push((process, admin));
        Ok(())
    }

    /// Memory of the n-th started service; ingest is the first.
    pub(super) fn memory(&self, n: usize) -> Result<f64, Failure> {
        let (process, _) = &self.services[n];
        process.memory()
    }

    pub(super) async fn metric(&self, n: usize, name: &str) -> f64 {
        metric(self.services[n].1, name).await
    }

    /// Devices `<gateway>-0` and so on, each worn by a patient of the same name.
    pub(super) async fn register(&self, gateway: &str, devices: u32) -> Result<(), Failure> {
        for device in 0..devices {
            let name = format!("{gateway}-{device}");
            let entry = DeviceEntry {
                id: name.clone(),
                tenant: store::DEFAULT_TENANT.to_owned(),
                gateway: gateway.to_owned(),
                patient: name,
                registered_us: contracts::now_us(),
            };
            self.store
                .put_device(&entry)
                .await
                .map_err(Failure::other)?;
        }
        Ok(())
    }

    pub(super) fn gateway_identity(&self, id: &str) -> Result<IdentityFiles, Failure> {
        let peer = PeerId::gateway(store::DEFAULT_TENANT, id);
        self.scratch.identity(&peer)
    }

    pub(super) fn store(&self) -> &TimescaleStore {
        &self.store
    }

    /// The folder of this measurement, removed with it.
    pub(super) fn folder(&self) -> &Path {
        self.scratch.path()
    }

    pub(super) fn ingest_url(&self) -> String {
        format!("https://{}", self.ingest)
    }

    /// Starts a proxy that forwards to ingest; returns its address for gateways.
    pub(super) async fn proxy(&mut self) -> Result<SocketAddr, Failure> {
        let (listen, admin) = (free_port()?, free_port()?);
        let mut command = braid()?;
        command
            .args(["proxy", "--path-telemetry", "", "--log", "warn"])
            .args(["--listen", &listen.to_string()])
            .args(["--admin", &admin.to_string()])
            .args(["--allow", &self.ingest.to_string()]);
        let id = PeerId::service("proxy");
        with_identity(&mut command, &self.scratch.identity(&id)?);
        let process = Process::spawn("proxy", &mut command)?;
        self.ready("proxy", process, admin).await?;
        Ok(listen)
    }

    /// A gateway's link to ingest, with this many devices.
    pub(super) async fn gateway(&self, id: &str, devices: u32) -> Result<Gateway, Failure> {
        self.register(id, devices).await?;
        let identity = Identity::load(&self.gateway_identity(id)?).map_err(Failure::other)?;
        let channel = channel(&self.ingest_url(), Some(&identity)).map_err(Failure::other)?;
        let (uploads, waiting) = mpsc::channel(UPLOADS_WAITING_MAX);
        let answers = IngestServiceClient::new(channel)
            .upload(ReceiverStream::new(waiting))
            .await
            .map_err(Failure::other)?
            .into_inner();
        Ok(Gateway {
            id: id.to_owned(),
            // Begins above all earlier numbers, like a gateway.
            sequences: vec![contracts::now_us().cast_unsigned(); devices as usize],
            position: 0,
            uploads,
            answers,
        })
    }
}

/// A gateway's link to ingest.
pub(super) struct Gateway {
    id: String,
    /// The next sequence of each device.
    sequences: Vec<u64>,
    position: u64,
    uploads: mpsc::Sender<UploadRequest>,
    answers: Streaming<UploadResponse>,
}

impl Gateway {
    /// `count` readings of every metric of each device, the last of them now.
    pub(super) fn readings(
        &mut self,
        devices: std::ops::Range<u32>,
        count: u64,
        apart: Duration,
        value: impl Fn(Metric) -> f64,
    ) -> Vec<Sample> {
        let now_us = contracts::now_us();
        let apart_us = apart.as_micros() as i64;
        let mut samples = Vec::with_capacity(devices.len() * count as usize * METRICS.len());
        for device in devices {
            let next = &mut self.sequences[device as usize];
            for n in 0..count {
                let time_us = now_us - (count - 1 - n).cast_signed() * apart_us;
                samples.extend(METRICS.iter().map(|(metric, stream, unit)| Sample {
                    device: format!("{}-{device}", self.id),
                    stream: (*stream).to_owned(),
                    sequence: *next + n,
                    metric: (*metric).into(),
                    unit: (*unit).to_owned(),
                    device_time_us: time_us,
                    gateway_time_us: time_us,
                    reading: Some(Reading::Value(value(*metric))),
                    ..Sample::default()
                }));
            }
            *next += count;
        }
        samples
    }

    /// Waits for a place while too many are unacknowledged.
    pub(super) async fn upload(&mut self, samples: Vec<Sample>) -> Result<(), Failure> {
        self.position += samples.len() as u64;
        let upload = UploadRequest {
            position: self.position,
            samples,
            ..UploadRequest::default()
        };
        let sent = self.uploads.send(upload);
        tokio::select! {
            sent = sent => sent.map_err(|_| Failure::other("ingest has ended the upload")),
            answer = refused(&mut self.answers) => Err(answer),
        }
    }
}

/// Reads acknowledgements; returns when a sample was refused.
async fn refused(answers: &mut Streaming<UploadResponse>) -> Failure {
    loop {
        match answers.message().await {
            Ok(Some(answer)) => {
                if let Some(rejection) = answer.rejections.first() {
                    return Failure::other(format!("refused: {}", rejection.reason));
                }
            }
            Ok(None) => return Failure::other("ingest has ended the upload"),
            Err(status) => return Failure::other(status),
        }
    }
}
