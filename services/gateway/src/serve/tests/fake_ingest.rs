//! A fake ingest that records its input and can be told to misbehave.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use contracts::vitals::{
    EdgeAlert, FollowRulesRequest, FollowRulesResponse, Gap, Ledger, Rejection, Sample,
    SequenceRange, UploadRequest, UploadResponse,
    ingest_service_server::{IngestService, IngestServiceServer},
};
use parking_lot::Mutex;
use service_kit::grpc::calls::CallEnd;
use tokio::{net::TcpListener, sync::mpsc, task::JoinHandle};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

#[derive(Default)]
pub struct Got {
    /// By (device, stream, sequence): the number of copies, and the first copy.
    pub samples: BTreeMap<(String, String, u64), (u32, Sample)>,
    pub alerts: BTreeMap<u64, EdgeAlert>,
    pub gaps: Vec<Gap>,
    pub connections: u32,
    /// Drops requests; a stream that lost a request stays silent.
    pub silent: bool,
    /// Ends the stream of the next request, and drops the request.
    pub end_next: bool,
    /// Ends every new stream as that of a revoked gateway.
    pub revoked: bool,
    /// Reads accounts. It then lacks the first sample of each stream, and two before it.
    pub reads_ledgers: bool,
    pub ledgers: Vec<Ledger>,
    /// Refuses samples of this device.
    pub refused_device: String,
}

#[derive(Clone, Default)]
pub struct FakeIngest {
    pub got: Arc<Mutex<Got>>,
}

pub struct Running {
    pub address: SocketAddr,
    pub task: JoinHandle<()>,
}

impl FakeIngest {
    pub async fn start(&self) -> Running {
        self.start_at("127.0.0.1:0".parse().unwrap()).await
    }

    pub async fn start_at(&self, address: SocketAddr) -> Running {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = IngestServiceServer::new(self.clone());
        let task = tokio::spawn(async move {
            tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(TcpListenerStream::new(listener))
                .await
                .unwrap();
        });
        Running { address, task }
    }

    fn take(&self, request: UploadRequest) -> UploadResponse {
        let mut got = self.got.lock();
        let mut rejections = Vec::new();
        for (index, sample) in request.samples.into_iter().enumerate() {
            if sample.device == got.refused_device {
                rejections.push(Rejection {
                    index: index as u32,
                    reason: "device: is not registered for this gateway".into(),
                });
                continue;
            }
            let key = (
                sample.device.clone(),
                sample.stream.clone(),
                sample.sequence,
            );
            let (count, first) = got.samples.entry(key).or_insert((0, sample.clone()));
            *count += 1;
            assert_eq!(*first, sample, "a sequence means two samples");
        }
        for alert in request.alerts {
            got.alerts.insert(alert.sequence, alert);
        }
        got.gaps.extend(request.gaps);
        let missing = request.ledger.iter().flat_map(|it| &it.streams);
        let missing = missing.map(|it| SequenceRange {
            device: it.device.clone(),
            stream: it.stream.clone(),
            first_sequence: it.first_sequence - 2,
            last_sequence: it.first_sequence,
        });
        let missing = missing.collect();
        got.ledgers.extend(request.ledger);
        UploadResponse {
            position: request.position,
            rejections,
            core_time_us: 0,
            takes_ledgers: got.reads_ledgers,
            missing,
            ..UploadResponse::default()
        }
    }
}

#[tonic::async_trait]
impl IngestService for FakeIngest {
    type FollowRulesStream = ReceiverStream<Result<FollowRulesResponse, Status>>;
    type UploadStream = ReceiverStream<Result<UploadResponse, Status>>;

    async fn upload(
        &self,
        request: Request<Streaming<UploadRequest>>,
    ) -> Result<Response<Self::UploadStream>, Status> {
        self.got.lock().connections += 1;
        if self.got.lock().revoked {
            return Err(CallEnd::Revoked.into());
        }
        let mut requests = request.into_inner();
        let (answers, stream) = mpsc::channel(16);
        let ingest = self.clone();
        tokio::spawn(async move {
            // Requests after a dropped one must not be acknowledged: a position covers all before
            // it.
            let mut swallowed = false;
            while let Ok(Some(request)) = requests.message().await {
                swallowed |= ingest.got.lock().silent;
                if swallowed {
                    continue;
                }
                if std::mem::take(&mut ingest.got.lock().end_next) {
                    return;
                }
                if answers.send(Ok(ingest.take(request))).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    /// The answer of an older core.
    async fn follow_rules(
        &self,
        _: Request<FollowRulesRequest>,
    ) -> Result<Response<Self::FollowRulesStream>, Status> {
        Err(Status::unimplemented("IngestService has Upload only"))
    }
}
