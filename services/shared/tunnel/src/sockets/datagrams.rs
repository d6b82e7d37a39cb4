//! Counts system calls and the datagrams that they carry. The kernel takes a train of equal
//! datagrams in one call (UDP_SEGMENT, GSO) and delivers trains in one call (UDP_GRO). Without them
//! each datagram costs a call, and the processor becomes the bottleneck.

use std::{
    io::{self, IoSliceMut},
    net::SocketAddr,
    num::NonZeroUsize,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
};

use metrics::Counter;
use noq::{
    AsyncUdpSocket, UdpSender,
    udp::{RecvMeta, Transmit},
};

/// Calls and datagrams since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DatagramCounts {
    pub sends: u64,
    pub sent_datagrams: u64,
    pub receives: u64,
    pub received_datagrams: u64,
}

struct Count {
    own: AtomicU64,
    all: Counter,
}

impl Count {
    fn new(all: Counter) -> Self {
        Self {
            own: AtomicU64::new(0),
            all,
        }
    }

    fn add(&self, count: u64) {
        self.own.fetch_add(count, Ordering::Relaxed);
        self.all.increment(count);
    }

    fn get(&self) -> u64 {
        self.own.load(Ordering::Relaxed)
    }
}

/// The counts of one endpoint; clones share them.
#[derive(Clone)]
pub(crate) struct Datagrams(Arc<Counts>);

struct Counts {
    sends: Count,
    sent_datagrams: Count,
    receives: Count,
    received_datagrams: Count,
}

impl Datagrams {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Counts {
            sends: Count::new(metrics::counter!("braid_tunnel_sends_total")),
            sent_datagrams: Count::new(metrics::counter!("braid_tunnel_sent_datagrams_total")),
            receives: Count::new(metrics::counter!("braid_tunnel_receives_total")),
            received_datagrams: Count::new(metrics::counter!(
                "braid_tunnel_received_datagrams_total"
            )),
        }))
    }

    pub(crate) fn counts(&self) -> DatagramCounts {
        DatagramCounts {
            sends: self.0.sends.get(),
            sent_datagrams: self.0.sent_datagrams.get(),
            receives: self.0.receives.get(),
            received_datagrams: self.0.received_datagrams.get(),
        }
    }

    /// Wraps `socket` and counts its traffic.
    pub(crate) fn of(&self, socket: Box<dyn AsyncUdpSocket>) -> Box<dyn AsyncUdpSocket> {
        Box::new(Counted {
            socket,
            datagrams: self.clone(),
        })
    }
}

impl std::fmt::Debug for Datagrams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.counts().fmt(f)
    }
}

#[derive(Debug)]
struct Counted {
    socket: Box<dyn AsyncUdpSocket>,
    datagrams: Datagrams,
}

impl AsyncUdpSocket for Counted {
    fn create_sender(&self) -> Pin<Box<dyn UdpSender>> {
        Box::pin(CountedSender {
            sender: self.socket.create_sender(),
            datagrams: self.datagrams.clone(),
        })
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let received = ready!(self.socket.poll_recv(cx, bufs, meta))?;
        let datagrams: usize = meta
            .iter()
            .take(received)
            .map(|meta| meta.len.div_ceil(meta.stride.max(1)))
            .sum();
        self.datagrams.0.receives.add(1);
        self.datagrams.0.received_datagrams.add(datagrams as u64);
        Poll::Ready(Ok(received))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_receive_segments(&self) -> NonZeroUsize {
        self.socket.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }
}

#[derive(Debug)]
struct CountedSender {
    sender: Pin<Box<dyn UdpSender>>,
    datagrams: Datagrams,
}

impl UdpSender for CountedSender {
    fn poll_send(
        self: Pin<&mut Self>,
        transmit: &Transmit<'_>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.sender.as_mut().poll_send(transmit, cx))?;
        let length = transmit.contents.len();
        let datagrams = transmit
            .segment_size
            .map_or(1, |size| length.div_ceil(size.max(1)));
        this.datagrams.0.sends.add(1);
        this.datagrams.0.sent_datagrams.add(datagrams as u64);
        Poll::Ready(Ok(()))
    }

    fn max_transmit_segments(&self) -> NonZeroUsize {
        self.sender.max_transmit_segments()
    }
}
