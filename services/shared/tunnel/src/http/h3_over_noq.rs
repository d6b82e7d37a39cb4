//! `h3`'s transport traits on a `noq` connection.
//!
//! Receiving (`receiving`) takes data in batches of up to `CHUNKS_MAX` chunks, each batch in one
//! access to the connection and without a copy. Sending is in `sending`. `protocol` handles
//! requests with a protocol that `h3` does not know.

mod conversions;
pub(crate) mod protocol;
mod receiving;
mod sending;

use std::{
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
use multipath::PathScheduler;

use conversions::{connection_error, on_stream, varint};
use protocol::Arriving;
pub use receiving::RecvStream;
pub use sending::{SendHandle, SendHandles, SendStream};

type Bidi = (noq::SendStream, noq::RecvStream);
type Incoming<T> = BoxStream<'static, Result<T, noq::ConnectionError>>;

/// A connection as `h3` needs it.
pub struct Connection {
    incoming_bidi: Incoming<Bidi>,
    incoming_uni: Incoming<noq::RecvStream>,
    opener: Opener,
}

impl Connection {
    pub fn new(connection: noq::Connection, path_scheduler: Arc<PathScheduler>) -> Self {
        let handles = SendHandles::new(connection.clone(), path_scheduler);
        let bidi = stream::unfold(connection.clone(), |connection| async {
            Some((connection.accept_bi().await, connection))
        });
        let uni = stream::unfold(connection.clone(), |connection| async {
            Some((connection.accept_uni().await, connection))
        });
        Self {
            incoming_bidi: bidi.boxed(),
            incoming_uni: uni.boxed(),
            opener: Opener::new(connection, handles),
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
                let mut bidi = BidiStream::new(&self.opener.handles, bidi);
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
            Some(Ok(bidi)) => Ok(BidiStream::new(&self.handles, bidi)),
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

pub struct BidiStream {
    send: SendStream,
    recv: RecvStream,
}

impl BidiStream {
    fn new(handles: &SendHandles, (send, recv): Bidi) -> Self {
        Self {
            send: handles.send(send),
            recv: RecvStream::new(recv),
        }
    }
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

fn ended() -> ConnectionErrorIncoming {
    ConnectionErrorIncoming::InternalError("the connection yields no more streams".into())
}
