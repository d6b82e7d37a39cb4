//! Relays bytes between a tunnel and a TCP connection in both directions, for the gateway's
//! applications and the proxy's destinations.
//!
//! Each direction has one buffer and reads again only when the other side has taken all of it, so a
//! slow reader stops the writer. At most `2 * BUFFER_BYTES` per tunnel wait here, the rest in the
//! windows of QUIC and TCP. The end of one direction is passed on as half-close. An error in either
//! direction resets both, so that no end takes a torn transfer for a complete one.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use bytes::Buf;
use metrics::Counter;
use parking_lot::Mutex;
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
};

use crate::carried::{
    pieces::{Parcel, Pieces},
    tunnel_stream::TunnelStream,
};

/// Bytes that one direction of one tunnel holds; at the bound its writer waits.
const BUFFER_BYTES: usize = 64 * 1024;

/// Bytes that passed one tunnel, and the time of the last ones.
pub struct Traffic {
    start: Instant,
    /// Since `start`.
    last_ms: AtomicU64,
    from_tunnel: DirectionCounters,
    to_tunnel: DirectionCounters,
}

struct DirectionCounters {
    bytes: AtomicU64,
    counter: Counter,
}

impl DirectionCounters {
    fn new(counter: Counter) -> Self {
        Self {
            bytes: AtomicU64::new(0),
            counter,
        }
    }
}

impl Traffic {
    /// The counters add up the bytes of all tunnels.
    pub fn new(from_tunnel: Counter, to_tunnel: Counter) -> Self {
        Self {
            start: Instant::now(),
            last_ms: AtomicU64::new(0),
            from_tunnel: DirectionCounters::new(from_tunnel),
            to_tunnel: DirectionCounters::new(to_tunnel),
        }
    }

    /// Bytes from the tunnel, and into it.
    pub fn bytes(&self) -> (u64, u64) {
        (
            self.from_tunnel.bytes.load(Ordering::Relaxed),
            self.to_tunnel.bytes.load(Ordering::Relaxed),
        )
    }

    fn passed(&self, counters: &DirectionCounters, bytes: usize) {
        counters.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        counters.counter.increment(bytes as u64);
        let since_ms = self.start.elapsed().as_millis() as u64;
        self.last_ms.store(since_ms, Ordering::Relaxed);
    }

    fn last(&self) -> Instant {
        self.start + Duration::from_millis(self.last_ms.load(Ordering::Relaxed))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum SpliceError {
    #[error("from the tunnel: {0}")]
    FromTunnel(io::Error),
    #[error("into the tunnel: {0}")]
    ToTunnel(io::Error),
    #[error("nothing passed for {0:?}")]
    Idle(Duration),
}

/// Runs until both directions have ended. Dropping it earlier resets the tunnel.
pub async fn splice(
    tunnel: TunnelStream,
    tcp: TcpStream,
    idle_max: Duration,
    traffic: &Traffic,
) -> Result<(), SpliceError> {
    let mut tcp = ResetOnDrop {
        tcp,
        in_order: false,
    };
    // One task polls both directions, so the lock is never contended.
    let tunnel = Mutex::new(tunnel);
    let (from_tcp, to_tcp) = tcp.tcp.split();
    let out = async {
        let passed = |bytes| traffic.passed(&traffic.from_tunnel, bytes);
        from_tunnel(&tunnel, to_tcp, passed)
            .await
            .map_err(SpliceError::FromTunnel)
    };
    let back = async {
        let passed = |bytes| traffic.passed(&traffic.to_tunnel, bytes);
        into_tunnel(from_tcp, &tunnel, passed)
            .await
            .map_err(SpliceError::ToTunnel)
    };
    tokio::select! {
        ended = async { tokio::try_join!(out, back) } => ended.map(|_| ())?,
        () = idle(traffic, idle_max) => return Err(SpliceError::Idle(idle_max)),
    }
    tcp.in_order = true;
    Ok(())
}

/// The tunnel resets itself if it is dropped unfinished; TCP needs an explicit reset.
struct ResetOnDrop {
    tcp: TcpStream,
    in_order: bool,
}

impl Drop for ResetOnDrop {
    fn drop(&mut self) {
        if !self.in_order {
            // Fails only for a socket that is closed already.
            let _ = SockRef::from(&self.tcp).set_linger(Some(Duration::ZERO));
        }
    }
}

async fn from_tunnel(
    tunnel: &Mutex<TunnelStream>,
    mut tcp: WriteHalf<'_>,
    passed: impl Fn(usize),
) -> io::Result<()> {
    let mut pieces = Pieces::new(BUFFER_BYTES);
    loop {
        poll_fn(|cx| tunnel.lock().poll_pieces(cx, &mut pieces)).await?;
        let count = pieces.remaining();
        if count == 0 {
            return tcp.shutdown().await;
        }
        tcp.write_all_buf(&mut pieces).await?;
        passed(count);
    }
}

async fn into_tunnel(
    mut tcp: ReadHalf<'_>,
    tunnel: &Mutex<TunnelStream>,
    passed: impl Fn(usize),
) -> io::Result<()> {
    let mut parcel = Parcel::new();
    loop {
        let count = tcp.read_buf(&mut parcel.fill(BUFFER_BYTES)).await?;
        if count == 0 {
            return poll_fn(|cx| Pin::new(&mut *tunnel.lock()).poll_shutdown(cx)).await;
        }
        poll_fn(|cx| tunnel.lock().poll_parcel(cx, &mut parcel)).await?;
        poll_fn(|cx| Pin::new(&mut *tunnel.lock()).poll_flush(cx)).await?;
        passed(count);
    }
}

/// Returns once no byte has passed for `max`.
async fn idle(traffic: &Traffic, max: Duration) {
    loop {
        let deadline = traffic.last() + max;
        if Instant::now() >= deadline {
            return;
        }
        tokio::time::sleep_until(deadline.into()).await;
    }
}
