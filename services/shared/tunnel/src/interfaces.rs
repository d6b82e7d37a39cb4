//! One UDP socket per access network, joined into the one socket that a QUIC endpoint has.
//!
//! A path is opened with an explicit local address, so its datagrams carry `src_ip`, and the fan-out sends each through the
//! socket of the interface that owns the address. Datagrams without one belong to the first path of a connection, whose
//! interface is not chosen by anybody: until the server has answered, they go out over *every* interface, which races the
//! handshake with a single connection. The server keeps the address that reached it first and ignores the copies (before the
//! handshake is confirmed it takes no packet from another address); the first answer settles the interface here.
//!
//! A full socket buffer on one interface must not hold back the others: with more than one interface such a datagram is dropped,
//! and congestion control sees a loss, as it would at any full queue.

use std::{
    io::{self, IoSliceMut},
    net::{IpAddr, SocketAddr},
    num::NonZeroUsize,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use noq::{
    AsyncUdpSocket, Runtime, TokioRuntime, UdpSender,
    udp::{RecvMeta, Transmit},
};

/// No interface has been settled on.
const EVERY: usize = usize::MAX;

/// A socket that fails this often in a row without a datagram between is left alone until the next wake-up, so that
/// a broken interface does not spin the endpoint.
const RECEIVE_ERRORS_MAX: usize = 16;

/// Size of the kernel's buffers asked for; the kernel cuts it to `net.core.{r,w}mem_max`.
const SOCKET_BUFFER_BYTES: usize = 2 * 1024 * 1024;

/// An access network and the socket bound to it.
#[derive(Debug)]
pub struct Interface {
    /// Name of the access network: `wifi`, `lte`, ...
    pub name: String,
    /// Address that its paths send from.
    pub local_ip: IpAddr,
    pub socket: Box<dyn AsyncUdpSocket>,
}

impl Interface {
    /// Binds a socket to `local_ip`, and to the device when one is named (`SO_BINDTODEVICE`, which spares routing rules).
    /// Must be called inside a Tokio runtime.
    pub fn bind(
        name: impl Into<String>,
        local_ip: IpAddr,
        device: Option<&str>,
    ) -> io::Result<Self> {
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(SocketAddr::new(local_ip, 0)),
            socket2::Type::DGRAM,
            Some(socket2::Protocol::UDP),
        )?;
        if let Some(device) = device {
            socket.bind_device(Some(device.as_bytes()))?;
        }
        enlarge_buffers(&socket);
        socket.set_nonblocking(true)?;
        socket.bind(&SocketAddr::new(local_ip, 0).into())?;
        Ok(Self {
            name: name.into(),
            local_ip,
            socket: TokioRuntime.wrap_udp_socket(socket.into())?,
        })
    }
}

/// Larger buffers are an optimisation; without the right to them the default remains.
pub(crate) fn enlarge_buffers(socket: &socket2::Socket) {
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER_BYTES);
}

/// Says where datagrams without a source address go.
#[derive(Debug, Clone)]
pub(crate) struct Race(Arc<AtomicUsize>);

impl Race {
    /// Sends over every interface until the next datagram arrives.
    pub(crate) fn start(&self) {
        self.0.store(EVERY, Ordering::Relaxed);
    }

    fn settle(&self, interface: usize) {
        let _ = self
            .0
            .compare_exchange(EVERY, interface, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The interface that won, once there is one.
    pub(crate) fn winner(&self) -> Option<usize> {
        Some(self.0.load(Ordering::Relaxed)).filter(|&interface| interface != EVERY)
    }
}

#[derive(Debug)]
struct Member {
    local_ip: IpAddr,
    socket: Box<dyn AsyncUdpSocket>,
}

/// The sockets of all interfaces as one.
#[derive(Debug)]
pub(crate) struct FanOut {
    members: Vec<Member>,
    race: Race,
    /// The interface asked first by the next receive, so that none starves.
    next: usize,
}

impl FanOut {
    /// `interfaces` must not be empty.
    pub(crate) fn new(interfaces: Vec<Interface>) -> Self {
        let members = interfaces
            .into_iter()
            .map(|interface| Member {
                local_ip: interface.local_ip,
                socket: interface.socket,
            })
            .collect();
        Self {
            members,
            race: Race(Arc::new(AtomicUsize::new(EVERY))),
            next: 0,
        }
    }

    pub(crate) fn race(&self) -> Race {
        self.race.clone()
    }
}

impl AsyncUdpSocket for FanOut {
    fn create_sender(&self) -> Pin<Box<dyn UdpSender>> {
        Box::pin(FanOutSender {
            members: self
                .members
                .iter()
                .map(|member| (member.local_ip, member.socket.create_sender()))
                .collect(),
            race: self.race.clone(),
        })
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let count = self.members.len();
        for offset in 0..count {
            let index = (self.next + offset) % count;
            let member = &mut self.members[index];
            // An error of one interface (gone, unreachable) must not end the endpoint, which lives on the others.
            for _ in 0..RECEIVE_ERRORS_MAX {
                match member.socket.poll_recv(cx, bufs, meta) {
                    Poll::Pending => break,
                    Poll::Ready(Err(error)) => {
                        tracing::debug!(local_ip = %member.local_ip, %error, "receiving failed");
                    }
                    Poll::Ready(Ok(received)) => {
                        for meta in meta.iter_mut().take(received) {
                            meta.dst_ip = Some(member.local_ip);
                        }
                        self.race.settle(index);
                        self.next = (index + 1) % count;
                        return Poll::Ready(Ok(received));
                    }
                }
            }
        }
        Poll::Pending
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.members
            .first()
            .ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))?
            .socket
            .local_addr()
    }

    fn max_receive_segments(&self) -> NonZeroUsize {
        self.members
            .iter()
            .map(|member| member.socket.max_receive_segments())
            .max()
            .unwrap_or(NonZeroUsize::MIN)
    }

    fn may_fragment(&self) -> bool {
        self.members
            .iter()
            .any(|member| member.socket.may_fragment())
    }
}

#[derive(Debug)]
struct FanOutSender {
    members: Vec<(IpAddr, Pin<Box<dyn UdpSender>>)>,
    race: Race,
}

impl FanOutSender {
    fn send_over(
        &mut self,
        index: usize,
        transmit: &Transmit<'_>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let alone = self.members.len() == 1;
        let Some((local_ip, sender)) = self.members.get_mut(index) else {
            return Poll::Ready(Ok(()));
        };
        match sender.as_mut().poll_send(transmit, cx) {
            Poll::Pending if alone => Poll::Pending,
            Poll::Pending => {
                metrics::counter!("braid_tunnel_socket_full_datagrams_total").increment(1);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => {
                tracing::debug!(%local_ip, %error, "sending failed");
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
        }
    }
}

impl UdpSender for FanOutSender {
    fn poll_send(
        self: Pin<&mut Self>,
        transmit: &Transmit<'_>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let chosen = match transmit.src_ip {
            // An address that no interface has: the datagram has no way to go and counts as lost.
            Some(ip) => match this.members.iter().position(|(local, _)| *local == ip) {
                Some(index) => index,
                None => return Poll::Ready(Ok(())),
            },
            None => match this.race.winner() {
                Some(index) => index,
                None => {
                    for index in 1..this.members.len() {
                        let _ = this.send_over(index, transmit, cx);
                    }
                    0
                }
            },
        };
        this.send_over(chosen, transmit, cx)
    }

    fn max_transmit_segments(&self) -> NonZeroUsize {
        self.members
            .iter()
            .map(|(_, sender)| sender.max_transmit_segments())
            .min()
            .unwrap_or(NonZeroUsize::MIN)
    }
}
