//! HTTP Datagrams (RFC 9297) of one connection as DATAGRAM frames of QUIC (RFC 9221); each names
//! its request by a quarter of the stream's id.
//!
//! The transport sends its queued datagrams before all streams, whatever their urgency. So it gets
//! only one packet of them at a time (`UNSENT_BYTES_MAX`). When paths may send again, the first
//! packet holds datagrams and the next ones hold streams. Lost datagrams are not repeated.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use bytes::{BufMut, Bytes, BytesMut};
use h3::quic::StreamId;
use noq::SendDatagramError;
use parking_lot::Mutex;

use crate::{
    carried::datagram_tunnel::{
        ended::TunnelEnded,
        payload::{Head, open},
        queue::Queue,
    },
    http::{transport::UNSENT_BYTES_MAX, varint},
};

/// Longest datagram in a frame; a longer one goes as a capsule, however large packets are. The
/// transport adds its own bookkeeping.
const LENGTH_MAX: usize = UNSENT_BYTES_MAX - 64;

/// Datagrams delivered at once.
const BATCH_MAX: usize = 32;

/// Longest wait of a datagram; then it replaces one that no path can send, for example because it
/// is too large.
const UNSENT_MAX: Duration = Duration::from_millis(500);

/// `H3_DATAGRAM_ERROR` (RFC 9297, 2.1).
const DATAGRAM_ERROR: u32 = 0x33;

/// Largest quarter of a stream id (RFC 9297, 2.1).
const QUARTER_MAX: u64 = (1 << 60) - 1;

/// Clones are the same.
#[derive(Clone)]
pub(crate) struct HttpDatagrams(Arc<Inner>);

struct Inner {
    connection: noq::Connection,
    /// The queues of the requests; only requests that still have an owner.
    flows: Mutex<HashMap<u64, Queue>>,
    /// Bytes that wait in the queues of all requests.
    waiting_bytes: Arc<AtomicUsize>,
}

impl HttpDatagrams {
    /// Delivers arriving datagrams until the connection ends.
    pub(crate) fn start(connection: noq::Connection, waiting_bytes: Arc<AtomicUsize>) -> Self {
        let datagrams = Self(Arc::new(Inner {
            connection,
            flows: Mutex::default(),
            waiting_bytes,
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
            Ok(Some(payload)) => queue.push_arrived(payload),
            Ok(None) => {}
            Err(malformed) => queue.end(TunnelEnded::Malformed(malformed)),
        }
        true
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
        self.datagrams.0.waiting_bytes.clone()
    }

    /// The longest payload behind `head` that a frame carries now; none if the peer takes none.
    pub(crate) fn payload_bytes_max(&self, head: &Head) -> usize {
        let length_max = self.datagrams.0.connection.max_datagram_size().unwrap_or(0);
        let before = self.prefix.len() + head.len();
        length_max.min(LENGTH_MAX).saturating_sub(before)
    }

    /// Sends a datagram as a frame. Returns false if it is too large for one, or the peer accepts
    /// none.
    pub(crate) async fn send(
        &self,
        head: &Head,
        payload: &[u8],
    ) -> Result<bool, noq::ConnectionError> {
        let connection = &self.datagrams.0.connection;
        let length = self.prefix.len() + head.len() + payload.len();
        if payload.len() > self.payload_bytes_max(head) {
            return Ok(false);
        }
        let mut datagram = BytesMut::with_capacity(length);
        datagram.put_slice(&self.prefix);
        datagram.put_slice(head);
        datagram.put_slice(payload);
        let datagram = datagram.freeze();
        let sending = connection.send_datagram_wait(datagram.clone());
        let sent = match tokio::time::timeout(UNSENT_MAX, sending).await {
            Ok(sent) => sent,
            Err(_) => connection.send_datagram(datagram),
        };
        match sent {
            Ok(()) => Ok(true),
            Err(SendDatagramError::ConnectionLost(error)) => Err(error),
            Err(_) => Ok(false),
        }
    }
}

impl Drop for DatagramFlow {
    fn drop(&mut self) {
        self.datagrams.0.flows.lock().remove(&self.quarter);
    }
}
