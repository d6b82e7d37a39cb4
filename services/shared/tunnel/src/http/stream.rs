//! The bytes of one CONNECT request as a stream.
//!
//! Bytes travel in DATA frames of HTTP/3 or HTTP/2. The transport gives the back-pressure:
//! `poll_write` accepts the next chunk only after the last has left, and the window closes while no
//! reader reads. As with any buffered writer, the last chunk may wait for `flush`. `shutdown` ends
//! one direction and leaves the other open. Dropping a stream whose writing side was not shut down
//! resets it, so that the peer cannot take a torn transfer for a complete one.

mod h2;
mod h3;
pub(crate) mod wire_error;

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use ::h3::quic::StreamId;
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use self::wire_error::{Broken, WireError};
pub(crate) use self::{h2::H2Wire, h3::H3Wire};
use crate::{
    carried::pieces::{Parcel, Sink},
    http::copy_number::CopyNumber,
};

/// Largest payload of one DATA frame, and so the largest number of bytes that a stream holds back.
const CHUNK_BYTES_MAX: usize = 64 * 1024;

/// Counts the open streams of a session, and their arrivals.
#[derive(Debug, Clone, Default)]
pub(crate) struct OpenStreams(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    open: AtomicUsize,
    arrivals: AtomicU64,
}

impl OpenStreams {
    pub(crate) fn count(&self) -> usize {
        self.0.open.load(Ordering::Relaxed)
    }

    /// Rises with every arrival on any of the streams.
    pub(crate) fn arrivals(&self) -> u64 {
        self.0.arrivals.load(Ordering::Relaxed)
    }

    pub(crate) fn enter(&self) -> OpenStream {
        self.0.open.fetch_add(1, Ordering::Relaxed);
        OpenStream(self.clone())
    }
}

pub(crate) struct OpenStream(OpenStreams);

impl OpenStream {
    fn count_arrival(&self) {
        self.0.0.arrivals.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The carrier of the bytes.
pub(crate) enum Wire {
    H3(Box<H3Wire>),
    H2(Box<H2Wire>),
}

impl Wire {
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, WireError>> {
        match self {
            Self::H3(wire) => wire.poll_receive(cx),
            Self::H2(wire) => wire.poll_receive(cx),
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), WireError>> {
        match self {
            Self::H3(wire) => wire.poll_flush(cx),
            Self::H2(wire) => wire.poll_flush(cx),
        }
    }

    /// Begins a DATA frame and passes on what the transport accepts at once; the rest waits for the
    /// next flush.
    fn begin_send(&mut self, cx: &mut Context<'_>, chunk: Bytes) -> Result<(), WireError> {
        match self {
            Self::H3(wire) => wire.begin_data(chunk),
            Self::H2(wire) => wire.begin_data(chunk),
        }
        match self.poll_flush(cx) {
            Poll::Ready(result) => result,
            Poll::Pending => Ok(()),
        }
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), WireError>> {
        match self {
            Self::H3(wire) => wire.poll_finish(cx),
            Self::H2(wire) => wire.poll_finish(cx),
        }
    }

    fn peer_takes_datagrams(&self) -> bool {
        match self {
            Self::H3(wire) => wire.peer_takes_datagrams(),
            Self::H2(_) => false,
        }
    }

    fn break_off(&mut self, broken: Broken) {
        match self {
            Self::H3(wire) => wire.break_off(broken),
            Self::H2(wire) => wire.break_off(broken),
        }
    }
}

/// One CONNECT stream.
pub(crate) struct ConnectStream {
    wire: Wire,
    /// Received and not yet read.
    unread: Bytes,
    received_all: bool,
    /// Arrived after bytes that were read; the next read returns it.
    failed: Option<io::Error>,
    sent_all: bool,
    open: OpenStream,
}

impl ConnectStream {
    pub(crate) fn of_h3(wire: H3Wire, open: OpenStream) -> Self {
        Self::new(Wire::H3(Box::new(wire)), open)
    }

    pub(crate) fn of_h2(wire: H2Wire, open: OpenStream) -> Self {
        Self::new(Wire::H2(Box::new(wire)), open)
    }

    fn new(wire: Wire, open: OpenStream) -> Self {
        Self {
            wire,
            unread: Bytes::new(),
            received_all: false,
            failed: None,
            sent_all: false,
            open,
        }
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, WireError>> {
        let received = self.wire.poll_receive(cx);
        if matches!(&received, Poll::Ready(Ok(Some(chunk))) if !chunk.is_empty()) {
            self.open.count_arrival();
        }
        received
    }

    /// Ends the stream as broken in both directions, as a TCP reset would.
    pub(crate) fn abort(mut self) {
        self.break_off(true);
    }

    fn break_off(&mut self, deliberately: bool) {
        let (sending, receiving) = (!self.sent_all, !self.received_all);
        if sending || receiving {
            self.wire.break_off(Broken {
                deliberately,
                sending,
                receiving,
            });
        }
        self.sent_all = true;
        self.received_all = true;
    }
}

/// The interface for applications.
impl ConnectStream {
    /// Ready and empty at the end.
    pub(crate) fn poll_bytes(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut impl Sink,
    ) -> Poll<io::Result<()>> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Err(error));
        }
        let mut read = false;
        loop {
            let taken = self.unread.len().min(sink.room());
            if taken > 0 {
                sink.put(self.unread.split_to(taken));
                read = true;
            }
            if sink.room() == 0 || self.received_all {
                return Poll::Ready(Ok(()));
            }
            // Chunks are as small as packets, so the sink is filled with all that have arrived.
            // Empty DATA frames carry no byte.
            match self.poll_receive(cx) {
                Poll::Ready(Ok(Some(chunk))) => self.unread = chunk,
                Poll::Ready(Ok(None)) => self.received_all = true,
                Poll::Pending if !read => return Poll::Pending,
                Poll::Pending => return Poll::Ready(Ok(())),
                Poll::Ready(Err(error)) if !read => return Poll::Ready(Err(error.into())),
                Poll::Ready(Err(error)) => {
                    self.failed = Some(error.into());
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }

    /// Ready once the whole parcel is passed on.
    pub(crate) fn poll_parcel(
        &mut self,
        cx: &mut Context<'_>,
        parcel: &mut Parcel,
    ) -> Poll<io::Result<()>> {
        while !parcel.bytes().is_empty() {
            if self.sent_all {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            ready!(self.wire.poll_flush(cx))?;
            if parcel.is_full() && parcel.bytes().len() <= CHUNK_BYTES_MAX {
                let (buffer, start) = parcel.take();
                self.wire.begin_send(cx, buffer.freeze().slice(start..))?;
            } else {
                let taken = parcel.bytes().len().min(CHUNK_BYTES_MAX);
                self.wire
                    .begin_send(cx, Bytes::copy_from_slice(&parcel.bytes()[..taken]))?;
                parcel.advance(taken);
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// The interface for a tunnel of capsules: chunks without copies, and errors that distinguish a
/// reset by the peer from a lost stream.
impl ConnectStream {
    /// The next bytes as they arrived; `None` at the end.
    pub(crate) fn poll_chunk(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, WireError>> {
        while !self.received_all {
            match ready!(self.poll_receive(cx))? {
                Some(chunk) if chunk.is_empty() => {}
                Some(chunk) => return Poll::Ready(Ok(Some(chunk))),
                None => self.received_all = true,
            }
        }
        Poll::Ready(Ok(None))
    }

    /// Ready once the transport has accepted everything; only then may more be sent.
    pub(crate) fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), WireError>> {
        self.wire.poll_flush(cx)
    }

    /// Passes on the next bytes.
    pub(crate) fn send(&mut self, cx: &mut Context<'_>, bytes: Bytes) -> Result<(), WireError> {
        self.wire.begin_send(cx, bytes)
    }
}

impl ConnectStream {
    /// Whether the peer has announced HTTP Datagrams as frames of QUIC.
    pub(crate) fn peer_takes_datagrams(&self) -> bool {
        self.wire.peer_takes_datagrams()
    }

    /// The stream carries copies with this number, or none. Over TCP the kernel chooses the paths.
    pub(crate) fn set_copy(&self, copy: Option<CopyNumber>) {
        if let Wire::H3(wire) = &self.wire {
            wire.set_copy(copy);
        }
    }

    /// The stream id in datagrams.
    pub(crate) fn h3_id(&self) -> Option<StreamId> {
        match &self.wire {
            Wire::H3(wire) => Some(wire.id()),
            Wire::H2(_) => None,
        }
    }

    /// Ends this direction.
    pub(crate) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self).poll_shutdown(cx)
    }
}

impl AsyncRead for ConnectStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.get_mut().poll_bytes(cx, buf)
    }
}

impl AsyncWrite for ConnectStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.sent_all {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        ready!(this.wire.poll_flush(cx))?;
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let taken = buf.len().min(CHUNK_BYTES_MAX);
        this.wire
            .begin_send(cx, Bytes::copy_from_slice(&buf[..taken]))?;
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.sent_all {
            return Poll::Ready(Ok(()));
        }
        self.wire.poll_flush(cx).map_err(io::Error::from)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.sent_all {
            return Poll::Ready(Ok(()));
        }
        ready!(this.wire.poll_flush(cx))?;
        let finished = ready!(this.wire.poll_finish(cx));
        this.sent_all = true;
        Poll::Ready(finished.map_err(io::Error::from))
    }
}

impl Drop for ConnectStream {
    fn drop(&mut self) {
        self.break_off(false);
    }
}

impl std::fmt::Debug for ConnectStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectStream").finish_non_exhaustive()
    }
}
