//! Path reports of gateways and proxies: one service takes both, checks each report, and
//! acknowledges it once the bus has it.

use std::{sync::Arc, time::Instant};

use bus::PublishError;
use clocks::{CheckedClock, ClockError, Clocks, Sent};
use contracts::{
    paths::{
        PathReport, ReportRequest, ReportResponse,
        path_telemetry_service_server::{PathTelemetryService, PathTelemetryServiceServer},
    },
    policy::policy_service_server::PolicyServiceServer,
};
use parking_lot::Mutex;
use service_kit::{
    Context,
    grpc::Peer,
    tls::{GatewayId, PeerId},
};
use store::{CallGuard, Followed};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::{
    bounds::Bounds,
    filling::Filling,
    from_proxy,
    owners::Owners,
    report::{AGE_US_MAX, Refused, Reporter},
    series::Series,
    to_bus::Publisher,
};

/// Reports of one request; a larger request is refused. A proxy sends at most 500.
pub(crate) const REPORTS_MAX: usize = 1024;
/// Bytes of one request; a larger request is refused before it is decoded.
const MESSAGE_BYTES_MAX: usize = 512 << 10;
/// Acknowledgements that wait for a slow reader; at the bound the stream is not read.
const ANSWERS_MAX: usize = 16;

impl From<Refused> for Status {
    fn from(refused: Refused) -> Status {
        match refused {
            Refused::NotYours { .. } | Refused::Anothers { .. } => {
                Status::permission_denied(refused.to_string())
            }
            Refused::Invalid { .. } => Status::invalid_argument(refused.to_string()),
        }
    }
}

pub(crate) mod policy;

/// The gRPC services of this listener.
pub(crate) fn routes(reports: Reports, policies: policy::Policies) -> tonic::service::Routes {
    let reports =
        PathTelemetryServiceServer::new(reports).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let mut routes = tonic::service::RoutesBuilder::default();
    routes
        .add_service(reports)
        .add_service(PolicyServiceServer::new(policies));
    routes.routes()
}

/// Serves the streams of reports.
pub(crate) struct Reports {
    publisher: Publisher,
    clocks: Arc<Mutex<Clocks>>,
    allow: Vec<String>,
    owners: Owners,
    bounds: Arc<Mutex<Bounds>>,
    series: Arc<Mutex<Series>>,
    filling: Arc<Mutex<Filling>>,
    guard: CallGuard,
    context: Context,
}

impl Reports {
    pub(crate) fn new(
        publisher: Publisher,
        allow: Vec<String>,
        owners: Owners,
        bounds: Arc<Mutex<Bounds>>,
        revocations: watch::Receiver<Followed>,
        context: Context,
    ) -> Reports {
        Reports {
            publisher,
            clocks: Arc::default(),
            allow,
            owners,
            bounds,
            series: Arc::default(),
            filling: Arc::default(),
            guard: CallGuard::new(revocations),
            context,
        }
    }

    fn reporter<T>(&self, request: &Request<T>) -> Result<Reporter, Status> {
        match request
            .extensions()
            .get::<Peer>()
            .and_then(|peer| peer.id.as_ref())
        {
            Some(PeerId::Gateway(gateway)) => Ok(Reporter::Gateway(gateway.clone())),
            Some(PeerId::Service { noun }) if self.allow.contains(noun) => {
                Ok(Reporter::Proxy(noun.clone()))
            }
            Some(id) => Err(Status::permission_denied(format!(
                "{id} may not report paths"
            ))),
            None => Err(Status::unauthenticated("a client certificate is needed")),
        }
    }
}

#[tonic::async_trait]
impl PathTelemetryService for Reports {
    type ReportStream = ReceiverStream<Result<ReportResponse, Status>>;

    async fn report(
        &self,
        request: Request<Streaming<ReportRequest>>,
    ) -> Result<Response<Self::ReportStream>, Status> {
        let reporter = self.reporter(&request)?;
        let peer = request.extensions().get::<Peer>().cloned();
        let (id, certificate) = peer.map_or((None, None), |peer| (peer.id, peer.certificate));
        let ended = self.guard.enter(id, certificate);
        let mut requests = request.into_inner();
        let (answers, stream) = mpsc::channel(ANSWERS_MAX);
        let taker = Taker {
            reporter,
            clocks: Arc::clone(&self.clocks),
            owners: self.owners.clone(),
            bounds: Arc::clone(&self.bounds),
            series: Arc::clone(&self.series),
            filling: Arc::clone(&self.filling),
            publisher: self.publisher.clone(),
            clock: self.context.clock().clone(),
        };
        let shutdown = self.context.shutdown().clone();
        self.context.tasks().spawn(async move {
            let mut accepted = 0;
            let mut ended = std::pin::pin!(ended);
            loop {
                let request = tokio::select! {
                    () = shutdown.requested() => return,
                    end = ended.as_mut() => {
                        // The stream ends whether or not the peer reads the status.
                        let _ = answers.try_send(Err(end.into()));
                        return;
                    }
                    // Later requests wait undecoded, up to the flow-control window of the stream.
                    request = async {
                        taker.paid().await;
                        requests.message().await
                    } => request,
                };
                let answer = match request {
                    Ok(Some(request)) => taker.take(request).await,
                    Ok(None) => return,
                    // The request is too large or malformed, or the connection is lost.
                    Err(status) => Err(status),
                };
                let answer = answer.map(|taken| {
                    accepted += taken;
                    ReportResponse { accepted }
                });
                let ended = answer.is_err();
                if answers.send(answer).await.is_err() || ended {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// Takes the requests of one stream.
struct Taker {
    reporter: Reporter,
    clocks: Arc<Mutex<Clocks>>,
    owners: Owners,
    bounds: Arc<Mutex<Bounds>>,
    series: Arc<Mutex<Series>>,
    filling: Arc<Mutex<Filling>>,
    publisher: Publisher,
    clock: CheckedClock,
}

impl Taker {
    /// Returns when the gateway is within its rate. A proxy has no rate of its own.
    async fn paid(&self) {
        let Some(gateway) = self.reporter.gateway() else {
            return;
        };
        let owed = self.bounds.lock().owed(gateway, Instant::now());
        if owed.is_first {
            tracing::warn!(
                gateway = gateway.id,
                tenant = gateway.tenant,
                "a gateway exceeds its rate of reports and is read more slowly"
            );
        }
        if !owed.wait.is_zero() {
            tokio::time::sleep(owed.wait).await;
        }
    }

    async fn take(&self, mut request: ReportRequest) -> Result<u64, Status> {
        let reporter = &self.reporter;
        let admitted = if request.reports.len() > REPORTS_MAX {
            Err(Refused::Invalid {
                field: "reports",
                reason: format!("{} are more than {REPORTS_MAX}", request.reports.len()),
                example: "one per path and second",
            })
        } else {
            request
                .reports
                .iter()
                .try_for_each(|report| reporter.admit(report, &self.owners))
        };
        if let Err(refused) = admitted {
            metrics::counter!("braid_path_telemetry_refused_total", "end" => reporter.kind())
                .increment(1);
            tracing::warn!(%reporter, %refused, "reports refused");
            return Err(refused.into());
        }
        let now_us = self.clock.now_us();
        if let Some(gateway) = reporter.gateway() {
            self.correct(gateway, &mut request, now_us);
        }
        for report in &mut request.reports {
            if report.time_us < now_us - AGE_US_MAX {
                report.time_us = now_us;
            }
        }
        let count = request.reports.len() as u64;
        if let Reporter::Proxy(_) = reporter {
            from_proxy::leave_out_namesakes(&mut request.reports, &self.owners);
        }
        self.leave_out_surplus(&mut request.reports);
        let counted = match reporter {
            Reporter::Gateway(_) => request.reports.clone(),
            Reporter::Proxy(_) => Vec::new(),
        };
        self.publisher
            .publish(request.reports)
            .await
            .map_err(|error| not_published(reporter, &error))?;
        self.series.lock().count(&counted);
        if let (Some(gateway), Some(newest)) = (reporter.gateway(), counted.last()) {
            let permille = newest.journal_filled_permille;
            self.filling
                .lock()
                .on_report(gateway, permille, Instant::now());
        }
        metrics::counter!("braid_path_telemetry_reports_total", "end" => reporter.kind())
            .increment(count);
        Ok(count)
    }

    /// Sets the reports' times by the gateway's clock error, and their tenant by its certificate.
    fn correct(&self, gateway: &GatewayId, request: &mut ReportRequest, now_us: i64) {
        let GatewayId { tenant, id } = gateway;
        let sent = Sent {
            wall_us: request.sent_time_us,
            ..Sent::default()
        };
        let error = self
            .clocks
            .lock()
            .on_request(tenant, id, sent, now_us)
            .map_or(ClockError::behind(0), |clock| clock.current());
        for report in &mut request.reports {
            error.put_right_report(report, now_us);
            report.tenant.clone_from(tenant);
        }
    }

    /// Leaves out the reports beyond a gateway's bounds. They count as accepted: the same reports
    /// would be left out again.
    fn leave_out_surplus(&self, reports: &mut Vec<PathReport>) {
        let now = Instant::now();
        let mut bounds = self.bounds.lock();
        if let Some(gateway) = self.reporter.gateway() {
            bounds.take(gateway, now, reports.len());
        }
        reports.retain(|report| {
            let gateway = GatewayId::new(report.tenant.as_str(), report.gateway.as_str());
            let Err(left_out) = bounds.admit(&gateway, report, now) else {
                return true;
            };
            let (end, reason) = (self.reporter.kind(), left_out.label());
            metrics::counter!("braid_path_telemetry_left_out_total", "end" => end, "reason" => reason)
                .increment(1);
            tracing::warn!(
                gateway = gateway.id,
                tenant = gateway.tenant,
                reason,
                "reports are left out: the gateway exceeds its bounds"
            );
            false
        });
    }
}

/// The bus error goes to the log alone: it may name hosts, and a gateway is not trusted with them.
fn not_published(reporter: &Reporter, error: &PublishError) -> Status {
    tracing::warn!(%reporter, %error, "reports are not on the bus");
    if error.is_retryable() {
        Status::unavailable("the bus does not take reports; send them again")
    } else {
        Status::invalid_argument("the bus refuses the reports; see the log of path-telemetry")
    }
}
