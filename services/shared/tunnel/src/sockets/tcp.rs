//! Sockets of the fallback: Multipath TCP if the kernel has it, otherwise plain TCP.
//!
//! MPTCP makes one connection of several subflows. The first uses the network that the socket is
//! bound to. The kernel's path manager adds subflows over its registered addresses (`ip mptcp
//! endpoint add ADDRESS dev DEVICE subflow`).

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Once,
    time::Duration,
};

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::http::transport::Transport;

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
