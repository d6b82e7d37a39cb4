//! A TCP connection whose bytes and arrivals are counted for the record of paths.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

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
