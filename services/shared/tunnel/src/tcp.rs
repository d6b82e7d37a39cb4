//! Sockets of the fallback: Multipath TCP if the kernel has it, otherwise plain TCP.
//!
//! MPTCP makes one connection of several subflows. The first uses the network that the socket is
//! bound to. The kernel's path manager adds subflows over its registered addresses (`ip mptcp
//! endpoint add ADDRESS dev DEVICE subflow`).

use std::{
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{
        Arc, Once,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpSocket, TcpStream},
};

use crate::transport::Transport;

/// Connections whose TCP handshake is done and that wait to be accepted; further ones are refused
/// by the kernel.
const BACKLOG: u32 = 256;

/// Unsent bytes in the kernel: more would only be a queue in which an alert waits behind bulk.
const UNSENT_BYTES_MAX: u32 = 64 * 1024;

/// Time without an acknowledgement of sent data after which the connection ends, as over QUIC.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(120);

/// Ports tried if any will do, since the same port must be free for UDP.
const PORTS_TRIED_MAX: usize = 32;

/// An MPTCP socket, or a TCP socket if there is no MPTCP; the log says so once.
fn socket(domain: Domain) -> io::Result<(Socket, Transport)> {
    static WITHOUT: Once = Once::new();
    match Socket::new(domain, Type::STREAM, Some(Protocol::MPTCP)) {
        Ok(socket) => Ok((socket, Transport::Mptcp)),
        Err(error) => {
            WITHOUT.call_once(|| {
                tracing::warn!(%error, "no MPTCP in this kernel (net.mptcp.enabled): the fallback is plain TCP over one network at a time");
            });
            let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
            Ok((socket, Transport::Tcp))
        }
    }
}

/// Settings that save time or memory; a kernel without one of them works as well.
fn tune(socket: SockRef<'_>) {
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_tcp_notsent_lowat(UNSENT_BYTES_MAX);
    let _ = socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX));
}

/// Must be called within a Tokio runtime.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let (socket, _) = socket(Domain::for_address(address))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    TcpSocket::from_std_stream(socket.into()).listen(BACKLOG)
}

/// A listener, and the result of `bind_udp` for the same port; several ports are tried if any will
/// do.
pub(crate) fn listen_beside<T>(
    address: SocketAddr,
    bind_udp: impl Fn(SocketAddr) -> io::Result<T>,
) -> io::Result<(T, TcpListener)> {
    let mut tried = 0;
    loop {
        tried += 1;
        let listener = listen(address)?;
        match bind_udp(listener.local_addr()?) {
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse
                    && address.port() == 0
                    && tried < PORTS_TRIED_MAX => {}
            bound => return Ok((bound?, listener)),
        }
    }
}

/// The transport of an accepted connection: a client without MPTCP gets plain TCP.
pub(crate) fn accepted(stream: &TcpStream) -> Transport {
    let socket = SockRef::from(stream);
    let transport = match socket.protocol() {
        Ok(Some(Protocol::MPTCP)) => Transport::Mptcp,
        _ => Transport::Tcp,
    };
    tune(socket);
    transport
}

/// Connects from `local_ip`, and over the device if one is named.
pub(crate) async fn connect(
    local_ip: IpAddr,
    device: Option<&str>,
    remote: SocketAddr,
) -> io::Result<(TcpStream, Transport)> {
    let (socket, transport) = socket(Domain::for_address(remote))?;
    socket.set_nonblocking(true)?;
    if let Some(device) = device {
        socket.bind_device(Some(device.as_bytes()))?;
    }
    if !local_ip.is_unspecified() {
        socket.bind(&SocketAddr::new(local_ip, 0).into())?;
    }
    tune(SockRef::from(&socket));
    let stream = TcpSocket::from_std_stream(socket.into())
        .connect(remote)
        .await?;
    Ok((stream, transport))
}

/// The counters of a connection for the record of paths.
#[derive(Debug)]
pub(crate) struct Counts {
    began: Instant,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    /// Number of reads with data.
    arrivals: AtomicU64,
    /// Since `began`.
    heard_us: AtomicU64,
    rtt_us: AtomicU64,
    pub(crate) local_ip: Option<IpAddr>,
    pub(crate) remote: Option<SocketAddr>,
}

impl Counts {
    pub(crate) fn of(stream: &TcpStream) -> Arc<Self> {
        Arc::new(Self {
            began: Instant::now(),
            sent_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            arrivals: AtomicU64::new(0),
            heard_us: AtomicU64::new(0),
            rtt_us: AtomicU64::new(0),
            local_ip: stream.local_addr().ok().map(|at| at.ip().to_canonical()),
            remote: stream.peer_addr().ok().map(multipath::unmapped),
        })
    }

    pub(crate) fn set_rtt(&self, rtt: Duration) {
        let us = rtt.as_micros().try_into().unwrap_or(u64::MAX);
        self.rtt_us.store(us, Ordering::Relaxed);
    }

    pub(crate) fn heard_at(&self) -> Instant {
        self.began + Duration::from_micros(self.heard_us.load(Ordering::Relaxed))
    }

    /// Only the kernel knows packets, losses and windows.
    pub(crate) fn stats(&self) -> noq::PathStats {
        let mut stats = noq::PathStats::default();
        stats.rtt = Duration::from_micros(self.rtt_us.load(Ordering::Relaxed));
        stats.udp_tx.bytes = self.sent_bytes.load(Ordering::Relaxed);
        stats.udp_rx.bytes = self.received_bytes.load(Ordering::Relaxed);
        stats.udp_rx.datagrams = self.arrivals.load(Ordering::Relaxed);
        stats
    }

    fn received(&self, bytes: usize) {
        let heard = self.began.elapsed().as_micros();
        self.heard_us
            .store(heard.try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
        self.received_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
        self.arrivals.fetch_add(1, Ordering::Relaxed);
    }
}

/// A connection whose bytes are counted.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) stream: TcpStream,
    pub(crate) counts: Arc<Counts>,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let count = buf.filled().len() - before;
        if count > 0 {
            self.counts.received(count);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(Pin::new(&mut self.stream).poll_write(cx, buf))?;
        self.counts
            .sent_bytes
            .fetch_add(count as u64, Ordering::Relaxed);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
