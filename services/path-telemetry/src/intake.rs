//! The stream of reports: who may say what, onto the bus, acknowledged.

use std::{fmt, sync::Arc, time::Instant};

use bus::PublishError;
use clocks::{ClockError, Clocks, Sent};
use contracts::paths::{
    PathReport, ReportRequest, ReportResponse, path_telemetry_service_server::PathTelemetryService,
};
use parking_lot::Mutex;
use service_kit::{
    Context,
    grpc::{Peer, calls::Calls},
    tls::{GatewayId, PeerId},
};
use store::Followed;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::{bounds::Bounds, from_gateway, from_proxy, owners::Owners, to_bus::Publisher};

/// Reports of one request; more are refused. A proxy sends at most 500.
pub(crate) const REPORTS_MAX: usize = 1024;
/// Bytes of one request; a larger one is refused before it is decoded.
pub(crate) const MESSAGE_BYTES_MAX: usize = 512 << 10;
/// Acknowledgements that wait for a slow reader; past it the stream is read no further.
const ANSWERS_MAX: usize = 16;
/// Bytes of a gateway's name and of an address; longer ones are refused.
const NAME_BYTES_MAX: usize = 128;
/// Bytes of a path's name; a longer one is refused. Tunnels know none longer than 32.
const PATH_BYTES_MAX: usize = 64;
/// Nobody keeps a report for so long: one that is dated further back is of a clock that was never set, or made up. The store has a
/// table for each day that rows are of, and a gateway could have thousands of them made.
const AGE_US_MAX: i64 = 86_400_000_000;
/// Longest interval of a report, an hour.
const INTERVAL_MS_MAX: u32 = 3_600_000;

/// A report that is not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error("{reporter} may not report on gateway {gateway:?} from this end")]
    NotYours { reporter: String, gateway: String },
    #[error("gateway {gateway:?} of tenant {tenant} bears the name of another tenant's")]
    Anothers { tenant: String, gateway: String },
    #[error("{field}: {reason}; for example {example}")]
    Invalid {
        field: &'static str,
        reason: String,
        example: &'static str,
    },
}

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

/// Who reports; decides what may be reported.
#[derive(Clone, Debug)]
enum Reporter {
    Gateway(GatewayId),
    Proxy(String),
}

impl fmt::Display for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reporter::Gateway(gateway) => write!(f, "{gateway}"),
            Reporter::Proxy(noun) => write!(f, "service {noun}"),
        }
    }
}

impl Reporter {
    fn admit(&self, report: &PathReport, owners: &Owners) -> Result<(), Refused> {
        check(report)?;
        match self {
            Reporter::Gateway(gateway) => from_gateway::admit(gateway, report, owners),
            Reporter::Proxy(noun) => from_proxy::admit(noun, report),
        }
    }

    /// The gateway, when it is one that reports.
    fn gateway(&self) -> Option<GatewayId> {
        match self {
            Reporter::Gateway(gateway) => Some(gateway.clone()),
            Reporter::Proxy(_) => None,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Reporter::Gateway(_) => "gateway",
            Reporter::Proxy(_) => "proxy",
        }
    }
}

pub(crate) struct Intake {
    publisher: Publisher,
    clocks: Arc<Mutex<Clocks>>,
    allow: Vec<String>,
    owners: Owners,
    bounds: Arc<Mutex<Bounds>>,
    revocations: watch::Receiver<Followed>,
    /// Of gateways; all proxies have one name.
    calls: Calls,
    context: Context,
}

impl Intake {
    pub(crate) fn new(
        publisher: Publisher,
        allow: Vec<String>,
        owners: Owners,
        bounds: Arc<Mutex<Bounds>>,
        revocations: watch::Receiver<Followed>,
        context: Context,
    ) -> Intake {
        Intake {
            publisher,
            clocks: Arc::default(),
            allow,
            owners,
            bounds,
            revocations,
            calls: Calls::default(),
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
impl PathTelemetryService for Intake {
    type ReportStream = ReceiverStream<Result<ReportResponse, Status>>;

    async fn report(
        &self,
        request: Request<Streaming<ReportRequest>>,
    ) -> Result<Response<Self::ReportStream>, Status> {
        let reporter = self.reporter(&request)?;
        let peer = request.extensions().get::<Peer>().cloned();
        let (id, certificate) = peer.map_or((None, None), |peer| (peer.id, peer.certificate));
        let of_gateway = id.clone().filter(|id| matches!(id, PeerId::Gateway(_)));
        let call = of_gateway.map(|id| self.calls.enter(id));
        let revoked = store::until_revoked(self.revocations.clone(), id, certificate);
        let mut requests = request.into_inner();
        let (answers, stream) = mpsc::channel(ANSWERS_MAX);
        let taker = Taker {
            reporter,
            clocks: Arc::clone(&self.clocks),
            owners: self.owners.clone(),
            bounds: Arc::clone(&self.bounds),
            publisher: self.publisher.clone(),
        };
        let shutdown = self.context.shutdown().clone();
        self.context.tasks().spawn(async move {
            let mut accepted = 0;
            let mut revoked = std::pin::pin!(revoked);
            let gives_way = async {
                match &call {
                    Some(call) => call.gives_way().await,
                    None => std::future::pending().await,
                }
            };
            let mut gives_way = std::pin::pin!(gives_way);
            loop {
                let request = tokio::select! {
                    () = shutdown.requested() => return,
                    () = revoked.as_mut() => {
                        let status = Status::permission_denied("the certificate is revoked");
                        // Nobody there to read it: the stream ends all the same.
                        let _ = answers.try_send(Err(status));
                        return;
                    }
                    () = gives_way.as_mut() => {
                        let status = "this gateway has newer calls, as many as it may have";
                        let _ = answers.try_send(Err(Status::resource_exhausted(status)));
                        return;
                    }
                    // What comes meanwhile waits undecoded, up to the window of the stream.
                    request = async {
                        taker.paid().await;
                        requests.message().await
                    } => request,
                };
                let answer = match request {
                    Ok(Some(request)) => taker.take(request).await,
                    Ok(None) => return,
                    // Too large, no report, or a lost connection, where nobody reads the answer.
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
    publisher: Publisher,
}

impl Taker {
    /// Returns when the gateway is within its rate; a proxy always is.
    async fn paid(&self) {
        let Some(gateway) = self.reporter.gateway() else {
            return;
        };
        let owed = self.bounds.lock().owed(&gateway, Instant::now());
        if owed.is_first {
            tracing::warn!(
                gateway = gateway.id,
                tenant = gateway.tenant,
                "reports more than its rate and is read more slowly"
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
        let now_us = contracts::now_us();
        if let Reporter::Gateway(GatewayId { tenant, id }) = reporter {
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
        for report in &mut request.reports {
            if report.time_us < now_us - AGE_US_MAX {
                report.time_us = now_us;
            }
        }
        let count = request.reports.len() as u64;
        // A proxy takes whom the authority vouches for, so a report of a namesake is no fault of its own, and costs no other.
        if let Reporter::Proxy(_) = reporter {
            request.reports.retain(|report| {
                // An older proxy does not say whose.
                report.tenant.is_empty()
                    || !self.owners.is_anothers(&GatewayId::new(
                        report.tenant.as_str(),
                        report.gateway.as_str(),
                    ))
            });
            metrics::counter!("braid_path_telemetry_refused_total", "end" => reporter.kind())
                .increment(count - request.reports.len() as u64);
        }
        self.leave_out_surplus(&mut request.reports);
        self.publisher
            .publish(request.reports)
            .await
            .map_err(|error| not_published(reporter, &error))?;
        metrics::counter!("braid_path_telemetry_reports_total", "end" => reporter.kind())
            .increment(count);
        Ok(count)
    }

    /// Leaves out what is beyond a gateway's bounds. It counts as accepted: sent again it would be left out again.
    fn leave_out_surplus(&self, reports: &mut Vec<PathReport>) {
        let now = Instant::now();
        let mut bounds = self.bounds.lock();
        if let Some(gateway) = self.reporter.gateway() {
            bounds.take(&gateway, now, reports.len());
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
                "reports are left out: the gateway is beyond its bounds"
            );
            false
        });
    }
}

/// A gateway may be in anybody's hands: where the bus is and what it says is for the log.
fn not_published(reporter: &Reporter, error: &PublishError) -> Status {
    tracing::warn!(%reporter, %error, "reports are not on the bus");
    if error.is_retryable() {
        Status::unavailable("the bus does not take reports; send them again")
    } else {
        Status::invalid_argument("the bus refuses the reports; the log of path-telemetry tells why")
    }
}

/// What no end may say.
fn check(report: &PathReport) -> Result<(), Refused> {
    let is_name = |name: &str, bytes_max: usize| {
        !name.is_empty()
            && name.len() <= bytes_max
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte))
    };
    let invalid = |field, reason: String, example| {
        Err(Refused::Invalid {
            field,
            reason,
            example,
        })
    };
    if !is_name(&report.gateway, NAME_BYTES_MAX) {
        return invalid(
            "gateway",
            "is missing or no identifier".into(),
            "\"gateway-1\"",
        );
    }
    if !is_name(&report.path, PATH_BYTES_MAX) {
        return invalid("path", "is missing or no identifier".into(), "\"wifi\"");
    }
    if !(1..=INTERVAL_MS_MAX).contains(&report.interval_ms) {
        return invalid(
            "interval_ms",
            format!("{} is outside 1 to {INTERVAL_MS_MAX}", report.interval_ms),
            "1000",
        );
    }
    if report.time_us <= 0 {
        return invalid("time_us", "is missing".into(), "1800000000000000");
    }
    for (field, rtt_ms) in [("rtt_ms", report.rtt_ms), ("rtt_min_ms", report.rtt_min_ms)] {
        if !(0.0..=600_000.0).contains(&rtt_ms) {
            return invalid(field, format!("{rtt_ms} is outside 0 to 600000"), "42.5");
        }
    }
    if report.local_address.len() > NAME_BYTES_MAX || report.remote_address.len() > NAME_BYTES_MAX {
        return invalid("local_address", "is too long".into(), "\"192.0.2.1:4433\"");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use contracts::paths::End;

    use super::*;

    fn report(end: End) -> PathReport {
        PathReport {
            gateway: "gateway-1".into(),
            path: "wifi".into(),
            end: end.into(),
            time_us: 1,
            interval_ms: 1000,
            rtt_ms: 20.0,
            ..PathReport::default()
        }
    }

    fn gateway(id: &str) -> Reporter {
        Reporter::Gateway(GatewayId::new("default", id))
    }

    #[test]
    fn each_end_speaks_for_itself() {
        let nobodys = Owners::default();
        let other = gateway("gateway-2");
        let gateway = gateway("gateway-1");
        let proxy = Reporter::Proxy("proxy".into());
        assert!(gateway.admit(&report(End::Gateway), &nobodys).is_ok());
        assert!(proxy.admit(&report(End::Proxy), &nobodys).is_ok());
        for (reporter, end) in [
            (&gateway, End::Proxy),
            (&gateway, End::Unspecified),
            (&other, End::Gateway),
            (&proxy, End::Gateway),
            (&proxy, End::Unspecified),
        ] {
            let refused = reporter.admit(&report(end), &nobodys).unwrap_err();
            assert!(
                matches!(refused, Refused::NotYours { .. }),
                "{reporter:?} {end:?}"
            );
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let gateway = gateway("gateway-1");
        let refused = |edit: fn(&mut PathReport)| {
            let mut report = report(End::Gateway);
            edit(&mut report);
            matches!(
                gateway.admit(&report, &Owners::default()),
                Err(Refused::Invalid { .. })
            )
        };
        assert!(refused(|report| report.gateway = String::new()));
        assert!(refused(|report| report.path = "a b".into()));
        assert!(refused(
            |report| report.path = "x".repeat(PATH_BYTES_MAX + 1)
        ));
        assert!(refused(|report| report.rtt_ms = f64::NAN));
        assert!(refused(|report| report.rtt_min_ms = -1.0));
        assert!(refused(|report| report.interval_ms = 0));
        assert!(refused(|report| report.time_us = 0));
    }
}
