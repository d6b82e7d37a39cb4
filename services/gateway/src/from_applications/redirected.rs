//! TCP connections of programs that know no proxy. The kernel redirects those that are routed to
//! the TUN device here, and each continues as a resumable stream over all paths.
//!
//! The proxy allows such a stream what it allows to packets. One that refuses a destination of its
//! own routes is of an older release: the redirection ends, and later connections are packets.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use host_network::{TcpRedirect, original_destination, reset};
use ip_packets::IpRanges;
use parking_lot::{Mutex, RwLock};
use service_kit::{Shutdown, Warning, WarningHandle};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tunnel::{
    Authority, OpenError, StatusCode, Tunnel, Urgency, splice,
    steering_rules::{self, Flow},
};

use super::counted;
use crate::steering::Flows;

/// Bound on redirected connections, of the 512 tunnels that a proxy gives to a gateway. Further
/// ones wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 256;

/// Pause after `accept` failed, which means that file descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Connections that carry nothing for this time are closed.
const IDLE_MAX: Duration = Duration::from_secs(900);

/// Takes redirected connections until shutdown is requested.
pub struct Redirected {
    tunnel: Tunnel,
    /// Which accesses each connection may use.
    flows: Flows,
    listeners: Vec<TcpListener>,
    places: Arc<Semaphore>,
    /// Destinations that the proxy allows to packets.
    routes: Arc<RwLock<IpRanges>>,
    rules: Mutex<Option<TcpRedirect>>,
    warning: WarningHandle,
}

impl Redirected {
    /// Begins to redirect connections that are routed to the device.
    pub fn start(
        device: &str,
        tunnel: Tunnel,
        flows: Flows,
        routes: Arc<RwLock<IpRanges>>,
        warning: WarningHandle,
    ) -> io::Result<Self> {
        let (rules, listeners) = TcpRedirect::start(device)?;
        tracing::info!(device, "TCP connections of the TUN device go as streams");
        Ok(Self {
            tunnel,
            flows,
            listeners,
            places: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            routes,
            rules: Mutex::new(Some(rules)),
            warning,
        })
    }

    pub async fn run(mut self, shutdown: Shutdown) {
        let listeners = std::mem::take(&mut self.listeners);
        let this = Arc::new(self);
        let connections = TaskTracker::new();
        let cut = CancellationToken::new();
        let accepting = listeners
            .into_iter()
            .map(|listener| this.clone().accept_all(listener, &connections, &cut));
        tokio::select! {
            () = shutdown.requested() => {}
            _ = futures::future::join_all(accepting) => {}
        }
        // Connections that the kernel redirects later would meet a closed port.
        this.rules.lock().take();
        connections.close();
        cut.cancel();
        connections.wait().await;
    }

    async fn accept_all(
        self: Arc<Self>,
        listener: TcpListener,
        connections: &TaskTracker,
        cut: &CancellationToken,
    ) {
        loop {
            // Never closed.
            let Ok(place) = self.places.clone().acquire_owned().await else {
                return;
            };
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a redirected connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (this, cut) = (self.clone(), cut.clone());
            connections.spawn(async move {
                cut.run_until_cancelled(this.serve(stream)).await;
                drop(place);
            });
        }
    }

    async fn serve(&self, stream: TcpStream) {
        // A connection to the port itself was not redirected: its end is a reset.
        let Some(destination) = original_destination(&stream) else {
            count("not_redirected");
            return reset(stream);
        };
        let Ok(authority) = destination.to_string().parse::<Authority>() else {
            return reset(stream);
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%destination, %error, "a redirected connection ended");
            return;
        }
        let flow = Flow::new("tun", steering_rules::Urgency::Bulk).to(authority.as_str());
        let steered = match self.flows.enter(flow) {
            Ok(steered) => steered,
            Err(blocked) => {
                count("steered");
                tracing::info!(%destination, %blocked, "a redirected connection is refused");
                return reset(stream);
            }
        };
        let tunnel = match self.tunnel.open_tcp(&authority, Urgency::Bulk).await {
            Ok(tunnel) => tunnel,
            Err(error) => {
                count(result_of(&error));
                self.note_refusal(destination, &error);
                return reset(stream);
            }
        };
        count("opened");
        steered.carried_by(tunnel.switch());
        let traffic = counted(&steered);
        let spliced = splice(tunnel, stream, IDLE_MAX, &traffic);
        // None: the rules leave it no access any more.
        let ended = steered.carry(spliced).await.unwrap_or(Ok(()));
        let (down_bytes, up_bytes) = traffic.bytes();
        tracing::debug!(%destination, up_bytes, down_bytes, ?ended, "a redirected connection ended");
    }

    /// Ends the redirection for a proxy that allows packets to the destination, but no stream.
    fn note_refusal(&self, destination: SocketAddr, error: &OpenError) {
        if let OpenError::Refused(StatusCode::TOO_MANY_REQUESTS) = error {
            // Written once in 10 s, however many are refused.
            tracing::warn!(
                limit = "the proxy's --requests-per-second-max or --tunnels-per-gateway-max",
                "redirected connections are refused"
            );
            return;
        }
        tracing::info!(%destination, %error, "the destination was not reached");
        let is_forbidden = matches!(error, OpenError::Refused(StatusCode::FORBIDDEN));
        if !is_forbidden || !self.routes.read().contains(destination.ip()) {
            return;
        }
        if self.rules.lock().take().is_some() {
            self.warning.set(Some(Warning {
                says: format!("the proxy refuses a stream to {destination}, but allows packets"),
                to_do: "upgrade the proxy, or start this gateway with --tun-tcp packets".to_owned(),
            }));
        }
    }
}

fn result_of(error: &OpenError) -> &'static str {
    match error {
        OpenError::Refused(StatusCode::TOO_MANY_REQUESTS) => "limited",
        _ => "refused",
    }
}

fn count(result: &'static str) {
    metrics::counter!("braid_gateway_applications_requests_total", "protocol" => "redirected", "result" => result)
        .increment(1);
}
