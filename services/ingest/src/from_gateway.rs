//! IngestService: one stream for each gateway and class of data.
//!
//! A stream has two halves. The first reads uploads, admits them and hands them to the lanes. The
//! second waits for the lanes in the order of the uploads and acknowledges. Between them are at
//! most [`IN_FLIGHT_MAX`] uploads.

mod entries;
mod ledgers;
pub(crate) mod newer;
pub(crate) mod server;
mod waiting;

use std::{pin::Pin, sync::Arc, time::Instant};

use bus::Bus;
use contracts::compact::Decoder;
use contracts::vitals::{Sample, UploadRequest, UploadResponse};
use parking_lot::Mutex;
use prost::Message;
use service_kit::{
    Context, Shutdown,
    quota::{Quota, Quotas},
    telemetry::{continue_trace, traceparent},
};
use store::{CallGuard, Followed};
use tokio::sync::{mpsc, watch};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming};
use tracing::Instrument;

use newer::Upload;
use waiting::Waiting;

use crate::{
    admission::GatewayId,
    alerts::{ALERTS_PER_UPLOAD_MAX, Alerts, Answers, Behind},
    answers::{Pending, acknowledge},
    apart::Apart,
    caller::caller,
    duplicates::Duplicates,
    gateway_clocks::GatewayClocks,
    judging::{At, Judging},
    register::Register,
    to_bus::{Lane, Lanes, NotPublished, Records, answer_of},
};

/// Uploads of one stream that are read and not acknowledged. Beyond it the stream is not read, and
/// flow control stops the gateway.
pub(crate) const IN_FLIGHT_MAX: usize = 16;
/// Answers that wait for a slow reader. Beyond it acknowledging waits.
const ANSWERS_MAX: usize = 16;
/// Samples, alerts and gaps in one upload; a larger upload is refused as a whole.
const ENTRIES_MAX: usize = 20_000;
/// Configured bounds of a gateway.
pub(crate) struct Bounds {
    /// Quota of samples and bytes.
    pub quota: Quota,
    /// Alerts a second; 0: no limit.
    pub alerts_per_s: u64,
    pub apart: Arc<Apart>,
}

pub(crate) struct Gateways {
    shared: Arc<Shared>,
}

struct Shared {
    judging: Arc<Judging>,
    bus: Arc<dyn Bus>,
    lanes: Lanes,
    duplicates: Arc<Mutex<Duplicates>>,
    alerts: Arc<Alerts>,
    clocks: GatewayClocks,
    guard: CallGuard,
    quotas: Mutex<Quotas<GatewayId>>,
    shutdown: Shutdown,
}

impl Gateways {
    pub(crate) fn new(
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
        let judging = Arc::new(Judging::new(register, Arc::clone(&duplicates), apart));
        let alerts = Alerts::new(
            Arc::clone(&judging),
            lanes.clone(),
            Arc::clone(&duplicates),
            alerts_per_s,
            shutdown.clone(),
        );
        Gateways {
            shared: Arc::new(Shared {
                judging,
                bus,
                lanes,
                duplicates,
                alerts: Arc::new(alerts),
                clocks: GatewayClocks::new(context.clock().clone()),
                guard: CallGuard::new(revocations),
                quotas: Mutex::new(Quotas::new(quota)),
                shutdown,
            }),
        }
    }
}

pub(crate) type UploadStream = Pin<Box<dyn Stream<Item = Result<UploadResponse, Status>> + Send>>;

impl Gateways {
    pub(crate) fn upload(
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
            // Also while an upload waits for the bus, because a waiting upload takes memory.
            let reading = async {
                tokio::select! {
                    biased;
                    status = ended => Err(status),
                    // The gateway repeats on another stream what it has given up on this one.
                    // Admitted here too, it would count twice against the quota.
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

    /// Warns while the clocks of most gateways contradict the clock of this machine.
    pub(crate) fn watch_clocks(&self, context: &Context) {
        let (shared, of) = (Arc::clone(&self.shared), context.clone());
        context
            .tasks()
            .spawn(async move { shared.clocks.watch(&of).await });
    }

    /// Admits an upload once more that arrived at `arrived_us`; returns when the bus holds the
    /// admitted entries.
    pub(crate) async fn readmit(
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
        // Without a quota no alert waits.
        let pending = self
            .shared
            .admit(gateway, upload, arrived_us, Behind::default())
            .await?;
        for published in pending.published {
            match answer_of(published).await {
                Ok(()) => {}
                Err(NotPublished::Ending) => {
                    return Err(Status::unavailable("ingest ends; send again"));
                }
                Err(NotPublished::Refused(reason)) => return Err(Status::internal(reason)),
            }
        }
        let rejections = pending.rejections.into_iter().map(|it| it.reason);
        Ok(Readmitted {
            samples: pending.samples.len(),
            alerts: pending.alerts,
            gaps: pending.gaps,
            apart: pending.apart_count,
            refused: pending.refused.into_iter().chain(rejections).collect(),
        })
    }
}

impl Shared {
    /// Returns when the gateway ends the stream, the service ends, or an upload cannot be judged.
    async fn read(
        self: &Arc<Self>,
        gateway: &GatewayId,
        mut uploads: Streaming<Upload>,
        pending: mpsc::Sender<Pending>,
        answers: &Answers,
    ) -> Result<(), Status> {
        let mut waiting = Waiting::default();
        let mut decoder = Decoder::default();
        let (mut is_compact, mut has_ledgers) = (false, false);
        loop {
            let upload = tokio::select! {
                biased;
                () = self.shutdown.requested() => return Err(Status::unavailable("ingest ends; send again")),
                // The second half has ended: its status has the reason.
                () = pending.closed() => return Ok(()),
                upload = uploads.message() => upload?,
            };
            let Some(mut upload) = upload else {
                return Ok(());
            };
            if !upload.known.compact_samples.is_empty() {
                is_compact = true;
                let expanded = decoder.expand(&mut upload.known);
                expanded.map_err(|error| Status::invalid_argument(error.to_string()))?;
                // The quota counts what the core handles.
                upload.bytes = upload.known.encoded_len();
            }
            has_ledgers |= upload.known.ledger.is_some();
            let span = tracing::info_span!(
                "ingest",
                gateway = gateway.id,
                samples = upload.known.samples.len()
            );
            continue_first_trace(&span, &mut upload.known.samples);
            waiting.room().await;
            let mut admitted = self
                .admit(
                    gateway,
                    upload,
                    self.clocks.own().now_us(),
                    waiting.behind(),
                )
                .instrument(span)
                .await?;
            admitted.says_takes_compact = !is_compact;
            admitted.says_takes_ledgers = !has_ledgers;
            let alerts = std::mem::take(&mut admitted.waiting);
            let published = waiting.publish(&self.alerts, gateway, alerts, answers);
            admitted.published.extend(published);
            if pending.send(admitted).await.is_err() {
                return Ok(());
            }
        }
    }

    /// Returns when the gateway's quota has room.
    async fn paid(&self, gateway: &GatewayId) -> Result<(), Status> {
        let now = Instant::now();
        let owed = self.quotas.lock().owed(gateway, now);
        if owed.is_first {
            tracing::warn!(
                gateway = gateway.id,
                tenant = gateway.tenant,
                "uploads more than its quota and is read more slowly; nothing is lost"
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
        behind: Behind,
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
        // Alerts come first, so that they are on their way before the other entries are judged.
        if !upload.alerts.is_empty() {
            let arrival = self.clocks.arrival(arrived_us);
            let at = At { arrival, clock };
            let mut taken = self.alerts.take(gateway, upload.alerts, at, behind).await?;
            pending.alerts = taken.count;
            pending.refused.append(&mut taken.refused);
            pending.apart.append(&mut taken.apart);
            pending.published.extend(taken.published);
            pending.waiting = taken.rest;
        }
        let ledgers = usize::from(upload.ledger.is_some());
        let bulk_entries = upload.samples.len() + upload.gaps.len() + ledgers;
        if bulk_entries > 0 || whole.is_some() {
            self.paid(gateway).await?;
        }
        let is_kept_whole = whole.is_some();
        if let Some(whole) = whole {
            let kept = newer::keep(&self.bus, gateway, whole, &self.shutdown);
            pending.published.push(kept);
        }
        let mut bulk = Records::new();
        // The present time: the upload may have waited for the quota since it arrived.
        let arrival = self.clocks.arrival(self.clocks.own().now_us());
        let at = At { arrival, clock };
        let samples = (upload.samples, upload.again);
        self.admit_samples(gateway, samples, at, &mut bulk, &mut pending)
            .await?;
        let arrival = self.clocks.arrival(arrived_us);
        let at = At { arrival, clock };
        self.admit_gaps(gateway, upload.gaps, at, &mut bulk, &mut pending)
            .await?;
        if let Some(ledger) = upload.ledger {
            self.admit_ledger(gateway, ledger, at, &mut bulk, &mut pending)
                .await?;
        }
        let apart = std::mem::take(&mut pending.apart);
        pending.apart_count = apart.len();
        if !apart.is_empty() {
            let record = bulk.entry(gateway.id.clone()).or_default();
            record.quarantined = apart;
        }
        // Repetitions cost nothing, so that a gateway does not pay for a lost link.
        let new = pending.samples.len() + pending.gaps + pending.apart_count + ledgers;
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

/// Joins the trace of the first sample that has one. The samples of that trace continue as children
/// of this span.
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

/// Numbers of published entries, and the reasons for the others.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Readmitted {
    pub samples: usize,
    pub alerts: usize,
    pub gaps: usize,
    /// Entries of no patient, which are kept apart.
    pub apart: usize,
    pub refused: Vec<String>,
}
