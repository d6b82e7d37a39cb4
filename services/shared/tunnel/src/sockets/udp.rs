//! A UDP socket for the transport, over tokio's.
//!
//! It makes fewer system calls than the transport's own socket. A receive call that did not fill
//! its buffers has emptied the queue, so no second call asks again: the kernel reports the next
//! arrival. A datagram is sent without waiting for readiness first. At a server the socket maps the
//! clients' addresses as `multipath::mapped` describes. At a client it reports errors of ICMP
//! (`icmp`) as errors of receiving.

use std::{
    fmt,
    future::Future,
    io::{self, IoSliceMut},
    net::SocketAddr,
    num::NonZeroUsize,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use multipath::Side;
use noq::{
    AsyncUdpSocket, UdpSender,
    udp::{RecvMeta, Transmit, UdpSocketState, is_msg_size_err},
};
use tokio::io::Interest;

use crate::sockets::icmp;

/// A pending error of the socket, of an earlier datagram, fails a send once.
const SENDS_TRIED_MAX: usize = 2;
/// Pause for a full socket whose readiness is unreliable.
const FULL_PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug, Clone)]
struct Socket {
    io: Arc<tokio::net::UdpSocket>,
    state: Arc<UdpSocketState>,
    /// Clients have IPv4 addresses, and the transport sees mapped ones.
    mapped: bool,
}

struct Receiver {
    socket: Socket,
    /// `None` at a server, and where the kernel reports none.
    errors: Option<icmp::Errors>,
}

/// Must be called within a Tokio runtime.
pub(crate) fn wrap(socket: std::net::UdpSocket, side: Side) -> io::Result<Box<dyn AsyncUdpSocket>> {
    let mapped = side == Side::Server && socket.local_addr()?.is_ipv4();
    let state = Arc::new(UdpSocketState::new((&socket).into())?);
    let reports = side == Side::Client && icmp::enable(&socket);
    let io = Arc::new(tokio::net::UdpSocket::from_std(socket)?);
    Ok(Box::new(Receiver {
        errors: reports.then(|| icmp::Errors::of(io.clone())),
        socket: Socket { io, state, mapped },
    }))
}

impl AsyncUdpSocket for Receiver {
    fn create_sender(&self) -> Pin<Box<dyn UdpSender>> {
        Box::pin(Sender {
            socket: self.socket.clone(),
            writable: None,
        })
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        if let Some(errors) = &mut self.errors
            && let Poll::Ready(error) = errors.poll(cx)
        {
            return Poll::Ready(Err(error));
        }
        let Socket { io, state, mapped } = &self.socket;
        let room = bufs.len().min(noq::udp::BATCH_SIZE);
        loop {
            ready!(io.poll_recv_ready(cx))?;
            let mut received = None;
            // "Would block" makes tokio wait for the next arrival; an arrival after the beginning
            // of this call counts.
            let tried = io.try_io(Interest::READABLE, || {
                let count = state.recv(io.into(), bufs, meta)?;
                received = Some(count);
                match count < room {
                    true => Err(io::ErrorKind::WouldBlock.into()),
                    false => Ok(()),
                }
            });
            match (received, tried) {
                (Some(count), _) => {
                    if *mapped {
                        for datagram in &mut meta[..count] {
                            datagram.addr = multipath::mapped(datagram.addr);
                        }
                    }
                    return Poll::Ready(Ok(count));
                }
                (None, Err(error)) if error.kind() != io::ErrorKind::WouldBlock => {
                    return Poll::Ready(Err(error));
                }
                (None, _) => {}
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.io.local_addr()
    }

    fn max_receive_segments(&self) -> NonZeroUsize {
        self.socket.state.gro_segments()
    }

    fn may_fragment(&self) -> bool {
        self.socket.state.may_fragment()
    }
}

type Writable = Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>;

/// Any number of senders may wait for one socket.
struct Sender {
    socket: Socket,
    /// Waits because the socket's buffer was full.
    writable: Option<Writable>,
}

impl UdpSender for Sender {
    fn poll_send(
        self: Pin<&mut Self>,
        transmit: &Transmit<'_>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let Sender { socket, writable } = self.get_mut();
        let destination = match socket.mapped {
            true => multipath::unmapped(transmit.destination),
            false => transmit.destination,
        };
        let transmit = &Transmit {
            destination,
            ..*transmit
        };
        let mut tries = 0;
        loop {
            if let Some(waiting) = writable {
                let room = ready!(waiting.as_mut().poll(cx));
                *writable = None;
                room?;
            }
            let Socket { io, state, .. } = &*socket;
            let tried = io.try_io(Interest::WRITABLE, || {
                state.try_send((&socket.io).into(), transmit)
            });
            match tried {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let io = io.clone();
                    *writable = Some(Box::pin(async move {
                        // After an error of ICMP the runtime takes the socket for closed for
                        // writing, which is always ready.
                        if io.ready(Interest::WRITABLE).await?.is_write_closed() {
                            tokio::time::sleep(FULL_PAUSE).await;
                        }
                        Ok(())
                    }));
                }
                Err(error) if icmp::is_refusal(&error) && tries + 1 < SENDS_TRIED_MAX => {
                    tries += 1;
                }
                Err(error) => {
                    // A probe of the path's MTU may be too large. The datagram is lost, as on any
                    // network.
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

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.socket.fmt(f)
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.socket.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn a_server_names_clients_by_mapped_addresses_and_reaches_them_there() {
        let client = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut server = wrap(socket, Side::Server).unwrap();
        let at = server.local_addr().unwrap();
        client.send_to(b"asked", at).await.unwrap();

        let (mut buffer, mut meta) = ([0; 100], [RecvMeta::default()]);
        let mut buffers = [IoSliceMut::new(&mut buffer)];
        let received = poll_fn(|cx| server.poll_recv(cx, &mut buffers, &mut meta)).await;
        assert_eq!(received.unwrap(), 1);
        assert_eq!(&buffer[..meta[0].len], b"asked");
        assert!(meta[0].addr.is_ipv6());
        let known = client.local_addr().unwrap();
        assert_eq!(multipath::unmapped(meta[0].addr), known);

        let answer = Transmit {
            destination: meta[0].addr,
            ecn: None,
            contents: b"told",
            segment_size: None,
            src_ip: meta[0].dst_ip,
        };
        let mut sender = server.create_sender();
        poll_fn(|cx| sender.as_mut().poll_send(&answer, cx))
            .await
            .unwrap();
        let (length, from) = client.recv_from(&mut buffer).await.unwrap();
        assert_eq!((&buffer[..length], from), (&b"told"[..], at));
    }
}
