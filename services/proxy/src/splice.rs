//! Bytes between a tunnel and a TCP connection, both ways.
//!
//! Each direction holds one buffer and reads again only when all of it has been taken by the other side, so a slow reader stops the
//! writer: at most `2 * BUFFER_BYTES` per tunnel wait here, the rest in the windows of QUIC and TCP. The end of one
//! direction is passed on as half-close. An error in either direction breaks both off with a reset, so that nobody takes a torn
//! transfer for a complete one.

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};
use tunnel::TunnelStream;

/// What one direction of one tunnel holds.
const BUFFER_BYTES: usize = 32 * 1024;

/// Bytes that passed, and when the last ones did.
pub(crate) struct Traffic {
    up_bytes: AtomicU64,
    down_bytes: AtomicU64,
    last: Mutex<Instant>,
}

impl Default for Traffic {
    fn default() -> Self {
        Self {
            up_bytes: AtomicU64::new(0),
            down_bytes: AtomicU64::new(0),
            last: Mutex::new(Instant::now()),
        }
    }
}

impl Traffic {
    /// From the gateway, and to it.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (
            self.up_bytes.load(Ordering::Relaxed),
            self.down_bytes.load(Ordering::Relaxed),
        )
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum SpliceError {
    #[error("from the gateway: {0}")]
    Up(io::Error),
    #[error("to the gateway: {0}")]
    Down(io::Error),
    #[error("nothing passed for {0:?}")]
    Idle(Duration),
}

/// Runs until both directions have ended.
pub(crate) async fn both(
    tunnel: TunnelStream,
    upstream: TcpStream,
    idle_max: Duration,
    traffic: &Traffic,
) -> Result<(), SpliceError> {
    let (mut from_gateway, mut to_gateway) = tokio::io::split(tunnel);
    let (mut from_upstream, mut to_upstream) = tokio::io::split(upstream);
    let up = async {
        let counter = metrics::counter!("braid_proxy_bytes_total", "direction" => "up");
        pass(&mut from_gateway, &mut to_upstream, |bytes| {
            traffic.up_bytes.fetch_add(bytes, Ordering::Relaxed);
            *traffic.last.lock() = Instant::now();
            counter.increment(bytes);
        })
        .await
        .map_err(SpliceError::Up)
    };
    let down = async {
        let counter = metrics::counter!("braid_proxy_bytes_total", "direction" => "down");
        pass(&mut from_upstream, &mut to_gateway, |bytes| {
            traffic.down_bytes.fetch_add(bytes, Ordering::Relaxed);
            *traffic.last.lock() = Instant::now();
            counter.increment(bytes);
        })
        .await
        .map_err(SpliceError::Down)
    };
    let ended = tokio::select! {
        ended = async { tokio::try_join!(up, down) } => ended.map(|_| ()),
        () = idle(traffic, idle_max) => Err(SpliceError::Idle(idle_max)),
    };
    if ended.is_err() {
        // The tunnel resets itself when dropped unfinished; TCP needs to be told.
        let upstream = from_upstream.unsplit(to_upstream);
        let _ = SockRef::from(&upstream).set_linger(Some(Duration::ZERO));
    }
    ended
}

async fn pass(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    passed: impl Fn(u64),
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..count]).await?;
        to.flush().await?;
        passed(count as u64);
    }
}

/// Returns once nothing has passed for `max`.
async fn idle(traffic: &Traffic, max: Duration) {
    loop {
        let deadline = *traffic.last.lock() + max;
        if Instant::now() >= deadline {
            return;
        }
        tokio::time::sleep_until(deadline.into()).await;
    }
}
