//! HTTP Datagrams (RFC 9297) of one connection as DATAGRAM frames of QUIC (RFC 9221); each names
//! its request by a quarter of the stream's id.
//!
//! The transport sends its queued datagrams before all streams, whatever their urgency. So it gets
//! only a burst of them at a time, see [`Unsent`]. The transport repeats no lost datagram.

use std::{
    collections::HashMap,
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::{BufMut, Bytes, BytesMut};
use h3::quic::StreamId;
use multipath::PathScheduler;
use noq::SendDatagramError;
use parking_lot::Mutex;
use tokio::sync::MutexGuard;

use crate::{
    carried::datagram_tunnel::{
        ended::TunnelEnded,
        payload::{Head, Opened, open},
        queue::Queue,
    },
    http::{
        h3_over_noq::SendHandles,
        transport::UNSENT_BYTES_MAX,
        unsent::{LENGTH_MAX, OVERHEAD_BYTES, Unsent},
        varint,
    },
};

/// Memory that the datagrams of a burst share.
const BUFFER_BYTES: usize = 16 * 1024;

/// Datagrams delivered at once.
const BATCH_MAX: usize = 32;

/// Longest time between two looks at the transport. It reports no datagrams that it drops itself.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A context that neither end registers, so its datagrams are dropped (RFC 9298, 4).
const UNUSED_CONTEXT: u8 = 63;

/// `H3_DATAGRAM_ERROR` (RFC 9297, 2.1).
const DATAGRAM_ERROR: u32 = 0x33;

/// Largest quarter of a stream id (RFC 9297, 2.1).
const QUARTER_MAX: u64 = (1 << 60) - 1;

#[derive(Default)]
struct Sending {
    unsent: Unsent,
    /// Memory of the next datagrams.
    buffer: BytesMut,
}

/// Clones are the same.
#[derive(Clone)]
pub(crate) struct HttpDatagrams(Arc<Inner>);

struct Inner {
    connection: noq::Connection,
    path_scheduler: Arc<PathScheduler>,
    /// Held by the request that sends or is the next to send.
    sending: tokio::sync::Mutex<Sending>,
    /// Requests that wait for `sending`.
    queueing: AtomicUsize,
    /// The queues of the requests; only requests that still have an owner.
    flows: Mutex<HashMap<u64, Queue>>,
    /// Has the sum of the bytes that wait in the queues of all requests.
    handles: SendHandles,
}

impl HttpDatagrams {
    /// Delivers arriving datagrams until the connection ends.
    pub(crate) fn start(
        connection: noq::Connection,
        path_scheduler: Arc<PathScheduler>,
        handles: SendHandles,
    ) -> Self {
        let datagrams = Self(Arc::new(Inner {
            connection,
            path_scheduler,
            sending: tokio::sync::Mutex::default(),
            queueing: AtomicUsize::default(),
            flows: Mutex::default(),
            handles,
        }));
        tokio::spawn(datagrams.clone().hand_out());
        datagrams
    }

    async fn hand_out(self) {
        let mut arrived: [Bytes; BATCH_MAX] = Default::default();
        let connection = &self.0.connection;
        while let Ok(count) = connection.read_many_datagrams(&mut arrived).await {
            for datagram in arrived.iter_mut().take(count) {
                if !self.take(std::mem::take(datagram)) {
                    let code = noq::VarInt::from_u32(DATAGRAM_ERROR);
                    connection.close(code, b"a datagram that names no request");
                    return;
                }
            }
        }
    }

    /// Returns whether the datagram names a request. Datagrams of an ended or unknown request are
    /// dropped.
    fn take(&self, mut datagram: Bytes) -> bool {
        let quarter = match varint::read(&datagram) {
            Some((quarter, used)) if quarter <= QUARTER_MAX => {
                let _ = datagram.split_to(used);
                quarter
            }
            _ => return false,
        };
        let Some(queue) = self.0.flows.lock().get(&quarter).cloned() else {
            // The kind of the datagram is unknown here.
            metrics::counter!("braid_tunnel_udp_dropped_total", "at" => "unknown").increment(1);
            return true;
        };
        match open(queue.kind(), datagram) {
            Ok(Some(Opened::Payload(payload))) => queue.push_arrived(payload),
            Ok(Some(Opened::Question(asked))) => queue.push_question(asked),
            Ok(None) => {}
            Err(malformed) => queue.end(TunnelEnded::Malformed(malformed)),
        }
        true
    }

    /// The longest datagram that a frame carries now; 0 if the peer takes none.
    fn length_max(&self) -> usize {
        let length_max = self.0.connection.max_datagram_size().unwrap_or(0);
        length_max.min(LENGTH_MAX)
    }

    /// Delivers the datagrams of the request to `queue` from now on.
    pub(crate) fn enter(&self, id: StreamId, queue: Queue) -> DatagramFlow {
        let quarter = id.into_inner() / 4;
        self.0.flows.lock().insert(quarter, queue);
        let mut prefix = BytesMut::new();
        varint::put(&mut prefix, quarter);
        DatagramFlow {
            datagrams: self.clone(),
            quarter,
            prefix: prefix.freeze(),
        }
    }
}

/// The datagrams of one request.
pub(crate) struct DatagramFlow {
    datagrams: HttpDatagrams,
    quarter: u64,
    prefix: Bytes,
}

impl DatagramFlow {
    /// The connection's sum of waiting bytes.
    pub(crate) fn waiting_bytes(&self) -> Arc<AtomicUsize> {
        self.datagrams.0.handles.datagram_bytes()
    }

    /// The longest payload behind `head` that a frame carries now; none if the peer takes none.
    pub(crate) fn payload_bytes_max(&self, head: &Head) -> usize {
        let before = self.prefix.len() + head.len();
        self.datagrams.length_max().saturating_sub(before)
    }

    /// Waits until the transport has room for a payload of this length and those behind it.
    pub(crate) async fn burst(&self, payload_bytes: usize) -> Burst<'_> {
        let inner = &*self.datagrams.0;
        let mut sending = {
            let _queueing = Counted::new(&inner.queueing);
            inner.sending.lock().await
        };
        let length = self.prefix.len() + Head::longest(true).len() + payload_bytes;
        let room = self.room(&mut sending.unsent, length.min(LENGTH_MAX));
        let rate_bytes_per_s = room.await;
        Burst {
            flow: self,
            sending,
            rate_bytes_per_s,
            sharing: 1 + inner.queueing.load(Ordering::Relaxed),
            bytes: 0,
            length_max: self.datagrams.length_max(),
            datagrams: Vec::new(),
            added: Vec::new(),
        }
    }

    /// Returns the rate of all paths once a burst that begins with a datagram of this length may be
    /// sent.
    async fn room(&self, unsent: &mut Unsent, length: usize) -> f64 {
        let inner = &*self.datagrams.0;
        let scheduler = &inner.path_scheduler;
        loop {
            let (seen, now) = (scheduler.sent_packets(), Instant::now());
            unsent.follow(now, inner.unsent_bytes());
            if unsent.is_stuck(now, || self.datagrams.length_max()) {
                self.drop_unsent(unsent);
            }
            let rate_bytes_per_s = scheduler.rate_bytes_per_s();
            let may_begin = unsent.may_begin(length, rate_bytes_per_s);
            if may_begin || inner.connection.close_reason().is_some() {
                return rate_bytes_per_s;
            }
            let sent = poll_fn(|cx| scheduler.poll_sent(cx, seen));
            // Either way the transport says what is left.
            let _ = tokio::time::timeout(LOOK_EVERY, sent).await;
        }
    }

    /// The transport cannot be asked for this. It drops the oldest datagrams for newer ones, so it
    /// gets the shortest that the peer ignores.
    fn drop_unsent(&self, unsent: &mut Unsent) {
        let ignored = Bytes::from([&self.prefix[..], &[UNUSED_CONTEXT]].concat());
        let count = UNSENT_BYTES_MAX / (ignored.len() + OVERHEAD_BYTES) + 1;
        let ignored = vec![ignored; count];
        // A connection that has ended reports it to the burst.
        let _ = self.datagrams.0.connection.send_many_datagrams(&ignored);
        *unsent = Unsent::default();
    }
}

impl Inner {
    fn unsent_bytes(&self) -> usize {
        let space = self.connection.datagram_send_buffer_space();
        UNSENT_BYTES_MAX.saturating_sub(space + OVERHEAD_BYTES)
    }
}

/// Counts in until it is dropped, also by a cancelled wait.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Datagrams of one request that are handed to the transport together.
pub(crate) struct Burst<'a> {
    flow: &'a DatagramFlow,
    sending: MutexGuard<'a, Sending>,
    rate_bytes_per_s: f64,
    /// Requests that take turns.
    sharing: usize,
    /// Bytes of this burst so far.
    bytes: usize,
    length_max: usize,
    datagrams: Vec<Bytes>,
    added: Vec<(Head, Bytes)>,
}

impl Burst<'_> {
    /// Gives the payload back if it is too large for a frame, or the peer accepts none.
    pub(crate) fn add(&mut self, head: Head, payload: Bytes) -> Option<(Head, Bytes)> {
        let length = self.flow.prefix.len() + head.len() + payload.len();
        if length > self.length_max {
            return Some((head, payload));
        }
        let Sending { unsent, buffer } = &mut *self.sending;
        if buffer.capacity() < length {
            *buffer = BytesMut::with_capacity(BUFFER_BYTES);
        }
        buffer.put_slice(&self.flow.prefix);
        buffer.put_slice(&head);
        buffer.put_slice(&payload);
        self.datagrams.push(buffer.split().freeze());
        self.added.push((head, payload));
        unsent.add(length);
        self.bytes += length;
        None
    }

    /// Reserves the next packet for the datagram that is added next, which is this copy.
    pub(crate) async fn reserve(&self, copy: u8, payload_bytes: usize) {
        let bytes = self.flow.prefix.len() + Head::longest(true).len() + payload_bytes;
        self.flow.datagrams.0.handles.reserve(copy, bytes).await;
    }

    /// Longest payload with which the burst may go on.
    pub(crate) fn room(&self) -> Option<usize> {
        let before = self.flow.prefix.len() + Head::longest(true).len();
        let unsent = &self.sending.unsent;
        let room = unsent.room(self.rate_bytes_per_s, self.bytes, self.sharing)?;
        room.checked_sub(before)
    }

    /// Returns how many datagrams have left, and the payloads that the transport has refused.
    /// Packets may have become smaller, or the peer may have stopped to accept frames.
    pub(crate) fn send(mut self) -> Result<(usize, Vec<(Head, Bytes)>), noq::ConnectionError> {
        let connection = &self.flow.datagrams.0.connection;
        match connection.send_many_datagrams(&self.datagrams) {
            Ok(count) => Ok((count, Vec::new())),
            Err(SendDatagramError::ConnectionLost(error)) => Err(error),
            Err(_) => {
                self.sending.unsent.take_back(self.added.len());
                Ok((0, self.added))
            }
        }
    }
}

impl Drop for DatagramFlow {
    fn drop(&mut self) {
        self.datagrams.0.flows.lock().remove(&self.quarter);
    }
}
