//! Connects a CONNECT request to the destination's TCP connection, or a CONNECT-UDP request to its
//! own socket, and relays between the two. `ip` serves CONNECT-IP.

mod counted;
pub(crate) mod ip;
pub(crate) mod ip_offer;
mod udp;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, stream::FuturesUnordered};
use host_network::NetlinkError;
use service_kit::tls::GatewayId;
use socket2::SockRef;
use tokio::{
    net::{TcpStream, UdpSocket},
    sync::watch,
};
use tunnel::{Authority, ConnectRequest, StatusCode, Traffic, splice};

use crate::{destinations::Admitted, policy::Policy, special_addresses::innermost};
use counted::{Open, count_connect};
use ip_offer::IpOffer;

/// Addresses of one name that are tried; further addresses are ignored.
const ADDRESSES_MAX: usize = 8;

/// Wait for one address before the next is tried beside it (RFC 8305, 5).
const NEXT_AFTER: Duration = Duration::from_millis(250);

/// State that all tunnels share.
pub(crate) struct Upstream {
    pub(crate) policy: watch::Receiver<Arc<Policy>>,
    pub(crate) connect_timeout: Duration,
    pub(crate) idle_timeout: Duration,
    /// `None`: IP is not offered.
    pub(crate) ip: Option<Arc<IpOffer>>,
}

/// Why a destination was not reached; the status says whether the request or the network is the
/// cause.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReachError {
    #[error("not on the allow-list")]
    NotAllowed,
    #[error("resolves to {0}, which is private and not listed as such")]
    Private(IpAddr),
    #[error("resolves to {0}, which belongs to this machine and is not listed as such")]
    Own(IpAddr),
    #[error("may belong to this machine, whose addresses are not known: {0}")]
    Unknown(#[from] NetlinkError),
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
            Self::NotAllowed | Self::Private(_) | Self::Own(_) => StatusCode::FORBIDDEN,
            Self::Unknown(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Unresolved(_) | Self::Unreachable(_) => StatusCode::BAD_GATEWAY,
            Self::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    fn label(&self) -> &'static str {
        match self {
            Self::NotAllowed | Self::Private(_) | Self::Own(_) => "forbidden",
            Self::Unknown(_) => "unknown_addresses",
            Self::Unresolved(_) => "unresolved",
            Self::Unreachable(_) => "unreachable",
            Self::TimedOut => "timeout",
        }
    }
}

impl Upstream {
    /// Serves one request to its end.
    pub(crate) async fn serve(self: Arc<Self>, gateway: &GatewayId, request: ConnectRequest) {
        if request.is_ip() {
            return match &self.ip {
                Some(ip) => ip.serve(gateway, request).await,
                None => {
                    count_connect("not_offered");
                    request.refuse(StatusCode::NOT_IMPLEMENTED).await;
                }
            };
        }
        let id = &gateway.id;
        let authority = request.authority().clone();
        let by_udp = request.is_udp();
        // Changes after this admission end the tunnel.
        let mut policy = self.policy.clone();
        policy.mark_unchanged();
        let admitted = self.admit(gateway, &authority, by_udp).await;
        let reached = match admitted {
            Some(admitted) => self.reach(&admitted, request.is_udp()).await,
            None => Err(ReachError::NotAllowed),
        };
        let reached = match reached {
            Ok(reached) => reached,
            Err(error) => {
                tracing::info!(gateway = id, %authority, %error, "destination not reached");
                count_connect(error.label());
                request.refuse(error.status()).await;
                return;
            }
        };
        let carry = async {
            match reached {
                Reached::Tcp(upstream) => self.carry(request, upstream).await,
                Reached::Udp(socket) => carry_datagrams(request, socket).await,
            }
        };
        // Dropping the tunnel resets it.
        let carried = tokio::select! {
            carried = carry => carried,
            () = self.forbidden(policy, gateway, &authority, by_udp) => {
                tracing::info!(gateway = id, %authority, "tunnel ended: the policy has changed");
                return;
            }
        };
        match carried {
            Ok(ended) => tracing::debug!(gateway = id, %authority, ended, "tunnel ended"),
            Err(error) => {
                tracing::debug!(gateway = id, %authority, %error, "the gateway went away")
            }
        }
    }

    async fn admit(
        &self,
        gateway: &GatewayId,
        authority: &Authority,
        by_udp: bool,
    ) -> Option<Admitted> {
        let admitted = self.policy.borrow().admit(gateway, authority);
        if admitted.is_none() && !by_udp {
            return self.admit_as_packets(gateway, authority).await;
        }
        admitted
    }

    /// Ends when a change of the policy refuses the destination.
    async fn forbidden(
        &self,
        mut policy: watch::Receiver<Arc<Policy>>,
        gateway: &GatewayId,
        authority: &Authority,
        by_udp: bool,
    ) {
        while policy.changed().await.is_ok() {
            if self.admit(gateway, authority, by_udp).await.is_none() {
                return;
            }
        }
        // It changes no more.
        std::future::pending().await
    }

    /// A stream of TCP may go where packets of the gateway may go.
    async fn admit_as_packets(
        &self,
        gateway: &GatewayId,
        authority: &Authority,
    ) -> Option<Admitted> {
        let host = authority.host().trim_matches(['[', ']']);
        let (address, port) = (host.parse().ok()?, authority.port_u16()?);
        let allows = self.ip.as_ref()?.opened()?.allows(gateway, address).await;
        allows.then(|| Admitted::address(address, port))
    }

    /// Returns the reason of the end, for the log.
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
            let mut addresses = resolve(admitted).await?;
            if admitted.by_pattern {
                addresses = elsewhere(addresses).await?;
            }
            // One deadline bounds resolution and connection together.
            let reached = match by_udp {
                true => any_of(addresses, udp::connect).await.map(Reached::Udp),
                false => any_of(addresses, connect).await.map(Reached::Tcp),
            };
            reached.map_err(ReachError::Unreachable)
        };
        tokio::time::timeout(self.connect_timeout, reaching)
            .await
            .map_err(|_| ReachError::TimedOut)?
    }
}

/// Returns the connection that is accepted first. The next address is tried as soon as one refuses,
/// and beside an address that does not answer within `NEXT_AFTER`. So an unreachable first address
/// does not hide a reachable second.
async fn any_of<T, F>(
    addresses: Vec<SocketAddr>,
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    let mut addresses = addresses.into_iter().take(ADDRESSES_MAX).peekable();
    let mut connecting = FuturesUnordered::new();
    let mut failed = io::Error::from(io::ErrorKind::AddrNotAvailable);
    loop {
        connecting.extend(addresses.next().map(&connect));
        let is_last = addresses.peek().is_none();
        tokio::select! {
            connected = connecting.next() => match connected {
                Some(Ok(reached)) => return Ok(reached),
                Some(Err(error)) => failed = error,
                None => return Err(failed),
            },
            () = tokio::time::sleep(NEXT_AFTER), if !is_last => {}
        }
    }
}

/// The socket of a destination.
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

/// Returns the reason of the end, for the log.
async fn carry_datagrams(request: ConnectRequest, socket: UdpSocket) -> io::Result<String> {
    let tunnel = request.accept_udp().await?;
    let _open = Open::enter();
    let counters = ["up", "down"].map(udp::DirectionCounters::new);
    let ended = udp::relay(&tunnel, &socket, &counters).await;
    Ok(ended.to_string())
}

/// The permitted addresses of the destination; at least one.
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

/// The addresses that belong to other machines; at least one.
async fn elsewhere(found: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, ReachError> {
    let local = host_network::local_addresses().await?;
    let (own, others): (Vec<_>, Vec<_>) = found
        .into_iter()
        .partition(|address| local.contains(&innermost(address.ip())));
    match own.first() {
        Some(address) if others.is_empty() => Err(ReachError::Own(address.ip())),
        _ => Ok(others),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A listener with a full backlog leaves connections unanswered, like an unreachable address.
    async fn mute() -> (std::net::TcpListener, Vec<TcpStream>) {
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        socket.bind(&any.into()).unwrap();
        socket.listen(0).unwrap();
        let listener = std::net::TcpListener::from(socket);
        let address = listener.local_addr().unwrap();
        let mut waiting = Vec::new();
        let patience = Duration::from_millis(500);
        while let Ok(taken) = tokio::time::timeout(patience, TcpStream::connect(address)).await {
            waiting.push(taken.unwrap());
        }
        (listener, waiting)
    }

    #[tokio::test]
    async fn an_address_without_an_answer_does_not_delay_the_next() {
        let (mute, _waiting) = mute().await;
        let heard = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addresses = vec![mute.local_addr().unwrap(), heard.local_addr().unwrap()];
        let limit = Duration::from_secs(5);
        let reached = tokio::time::timeout(limit, any_of(addresses, connect)).await;
        let peer = reached.unwrap().unwrap().peer_addr().unwrap();
        assert_eq!(peer, heard.local_addr().unwrap());
    }

    #[tokio::test]
    async fn an_address_that_refuses_costs_no_time_and_the_last_gives_the_reason() {
        let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let refusing = gone.local_addr().unwrap();
        drop(gone);
        let heard = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addresses = vec![refusing, heard.local_addr().unwrap()];
        assert!(any_of(addresses, connect).await.is_ok());
        let failed = any_of(vec![refusing], connect).await.unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::ConnectionRefused);
        let none = any_of(Vec::new(), connect).await.unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::AddrNotAvailable);
    }
}
