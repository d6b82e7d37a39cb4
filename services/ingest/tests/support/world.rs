//! Ingest on the embedded engines, a bus that can be stopped, and gateways that upload over TLS.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bus::{Bus, EmbeddedBus, EmbeddedOptions, Interposed, PublishError, Record, Topic};
use contracts::vitals::{
    Metric, Sample, UploadRequest, UploadResponse, VitalsRecord,
    ingest_service_client::IngestServiceClient, sample::Reading,
};
use ingest::Config;
use prost::Message;
use service_kit::{
    Context,
    grpc::channel,
    tls::{Identity, IdentityFiles, PeerId, authority::LocalAuthority},
};
use store::{DEFAULT_TENANT, DeviceEntry, SqliteStore, Store};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

/// Only a failing test reaches this limit.
pub const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Pass,
    /// Records with samples wait until the mode changes.
    HoldSamples,
    /// Records of this patient wait: their partition has no leader.
    HoldPatient(&'static str),
    /// Every publish call is refused as unavailable.
    Down,
    /// Every publish call is refused for good, with [`INSIDE`] as the reason.
    Refuse,
    /// A call panics.
    Broken,
}

/// A detail that callers must not see.
pub const INSIDE: &str = "broker kafka-0.inside:9092";

/// The embedded bus behind a switch.
pub struct Switch {
    pub inner: Arc<EmbeddedBus>,
    pub mode: watch::Sender<Mode>,
    /// Publish calls that met a closed switch.
    pub met: watch::Sender<u32>,
}

#[async_trait]
impl Interposed for Switch {
    fn inner(&self) -> &dyn Bus {
        &*self.inner
    }

    async fn publish(&self, topic: Topic, records: Vec<Record>) -> Result<(), PublishError> {
        let mut mode = self.mode.subscribe();
        let now = *mode.borrow_and_update();
        assert!(now != Mode::Broken, "for the test");
        if now == Mode::Down {
            self.met.send_modify(|met| *met += 1);
            return Err(PublishError::Unavailable("the test has stopped it".into()));
        }
        if now == Mode::Refuse {
            return Err(PublishError::Refused(INSIDE.into()));
        }
        let has_samples = |record: &Record| {
            VitalsRecord::decode(record.value.clone()).is_ok_and(|r| !r.samples.is_empty())
        };
        if now == Mode::HoldSamples && topic == Topic::Vitals && records.iter().any(has_samples) {
            self.met.send_modify(|met| *met += 1);
            mode.wait_for(|mode| *mode != Mode::HoldSamples)
                .await
                .unwrap();
        }
        let is_held = |mode: &Mode| match mode {
            Mode::HoldPatient(patient) => records.iter().any(|record| record.key == *patient),
            _ => false,
        };
        if is_held(&now) {
            mode.wait_for(|mode| !is_held(mode)).await.unwrap();
        }
        self.inner.publish(topic, records).await
    }
}

pub struct World {
    pub dir: tempfile::TempDir,
    pub authority: LocalAuthority,
    files: IdentityFiles,
    pub store: Arc<dyn Store>,
    /// Quota of each gateway; 0: none.
    pub samples_per_s: u64,
    pub alerts_per_s: u64,
}

pub struct Running {
    pub context: Context,
    pub bus: Arc<Switch>,
    task: tokio::task::JoinHandle<Result<(), ingest::RunError>>,
}

impl World {
    /// Devices `belt-0` to `belt-3` of gateway `gw` belong to `patient-0` to `patient-3`. Gateway
    /// `other` has none.
    pub async fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let authority = LocalAuthority::open_or_create(&dir.path().join("identities")).unwrap();
        let files = authority.issue(&PeerId::service("ingest"), &[]).unwrap();
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(dir.path()).unwrap());
        for n in 0..4 {
            store
                .put_device(&DeviceEntry {
                    id: format!("belt-{n}"),
                    tenant: DEFAULT_TENANT.into(),
                    gateway: "gw".into(),
                    patient: format!("patient-{n}"),
                    registered_us: 0,
                })
                .await
                .unwrap();
        }
        World {
            dir,
            authority,
            files,
            store,
            samples_per_s: 0,
            alerts_per_s: 0,
        }
    }

    /// One replica with connections of its own to bus and store.
    pub async fn start(&self) -> Running {
        let config = Config {
            listen: "127.0.0.1:0".parse().unwrap(),
            identity: self.files.clone(),
            front: Default::default(),
            register_refresh_s: 1,
            gateway_samples_per_s: self.samples_per_s,
            canary: false,
            gateway_bytes_per_s: 0,
            gateway_alerts_per_s: self.alerts_per_s,
        };
        let bus = Arc::new(Switch {
            inner: Arc::new(
                EmbeddedBus::open(self.dir.path(), EmbeddedOptions::default()).unwrap(),
            ),
            mode: watch::Sender::new(Mode::Pass),
            met: watch::Sender::new(0),
        });
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(self.dir.path()).unwrap());
        let context = Context::new("ingest");
        let task = tokio::spawn({
            let (bus, context) = (bus.clone(), context.clone());
            async move {
                let ended = ingest::run(config, bus, store, context.clone()).await;
                context.end();
                ended
            }
        });
        Running { context, bus, task }
    }

    pub async fn gateway(&self, running: &Running, id: PeerId) -> Uplink {
        let files = self.authority.issue(&id, &[]).unwrap();
        self.gateway_with(running, &files).await
    }

    pub async fn gateway_with(&self, running: &Running, files: &IdentityFiles) -> Uplink {
        let address = running.context.address("grpc").await.unwrap();
        let identity = Identity::load(files).unwrap();
        let url = format!("https://127.0.0.1:{}", address.port());
        let mut client = IngestServiceClient::new(channel(&url, Some(&identity)).unwrap());
        let (uploads, queue) = mpsc::channel(1);
        let answers = client
            .upload(ReceiverStream::new(queue))
            .await
            .map(tonic::Response::into_inner);
        Uplink { uploads, answers }
    }

    /// A stream of these uploads, unchanged, which ends with the last one.
    pub async fn upload_bytes<const N: usize>(
        &self,
        running: &Running,
        id: PeerId,
        uploads: [Vec<u8>; N],
    ) -> Streaming<UploadResponse> {
        let files = self.authority.issue(&id, &[]).unwrap();
        let address = running.context.address("grpc").await.unwrap();
        let identity = Identity::load(&files).unwrap();
        let url = format!("https://127.0.0.1:{}", address.port());
        let mut client = tonic::client::Grpc::new(channel(&url, Some(&identity)).unwrap());
        client.ready().await.unwrap();
        let request = tonic::Request::new(tokio_stream::iter(uploads));
        let path = "/braid.vitals.v1.IngestService/Upload";
        let path = tonic::codegen::http::uri::PathAndQuery::from_static(path);
        let answers = client.streaming(request, path, AsTheyAre).await.unwrap();
        answers.into_inner()
    }

    /// Waits until this many samples of a stream are stored.
    pub async fn stored(&self, device: &str, count: u64) {
        let wait = async {
            while self.store.stream_count(device, STREAM).await.unwrap().0 < count {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, wait).await.is_err() {
            let (rows, highest) = self.store.stream_count(device, STREAM).await.unwrap();
            panic!("{rows} of {count} samples of {device} are stored, up to {highest}");
        }
    }
}

impl Running {
    pub async fn stop(self) {
        self.context.shutdown().request();
        tokio::time::timeout(PATIENCE, self.task)
            .await
            .expect("it drains")
            .unwrap()
            .unwrap();
    }

    /// Ends it as `kill -9` would.
    pub fn kill(self) {
        self.bus.inner.abandon();
        self.task.abort();
    }
}

pub struct Uplink {
    pub uploads: mpsc::Sender<UploadRequest>,
    pub answers: Result<Streaming<UploadResponse>, Status>,
}

impl Uplink {
    pub async fn send(&self, upload: UploadRequest) {
        tokio::time::timeout(PATIENCE, self.uploads.send(upload))
            .await
            .expect("the stream is read")
            .unwrap();
    }

    pub async fn answer(&mut self) -> UploadResponse {
        let answers = self.answers.as_mut().unwrap();
        tokio::time::timeout(PATIENCE, answers.message())
            .await
            .expect("an answer comes")
            .unwrap()
            .expect("the stream goes on")
    }
}

/// Sends bytes that another version of a gateway has encoded.
#[derive(Default)]
struct AsTheyAre;

impl tonic::codec::Codec for AsTheyAre {
    type Encode = Vec<u8>;
    type Decode = UploadResponse;
    type Encoder = AsTheyAre;
    type Decoder = AsTheyAre;

    fn encoder(&mut self) -> AsTheyAre {
        AsTheyAre
    }

    fn decoder(&mut self) -> AsTheyAre {
        AsTheyAre
    }
}

impl tonic::codec::Encoder for AsTheyAre {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(
        &mut self,
        bytes: Vec<u8>,
        to: &mut tonic::codec::EncodeBuf<'_>,
    ) -> Result<(), Status> {
        prost::bytes::BufMut::put_slice(to, &bytes);
        Ok(())
    }
}

impl tonic::codec::Decoder for AsTheyAre {
    type Item = UploadResponse;
    type Error = Status;

    fn decode(
        &mut self,
        from: &mut tonic::codec::DecodeBuf<'_>,
    ) -> Result<Option<UploadResponse>, Status> {
        Ok(Some(prost::Message::decode(from).unwrap()))
    }
}

pub const STREAM: &str = "heart-rate";

pub fn gateway(id: &str) -> PeerId {
    PeerId::gateway(DEFAULT_TENANT, id)
}

pub fn sample(device: &str, sequence: u64) -> Sample {
    let mut sample = Sample {
        device: device.into(),
        sequence,
        metric: Metric::HeartRate.number(),
        device_time_us: contracts::now_us(),
        gateway_time_us: contracts::now_us(),
        reading: Some(Reading::Value(70.0)),
        ..Sample::default()
    };
    vitals::fill_defaults(&mut sample);
    sample
}

pub fn upload(position: u64, samples: Vec<Sample>) -> UploadRequest {
    UploadRequest {
        position,
        samples,
        ..UploadRequest::default()
    }
}
