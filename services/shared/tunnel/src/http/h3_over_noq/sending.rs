//! The send half of `h3`'s streams on a `noq` connection.
//!
//! `h3` sends a DATA frame only by an `async` function, which must not be dropped half way. A byte
//! stream (`AsyncWrite`) needs exactly that. So the send half lives in a [`SendHandle`], shared by
//! `h3`, which encodes frames into it, and the tunnel. The tunnel flushes, finishes and resets it
//! and sets its urgency. The handle keeps bytes that the transport refused: at most one frame,
//! since a new frame may begin only after the last has left. DATA frames are encoded here, since
//! `h3` would copy their payload.
//!
//! All streams of a connection share its send window, and the transport gives room to the first
//! that asks. So bulk stops at the window, while more urgent streams and all headers may exceed it
//! ([`SendWindow`]).

use std::{
    collections::HashMap,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Instant,
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h3::{
    error::Code,
    quic::{self, ConnectionErrorIncoming, StreamErrorIncoming, StreamId, WriteBuf},
};
use multipath::{CopyWrite, PathScheduler, RESERVED_MAX};
use parking_lot::Mutex;
use tokio::time::{Sleep, sleep, timeout};

use super::{
    conversions::{on_stream, stream_id, varint, write_error},
    protocol,
};
use crate::http::{
    copy_number::CopyNumber,
    request::Urgency,
    transport::{SEND_BEYOND_BYTES, SEND_WINDOW_BYTES},
    varint as variable,
};

/// The priority that the transport gives each new stream.
const CONTROL_PRIORITY: i32 = 0;

/// RFC 9114, 7.2.1.
const DATA_FRAME: u8 = 0;

/// Bytes of a frame's type and the longest form of its length.
const FRAME_HEADER_BYTES_MAX: usize = 9;

/// Bytes that a connection keeps for sending and repeating: `SEND_WINDOW_BYTES`, and temporarily
/// more.
struct SendWindow {
    connection: noq::Connection,
    path_scheduler: Arc<PathScheduler>,
    raised: Mutex<()>,
    /// Bytes that its streams hold for lack of room.
    refused_bytes: AtomicUsize,
    /// Bytes that the transport has accepted so far.
    written_bytes: AtomicU64,
    /// The part of them of urgent streams.
    urgent_bytes: AtomicU64,
}

impl SendWindow {
    /// Writes with this many bytes of room beyond the window. Concurrent writers may use that room
    /// as well.
    fn beyond<T>(&self, bytes: u64, write: impl FnOnce() -> T) -> T {
        let _raised = self.raised.lock();
        self.connection.set_send_window(SEND_WINDOW_BYTES + bytes);
        let written = write();
        self.connection.set_send_window(SEND_WINDOW_BYTES);
        written
    }

    /// Ends a reservation at once if nothing was written, and otherwise after `RESERVED_MAX`. The
    /// path may be paced or full, and then nothing else would wake the connection.
    fn expire(self: &Arc<Self>, reserved: u64, written: bool) {
        if !written {
            self.path_scheduler.end_reservation(reserved);
            return;
        }
        let window = Arc::clone(self);
        tokio::spawn(async move {
            sleep(RESERVED_MAX).await;
            if window.path_scheduler.end_reservation(reserved) {
                // Wakes the connection.
                window.connection.set_send_window(SEND_WINDOW_BYTES);
            }
        });
    }
}

/// The send halves of a connection by stream id; only streams that still have an owner.
#[derive(Clone)]
pub struct SendHandles {
    handles: Arc<Mutex<HashMap<StreamId, Weak<SendHandle>>>>,
    window: Arc<SendWindow>,
    /// Bytes of datagrams that wait for the transport.
    datagram_bytes: Arc<AtomicUsize>,
}

impl SendHandles {
    pub(super) fn new(connection: noq::Connection, path_scheduler: Arc<PathScheduler>) -> Self {
        Self {
            handles: Arc::default(),
            window: Arc::new(SendWindow {
                connection,
                path_scheduler,
                raised: Mutex::new(()),
                refused_bytes: AtomicUsize::new(0),
                written_bytes: AtomicU64::new(0),
                urgent_bytes: AtomicU64::new(0),
            }),
            datagram_bytes: Arc::default(),
        }
    }

    pub fn get(&self, id: StreamId) -> Option<Arc<SendHandle>> {
        self.handles.lock().get(&id)?.upgrade()
    }

    /// Reserves the next packet for a datagram of this copy, as far as copies have paths of their
    /// own now.
    pub async fn reserve(&self, copy: u8, bytes: usize) {
        let scheduler = &self.window.path_scheduler;
        let write = CopyWrite {
            copy,
            bytes,
            urgent: true,
        };
        let reserved = loop {
            let asked = poll_fn(|cx| scheduler.poll_reserve(cx, Instant::now(), write));
            // Another copy has the next packet, and its reservation ends in this time.
            if let Ok(reserved) = timeout(RESERVED_MAX, asked).await {
                break reserved;
            }
        };
        if let Some(reserved) = reserved {
            self.window.expire(reserved, true);
        }
    }

    /// Bytes that streams and datagrams hold because the transport accepts no more: a sign of a
    /// backlog.
    pub fn pending_bytes(&self) -> usize {
        let of_streams = self.window.refused_bytes.load(Ordering::Relaxed);
        of_streams + self.datagram_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that the transport has accepted from all streams so far.
    pub fn written_bytes(&self) -> u64 {
        self.window.written_bytes.load(Ordering::Relaxed)
    }

    /// The part of them of urgent streams.
    pub fn urgent_bytes(&self) -> u64 {
        self.window.urgent_bytes.load(Ordering::Relaxed)
    }

    /// The sum of the waiting datagrams' bytes, which their queues keep.
    pub fn datagram_bytes(&self) -> Arc<AtomicUsize> {
        self.datagram_bytes.clone()
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
                urgent: false,
                copy: None,
                asks_again: None,
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
}

struct Sending {
    stream: noq::SendStream,
    /// The rest of the last frame that the transport has not accepted: header and payload.
    pending: [Bytes; 2],
    /// The part of it in the connection's sum.
    refused_bytes: usize,
    /// How far that frame may exceed the send window.
    beyond_bytes: u64,
    /// The same for DATA frames.
    data_beyond_bytes: u64,
    /// The priority of data where headers are more urgent; set by the first DATA frame.
    data_priority: Option<i32>,
    urgent: bool,
    copy: Option<CopyNumber>,
    /// Another copy is being sent. When to ask for the next packet again.
    asks_again: Option<Pin<Box<Sleep>>>,
}

impl Sending {
    fn pending_bytes(&self) -> usize {
        self.pending.iter().map(Bytes::len).sum()
    }

    /// Ready once the next packet may carry this stream. Returns the number of its reservation.
    fn poll_reserve(
        &mut self,
        cx: &mut Context<'_>,
        scheduler: &PathScheduler,
    ) -> Poll<Option<u64>> {
        let Some(copy) = self.copy.as_ref().map(CopyNumber::get) else {
            return Poll::Ready(None);
        };
        let write = CopyWrite {
            copy,
            bytes: self.pending_bytes(),
            urgent: self.urgent,
        };
        loop {
            if let Poll::Ready(reserved) = scheduler.poll_reserve(cx, Instant::now(), write) {
                self.asks_again = None;
                return Poll::Ready(reserved);
            }
            let sleep = || Box::pin(sleep(RESERVED_MAX));
            ready!(self.asks_again.get_or_insert_with(sleep).as_mut().poll(cx));
            self.asks_again = None;
        }
    }
}

/// The send half of a stream.
pub struct SendHandle {
    sending: Mutex<Sending>,
    window: Arc<SendWindow>,
}

impl SendHandle {
    /// Ready once the transport has accepted everything.
    pub fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<Result<(), noq::WriteError>> {
        let sending = &mut *self.sending.lock();
        let flushed = self.flush(sending, cx);
        self.count(sending);
        flushed
    }

    /// Updates this stream's part of the connection's sum of refused bytes. The upkeep reads that
    /// sum each turn, and there may be many streams.
    fn count(&self, sending: &mut Sending) {
        // The wait for a reservation is short, and no backlog.
        let bytes = match sending.asks_again {
            Some(_) => 0,
            None => sending.pending_bytes(),
        };
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
            let before = sending.pending_bytes();
            let reserved = match before {
                0 => None,
                _ => ready!(sending.poll_reserve(cx, &self.window.path_scheduler)),
            };
            let mut rest = match &mut sending.pending {
                [header, payload] if header.is_empty() && payload.is_empty() => {
                    return Poll::Ready(Ok(()));
                }
                [header, payload] if header.is_empty() => std::slice::from_mut(payload),
                both => &mut both[..],
            };
            // `Pending` writes nothing; otherwise the chunks keep the unwritten rest.
            let mut write = || pin!(sending.stream.write_many_chunks(&mut rest)).poll(cx);
            let mut written = write();
            if written.is_pending() && sending.beyond_bytes > 0 {
                written = self.window.beyond(sending.beyond_bytes, write);
            }
            let left = sending.pending_bytes();
            let taken = before.saturating_sub(left) as u64;
            self.window
                .written_bytes
                .fetch_add(taken, Ordering::Relaxed);
            if sending.urgent {
                let urgent = &self.window.urgent_bytes;
                urgent.fetch_add(taken, Ordering::Relaxed);
            }
            if let Some(reserved) = reserved {
                self.window.expire(reserved, taken > 0);
            }
            ready!(written)?;
        }
    }

    /// Begins a DATA frame; the frame before must have left ([`SendHandle::poll_flush`]). The
    /// payload is not copied.
    pub fn begin_data(&self, payload: Bytes) {
        let mut header = BytesMut::with_capacity(FRAME_HEADER_BYTES_MAX);
        header.put_u8(DATA_FRAME);
        variable::put(&mut header, payload.len() as u64);
        let sending = &mut *self.sending.lock();
        debug_assert_eq!(sending.pending_bytes(), 0, "frames must not overtake");
        sending.pending = [header.freeze(), payload];
        sending.beyond_bytes = sending.data_beyond_bytes;
        if let Some(priority) = sending.data_priority.take() {
            // Fails only for a stream that has ended.
            let _ = sending.stream.set_priority(priority);
        }
    }

    /// Streams of higher urgency are sent first, and need no room that bulk has taken. Until its
    /// data begin, a stream has at least the priority of a control stream: requests and answers of
    /// bulk do not wait for vitals.
    pub fn set_urgency(&self, urgency: Urgency) {
        let sending = &mut *self.sending.lock();
        sending.urgent = urgency == Urgency::Urgent;
        sending.data_beyond_bytes = match urgency {
            Urgency::Urgent => SEND_BEYOND_BYTES,
            Urgency::Prompt => SEND_BEYOND_BYTES / 2,
            Urgency::Bulk => 0,
        };
        let priority = urgency.stream_priority();
        if priority > CONTROL_PRIORITY {
            // Fails only for a stream that has ended.
            let _ = sending.stream.set_priority(priority);
        } else {
            sending.data_priority = Some(priority);
        }
    }

    /// The stream carries copies with this number, or none.
    pub fn set_copy(&self, copy: Option<CopyNumber>) {
        self.sending.lock().copy = copy;
    }

    /// Ends the stream as broken and not as complete.
    pub fn reset(&self, code: Code) {
        let sending = &mut *self.sending.lock();
        sending.pending = Default::default();
        self.count(sending);
        // Fails only for a stream that has ended.
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
