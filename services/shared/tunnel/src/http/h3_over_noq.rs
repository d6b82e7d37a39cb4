//! `h3`'s transport traits on a `noq` connection.
//!
//! Receiving takes data in batches of up to `CHUNKS_MAX` chunks, each batch in one access to the
//! connection and without a copy. Sending is in `sending`. `protocol` handles requests with a
//! protocol that `h3` does not know.

pub(crate) mod protocol;
mod sending;

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use h3::{
    error::Code,
    quic::{self, ConnectionErrorIncoming, StreamErrorIncoming, StreamId, WriteBuf},
};

use protocol::Arriving;
pub use sending::{SendHandle, SendHandles, SendStream};

/// Chunks taken from a stream at once, each at most one packet's payload; further chunks wait in
/// the transport.
const CHUNKS_MAX: usize = 32;

type Bidi = (noq::SendStream, noq::RecvStream);
type Incoming<T> = BoxStream<'static, Result<T, noq::ConnectionError>>;

/// A connection as `h3` needs it.
pub struct Connection {
    incoming_bidi: Incoming<Bidi>,
    incoming_uni: Incoming<noq::RecvStream>,
    opener: Opener,
}

impl Connection {
    pub fn new(connection: noq::Connection) -> Self {
        let bidi = stream::unfold(connection.clone(), |connection| async {
            Some((connection.accept_bi().await, connection))
        });
        let uni = stream::unfold(connection.clone(), |connection| async {
            Some((connection.accept_uni().await, connection))
        });
        Self {
            incoming_bidi: bidi.boxed(),
            incoming_uni: uni.boxed(),
            opener: Opener::new(connection.clone(), SendHandles::new(connection)),
        }
    }

    /// The send halves of this connection's streams, by stream id.
    pub fn send_handles(&self) -> SendHandles {
        self.opener.handles.clone()
    }
}

impl quic::Connection<Bytes> for Connection {
    type RecvStream = RecvStream;
    type OpenStreams = Opener;

    fn poll_accept_recv(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::RecvStream, ConnectionErrorIncoming>> {
        Poll::Ready(match ready!(self.incoming_uni.poll_next_unpin(cx)) {
            Some(Ok(recv)) => Ok(RecvStream::new(recv)),
            Some(Err(error)) => Err(connection_error(error)),
            None => Err(ended()),
        })
    }

    fn poll_accept_bidi(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::BidiStream, ConnectionErrorIncoming>> {
        Poll::Ready(match ready!(self.incoming_bidi.poll_next_unpin(cx)) {
            Some(Ok(bidi)) => {
                let mut bidi = self.opener.handles.bidi(bidi);
                bidi.recv.request = Some(Arriving::new());
                Ok(bidi)
            }
            Some(Err(error)) => Err(connection_error(error)),
            None => Err(ended()),
        })
    }

    fn opener(&self) -> Self::OpenStreams {
        self.opener.clone()
    }
}

impl quic::OpenStreams<Bytes> for Connection {
    type BidiStream = BidiStream;
    type SendStream = SendStream;

    fn poll_open_bidi(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::BidiStream, StreamErrorIncoming>> {
        self.opener.poll_open_bidi(cx)
    }

    fn poll_open_send(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::SendStream, StreamErrorIncoming>> {
        self.opener.poll_open_send(cx)
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        self.opener.close(code, reason);
    }
}

/// Opens streams; each clone waits independently.
pub struct Opener {
    connection: noq::Connection,
    handles: SendHandles,
    opening_bidi: Option<Incoming<Bidi>>,
    opening_uni: Option<Incoming<noq::SendStream>>,
}

impl Opener {
    fn new(connection: noq::Connection, handles: SendHandles) -> Self {
        Self {
            connection,
            handles,
            opening_bidi: None,
            opening_uni: None,
        }
    }
}

impl Clone for Opener {
    fn clone(&self) -> Self {
        Self::new(self.connection.clone(), self.handles.clone())
    }
}

impl quic::OpenStreams<Bytes> for Opener {
    type BidiStream = BidiStream;
    type SendStream = SendStream;

    fn poll_open_bidi(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::BidiStream, StreamErrorIncoming>> {
        let connection = &self.connection;
        let opening = self.opening_bidi.get_or_insert_with(|| {
            stream::unfold(connection.clone(), |connection| async {
                Some((connection.open_bi().await, connection))
            })
            .boxed()
        });
        Poll::Ready(match ready!(opening.poll_next_unpin(cx)) {
            Some(Ok(bidi)) => Ok(self.handles.bidi(bidi)),
            Some(Err(error)) => Err(on_stream(connection_error(error))),
            None => Err(on_stream(ended())),
        })
    }

    fn poll_open_send(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self::SendStream, StreamErrorIncoming>> {
        let connection = &self.connection;
        let opening = self.opening_uni.get_or_insert_with(|| {
            stream::unfold(connection.clone(), |connection| async {
                Some((connection.open_uni().await, connection))
            })
            .boxed()
        });
        Poll::Ready(match ready!(opening.poll_next_unpin(cx)) {
            Some(Ok(send)) => Ok(self.handles.send(send)),
            Some(Err(error)) => Err(on_stream(connection_error(error))),
            None => Err(on_stream(ended())),
        })
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        self.connection.close(varint(code.value()), reason);
    }
}

pub struct RecvStream {
    stream: noq::RecvStream,
    /// Chunks taken from the stream and not returned yet: those from `next` to `end`.
    chunks: [Bytes; CHUNKS_MAX],
    next: usize,
    end: usize,
    /// Replaces the protocol of a request; `None` on streams of answers.
    request: Option<Arriving>,
}

impl RecvStream {
    fn new(stream: noq::RecvStream) -> Self {
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

pub struct BidiStream {
    send: SendStream,
    recv: RecvStream,
}

impl quic::BidiStream<Bytes> for BidiStream {
    type SendStream = SendStream;
    type RecvStream = RecvStream;

    fn split(self) -> (Self::SendStream, Self::RecvStream) {
        (self.send, self.recv)
    }
}

impl quic::SendStream<Bytes> for BidiStream {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.send.poll_ready(cx)
    }

    fn send_data<T: Into<WriteBuf<Bytes>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        self.send.send_data(data)
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.send.poll_finish(cx)
    }

    fn reset(&mut self, reset_code: u64) {
        self.send.reset(reset_code);
    }

    fn send_id(&self) -> StreamId {
        self.send.send_id()
    }
}

impl quic::RecvStream for BidiStream {
    type Buf = Bytes;

    fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Self::Buf>, StreamErrorIncoming>> {
        self.recv.poll_data(cx)
    }

    fn stop_sending(&mut self, error_code: u64) {
        self.recv.stop_sending(error_code);
    }

    fn recv_id(&self) -> StreamId {
        self.recv.recv_id()
    }
}

/// Error codes of HTTP/3 are small constants; a larger code is cut to the largest that a frame can
/// hold.
fn varint(code: u64) -> noq::VarInt {
    noq::VarInt::from_u64(code).unwrap_or(noq::VarInt::MAX)
}

fn stream_id(id: noq::StreamId) -> StreamId {
    match StreamId::try_from(u64::from(id)) {
        Ok(id) => id,
        Err(_) => unreachable!("both types hold 62 bits"),
    }
}

fn ended() -> ConnectionErrorIncoming {
    ConnectionErrorIncoming::InternalError("the connection yields no more streams".into())
}

fn on_stream(connection_error: ConnectionErrorIncoming) -> StreamErrorIncoming {
    StreamErrorIncoming::ConnectionErrorIncoming { connection_error }
}

fn connection_error(error: noq::ConnectionError) -> ConnectionErrorIncoming {
    match error {
        noq::ConnectionError::ApplicationClosed(close) => {
            ConnectionErrorIncoming::ApplicationClose {
                error_code: close.error_code.into_inner(),
            }
        }
        noq::ConnectionError::TimedOut => ConnectionErrorIncoming::Timeout,
        other => ConnectionErrorIncoming::Undefined(Arc::new(other)),
    }
}

fn read_error(error: noq::ReadError) -> StreamErrorIncoming {
    match error {
        noq::ReadError::Reset(code) => StreamErrorIncoming::StreamTerminated {
            error_code: code.into_inner(),
        },
        noq::ReadError::ConnectionLost(error) => on_stream(connection_error(error)),
        other => StreamErrorIncoming::Unknown(Box::new(other)),
    }
}

fn write_error(error: noq::WriteError) -> StreamErrorIncoming {
    match error {
        noq::WriteError::Stopped(code) => StreamErrorIncoming::StreamTerminated {
            error_code: code.into_inner(),
        },
        noq::WriteError::ConnectionLost(error) => on_stream(connection_error(error)),
        other => StreamErrorIncoming::Unknown(Box::new(other)),
    }
}
