//! Sessions of gateways: identity, limits, and requests.
//!
//! TLS has verified the certificate's chain before a session arrives here. The certificate must
//! name a gateway, by itself or by the policy; other certificates are refused. A session that comes
//! before the list of revoked gateways is known waits for that list (`from_path_telemetry`). A
//! session ends with its tunnels when its certificate is revoked, or when the policy no longer maps
//! it to the same gateway (`admission`).

use std::{sync::Arc, time::Instant};

use rustls_pki_types::CertificateDer;
use service_kit::{
    Shutdown,
    tls::{Fingerprint, GatewayId, PeerId},
};
use tokio::sync::{Semaphore, watch};
use tokio_util::task::TaskTracker;
use tunnel::{ServerSession, SessionHandle, StatusCode, TunnelServer};

use crate::{
    admission::{Admission, Withdrawn},
    policy::Policy,
    revocations::Known,
    sessions::{Entered, NoPlace, Sessions},
    to_upstream::Upstream,
};

/// Sessions that wait for the list of revoked gateways; further sessions are refused, and their
/// gateways try again.
const WAITING_MAX: usize = 1_024;

pub(crate) struct FromGateway {
    pub(crate) server: Arc<TunnelServer>,
    pub(crate) sessions: Arc<Sessions<SessionHandle>>,
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) known: watch::Receiver<Known>,
    pub(crate) policy: watch::Receiver<Arc<Policy>>,
    pub(crate) tasks: TaskTracker,
}

impl FromGateway {
    /// Takes sessions until a shutdown is requested.
    pub(crate) async fn run(self: Arc<Self>, shutdown: Shutdown) {
        let places = Arc::new(Semaphore::new(WAITING_MAX));
        loop {
            let session = tokio::select! {
                session = self.server.accept() => session,
                () = shutdown.requested() => None,
            };
            let Some(session) = session else {
                return;
            };
            if *self.known.borrow() != Known::Waiting {
                self.begin(session);
                continue;
            }
            let Ok(place) = places.clone().try_acquire_owned() else {
                refuse_unheard(&session);
                continue;
            };
            let (this, shutdown) = (self.clone(), shutdown.clone());
            self.tasks.spawn(async move {
                let handle = session.handle().clone();
                let mut known = this.known.clone();
                tokio::select! {
                    _ = known.wait_for(|known| *known != Known::Waiting) => this.begin(session),
                    () = handle.closed() => {}
                    () = shutdown.requested() => {}
                }
                drop(place);
            });
        }
    }

    /// Serves the session if it is admitted.
    fn begin(&self, session: ServerSession) {
        let Some((entered, certificate)) = self.admit(&session) else {
            return;
        };
        let handle = session.handle().clone();
        let gateway = entered.gateway().clone();
        let mut admission = Admission::watch(
            self.policy.clone(),
            self.known.clone(),
            certificate,
            gateway.clone(),
            &self.tasks,
        );
        let upstream = self.upstream.clone();
        let serving = serve(
            session,
            entered,
            admission.clone(),
            upstream.clone(),
            self.tasks.clone(),
        );
        self.tasks.spawn(async move {
            let mut serving = std::pin::pin!(serving);
            let withdrawn = tokio::select! {
                () = serving.as_mut() => return,
                withdrawn = admission.withdrawn() => withdrawn,
            };
            let (session, id) = (handle.number(), &gateway.id);
            tracing::warn!(session, gateway = id, %withdrawn, "session closed");
            count_refused(withdrawn.label());
            handle.close(&withdrawn.to_string());
            serving.await;
            if let (Withdrawn::Revoked, Some(ip)) = (withdrawn, &upstream.ip) {
                ip.forget(&gateway);
            }
        });
    }

    fn identify(
        &self,
        session: &ServerSession,
    ) -> Result<(GatewayId, CertificateDer<'static>), String> {
        let certificate = session
            .peer_certificate()
            .ok_or_else(|| "no certificate".to_owned())?;
        let gateway = self.policy.borrow().identify(certificate)?;
        Ok((gateway, certificate.clone()))
    }

    fn admit(
        &self,
        session: &ServerSession,
    ) -> Option<(Entered<SessionHandle>, CertificateDer<'static>)> {
        let handle = session.handle();
        let remote = session.remote_address();
        let (gateway, certificate) = match self.identify(session) {
            Ok(identified) => identified,
            Err(reason) => {
                tracing::warn!(%remote, reason, "session refused");
                count_refused("identity");
                handle.close("only gateways are served here");
                return None;
            }
        };
        // Checked before the session takes a place: a revoked certificate must not evict the
        // session of its successor.
        let id = PeerId::Gateway(gateway.clone());
        let fingerprint = Fingerprint::of(&certificate);
        let known = self.known.borrow().clone();
        if known == Known::Unheard {
            refuse_unheard(session);
            return None;
        }
        if known.refuses(&id, Some(&fingerprint)) {
            tracing::warn!(%remote, gateway = gateway.id, "session refused: the certificate is revoked");
            count_refused(Withdrawn::Revoked.label());
            handle.close(&Withdrawn::Revoked.to_string());
            return None;
        }
        match self
            .sessions
            .enter(gateway.clone(), handle.number(), handle.clone())
        {
            Ok(entered) => {
                let transport = handle.transport();
                tracing::info!(%remote, tenant = gateway.tenant, gateway = gateway.id, session = handle.number(), %transport, "session");
                metrics::counter!("braid_proxy_sessions_total", "transport" => transport.as_str())
                    .increment(1);
                Some((entered, certificate))
            }
            Err(full) => {
                tracing::warn!(%remote, gateway = gateway.id, %full, "session refused");
                count_refused("full");
                handle.close("too many sessions");
                None
            }
        }
    }
}

fn count_refused(reason: &'static str) {
    metrics::counter!("braid_proxy_sessions_refused_total", "reason" => reason).increment(1);
}

/// Closes the session; the gateway tries again.
fn refuse_unheard(session: &ServerSession) {
    tracing::warn!(remote = %session.remote_address(), "session refused: the list of revoked gateways is not known");
    count_refused("unheard");
    session
        .handle()
        .close("the list of revoked gateways is not known: try again");
}

async fn serve(
    mut session: ServerSession,
    entered: Entered<SessionHandle>,
    admission: Admission,
    upstream: Arc<Upstream>,
    tasks: TaskTracker,
) {
    while let Some(request) = session.accept().await {
        let (urgency, is_plain) = (request.urgency(), request.is_plain());
        let (quotas, upstream) = (entered.quotas(), upstream.clone());
        let gateway = entered.gateway().clone();
        let mut admission = admission.clone();
        tasks.spawn(async move {
            let place = match quotas.tunnel(urgency, is_plain, Instant::now()) {
                Ok(place) => Ok(place),
                Err(NoPlace::Later(_)) => quotas.turn(urgency, is_plain).await,
                Err(NoPlace::Full(limit)) => Err(limit),
            };
            match place {
                // Dropping the tunnel resets it.
                Ok(_place) => tokio::select! {
                    () = upstream.serve(&gateway, request) => {}
                    _ = admission.withdrawn() => {}
                },
                Err(limit) => {
                    let gateway = &gateway.id;
                    // Written once in 10 s for each gateway and limit.
                    tracing::warn!(
                        gateway,
                        limit,
                        "requests refused: the quota of the gateway is spent"
                    );
                    metrics::counter!("braid_proxy_connects_total", "result" => "limited")
                        .increment(1);
                    request.refuse(StatusCode::TOO_MANY_REQUESTS).await;
                }
            }
        });
    }
    let gateway = entered.gateway();
    tracing::info!(
        gateway = gateway.id,
        session = session.handle().number(),
        "session ended"
    );
}
