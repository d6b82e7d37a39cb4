//! A destination's UDP socket, one per request, and the datagrams between it and the tunnel.
//!
//! The socket is connected, so only the destination's own datagrams pass. A datagram that the
//! network refuses is lost, as without a proxy.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use metrics::Counter;
use tokio::{net::UdpSocket, time::Instant};
use tunnel::{TunnelEnded, UdpTunnel};

/// A request without a datagram for this time ends (RFC 4787, 4.3 asks for at least two minutes).
pub(super) const IDLE_MAX: Duration = Duration::from_secs(120);

/// Largest payload of a datagram from a socket.
const PAYLOAD_BYTES_MAX: usize = 65_535;

pub(super) async fn connect(address: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    tunnel::enlarge_buffers(&socket);
    socket.connect(address).await?;
    Ok(socket)
}

#[derive(Debug, thiserror::Error)]
pub(super) enum RelayEnded {
    #[error("{0}")]
    Tunnel(#[from] TunnelEnded),
    #[error("nothing passed for {IDLE_MAX:?}")]
    Idle,
    #[error("the socket failed: {0}")]
    Socket(io::Error),
}

/// Counters of one direction, for all requests together.
pub(super) struct DirectionCounters {
    bytes: Counter,
    datagrams: Counter,
}

impl DirectionCounters {
    pub(super) fn new(direction: &'static str) -> Self {
        Self {
            bytes: metrics::counter!("braid_proxy_bytes_total", "direction" => direction),
            datagrams: metrics::counter!("braid_proxy_datagrams_total", "direction" => direction),
        }
    }

    /// The same for IP packets.
    pub(super) fn of_packets(direction: &'static str) -> Self {
        Self {
            bytes: metrics::counter!("braid_proxy_bytes_total", "direction" => direction),
            datagrams: metrics::counter!("braid_proxy_ip_packets_total", "direction" => direction),
        }
    }

    pub(super) fn passed(&self, bytes: usize) {
        self.bytes.increment(bytes as u64);
        self.datagrams.increment(1);
    }
}

/// Runs until the request ends or `IDLE_MAX` passes without a datagram.
pub(super) async fn relay(
    tunnel: &UdpTunnel,
    socket: &UdpSocket,
    counters: &[DirectionCounters; 2],
) -> RelayEnded {
    let [up, down] = counters;
    let mut buffer = vec![0; PAYLOAD_BYTES_MAX];
    let mut deadline = Instant::now() + IDLE_MAX;
    loop {
        tokio::select! {
            received = tunnel.receive() => match received {
                Ok(payload) => match socket.send(&payload).await {
                    Ok(_) => up.passed(payload.len()),
                    Err(error) => {
                        tracing::trace!(%error, "a datagram was not sent");
                        metrics::counter!("braid_proxy_datagrams_unsent_total").increment(1);
                    }
                },
                Err(ended) => return ended.into(),
            },
            received = socket.recv(&mut buffer) => match received {
                // The tunnel counts datagrams that it drops for lack of room.
                Ok(length) => if tunnel.send(&buffer[..length]) {
                    down.passed(length);
                },
                Err(error) if told_by_network(&error) => continue,
                Err(error) => return RelayEnded::Socket(error),
            },
            () = tokio::time::sleep_until(deadline) => return RelayEnded::Idle,
        }
        deadline = Instant::now() + IDLE_MAX;
    }
}

/// ICMP refused an earlier datagram; the next datagram may arrive.
fn told_by_network(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
    )
}
