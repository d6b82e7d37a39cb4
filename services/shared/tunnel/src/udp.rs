//! A UDP socket as the transport sees it, over tokio's.
//!
//! It differs from the library's own in what it asks of the kernel. A receive call that brought less than it had room for has emptied
//! the queue, so no second call is made to hear that nothing is left: the kernel tells when something comes. And a
//! datagram is sent without waiting for readiness first.

use std::{
    fmt,
    future::Future,
    io::{self, IoSliceMut},
    net::SocketAddr,
    num::NonZeroUsize,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use noq::{
    AsyncUdpSocket, UdpSender,
    udp::{RecvMeta, Transmit, UdpSocketState, is_msg_size_err},
};
use tokio::io::Interest;

#[derive(Debug, Clone)]
struct Socket {
    io: Arc<tokio::net::UdpSocket>,
    state: Arc<UdpSocketState>,
}

/// Must be called inside a Tokio runtime.
pub(crate) fn wrap(socket: std::net::UdpSocket) -> io::Result<Box<dyn AsyncUdpSocket>> {
    let state = Arc::new(UdpSocketState::new((&socket).into())?);
    let io = Arc::new(tokio::net::UdpSocket::from_std(socket)?);
    Ok(Box::new(Socket { io, state }))
}

impl AsyncUdpSocket for Socket {
    fn create_sender(&self) -> Pin<Box<dyn UdpSender>> {
        Box::pin(Sender {
            socket: self.clone(),
            writable: None,
        })
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let room = bufs.len().min(noq::udp::BATCH_SIZE);
        loop {
            ready!(self.io.poll_recv_ready(cx))?;
            let mut received = None;
            // "Would block" makes tokio wait for the next arrival; one that came after this call began counts as such.
            let tried = self.io.try_io(Interest::READABLE, || {
                let count = self.state.recv((&self.io).into(), bufs, meta)?;
                received = Some(count);
                match count < room {
                    true => Err(io::ErrorKind::WouldBlock.into()),
                    false => Ok(()),
                }
            });
            match (received, tried) {
                (Some(count), _) => return Poll::Ready(Ok(count)),
                (None, Err(error)) if error.kind() != io::ErrorKind::WouldBlock => {
                    return Poll::Ready(Err(error));
                }
                (None, _) => {}
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    fn max_receive_segments(&self) -> NonZeroUsize {
        self.state.gro_segments()
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }
}

type Writable = Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>;

/// Any number of them may wait for one socket.
struct Sender {
    socket: Socket,
    /// Waits since the socket's buffer was full.
    writable: Option<Writable>,
}

impl UdpSender for Sender {
    fn poll_send(
        self: Pin<&mut Self>,
        transmit: &Transmit<'_>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let Sender { socket, writable } = self.get_mut();
        loop {
            if let Some(waiting) = writable {
                let room = ready!(waiting.as_mut().poll(cx));
                *writable = None;
                room?;
            }
            let Socket { io, state } = &*socket;
            let tried = io.try_io(Interest::WRITABLE, || {
                state.try_send((&socket.io).into(), transmit)
            });
            match tried {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let io = io.clone();
                    *writable = Some(Box::pin(async move { io.writable().await }));
                }
                Err(error) => {
                    // A probe of the path's MTU may be too large. Whatever else it is, the datagram is lost, as it may be anywhere.
                    if !is_msg_size_err(&error) {
                        tracing::debug!(%error, destination = %transmit.destination, "sending failed");
                    }
                    return Poll::Ready(Ok(()));
                }
                Ok(()) => return Poll::Ready(Ok(())),
            }
        }
    }

    fn max_transmit_segments(&self) -> NonZeroUsize {
        self.socket.state.max_gso_segments()
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.socket.fmt(f)
    }
}
