//! The send half of `h3`'s streams on a `noq` connection.
//!
//! Sending differs in one point from what `h3` asks for. `h3` offers only an `async` way to send a DATA frame, which cannot be
//! dropped half way and begun again; a byte stream (`AsyncWrite`) needs exactly that. So the send half lives in a
//! [`SendHandle`], shared between `h3` (which encodes frames into it) and the tunnel (which flushes, finishes, resets it
//! and sets its urgency). Bytes that the transport refused stay in the handle: at most one frame, since nobody may
//! add a frame before the last one has gone. DATA frames are encoded here, since `h3` would copy their payload.
//!
//! All streams of a connection share its send window, and the transport gives room in it to whoever asks first. So what bulk may take ends at the
//! window; more urgent streams, and all headers, may go beyond it ([`SendWindow`]).

use std::{
    collections::HashMap,
    future::Future,
    pin::pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h3::{
    error::Code,
    quic::{self, ConnectionErrorIncoming, StreamErrorIncoming, StreamId, WriteBuf},
};
use parking_lot::Mutex;

use super::{Bidi, BidiStream, RecvStream, on_stream, protocol, stream_id, varint, write_error};
use crate::{
    request::Urgency,
    transport::{SEND_BEYOND_BYTES, SEND_WINDOW_BYTES},
    varint as variable,
};

/// What the library gives each new stream.
const CONTROL_PRIORITY: i32 = 0;

/// RFC 9114, 7.2.1.
const DATA_FRAME: u8 = 0;

/// A frame's type and the longest form of its length.
const FRAME_HEADER_BYTES_MAX: usize = 9;

/// What a connection keeps for sending and re-sending: `SEND_WINDOW_BYTES`, and for a moment more.
struct SendWindow {
    connection: noq::Connection,
    raised: Mutex<()>,
    /// What its streams hold because there was no room.
    refused_bytes: AtomicUsize,
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
    pub(super) fn new(connection: noq::Connection) -> Self {
        Self {
            handles: Arc::default(),
            window: Arc::new(SendWindow {
                connection,
                raised: Mutex::new(()),
                refused_bytes: AtomicUsize::new(0),
            }),
        }
    }

    pub fn get(&self, id: StreamId) -> Option<Arc<SendHandle>> {
        self.handles.lock().get(&id)?.upgrade()
    }

    /// Bytes that streams hold because the transport takes no more of them: a sure sign of a backlog.
    pub fn pending_bytes(&self) -> usize {
        self.window.refused_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn send(&self, stream: noq::SendStream) -> SendStream {
        let id = stream_id(stream.id());
        let handle = Arc::new(SendHandle {
            sending: Mutex::new(Sending {
                stream,
                pending: Default::default(),
                refused_bytes: 0,
                beyond_bytes: SEND_BEYOND_BYTES,
                data_beyond_bytes: 0,
                data_priority: None,
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

    pub(super) fn bidi(&self, (send, recv): Bidi) -> BidiStream {
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
    /// How much of it counts in the connection's sum.
    refused_bytes: usize,
    /// How far beyond the send window that frame may go.
    beyond_bytes: u64,
    /// The same for DATA frames.
    data_beyond_bytes: u64,
    /// Of data, where headers are more urgent: taken on by the first DATA frame.
    data_priority: Option<i32>,
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
        let flushed = self.flush(sending, cx);
        self.count(sending);
        flushed
    }

    /// Of this stream, what the transport has refused. Asked for the sum with each turn of the steering, and there may be many streams.
    fn count(&self, sending: &mut Sending) {
        let bytes = sending.pending_bytes();
        let before = std::mem::replace(&mut sending.refused_bytes, bytes);
        let sum = &self.window.refused_bytes;
        match bytes.checked_sub(before) {
            Some(0) => {}
            Some(more) => {
                sum.fetch_add(more, Ordering::Relaxed);
            }
            None => {
                sum.fetch_sub(before - bytes, Ordering::Relaxed);
            }
        }
    }

    fn flush(
        &self,
        sending: &mut Sending,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), noq::WriteError>> {
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
        variable::put(&mut header, payload.len() as u64);
        let sending = &mut *self.sending.lock();
        debug_assert_eq!(sending.pending_bytes(), 0, "frames must not overtake");
        sending.pending = [header.freeze(), payload];
        sending.beyond_bytes = sending.data_beyond_bytes;
        if let Some(priority) = sending.data_priority.take() {
            // Fails only for a stream that has ended, which sends no more.
            let _ = sending.stream.set_priority(priority);
        }
    }

    /// What is more urgent is sent first, and need not wait for room that bulk has taken. Before its data a stream is a control stream, if it is not
    /// more urgent than that: requests and answers of bulk are not to wait for vitals.
    pub fn set_urgency(&self, urgency: Urgency) {
        let sending = &mut *self.sending.lock();
        sending.data_beyond_bytes = match urgency {
            Urgency::Urgent => SEND_BEYOND_BYTES,
            Urgency::Prompt => SEND_BEYOND_BYTES / 2,
            Urgency::Bulk => 0,
        };
        let priority = urgency.stream_priority();
        if priority > CONTROL_PRIORITY {
            // Fails only for a stream that has ended, which sends no more.
            let _ = sending.stream.set_priority(priority);
        } else {
            sending.data_priority = Some(priority);
        }
    }

    /// Ends the stream for the peer as broken, not as complete.
    pub fn reset(&self, code: Code) {
        let sending = &mut *self.sending.lock();
        sending.pending = Default::default();
        self.count(sending);
        // Fails only for a stream that has ended already.
        let _ = sending.stream.reset(varint(code.value()));
    }
}

impl Drop for SendHandle {
    fn drop(&mut self) {
        let refused = self.sending.get_mut().refused_bytes;
        self.window
            .refused_bytes
            .fetch_sub(refused, Ordering::Relaxed);
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
        let frame = data.copy_to_bytes(data.remaining());
        let frame = protocol::leaving(&frame).unwrap_or(frame);
        sending.pending = [frame, Bytes::new()];
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
