//! The bytes of one CONNECT request as a stream.
//!
//! Bytes travel in HTTP/3 DATA frames. Back-pressure is the transport's: `poll_write` takes the next chunk only after the
//! transport has taken the last one, and the reader's window closes when nobody reads. As with any buffered writer,
//! the last chunk may wait for `flush`. `shutdown` ends one direction and leaves the other open; dropping a stream
//! whose writing side was not shut down resets it, so that the peer cannot take a torn transfer for a complete one.

use std::{
    future::Future,
    io,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use h3::{
    error::{Code, StreamError},
    quic::StreamId,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{
    h3_over_noq::{BidiStream, RecvStream, SendHandle, SendStream},
    pieces::{Parcel, Sink},
};

/// Largest payload of one DATA frame, and so the most that a stream holds back for the transport.
const CHUNK_BYTES_MAX: usize = 64 * 1024;

/// Counts the open streams of a session.
#[derive(Debug, Clone, Default)]
pub(crate) struct OpenStreams(Arc<AtomicUsize>);

impl OpenStreams {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn enter(&self) -> OpenStream {
        self.0.fetch_add(1, Ordering::Relaxed);
        OpenStream(self.clone())
    }
}

pub(crate) struct OpenStream(OpenStreams);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

enum Sender {
    Client(h3::client::RequestStream<SendStream, Bytes>),
    Server(h3::server::RequestStream<SendStream, Bytes>),
}

enum Receiver {
    Client(h3::client::RequestStream<RecvStream, Bytes>),
    Server(h3::server::RequestStream<RecvStream, Bytes>),
}

/// One CONNECT stream of HTTP/3.
pub(crate) struct ConnectStream {
    sender: Sender,
    receiver: Receiver,
    handle: Arc<SendHandle>,
    id: StreamId,
    /// Received and not yet read.
    unread: Bytes,
    received_all: bool,
    /// Came after bytes that were read, and is told by the next read.
    failed: Option<io::Error>,
    sent_all: bool,
    _open: OpenStream,
}

impl ConnectStream {
    pub(crate) fn of_client(
        stream: h3::client::RequestStream<BidiStream, Bytes>,
        handle: Arc<SendHandle>,
        open: OpenStream,
    ) -> Self {
        let id = stream.id();
        let (sender, receiver) = stream.split();
        Self::new(
            Sender::Client(sender),
            Receiver::Client(receiver),
            handle,
            id,
            open,
        )
    }

    pub(crate) fn of_server(
        stream: h3::server::RequestStream<BidiStream, Bytes>,
        handle: Arc<SendHandle>,
        open: OpenStream,
    ) -> Self {
        let id = stream.id();
        let (sender, receiver) = stream.split();
        Self::new(
            Sender::Server(sender),
            Receiver::Server(receiver),
            handle,
            id,
            open,
        )
    }

    fn new(
        sender: Sender,
        receiver: Receiver,
        handle: Arc<SendHandle>,
        id: StreamId,
        open: OpenStream,
    ) -> Self {
        Self {
            sender,
            receiver,
            handle,
            id,
            unread: Bytes::new(),
            received_all: false,
            failed: None,
            sent_all: false,
            _open: open,
        }
    }

    /// Ends the stream as broken in both directions, as a TCP reset would (RFC 9114, 4.4).
    pub(crate) fn abort(mut self) {
        self.break_off(Code::H3_CONNECT_ERROR);
    }

    fn break_off(&mut self, code: Code) {
        if !self.sent_all {
            self.handle.reset(code);
            self.sent_all = true;
        }
        if !self.received_all {
            match &mut self.receiver {
                Receiver::Client(receiver) => receiver.stop_sending(code),
                Receiver::Server(receiver) => receiver.stop_sending(code),
            }
            self.received_all = true;
        }
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamError>> {
        fn whole(chunk: Option<impl Buf>) -> Option<Bytes> {
            chunk.map(|mut chunk| chunk.copy_to_bytes(chunk.remaining()))
        }
        match &mut self.receiver {
            Receiver::Client(receiver) => receiver.poll_recv_data(cx).map_ok(whole),
            Receiver::Server(receiver) => receiver.poll_recv_data(cx).map_ok(whole),
        }
    }

    /// Begins a DATA frame and hands over what the transport takes at once; the rest stays in the handle (see `h3_over_noq`).
    fn begin_send(&mut self, cx: &mut Context<'_>, chunk: Bytes) -> Result<(), noq::WriteError> {
        self.handle.begin_data(chunk);
        match self.handle.poll_flush(cx) {
            Poll::Ready(result) => result,
            Poll::Pending => Ok(()),
        }
    }
}

/// What an application needs of the stream.
impl ConnectStream {
    /// Ready with nothing at the end.
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
            // Chunks are as small as packets, so the sink is filled with as many as there are. Empty DATA frames carry nothing.
            match self.poll_receive(cx) {
                Poll::Ready(Ok(Some(chunk))) => self.unread = chunk,
                Poll::Ready(Ok(None)) => self.received_all = true,
                Poll::Pending if !read => return Poll::Pending,
                Poll::Pending => return Poll::Ready(Ok(())),
                Poll::Ready(Err(error)) if !read => return Poll::Ready(Err(to_io(error))),
                Poll::Ready(Err(error)) => {
                    self.failed = Some(to_io(error));
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }

    /// Ready once the whole parcel is handed over.
    pub(crate) fn poll_parcel(
        &mut self,
        cx: &mut Context<'_>,
        parcel: &mut Parcel,
    ) -> Poll<io::Result<()>> {
        while !parcel.bytes().is_empty() {
            if self.sent_all {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            ready!(self.handle.poll_flush(cx))?;
            if parcel.is_full() && parcel.bytes().len() <= CHUNK_BYTES_MAX {
                let (buffer, start) = parcel.take();
                self.begin_send(cx, buffer.freeze().slice(start..))?;
            } else {
                let taken = parcel.bytes().len().min(CHUNK_BYTES_MAX);
                self.begin_send(cx, Bytes::copy_from_slice(&parcel.bytes()[..taken]))?;
                parcel.advance(taken);
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// What a resumable tunnel needs of the stream that carries it: chunks without copies, and errors that tell a tunnel that the peer broke
/// off from a stream that was merely lost.
impl ConnectStream {
    /// The next bytes as they arrived; none at the end.
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

    /// Ready once the transport has taken all that was handed over; only then may more be sent.
    pub(crate) fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), WireError>> {
        self.handle.poll_flush(cx).map_err(WireError::from)
    }

    /// Hands over the next bytes.
    pub(crate) fn send(&mut self, cx: &mut Context<'_>, bytes: Bytes) -> Result<(), WireError> {
        self.begin_send(cx, bytes).map_err(WireError::from)
    }
}

/// Why a stream carries nothing more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    #[error("the peer broke the tunnel off")]
    Aborted,
    #[error("{0}")]
    Lost(io::Error),
}

impl From<StreamError> for WireError {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::RemoteTerminate { code, .. } if code == Code::H3_CONNECT_ERROR => {
                Self::Aborted
            }
            other => Self::Lost(to_io(other)),
        }
    }
}

impl From<noq::WriteError> for WireError {
    fn from(error: noq::WriteError) -> Self {
        match error {
            noq::WriteError::Stopped(code)
                if code.into_inner() == Code::H3_CONNECT_ERROR.value() =>
            {
                Self::Aborted
            }
            other => Self::Lost(other.into()),
        }
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
        ready!(this.handle.poll_flush(cx))?;
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let taken = buf.len().min(CHUNK_BYTES_MAX);
        this.begin_send(cx, Bytes::copy_from_slice(&buf[..taken]))?;
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.sent_all {
            return Poll::Ready(Ok(()));
        }
        self.handle.poll_flush(cx).map_err(io::Error::from)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.sent_all {
            return Poll::Ready(Ok(()));
        }
        // Finishing waits for nothing but the flush, so polling afresh each time is sound.
        ready!(this.handle.poll_flush(cx))?;
        let finished = match &mut this.sender {
            Sender::Client(sender) => ready!(pin!(sender.finish()).poll(cx)),
            Sender::Server(sender) => ready!(pin!(sender.finish()).poll(cx)),
        };
        this.sent_all = true;
        Poll::Ready(finished.map_err(to_io))
    }
}

impl Drop for ConnectStream {
    fn drop(&mut self) {
        self.break_off(Code::H3_REQUEST_CANCELLED);
    }
}

impl std::fmt::Debug for ConnectStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectStream")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

fn to_io(error: StreamError) -> io::Error {
    let kind = match &error {
        StreamError::RemoteTerminate { .. } | StreamError::StreamError { .. } => {
            io::ErrorKind::ConnectionReset
        }
        // What is left is the end of the connection; h3 does not let that be matched.
        _ => io::ErrorKind::ConnectionAborted,
    };
    io::Error::new(kind, error)
}
