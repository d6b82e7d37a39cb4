//! Relays the datagrams of one request: those of UDP (RFC 9298) or packets of IP (RFC 9484).
//!
//! A datagram travels as a DATAGRAM frame of QUIC if both ends support that and it fits into a
//! packet. Otherwise it is a capsule on the request's stream; over HTTP/2 all are capsules. The
//! tunnel ends with its session. If both ends have agreed on it, frames that did not come are sent
//! again. An IP tunnel also carries its own capsules on the stream, in order.
//!
//! A copied datagram leaves twice, by two paths, if both ends have agreed on an order. The far end
//! knows the later one by its number. The server copies the answers to copied datagrams.

mod controlled_delay;
mod copies_seen;
pub(crate) mod ended;
pub(crate) mod kind;
mod order;
pub(crate) mod packet_size;
pub(crate) mod payload;
pub(crate) mod queue;
mod repair;
mod resend;
mod sequence_number;
mod two_periods;

use std::{convert::Infallible, future::poll_fn, sync::Arc, task::Poll, time::Instant};

use bytes::Bytes;
use h3::quic::StreamId;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    carried::ip_tunnel::capsule::Raw,
    http::{
        http_datagrams::{Burst, DatagramFlow, HttpDatagrams},
        request::Agreed,
        stream::{ConnectStream, wire_error::WireError},
    },
    paths::Paths,
};
use ended::TunnelEnded;
use kind::Kind;
use order::Numbers;
use packet_size::{LOOK_EVERY, PacketSize};
use payload::{Arrived, Decoder, Head, capsule};
use queue::{Queue, Repair};
use resend::Resend;

/// Capsules of one direction that wait; at the bound the sender waits, including the peer.
const CAPSULES_WAITING_MAX: usize = 16;

/// Datagrams that carry a copied payload, by as many paths.
const COPIES: u8 = 2;

/// Datagrams that a receiver takes together.
const TOGETHER_MAX: usize = 64;

/// Datagrams in both directions. Dropping it ends the request.
#[derive(Debug)]
pub(crate) struct DatagramTunnel {
    leaving: Queue,
    arriving: Queue,
    packet_size: watch::Receiver<Option<u16>>,
    /// Answers to copies are copied.
    mirrors_copies: bool,
    _end: DropGuard,
}

impl DatagramTunnel {
    /// Queues one datagram for sending; returns whether there was room.
    pub(crate) fn send(&self, payload: &[u8]) -> bool {
        let copied = self.mirrors_copies && self.arriving.has_copies(payload);
        self.push(payload, copied)
    }

    /// The same for a datagram that leaves twice, by two paths.
    pub(crate) fn send_copied(&self, payload: &[u8]) -> bool {
        self.push(payload, true)
    }

    fn push(&self, payload: &[u8], copied: bool) -> bool {
        let kind = self.leaving.kind();
        let taken = payload.len() <= kind.payload_bytes_max()
            && self.leaving.push(Bytes::copy_from_slice(payload), copied);
        if !taken {
            kind.count_dropped("leaving");
        }
        taken
    }

    /// Cancel-safe; for one receiver at a time.
    pub(crate) async fn receive(&self) -> Result<Bytes, TunnelEnded> {
        self.arriving.next().await
    }

    /// The same for as many as wait, in their order; the buffer must be empty.
    pub(crate) async fn receive_many(&self, taken: &mut Vec<Bytes>) -> Result<(), TunnelEnded> {
        self.arriving.next_many(taken, TOGETHER_MAX).await
    }

    /// The largest packet of IP that fits into one packet of each path; `None` until it is known,
    /// or if datagrams are no frames.
    pub(crate) fn packet_size(&self) -> &watch::Receiver<Option<u16>> {
        &self.packet_size
    }

    pub(crate) fn ended(&self) -> Option<TunnelEnded> {
        self.arriving.ended()
    }

    /// Accepts no more datagrams; the receiver gets this reason as the peer's.
    pub(crate) fn end(&self, reason: TunnelEnded) {
        self.arriving.end(reason.clone());
        self.leaving.end(reason);
    }
}

/// The capsules of an IP tunnel in both directions.
#[derive(Debug)]
pub(crate) struct Capsules {
    pub(crate) leaving: mpsc::Sender<Bytes>,
    pub(crate) arriving: mpsc::Receiver<Raw>,
}

/// The relay's ends of these channels.
struct Spoken {
    leaving: mpsc::Receiver<Bytes>,
    arriving: mpsc::Sender<Raw>,
}

/// The queue of arriving datagrams. It must exist before the request is answered, because a
/// datagram may follow the answer at once.
pub(crate) struct Arrivals {
    queue: Queue,
    flow: Option<DatagramFlow>,
    mirrors_copies: bool,
}

impl Arrivals {
    /// For HTTP/3 with the connection's datagrams and the request's stream. `paths`: by which
    /// packets come.
    pub(crate) fn new(
        kind: Kind,
        by_frames: Option<(&HttpDatagrams, StreamId)>,
        agreed: Agreed,
        paths: &Arc<Paths>,
    ) -> Self {
        let ordered_by = agreed.ordered.then(|| paths.clone());
        // Only frames are lost.
        let repaired = agreed.repaired && by_frames.is_some();
        let queue = Queue::ordered(kind, ordered_by, repaired);
        let flow = by_frames.map(|(datagrams, id)| datagrams.enter(id, queue.clone()));
        Self {
            queue,
            flow,
            mirrors_copies: false,
        }
    }

    /// The same at the server, which copies what answers copies.
    pub(crate) fn mirroring_copies(mut self) -> Self {
        self.mirrors_copies = true;
        self
    }

    /// Starts to relay once the request is answered, until `replaced`.
    pub(crate) fn begin(
        self,
        stream: ConnectStream,
        replaced: impl Future<Output = ()> + Send + 'static,
    ) -> DatagramTunnel {
        self.start(stream, replaced, None)
    }

    /// The same with capsules beside the datagrams.
    pub(crate) fn begin_speaking(
        self,
        stream: ConnectStream,
        replaced: impl Future<Output = ()> + Send + 'static,
    ) -> (DatagramTunnel, Capsules) {
        let (to_leave, leaving) = mpsc::channel(CAPSULES_WAITING_MAX);
        let (to_arrive, arriving) = mpsc::channel(CAPSULES_WAITING_MAX);
        let spoken = Spoken {
            leaving,
            arriving: to_arrive,
        };
        let capsules = Capsules {
            leaving: to_leave,
            arriving,
        };
        (self.start(stream, replaced, Some(spoken)), capsules)
    }

    fn start(
        self,
        stream: ConnectStream,
        replaced: impl Future<Output = ()> + Send + 'static,
        spoken: Option<Spoken>,
    ) -> DatagramTunnel {
        let end = CancellationToken::new();
        let packet_size = watch::Sender::default();
        let known = packet_size.subscribe();
        let relay = Relay {
            stream: Mutex::new(stream),
            leaving: Queue::leaving(
                self.queue.kind(),
                self.flow.as_ref().map(DatagramFlow::waiting_bytes),
            ),
            flow: self.flow,
            numbers: self.queue.is_ordered().then(Mutex::default),
            resend: self.queue.is_repaired().then(Resend::default),
            arriving: self.queue,
            packet_size,
        };
        let tunnel = DatagramTunnel {
            leaving: relay.leaving.clone(),
            arriving: relay.arriving.clone(),
            packet_size: known,
            mirrors_copies: self.mirrors_copies,
            _end: end.clone().drop_guard(),
        };
        tokio::spawn(relay.run(spoken, end, replaced));
        tunnel
    }
}

/// Carries the datagrams of one tunnel.
struct Relay {
    /// One task polls both directions, so the lock is never contended.
    stream: Mutex<ConnectStream>,
    flow: Option<DatagramFlow>,
    leaving: Queue,
    /// The numbers of packets that leave, if an order is agreed; never contended either.
    numbers: Option<Mutex<Numbers>>,
    /// If a repair is agreed.
    resend: Option<Resend>,
    arriving: Queue,
    packet_size: watch::Sender<Option<u16>>,
}

impl Relay {
    async fn run(
        self,
        spoken: Option<Spoken>,
        end: CancellationToken,
        replaced: impl Future<Output = ()>,
    ) {
        let (to_say, heard) = spoken
            .map(|spoken| (spoken.leaving, spoken.arriving))
            .unzip();
        let reason = tokio::select! {
            reason = self.send_all(to_say) => reason,
            reason = self.receive_all(heard) => reason,
            never = self.follow_paths() => match never {},
            never = resend::forget(self.resend.as_ref()) => match never {},
            () = replaced => TunnelEnded::Session,
            // The reason is not reported any more.
            () = end.cancelled() => TunnelEnded::ByPeer,
        };
        // The reason of a malformed frame is set elsewhere and takes precedence.
        let reason = self.arriving.ended().unwrap_or(reason);
        tracing::debug!(%reason, "a tunnel of datagrams ended");
        self.leaving.end(reason.clone());
        self.arriving.end(reason.clone());
        let mut stream = self.stream.into_inner();
        if reason.is_malformed() {
            stream.abort();
            return;
        }
        // If the transport cannot take the end at once it becomes a reset, which ends the request
        // as well.
        poll_fn(|cx| {
            let _ = stream.poll_end(cx);
            Poll::Ready(())
        })
        .await;
    }

    /// Publishes the packet size; never returns.
    async fn follow_paths(&self) -> Infallible {
        let flow = self.flow.as_ref();
        let Some(flow) = flow.filter(|_| self.leaving.kind() == Kind::Ip) else {
            return std::future::pending().await;
        };
        let head = Head::longest(self.numbers.is_some());
        let mut size = PacketSize::default();
        loop {
            if self.stream.lock().peer_takes_datagrams()
                && let Some(size) = size.look(Instant::now(), flow.payload_bytes_max(&head))
            {
                self.packet_size.send_replace(Some(size));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn send_all(&self, mut to_say: Option<mpsc::Receiver<Bytes>>) -> TunnelEnded {
        loop {
            let sent = tokio::select! {
                // Capsules come first: they are few, and no packet passes before addresses are
                // assigned.
                biased;
                Some(capsule) = next_capsule(&mut to_say) => self.send_capsule(capsule).await,
                repair = self.arriving.next_repair() => self.repair(repair, &mut to_say).await,
                next = self.leaving.next_to_leave() => match next {
                    Ok((payload, copied)) => self.send(payload, copied, &mut to_say).await,
                    Err(reason) => return reason,
                },
            };
            if let Err(error) = sent {
                return error.into();
            }
        }
    }

    /// Sends the payload, and those that wait behind it while the transport has room for them.
    /// Capsules do not wait for that room.
    async fn send(
        &self,
        payload: Bytes,
        copied: bool,
        to_say: &mut Option<mpsc::Receiver<Bytes>>,
    ) -> Result<(), WireError> {
        let head = self.head(&payload);
        let Some(flow) = self.flow_for(&head, &payload) else {
            return self.send_as_capsule(&head, &payload).await;
        };
        let mut burst = self.burst(flow, payload.len(), to_say).await?;
        // Without numbers the far end would take a copy for another datagram.
        if copied && self.numbers.is_some() {
            let (sent, refused) = self.send_twice(burst, head, payload).await?;
            self.leaving.kind().count_sent("frame", sent as u64);
            return match refused {
                Some(payload) => self.send_as_capsule(&head, &payload).await,
                None => Ok(()),
            };
        }
        let mut too_large = burst.add(head, payload);
        while too_large.is_none()
            && let Some(payload) = burst.room().and_then(|room| self.leaving.take_next(room))
        {
            too_large = burst.add(self.head(&payload), payload);
        }
        let sent = burst.send();
        let (sent, mut refused) = sent.map_err(|error| WireError::Lost(error.into()))?;
        self.leaving.kind().count_sent("frame", sent as u64);
        refused.extend(too_large);
        for (head, payload) in refused {
            self.send_as_capsule(&head, &payload).await?;
        }
        Ok(())
    }

    /// Asks for packets, or sends some again. Those that are no longer known are forgotten.
    async fn repair(
        &self,
        repair: Repair,
        to_say: &mut Option<mpsc::Receiver<Bytes>>,
    ) -> Result<(), WireError> {
        let mut packets = match repair {
            Repair::Ask(numbers) => vec![(Head::of_question(), payload::question(&numbers))],
            Repair::Answer(numbers) => {
                let resend = self.resend.as_ref();
                let packets = resend.map(|resend| resend.packets(numbers));
                let packets = packets.unwrap_or_default();
                self.leaving.kind().count_repaired(packets.len() as u64);
                packets
            }
        }
        .into_iter()
        .peekable();
        while let Some((head, payload)) = packets.next() {
            // The packets may have become smaller since.
            let Some(flow) = self.flow_for(&head, &payload) else {
                continue;
            };
            let mut burst = self.burst(flow, payload.len(), to_say).await?;
            burst.add(head, payload);
            while let Some(room) = burst.room()
                && let Some((head, payload)) = packets.next_if(|(_, it)| it.len() <= room)
            {
                burst.add(head, payload);
            }
            burst
                .send()
                .map_err(|error| WireError::Lost(error.into()))?;
        }
        Ok(())
    }

    /// The frames, if the payload goes into one.
    fn flow_for(&self, head: &Head, payload: &[u8]) -> Option<&DatagramFlow> {
        let takes_frames = self.stream.lock().peer_takes_datagrams();
        let flow = self.flow.as_ref().filter(|_| takes_frames);
        flow.filter(|flow| payload.len() <= flow.payload_bytes_max(head))
    }

    /// Waits for room. Capsules do not wait for it.
    async fn burst<'a>(
        &self,
        flow: &'a DatagramFlow,
        payload_bytes: usize,
        to_say: &mut Option<mpsc::Receiver<Bytes>>,
    ) -> Result<Burst<'a>, WireError> {
        loop {
            tokio::select! {
                biased;
                burst = flow.burst(payload_bytes) => return Ok(burst),
                Some(capsule) = next_capsule(to_say) => self.send_capsule(capsule).await?,
            }
        }
    }

    /// Returns how many datagrams have left, and the payload if the transport has refused both.
    async fn send_twice(
        &self,
        first: Burst<'_>,
        head: Head,
        payload: Bytes,
    ) -> Result<(usize, Option<Bytes>), WireError> {
        let mut sent = 0;
        let mut first = Some(first);
        for copy in 0..COPIES {
            let mut burst = match (first.take(), &self.flow) {
                (Some(first), _) => first,
                (None, Some(flow)) => flow.burst(payload.len()).await,
                (None, None) => break,
            };
            burst.reserve(copy, payload.len()).await;
            if burst.add(head, payload.clone()).is_none() {
                let burst = burst.send();
                sent += burst.map_err(|error| WireError::Lost(error.into()))?.0;
            }
        }
        Ok((sent, Some(payload).filter(|_| sent == 0)))
    }

    /// Numbers a packet, and keeps it.
    fn head(&self, payload: &Bytes) -> Head {
        let kind = self.leaving.kind();
        let sequence = |numbers: &Mutex<Numbers>| numbers.lock().next(kind, payload);
        let sequence = self.numbers.as_ref().map(sequence);
        if let (Some(resend), Some(sequence)) = (&self.resend, sequence) {
            resend.keep(sequence, payload.clone());
        }
        Head::new(sequence)
    }

    async fn send_as_capsule(&self, head: &Head, payload: &[u8]) -> Result<(), WireError> {
        self.send_capsule(capsule(head, payload)).await?;
        self.leaving.kind().count_sent("capsule", 1);
        Ok(())
    }

    async fn send_capsule(&self, capsule: Bytes) -> Result<(), WireError> {
        poll_fn(|cx| self.stream.lock().poll_sent(cx)).await?;
        poll_fn(|cx| Poll::Ready(self.stream.lock().send(cx, capsule.clone()))).await?;
        // The next datagram stays in the queue, where it can still be dropped.
        poll_fn(|cx| self.stream.lock().poll_sent(cx)).await
    }

    async fn receive_all(&self, heard: Option<mpsc::Sender<Raw>>) -> TunnelEnded {
        let mut decoder = Decoder::new(self.arriving.kind());
        loop {
            let mut chunk = match poll_fn(|cx| self.stream.lock().poll_chunk(cx)).await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => match decoder.end() {
                    Ok(()) => return TunnelEnded::ByPeer,
                    Err(malformed) => return malformed.into(),
                },
                Err(error) => return error.into(),
            };
            loop {
                match decoder.next(&mut chunk) {
                    Ok(Some(Arrived::Payload(payload))) => self.arriving.push_arrived(payload),
                    Ok(Some(Arrived::Capsule(capsule))) => {
                        if let Some(heard) = &heard {
                            // During the drop of the tunnel the capsule has no receiver.
                            let _ = heard.send(capsule).await;
                        }
                    }
                    Ok(None) => break,
                    Err(malformed) => return malformed.into(),
                }
            }
        }
    }
}

async fn next_capsule(to_say: &mut Option<mpsc::Receiver<Bytes>>) -> Option<Bytes> {
    match to_say {
        Some(to_say) => to_say.recv().await,
        None => None,
    }
}

#[cfg(test)]
mod tests;
