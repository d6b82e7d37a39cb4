//! The application's end of a tunnel: bytes in both directions, over one CONNECT stream or several
//! in turn.
//!
//! `shutdown` ends one direction and leaves the other open. A stream that is dropped before its
//! writing side was shut down is reset. So the peer cannot take a torn transfer for a complete one.
//! As with any buffered writer, the last bytes may wait for `flush`.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{
    carried::pieces::{Parcel, Pieces},
    http::{copy_number::CopyNumber, stream::ConnectStream},
    resume::{ResumableStream, StreamSwitch},
};

/// One tunnelled byte stream.
#[derive(Debug)]
pub struct TunnelStream(Kind);

#[derive(Debug)]
enum Kind {
    Plain(Box<ConnectStream>),
    Resumable(ResumableStream),
}

impl TunnelStream {
    pub(crate) fn plain(stream: ConnectStream) -> Self {
        Self(Kind::Plain(Box::new(stream)))
    }

    pub(crate) fn resumable(stream: ResumableStream) -> Self {
        Self(Kind::Resumable(stream))
    }

    /// The stream carries copies with this number. A resumable one changes its carrying stream, and
    /// carries none.
    pub(crate) fn set_copy(&self, copy: &CopyNumber) {
        if let Kind::Plain(stream) = &self.0 {
            stream.set_copy(Some(copy.clone()));
        }
    }

    /// The switch of copies of all bytes, both ways, by a path of their own. That of a plain stream
    /// does nothing.
    pub fn switch(&self) -> StreamSwitch {
        match &self.0 {
            Kind::Plain(_) => StreamSwitch::default(),
            Kind::Resumable(stream) => stream.switch(),
        }
    }

    /// Whether the tunnel outlives its connection; both ends must agree.
    pub fn is_resumable(&self) -> bool {
        matches!(self.0, Kind::Resumable(_))
    }

    /// Reads without a copy. Ready and empty at the end.
    pub(crate) fn poll_pieces(
        &mut self,
        cx: &mut Context<'_>,
        pieces: &mut Pieces,
    ) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Kind::Plain(stream) => stream.poll_bytes(cx, pieces),
            Kind::Resumable(stream) => stream.poll_pieces(cx, pieces),
        }
    }

    /// Writes without a copy if that is cheaper. Ready once the parcel is empty.
    pub(crate) fn poll_parcel(
        &mut self,
        cx: &mut Context<'_>,
        parcel: &mut Parcel,
    ) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Kind::Plain(stream) => stream.poll_parcel(cx, parcel),
            Kind::Resumable(stream) => stream.poll_parcel(cx, parcel),
        }
    }

    /// Ends the stream as broken in both directions, as a TCP reset would (RFC 9114, 4.4).
    pub fn abort(self) {
        match self.0 {
            Kind::Plain(stream) => stream.abort(),
            Kind::Resumable(stream) => stream.abort(),
        }
    }
}

impl AsyncRead for TunnelStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().0 {
            Kind::Plain(stream) => Pin::new(&mut **stream).poll_read(cx, buf),
            Kind::Resumable(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for TunnelStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().0 {
            Kind::Plain(stream) => Pin::new(&mut **stream).poll_write(cx, buf),
            Kind::Resumable(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().0 {
            Kind::Plain(stream) => Pin::new(&mut **stream).poll_flush(cx),
            Kind::Resumable(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().0 {
            Kind::Plain(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
            Kind::Resumable(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
