//! What an application holds of a UDP tunnel (RFC 9298): datagrams both ways, to and from one destination.
//!
//! They travel as DATAGRAM frames of QUIC where both ends have agreed on that and one fits into a packet, and as capsules on the request's
//! stream otherwise: larger ones, and all of them by HTTP/2. Nothing is confirmed or replayed. A UDP tunnel ends with its
//! session; whoever has more to send asks the next one anew.

pub(crate) mod payload;
pub(crate) mod queue;

use std::{future::poll_fn, io, task::Poll};

use bytes::Bytes;
use h3::quic::StreamId;
use parking_lot::Mutex;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    http_datagrams::{DatagramFlow, HttpDatagrams},
    stream::{ConnectStream, WireError},
};
use payload::{Decoder, Malformed, PAYLOAD_BYTES_MAX, capsule};
use queue::Queue;

/// Why a UDP tunnel carries nothing more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UdpEnded {
    #[error("the peer ended it")]
    ByPeer,
    /// The next session takes the same request.
    #[error("its session gives way to another")]
    Session,
    #[error("the peer sent {0}")]
    Malformed(#[from] Malformed),
    #[error("its stream was lost: {0}")]
    Lost(io::ErrorKind),
}

impl From<WireError> for UdpEnded {
    fn from(error: WireError) -> Self {
        match error {
            WireError::Aborted => Self::ByPeer,
            WireError::Lost(error) => Self::Lost(error.kind()),
        }
    }
}

/// One destination's datagrams. Dropped, it ends the request.
#[derive(Debug)]
pub struct UdpTunnel {
    leaving: Queue,
    arriving: Queue,
    _end: DropGuard,
}

impl UdpTunnel {
    /// Takes one datagram to be sent; whether there was room for it, which is how UDP says that it was lost.
    pub fn send(&self, payload: &[u8]) -> bool {
        let taken = payload.len() <= PAYLOAD_BYTES_MAX
            && self.leaving.push(Bytes::copy_from_slice(payload));
        if !taken {
            count_dropped("leaving");
        }
        taken
    }

    /// The next datagram of the destination. Cancel-safe; for one receiver at a time.
    pub async fn receive(&self) -> Result<Bytes, UdpEnded> {
        self.arriving.next().await
    }
}

/// The way of datagrams that arrive; to be there before the answer to the request, behind which the first may come.
pub(crate) struct Arrivals {
    queue: Queue,
    flow: Option<DatagramFlow>,
}

impl Arrivals {
    /// By HTTP/3 with the connection's datagrams and the request's stream.
    pub(crate) fn new(by_frames: Option<(&HttpDatagrams, StreamId)>) -> Self {
        let queue = Queue::default();
        let flow = by_frames.map(|(datagrams, id)| datagrams.enter(id, queue.clone()));
        Self { queue, flow }
    }

    /// Begins to carry once the request is answered, until `replaced`.
    pub(crate) fn begin(
        self,
        stream: ConnectStream,
        replaced: impl Future<Output = ()> + Send + 'static,
    ) -> UdpTunnel {
        let end = CancellationToken::new();
        let courier = Courier {
            stream: Mutex::new(stream),
            flow: self.flow,
            leaving: Queue::default(),
            arriving: self.queue,
        };
        let tunnel = UdpTunnel {
            leaving: courier.leaving.clone(),
            arriving: courier.arriving.clone(),
            _end: end.clone().drop_guard(),
        };
        tokio::spawn(courier.run(end, replaced));
        tunnel
    }
}

/// Carries the datagrams of one tunnel.
struct Courier {
    /// Both directions are polled by one task, so nobody ever waits for the lock.
    stream: Mutex<ConnectStream>,
    flow: Option<DatagramFlow>,
    leaving: Queue,
    arriving: Queue,
}

impl Courier {
    async fn run(self, end: CancellationToken, replaced: impl Future<Output = ()>) {
        let reason = tokio::select! {
            reason = self.send_all() => reason,
            reason = self.receive_all() => reason,
            () = replaced => UdpEnded::Session,
            // Nobody asks for the reason.
            () = end.cancelled() => UdpEnded::ByPeer,
        };
        // A malformed frame is noticed elsewhere.
        let reason = self.arriving.ended().unwrap_or(reason);
        tracing::debug!(%reason, "a UDP tunnel ended");
        self.leaving.end(reason.clone());
        self.arriving.end(reason.clone());
        let mut stream = self.stream.into_inner();
        if let UdpEnded::Malformed(_) = reason {
            stream.abort();
            return;
        }
        // An end that the transport does not take at once becomes a reset, which says as much.
        poll_fn(|cx| {
            let _ = stream.poll_end(cx);
            Poll::Ready(())
        })
        .await;
    }

    async fn send_all(&self) -> UdpEnded {
        loop {
            let payload = match self.leaving.next().await {
                Ok(payload) => payload,
                Err(reason) => return reason,
            };
            if let Err(error) = self.send(&payload).await {
                return error.into();
            }
        }
    }

    async fn send(&self, payload: &[u8]) -> Result<(), WireError> {
        if let Some(flow) = &self.flow
            && self.stream.lock().peer_takes_datagrams()
        {
            let sent = flow.send(payload).await;
            if sent.map_err(|error| WireError::Lost(error.into()))? {
                metrics::counter!("braid_tunnel_udp_sent_total", "by" => "frame").increment(1);
                return Ok(());
            }
        }
        let capsule = capsule(payload);
        poll_fn(|cx| self.stream.lock().poll_sent(cx)).await?;
        poll_fn(|cx| Poll::Ready(self.stream.lock().send(cx, capsule.clone()))).await?;
        // The next waits in the queue, where it can still be dropped.
        poll_fn(|cx| self.stream.lock().poll_sent(cx)).await?;
        metrics::counter!("braid_tunnel_udp_sent_total", "by" => "capsule").increment(1);
        Ok(())
    }

    async fn receive_all(&self) -> UdpEnded {
        let mut decoder = Decoder::new();
        loop {
            let mut chunk = match poll_fn(|cx| self.stream.lock().poll_chunk(cx)).await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => match decoder.end() {
                    Ok(()) => return UdpEnded::ByPeer,
                    Err(malformed) => return malformed.into(),
                },
                Err(error) => return error.into(),
            };
            loop {
                match decoder.next(&mut chunk) {
                    // A copy, so that a few bytes do not keep the packets that they came in.
                    Ok(Some(payload)) => {
                        if !self.arriving.push(Bytes::copy_from_slice(&payload)) {
                            count_dropped("arriving");
                        }
                    }
                    Ok(None) => break,
                    Err(malformed) => return malformed.into(),
                }
            }
        }
    }
}

pub(crate) fn count_dropped(at: &'static str) {
    metrics::counter!("braid_tunnel_udp_dropped_total", "at" => at).increment(1);
}

#[cfg(test)]
mod tests;
