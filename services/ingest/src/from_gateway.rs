//! IngestService: one stream per gateway and class of data.
//!
//! A stream has two halves. The first reads uploads, admits them and hands them to the lanes; the second waits for the lanes in the
//! order of the uploads and acknowledges. Between them are at most [`IN_FLIGHT_MAX`] uploads.

mod entries;

use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use bus::Bus;
use contracts::vitals::{Sample, UploadRequest, UploadResponse};
use parking_lot::Mutex;
use service_kit::{
    Context, Shutdown,
    names::{Bound, Names},
    quota::{Quota, Quotas},
    telemetry::{continue_trace, traceparent},
};
use store::{CallGuard, Followed, QueryError};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming};
use tracing::Instrument;

use crate::{
    admission::{GatewayId, Refusal, STREAMS_PER_DEVICE_MAX},
    alerts::{ALERTS_PER_UPLOAD_MAX, Alerts, Answers},
    answers::{Pending, acknowledge},
    apart::Apart,
    caller::caller,
    duplicates::Duplicates,
    gateway_clocks::GatewayClocks,
    newer::{self, Upload},
    readmission::Readmitted,
    register::Register,
    to_bus::{Lane, Lanes, NotPublished, Records},
};

/// Uploads of one stream that are read and not acknowledged; then the stream is not read, and flow control stops the gateway.
pub(crate) const IN_FLIGHT_MAX: usize = 16;
/// Answers that wait for a slow reader; then acknowledging waits.
const ANSWERS_MAX: usize = 16;
/// Samples, alerts and gaps in one upload; one with more is refused as a whole.
const ENTRIES_MAX: usize = 20_000;
/// Streams of one device in a day; samples of further ones are refused. A device has one for each metric that it measures.
const STREAMS: Bound = Bound {
    names_max: STREAMS_PER_DEVICE_MAX,
    unused: Duration::from_secs(86_400),
};
/// What bounds a gateway beside the constants.
pub struct Bounds {
    /// Of samples and bytes.
    pub quota: Quota,
    /// 0: any number.
    pub alerts_per_s: u64,
    pub apart: Arc<Apart>,
}

pub struct Gateways {
    shared: Arc<Shared>,
}

struct Shared {
    register: Arc<Register>,
    bus: Arc<dyn Bus>,
    lanes: Lanes,
    duplicates: Arc<Mutex<Duplicates>>,
    alerts: Alerts,
    /// Of each device.
    streams: Mutex<Names<String, String>>,
    clocks: GatewayClocks,
    guard: CallGuard,
    quotas: Mutex<Quotas<GatewayId>>,
    apart: Arc<Apart>,
    shutdown: Shutdown,
}

impl Gateways {
    pub fn new(
        register: Arc<Register>,
        bus: Arc<dyn Bus>,
        lanes: Lanes,
        revocations: watch::Receiver<Followed>,
        bounds: Bounds,
        context: &Context,
    ) -> Gateways {
        let Bounds {
            quota,
            alerts_per_s,
            apart,
        } = bounds;
        let shutdown = context.shutdown().clone();
        let duplicates = Arc::<Mutex<Duplicates>>::default();
        let alerts = Alerts::new(
            Arc::clone(&register),
            lanes.clone(),
            Arc::clone(&duplicates),
            alerts_per_s,
            Arc::clone(&apart),
            shutdown.clone(),
        );
        Gateways {
            shared: Arc::new(Shared {
                register,
                bus,
                lanes,
                duplicates,
                alerts,
                streams: Mutex::new(Names::new(STREAMS)),
                clocks: GatewayClocks::new(context.clock().clone()),
                guard: CallGuard::new(revocations),
                quotas: Mutex::new(Quotas::new(quota)),
                apart,
                shutdown,
            }),
        }
    }
}

pub type UploadStream = Pin<Box<dyn Stream<Item = Result<UploadResponse, Status>> + Send>>;

impl Gateways {
    pub fn upload(
        &self,
        request: Request<Streaming<Upload>>,
    ) -> Result<Response<UploadStream>, Status> {
        let shared = &self.shared;
        let (gateway, ended) = caller(request.extensions(), &shared.guard)?;
        let uploads = request.into_inner();
        let (pending, waiting) = mpsc::channel(IN_FLIGHT_MAX);
        let (answers, stream) = mpsc::channel(ANSWERS_MAX);
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            metrics::gauge!("braid_ingest_streams").increment(1.0);
            let acknowledging =
                acknowledge(&shared.duplicates, shared.clocks.own(), waiting, &answers);
            // Also while an upload waits for the bus: as long as one has a place, it takes memory.
            let reading = async {
                tokio::select! {
                    biased;
                    status = ended => Err(status),
                    // What the gateway has given up it sends again by another stream: let in here, too, it would be paid for twice.
                    () = answers.closed() => Ok(()),
                    read = shared.read(&gateway, uploads, pending, &answers) => read,
                }
            };
            let (read, acknowledged) = tokio::join!(reading, acknowledging);
            metrics::gauge!("braid_ingest_streams").decrement(1.0);
            if let Err(status) = read.and(acknowledged) {
                let _ = answers.send(Err(status)).await;
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    /// Warns while the clocks of most gateways contradict the one of this machine.
    pub fn watch_clocks(&self, context: &Context) {
        let (shared, of) = (Arc::clone(&self.shared), context.clone());
        context
            .tasks()
            .spawn(async move { shared.clocks.watch(&of).await });
    }

    /// Once more for an upload that came at `arrived_us`; returns when the bus holds what is admitted.
    pub async fn readmit(
        &self,
        gateway: &GatewayId,
        known: UploadRequest,
        arrived_us: i64,
    ) -> Result<Readmitted, Status> {
        let upload = Upload {
            known,
            whole: None,
            bytes: 0,
        };
        // Without a quota nothing waits.
        let pending = self
            .shared
            .admit(gateway, upload, arrived_us, false)
            .await?;
        for published in pending.published {
            match published.await.unwrap_or(Err(NotPublished::Ending)) {
                Ok(()) => {}
                Err(NotPublished::Ending) => return Err(Status::unavailable("ended before")),
                Err(NotPublished::Refused(reason)) => return Err(Status::internal(reason)),
            }
        }
        let rejections = pending.rejections.into_iter().map(|it| it.reason);
        Ok(Readmitted {
            samples: pending.samples.len(),
            alerts: pending.alerts.len(),
            gaps: pending.gaps,
            apart: pending.apart_count,
            refused: pending.refused.into_iter().chain(rejections).collect(),
        })
    }
}

impl Shared {
    /// Until the gateway ends the stream, the service ends, or an upload cannot be judged.
    async fn read(
        self: &Arc<Self>,
        gateway: &GatewayId,
        mut uploads: Streaming<Upload>,
        pending: mpsc::Sender<Pending>,
        answers: &Answers,
    ) -> Result<(), Status> {
        // Alerts of one upload that wait for the quota. A second upload of the stream that would have some to wait is read further when
        // the first one's have gone, so a stream holds those of one upload at most.
        let mut waiting: Option<JoinHandle<()>> = None;
        loop {
            let upload = tokio::select! {
                biased;
                () = self.shutdown.requested() => return Err(Status::unavailable("ingest ends; send again")),
                // The second half has ended: its status tells why.
                () = pending.closed() => return Ok(()),
                upload = uploads.message() => upload?,
            };
            let Some(mut upload) = upload else {
                return Ok(());
            };
            let span = tracing::info_span!(
                "ingest",
                gateway = gateway.id,
                samples = upload.known.samples.len()
            );
            continue_first_trace(&span, &mut upload.known.samples);
            let behind = waiting.as_ref().is_some_and(|it| !it.is_finished());
            let mut admitted = self
                .admit(gateway, upload, self.clocks.own().now_us(), behind)
                .instrument(span)
                .await?;
            if let Some(taken) = admitted.paced.take() {
                if let Some(waiting) = waiting.take() {
                    // What became of them their own answer says.
                    let _ = waiting.await;
                }
                let (done, published) = oneshot::channel();
                admitted.published.push(published);
                let (shared, gateway) = (Arc::clone(self), gateway.clone());
                let answers = answers.clone();
                waiting = Some(tokio::spawn(async move {
                    let alerts = &shared.alerts;
                    let _ = done.send(alerts.publish_rest(&gateway, taken, &answers).await);
                }));
            }
            if pending.send(admitted).await.is_err() {
                return Ok(());
            }
        }
    }

    /// Returns when the gateway owes nothing more.
    async fn paid(&self, gateway: &GatewayId) -> Result<(), Status> {
        let now = Instant::now();
        let owed = self.quotas.lock().owed(gateway, now);
        if owed.is_first {
            tracing::warn!(
                gateway = gateway.id,
                tenant = gateway.tenant,
                "brings more than its quota and is read more slowly; nothing is lost"
            );
        }
        if owed.wait.is_zero() {
            return Ok(());
        }
        let paid = tokio::time::sleep(owed.wait);
        tokio::select! {
            () = self.shutdown.requested() => {
                return Err(Status::unavailable("ingest ends; send again"));
            }
            () = paid => {}
        }
        metrics::histogram!("braid_ingest_quota_wait_seconds").record(now.elapsed().as_secs_f64());
        Ok(())
    }

    async fn admit(
        &self,
        gateway: &GatewayId,
        upload: Upload,
        arrived_us: i64,
        behind: bool,
    ) -> Result<Pending, Status> {
        let Upload {
            known: upload,
            whole,
            bytes,
        } = upload;
        let entries = upload.samples.len() + upload.alerts.len() + upload.gaps.len();
        if entries > ENTRIES_MAX {
            return Err(Status::invalid_argument(format!(
                "{entries} entries in one upload are more than {ENTRIES_MAX}"
            )));
        }
        let alerts = upload.alerts.len();
        if alerts > ALERTS_PER_UPLOAD_MAX {
            return Err(Status::invalid_argument(format!(
                "{alerts} alerts in one upload are more than {ALERTS_PER_UPLOAD_MAX}"
            )));
        }
        let clock = self.clocks.on_upload(gateway, &upload, arrived_us);
        let mut pending = Pending {
            position: upload.position,
            ..Pending::default()
        };
        // Alerts first, so that they are on their way before anything else of this upload is looked at.
        if !upload.alerts.is_empty() {
            let at = (self.clocks.arrival(arrived_us), clock);
            let mut taken = self.alerts.take(gateway, upload.alerts, at, behind).await?;
            pending.refused.append(&mut taken.refused);
            pending.apart.append(&mut taken.apart);
            if taken.rest.is_empty() {
                pending.published.extend(taken.published);
                pending.alerts = taken.sent;
            } else {
                pending.paced = Some(taken);
            }
        }
        let bulk_entries = upload.samples.len() + upload.gaps.len();
        if bulk_entries > 0 || whole.is_some() {
            self.paid(gateway).await?;
        }
        let is_kept_whole = whole.is_some();
        if let Some(whole) = whole {
            let kept = newer::keep(&self.bus, gateway, whole, &self.shutdown);
            pending.published.push(kept);
        }
        let mut bulk = Records::new();
        // Of now: what waited until here has waited at the gateway.
        let at = (self.clocks.arrival(self.clocks.own().now_us()), clock);
        self.admit_samples(gateway, upload.samples, at, &mut bulk, &mut pending)
            .await?;
        let at = (arrived_us, clock);
        self.admit_gaps(gateway, upload.gaps, at, &mut bulk, &mut pending)
            .await?;
        let apart = std::mem::take(&mut pending.apart);
        pending.apart_count = apart.len();
        if !apart.is_empty() {
            let record = bulk.entry(gateway.id.clone()).or_default();
            record.quarantined = apart;
        }
        // What came before costs nothing, lest a gateway pays for what it sends again after a lost link.
        let new = pending.samples.len() + pending.gaps + pending.apart_count;
        let bytes = if is_kept_whole {
            bytes
        } else {
            bytes * new / bulk_entries.max(1)
        };
        self.quotas.lock().take(gateway, Instant::now(), new, bytes);
        if !bulk.is_empty() {
            pending
                .published
                .push(self.lanes.publish(Lane::Bulk, bulk).await);
        }
        Ok(pending)
    }
}

/// Joins the trace of the first sample that has one, and lets the samples of that trace go on as children of this span.
fn continue_first_trace(span: &tracing::Span, samples: &mut [Sample]) {
    let Some(first) = samples.iter().find(|sample| !sample.traceparent.is_empty()) else {
        return;
    };
    let incoming = first.traceparent.clone();
    continue_trace(span, &incoming);
    let Some(outgoing) = traceparent(span) else {
        return;
    };
    for sample in samples.iter_mut().filter(|s| s.traceparent == incoming) {
        sample.traceparent.clone_from(&outgoing);
    }
}

/// Entries that the protocol gives no index for a refusal are logged here.
pub(crate) fn refuse(kind: &'static str, gateway: &GatewayId, refusal: Refusal) -> String {
    metrics::counter!("braid_ingest_refused_entries_total", "kind" => kind, "reason" => refusal.kind)
        .increment(1);
    tracing::warn!(kind, gateway = gateway.id, %refusal, "refused");
    refusal.reason
}

/// A gateway may be in anybody's hands: where the store is and what it says is for the log.
pub(crate) fn unknown(error: QueryError) -> Status {
    tracing::warn!(%error, "the register does not answer, so an upload cannot be judged");
    Status::unavailable("the register of devices does not answer; send again")
}
