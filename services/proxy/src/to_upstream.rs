//! From a CONNECT request to the destination's TCP connection, or from CONNECT-UDP to a socket of its own, and what passes between the two. CONNECT-IP has
//! its own way (`ip`).

pub(crate) mod ip;
mod udp;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use socket2::SockRef;
use tokio::net::{TcpStream, UdpSocket};
use tunnel::{ConnectRequest, StatusCode, Traffic, splice};

use crate::{
    destinations::{Admitted, Destinations},
    sessions::DeviceId,
};
use ip::IpUpstream;

/// Addresses of one name that are tried; the rest is ignored.
const ADDRESSES_MAX: usize = 8;

/// What all tunnels share.
pub(crate) struct Upstream {
    pub(crate) destinations: Destinations,
    pub(crate) connect_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    /// None: IP is not offered.
    pub(crate) ip: Option<Arc<IpUpstream>>,
}

/// Why a destination was not reached; the status tells the gateway whose fault it is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReachError {
    #[error("not on the allow-list")]
    NotAllowed,
    #[error("resolves to {0}, which is private and not listed as such")]
    Private(IpAddr),
    #[error("has no address: {0}")]
    Unresolved(io::Error),
    #[error("does not accept: {0}")]
    Unreachable(io::Error),
    #[error("did not answer in time")]
    TimedOut,
}

impl ReachError {
    fn status(&self) -> StatusCode {
        match self {
            Self::NotAllowed | Self::Private(_) => StatusCode::FORBIDDEN,
            Self::Unresolved(_) | Self::Unreachable(_) => StatusCode::BAD_GATEWAY,
            Self::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    fn label(&self) -> &'static str {
        match self {
            Self::NotAllowed | Self::Private(_) => "forbidden",
            Self::Unresolved(_) => "unresolved",
            Self::Unreachable(_) => "unreachable",
            Self::TimedOut => "timeout",
        }
    }
}

impl Upstream {
    /// Serves one request to its end.
    pub(crate) async fn serve(self: Arc<Self>, device: &DeviceId, request: ConnectRequest) {
        if request.is_ip() {
            return match &self.ip {
                Some(ip) => ip.serve(device, request).await,
                None => {
                    count_connect("not_offered");
                    request.refuse(StatusCode::NOT_IMPLEMENTED).await;
                }
            };
        }
        let DeviceId { tenant, gateway } = device;
        let authority = request.authority().clone();
        let reached = match self.destinations.admit(tenant, &authority) {
            Some(admitted) => self.reach(&admitted, request.is_udp()).await,
            None => Err(ReachError::NotAllowed),
        };
        let reached = match reached {
            Ok(reached) => reached,
            Err(error) => {
                tracing::info!(gateway, %authority, %error, "destination not reached");
                count_connect(error.label());
                request.refuse(error.status()).await;
                return;
            }
        };
        let carried = match reached {
            Reached::Tcp(upstream) => self.carry(request, upstream).await,
            Reached::Udp(socket) => carry_datagrams(request, socket).await,
        };
        match carried {
            Ok(ended) => tracing::debug!(gateway, %authority, ended, "tunnel ended"),
            Err(error) => tracing::debug!(gateway, %authority, %error, "the gateway went away"),
        }
    }

    /// Returns how it ended.
    async fn carry(&self, request: ConnectRequest, upstream: TcpStream) -> io::Result<String> {
        let stream = request.accept().await?;
        let _open = Open::enter();
        let counter =
            |direction| metrics::counter!("braid_proxy_bytes_total", "direction" => direction);
        let traffic = Traffic::new(counter("up"), counter("down"));
        let ended = splice(stream, upstream, self.idle_timeout, &traffic).await;
        let (up_bytes, down_bytes) = traffic.bytes();
        Ok(format!(
            "{ended:?} after {up_bytes} bytes up and {down_bytes} down"
        ))
    }

    async fn reach(&self, admitted: &Admitted, by_udp: bool) -> Result<Reached, ReachError> {
        let reaching = async {
            let mut addresses = resolve(admitted).await?.into_iter();
            let mut failed = None;
            // One after the other; the deadline bounds them together.
            for address in addresses.by_ref().take(ADDRESSES_MAX) {
                let connected = match by_udp {
                    true => udp::connect(address).await.map(Reached::Udp),
                    false => connect(address).await.map(Reached::Tcp),
                };
                match connected {
                    Ok(reached) => return Ok(reached),
                    Err(error) => failed = Some(error),
                }
            }
            Err(ReachError::Unreachable(
                failed.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into()),
            ))
        };
        tokio::time::timeout(self.connect_timeout, reaching)
            .await
            .map_err(|_| ReachError::TimedOut)?
    }
}

/// What leads to a destination.
enum Reached {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    SockRef::from(&stream).set_keepalive(true)?;
    Ok(stream)
}

/// Returns how it ended.
async fn carry_datagrams(request: ConnectRequest, socket: UdpSocket) -> io::Result<String> {
    let tunnel = request.accept_udp().await?;
    let _open = Open::enter();
    let lanes = ["up", "down"].map(udp::Lane::new);
    let ended = udp::relay(&tunnel, &socket, &lanes).await;
    Ok(ended.to_string())
}

fn count_connect(result: &'static str) {
    metrics::counter!("braid_proxy_connects_total", "result" => result).increment(1);
}

/// Counts the tunnels that are open.
struct Open;

impl Open {
    fn enter() -> Self {
        count_connect("ok");
        metrics::gauge!("braid_proxy_tunnels_open").increment(1.0);
        Self
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        metrics::gauge!("braid_proxy_tunnels_open").decrement(1.0);
    }
}

/// The addresses that the destination may be reached at; at least one.
async fn resolve(admitted: &Admitted) -> Result<Vec<SocketAddr>, ReachError> {
    let found: Vec<SocketAddr> = tokio::net::lookup_host((admitted.host.as_str(), admitted.port))
        .await
        .map_err(ReachError::Unresolved)?
        .collect();
    let (permitted, refused): (Vec<_>, Vec<_>) = found
        .into_iter()
        .partition(|address| admitted.permits(address.ip()));
    match (permitted.is_empty(), refused.first()) {
        (false, _) => Ok(permitted),
        (true, Some(address)) => Err(ReachError::Private(address.ip())),
        (true, None) => Err(ReachError::Unresolved(io::ErrorKind::NotFound.into())),
    }
}
