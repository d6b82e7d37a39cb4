//! The first bytes of a connection, which distinguish HTTP/1 from HTTP/2. A connection without them
//! is closed.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// RFC 9113, 3.4. Other first bytes are HTTP/1, for whose heads the library waits at most 30 s.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A stream whose reads fail if its first bytes have not arrived in time.
pub(super) struct Opening<S> {
    stream: S,
    /// Bytes of the preface that have arrived.
    matched: usize,
    /// `None` once the version is known.
    limit: Option<Pin<Box<Sleep>>>,
}

impl<S> Opening<S> {
    pub(super) fn within(limit: Duration, stream: S) -> Self {
        Self {
            stream,
            matched: 0,
            limit: Some(Box::pin(tokio::time::sleep(limit))),
        }
    }

    fn heard(&mut self, bytes: &[u8]) {
        let rest = &PREFACE[self.matched..];
        let count = bytes.len().min(rest.len());
        self.matched += count;
        if bytes[..count] != rest[..count] || self.matched == PREFACE.len() {
            self.limit = None;
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Opening<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        let Some(limit) = &mut this.limit else {
            return read;
        };
        if read.is_pending() {
            return limit
                .as_mut()
                .poll(cx)
                .map(|()| Err(io::ErrorKind::TimedOut.into()));
        }
        this.heard(&buf.filled()[before..]);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Opening<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
