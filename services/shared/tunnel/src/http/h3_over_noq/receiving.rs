//! The receive half of `h3`'s streams on a `noq` connection.

use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h3::quic::{self, StreamErrorIncoming, StreamId};

use super::{
    conversions::{read_error, stream_id, varint},
    protocol::Arriving,
};

/// Chunks taken from a stream at once, each at most one packet's payload; further chunks wait in
/// the transport.
const CHUNKS_MAX: usize = 32;

pub struct RecvStream {
    stream: noq::RecvStream,
    /// Chunks taken from the stream and not returned yet: those from `next` to `end`.
    chunks: [Bytes; CHUNKS_MAX],
    next: usize,
    end: usize,
    /// Replaces the protocol of a request; `None` on streams of answers.
    pub(super) request: Option<Arriving>,
}

impl RecvStream {
    pub(super) fn new(stream: noq::RecvStream) -> Self {
        Self {
            stream,
            chunks: Default::default(),
            next: 0,
            end: 0,
            request: None,
        }
    }
}

impl quic::RecvStream for RecvStream {
    type Buf = Bytes;

    fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Self::Buf>, StreamErrorIncoming>> {
        loop {
            if self.next == self.end {
                // The connection keeps the waker, so the future may be dropped after one poll.
                let taking = pin!(self.stream.read_many_chunks(&mut self.chunks));
                match ready!(taking.poll(cx)).map_err(read_error)? {
                    Some(count) => (self.next, self.end) = (0, count),
                    None => {
                        let rest = self.request.as_mut().and_then(Arriving::rest);
                        return Poll::Ready(Ok(rest));
                    }
                }
            }
            let chunk = std::mem::take(&mut self.chunks[self.next]);
            self.next += 1;
            let chunk = match &mut self.request {
                Some(request) => request.take(chunk),
                None => chunk,
            };
            if !chunk.is_empty() {
                return Poll::Ready(Ok(Some(chunk)));
            }
        }
    }

    fn stop_sending(&mut self, error_code: u64) {
        // Fails only for a stream that has ended.
        let _ = self.stream.stop(varint(error_code));
    }

    fn recv_id(&self) -> StreamId {
        stream_id(self.stream.id())
    }
}
