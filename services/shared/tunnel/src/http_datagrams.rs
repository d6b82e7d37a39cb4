//! HTTP Datagrams (RFC 9297) of one connection as DATAGRAM frames of QUIC (RFC 9221): each names its request by a quarter of the stream's
//! id.
//!
//! The library sends the datagrams that it holds before all streams, however urgent those are. It is therefore given one packet of them at
//! a time (`UNSENT_BYTES_MAX`): when paths may send again, the first packet is theirs and those behind it are the streams'. What
//! is lost is not sent anew.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::{BufMut, Bytes, BytesMut};
use h3::quic::StreamId;
use noq::SendDatagramError;
use parking_lot::Mutex;

use crate::{
    datagram_tunnel::{
        TunnelEnded,
        payload::{open, put_context},
        queue::Queue,
    },
    varint,
};

/// Bytes of datagrams that the library holds unsent: one of the largest, or as many small ones as about fill a packet. Whoever has more
/// waits.
pub(crate) const UNSENT_BYTES_MAX: usize = 1_536;

/// A datagram longer than this goes as a capsule, however large packets are: the library adds what it keeps about each.
const LENGTH_MAX: usize = UNSENT_BYTES_MAX - 64;

/// Bytes of datagrams of one connection that have arrived and were not handed out; beyond it the library drops the oldest.
pub(crate) const UNREAD_BYTES_MAX: usize = 512 * 1024;

/// Datagrams handed out at once.
const BATCH_MAX: usize = 32;

/// A datagram that waits longer takes the place of one that no path can send, be it too large for those that are left.
const UNSENT_MAX: Duration = Duration::from_millis(500);

/// `H3_DATAGRAM_ERROR` (RFC 9297, 2.1).
const DATAGRAM_ERROR: u32 = 0x33;

/// Quarters of stream ids (RFC 9297, 2.1).
const QUARTER_MAX: u64 = (1 << 60) - 1;

/// Clones are the same.
#[derive(Clone)]
pub(crate) struct HttpDatagrams(Arc<Inner>);

struct Inner {
    connection: noq::Connection,
    /// Where the datagrams of each request go; holds only requests that somebody still owns.
    flows: Mutex<HashMap<u64, Queue>>,
}

impl HttpDatagrams {
    /// Hands out what arrives until the connection ends.
    pub(crate) fn start(connection: noq::Connection) -> Self {
        let datagrams = Self(Arc::new(Inner {
            connection,
            flows: Mutex::default(),
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

    /// Whether the datagram names a request. Those of a request that is over, or has not arrived yet, are dropped.
    fn take(&self, mut datagram: Bytes) -> bool {
        let quarter = match varint::read(&datagram) {
            Some((quarter, used)) if quarter <= QUARTER_MAX => {
                let _ = datagram.split_to(used);
                quarter
            }
            _ => return false,
        };
        let Some(queue) = self.0.flows.lock().get(&quarter).cloned() else {
            // Of which kind nobody can say.
            metrics::counter!("braid_tunnel_udp_dropped_total", "at" => "unknown").increment(1);
            return true;
        };
        match open(queue.kind(), datagram) {
            // A copy, so that a few bytes do not keep the packets that they came in.
            Ok(Some(payload)) => {
                if !queue.push(Bytes::copy_from_slice(&payload)) {
                    queue.kind().count_dropped("arriving");
                }
            }
            Ok(None) => {}
            Err(malformed) => queue.end(TunnelEnded::Malformed(malformed)),
        }
        true
    }

    /// From here on the datagrams of the request go to `queue`.
    pub(crate) fn enter(&self, id: StreamId, queue: Queue) -> DatagramFlow {
        let quarter = id.into_inner() / 4;
        self.0.flows.lock().insert(quarter, queue);
        let mut prefix = BytesMut::new();
        varint::put(&mut prefix, quarter);
        put_context(&mut prefix);
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
    /// Sends one as a frame. Not if it is too large for one, or the peer takes none.
    pub(crate) async fn send(&self, payload: &[u8]) -> Result<bool, noq::ConnectionError> {
        let connection = &self.datagrams.0.connection;
        let length = self.prefix.len() + payload.len();
        let length_max = connection.max_datagram_size().unwrap_or(0);
        if length > length_max.min(LENGTH_MAX) {
            return Ok(false);
        }
        let mut datagram = BytesMut::with_capacity(length);
        datagram.put_slice(&self.prefix);
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
