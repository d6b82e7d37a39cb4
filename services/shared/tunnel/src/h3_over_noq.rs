//! `h3`'s transport traits on a `noq` connection.
//!
//! Receiving takes what has arrived in batches of up to `CHUNKS_MAX` chunks, one visit to the connection each, and copies none of it.
//! Sending differs in one point from what `h3` asks for. `h3` offers only an `async` way to send a DATA frame, which cannot be
//! dropped half way and begun again; a byte stream (`AsyncWrite`) needs exactly that. So the send half lives in a
//! [`SendHandle`], shared between `h3` (which encodes frames into it) and the tunnel (which flushes, finishes, resets it
//! and sets its priority). Bytes that the transport refused stay in the handle: at most one frame, since nobody may
//! add a frame before the last one has gone. DATA frames are encoded here, since `h3` would copy their payload.
//!
//! All streams of a connection share its send window, and the transport gives room in it to whoever asks first. So what bulk may take ends at the
//! window; more urgent streams, and all headers, may go beyond it ([`SendWindow`]).

use std::{
    collections::HashMap,
    future::Future,
    pin::pin,
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use h3::{
    error::Code,
    quic::{self, ConnectionErrorIncoming, StreamErrorIncoming, StreamId, WriteBuf},
};
use parking_lot::Mutex;

use crate::{
    request::Urgency,
    transport::{SEND_BEYOND_BYTES, SEND_WINDOW_BYTES},
    varint,
};

/// Chunks taken from a stream at once; each is at most one packet's payload. Further ones wait in the transport.
const CHUNKS_MAX: usize = 32;

/// RFC 9114, 7.2.1.
const DATA_FRAME: u8 = 0;

/// A frame's type and the longest form of its length.
const FRAME_HEADER_BYTES_MAX: usize = 9;

type Bidi = (noq::SendStream, noq::RecvStream);
type Incoming<T> = BoxStream<'static, Result<T, noq::ConnectionError>>;

/// A connection as `h3` wants to see it.
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

    /// The send halves of this connection's streams, to be found by stream id.
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
            Some(Ok(bidi)) => Ok(self.opener.handles.bidi(bidi)),
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

/// Opens streams; each clone waits on its own.
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

/// What a connection keeps for sending and re-sending: `SEND_WINDOW_BYTES`, and for a moment more.
struct SendWindow {
    connection: noq::Connection,
    raised: Mutex<()>,
}

impl SendWindow {
    /// Writes with so many bytes of room beyond the window. Others who write in the same moment may use it, too.
    fn beyond<T>(&self, bytes: u64, write: impl FnOnce() -> T) -> T {
        let _raised = self.raised.lock();
        self.connection.set_send_window(SEND_WINDOW_BYTES + bytes);
        let written = write();
        self.connection.set_send_window(SEND_WINDOW_BYTES);
        written
    }
}

/// The send halves of a connection by stream id; holds only streams that somebody still owns.
#[derive(Clone)]
pub struct SendHandles {
    handles: Arc<Mutex<HashMap<StreamId, Weak<SendHandle>>>>,
    window: Arc<SendWindow>,
}

impl SendHandles {
    fn new(connection: noq::Connection) -> Self {
        Self {
            handles: Arc::default(),
            window: Arc::new(SendWindow {
                connection,
                raised: Mutex::new(()),
            }),
        }
    }

    pub fn get(&self, id: StreamId) -> Option<Arc<SendHandle>> {
        self.handles.lock().get(&id)?.upgrade()
    }

    /// Bytes that streams hold because the transport takes no more of them: a sure sign of a backlog.
    pub fn pending_bytes(&self) -> usize {
        let handles: Vec<_> = self
            .handles
            .lock()
            .values()
            .filter_map(Weak::upgrade)
            .collect();
        handles
            .iter()
            .map(|handle| handle.sending.lock().pending_bytes())
            .sum()
    }

    fn send(&self, stream: noq::SendStream) -> SendStream {
        let id = stream_id(stream.id());
        let handle = Arc::new(SendHandle {
            sending: Mutex::new(Sending {
                stream,
                pending: Default::default(),
                beyond_bytes: SEND_BEYOND_BYTES,
                data_beyond_bytes: 0,
            }),
            window: self.window.clone(),
        });
        self.handles.lock().insert(id, Arc::downgrade(&handle));
        SendStream {
            handle,
            id,
            handles: self.clone(),
        }
    }

    fn bidi(&self, (send, recv): Bidi) -> BidiStream {
        BidiStream {
            send: self.send(send),
            recv: RecvStream::new(recv),
        }
    }
}

struct Sending {
    stream: noq::SendStream,
    /// What the transport has not taken yet of the last frame: of its header, of its payload.
    pending: [Bytes; 2],
    /// How far beyond the send window that frame may go.
    beyond_bytes: u64,
    /// The same for DATA frames.
    data_beyond_bytes: u64,
}

impl Sending {
    fn pending_bytes(&self) -> usize {
        self.pending.iter().map(Bytes::len).sum()
    }
}

/// The send half of a stream.
pub struct SendHandle {
    sending: Mutex<Sending>,
    window: Arc<SendWindow>,
}

impl SendHandle {
    /// Ready once the transport has taken all that was handed over.
    pub fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<Result<(), noq::WriteError>> {
        let sending = &mut *self.sending.lock();
        loop {
            let mut rest = match &mut sending.pending {
                [header, payload] if header.is_empty() && payload.is_empty() => {
                    return Poll::Ready(Ok(()));
                }
                [header, payload] if header.is_empty() => std::slice::from_mut(payload),
                both => &mut both[..],
            };
            // Pending writes nothing; otherwise the chunks keep what was not written.
            let mut write = || pin!(sending.stream.write_many_chunks(&mut rest)).poll(cx);
            let mut written = write();
            if written.is_pending() && sending.beyond_bytes > 0 {
                written = self.window.beyond(sending.beyond_bytes, write);
            }
            ready!(written)?;
        }
    }

    /// Begins a DATA frame; the last one must have gone ([`SendHandle::poll_flush`]). The payload is not copied.
    pub fn begin_data(&self, payload: Bytes) {
        let mut header = BytesMut::with_capacity(FRAME_HEADER_BYTES_MAX);
        header.put_u8(DATA_FRAME);
        varint::put(&mut header, payload.len() as u64);
        let sending = &mut *self.sending.lock();
        debug_assert_eq!(sending.pending_bytes(), 0, "frames must not overtake");
        sending.pending = [header.freeze(), payload];
        sending.beyond_bytes = sending.data_beyond_bytes;
    }

    /// What is more urgent is sent first, and need not wait for room that bulk has taken.
    pub fn set_urgency(&self, urgency: Urgency) {
        let sending = &mut *self.sending.lock();
        sending.data_beyond_bytes = match urgency {
            Urgency::Urgent => SEND_BEYOND_BYTES,
            Urgency::Prompt => SEND_BEYOND_BYTES / 2,
            Urgency::Bulk => 0,
        };
        // Fails only for a stream that has ended, which sends no more.
        let _ = sending.stream.set_priority(urgency.stream_priority());
    }

    /// Ends the stream for the peer as broken, not as complete.
    pub fn reset(&self, code: Code) {
        let sending = &mut *self.sending.lock();
        sending.pending = Default::default();
        // Fails only for a stream that has ended already.
        let _ = sending.stream.reset(varint(code.value()));
    }
}

pub struct SendStream {
    handle: Arc<SendHandle>,
    id: StreamId,
    handles: SendHandles,
}

impl Drop for SendStream {
    fn drop(&mut self) {
        self.handles.handles.lock().remove(&self.id);
    }
}

impl quic::SendStream<Bytes> for SendStream {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.handle.poll_flush(cx).map_err(write_error)
    }

    fn send_data<T: Into<WriteBuf<Bytes>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        let mut data = data.into();
        let sending = &mut *self.handle.sending.lock();
        if sending.pending_bytes() > 0 {
            return Err(on_stream(ConnectionErrorIncoming::InternalError(
                "a frame was sent before the last one had gone".into(),
            )));
        }
        sending.pending = [data.copy_to_bytes(data.remaining()), Bytes::new()];
        sending.beyond_bytes = SEND_BEYOND_BYTES;
        Ok(())
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        ready!(self.poll_ready(cx))?;
        let finished = self.handle.sending.lock().stream.finish();
        Poll::Ready(finished.map_err(|error| StreamErrorIncoming::Unknown(Box::new(error))))
    }

    fn reset(&mut self, reset_code: u64) {
        self.handle.reset(Code::from(reset_code));
    }

    fn send_id(&self) -> StreamId {
        self.id
    }
}

pub struct RecvStream {
    stream: noq::RecvStream,
    /// Taken from the stream and not asked for yet: those from `next` to `end`.
    chunks: [Bytes; CHUNKS_MAX],
    next: usize,
    end: usize,
}

impl RecvStream {
    fn new(stream: noq::RecvStream) -> Self {
        Self {
            stream,
            chunks: Default::default(),
            next: 0,
            end: 0,
        }
    }
}

impl quic::RecvStream for RecvStream {
    type Buf = Bytes;

    fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Self::Buf>, StreamErrorIncoming>> {
        if self.next == self.end {
            // The waker is kept by the connection, so the future may be dropped after one poll.
            let taking = pin!(self.stream.read_many_chunks(&mut self.chunks));
            match ready!(taking.poll(cx)).map_err(read_error)? {
                Some(count) => (self.next, self.end) = (0, count),
                None => return Poll::Ready(Ok(None)),
            }
        }
        let chunk = std::mem::take(&mut self.chunks[self.next]);
        self.next += 1;
        Poll::Ready(Ok(Some(chunk)))
    }

    fn stop_sending(&mut self, error_code: u64) {
        // Fails only for a stream that has ended already.
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

/// Error codes of HTTP/3 are small constants; anything else is cut to the largest code that a frame can hold.
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
