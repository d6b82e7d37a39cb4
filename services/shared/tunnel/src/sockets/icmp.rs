//! Errors that ICMP brings back for datagrams of an unconnected UDP socket (`IP_RECVERR`). A
//! firewall that rejects UDP says so within a round trip, while one that drops it says nothing.
//!
//! ICMP is not authenticated. So an error is only a reason to look for another way sooner.

use std::{
    future::Future,
    io::{self, IoSliceMut},
    os::fd::{AsRawFd, RawFd},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use nix::{
    errno::Errno,
    libc,
    sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt},
};
use tokio::{
    io::{Interest, Ready},
    net::UdpSocket,
};

/// Errors read at once; further ones are read at the next wake-up.
const READ_MAX: usize = 64;

/// Bytes of the refused datagram that are read with an error. Nothing looks at them.
const QUOTE_BYTES: usize = 64;

/// Room for control messages: the error with the address of its sender. The transport also makes
/// the kernel add the address and the marks of congestion to every datagram.
const CONTROL_BYTES: usize = 256;

type Waiting = Pin<Box<dyn Future<Output = io::Result<Ready>> + Send + Sync>>;

/// The queue of a socket's errors.
pub(crate) struct Errors {
    socket: Arc<UdpSocket>,
    waiting: Option<Waiting>,
}

/// Lets the kernel queue errors of ICMP at the socket; returns whether it does.
pub(crate) fn enable(socket: &std::net::UdpSocket) -> bool {
    match socket.local_addr() {
        Ok(address) if address.is_ipv4() => setsockopt(socket, sockopt::Ipv4RecvErr, &true).is_ok(),
        Ok(_) => setsockopt(socket, sockopt::Ipv6RecvErr, &true).is_ok(),
        Err(_) => false,
    }
}

/// Whether an error of a socket means that a network or the proxy refuses UDP. "Network
/// unreachable" is none: without a route TCP would fail as well.
pub(crate) fn is_refusal(error: &io::Error) -> bool {
    // The last: "prohibited" by ICMPv6, or, when sending, a firewall of this machine.
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::PermissionDenied
    )
}

impl Errors {
    pub(crate) fn of(socket: Arc<UdpSocket>) -> Self {
        Self {
            socket,
            waiting: None,
        }
    }

    /// The next error of ICMP; an unread queue would take the room of arriving datagrams.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            let socket = &self.socket;
            let waiting = self.waiting.get_or_insert_with(|| {
                let socket = socket.clone();
                Box::pin(async move { socket.ready(Interest::ERROR).await })
            });
            let Poll::Ready(ready) = waiting.as_mut().poll(cx) else {
                return Poll::Pending;
            };
            self.waiting = None;
            if ready.is_err() {
                // The runtime is shutting down.
                return Poll::Pending;
            }
            let mut last = None;
            let raw = self.socket.as_raw_fd();
            // "Would block" makes tokio wait for the next error.
            let _ = self
                .socket
                .try_io(Interest::ERROR, || read_queue(raw, &mut last));
            if let Some(errno) = last {
                return Poll::Ready(io::Error::from_raw_os_error(errno));
            }
        }
    }
}

/// Empties the queue, and keeps the last error that ICMP brought.
fn read_queue(socket: RawFd, last: &mut Option<i32>) -> io::Result<()> {
    let mut quote = [0; QUOTE_BYTES];
    let mut room = vec![0; CONTROL_BYTES];
    for _ in 0..READ_MAX {
        let mut parts = [IoSliceMut::new(&mut quote)];
        let flags = MsgFlags::MSG_ERRQUEUE;
        match recvmsg::<SockaddrStorage>(socket, &mut parts, Some(&mut room), flags) {
            Ok(message) => {
                for control in message.cmsgs().into_iter().flatten() {
                    let (ControlMessageOwned::Ipv4RecvErr(error, _)
                    | ControlMessageOwned::Ipv6RecvErr(error, _)) = control
                    else {
                        continue;
                    };
                    let origin = error.ee_origin;
                    if origin == libc::SO_EE_ORIGIN_ICMP || origin == libc::SO_EE_ORIGIN_ICMP6 {
                        *last = i32::try_from(error.ee_errno).ok();
                    }
                }
            }
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{future::poll_fn, net::SocketAddr};

    use testkit::within;

    use super::*;

    async fn refused_at(any: SocketAddr) {
        let socket = std::net::UdpSocket::bind(any).unwrap();
        assert!(enable(&socket));
        socket.set_nonblocking(true).unwrap();
        // It asks for more control messages.
        noq::udp::UdpSocketState::new((&socket).into()).unwrap();
        let socket = Arc::new(UdpSocket::from_std(socket).unwrap());
        let mut errors = Errors::of(socket.clone());
        // A port that was just given back has no listener.
        let gone = UdpSocket::bind(any).await.unwrap();
        let closed = gone.local_addr().unwrap();
        drop(gone);
        for _ in 0..3 {
            // The kernel reports a pending error once, instead of sending.
            while socket.send_to(&[0; 1_200], closed).await.is_err() {}
            let error = within(poll_fn(|cx| errors.poll(cx))).await;
            assert!(is_refusal(&error), "{error}");
        }
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(errors.poll(&mut cx).is_pending(), "the queue is empty");
    }

    #[tokio::test]
    async fn a_closed_port_refuses_by_icmp() {
        refused_at(([127, 0, 0, 1], 0).into()).await;
        refused_at("[::1]:0".parse().unwrap()).await;
    }

    #[test]
    fn an_error_that_tcp_would_meet_too_is_no_refusal() {
        assert!(!is_refusal(&io::ErrorKind::NetworkUnreachable.into()));
        assert!(!is_refusal(&io::ErrorKind::ConnectionReset.into()));
        assert!(is_refusal(&io::ErrorKind::ConnectionRefused.into()));
    }
}
