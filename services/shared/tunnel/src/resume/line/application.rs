//! The application's side of a resumable tunnel: reading, writing, and leaving.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Instant,
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{Broken, Line, State, StreamSwitch};
use crate::carried::pieces::{Parcel, Pieces, Sink};

/// Bytes written that the carrying stream has not accepted; at the bound the writer waits.
const UNSENT_BYTES_MAX: u64 = 64 * 1024;

/// Bytes taken from the writer at once.
const WRITE_BYTES_MAX: usize = 64 * 1024;

/// Least room at which a writer with more bytes to write is woken.
const ROOM_BYTES_MIN: usize = 16 * 1024;

impl Line {
    fn poll_read(&self, cx: &mut Context<'_>, sink: &mut impl Sink) -> Poll<io::Result<()>> {
        let state = &mut *self.state.lock();
        let (mut read, mut arrived) = (false, false);
        state.reader_waits = false;
        state.reads = state.reads.wrapping_add(1);
        self.waiters.reader.register(cx.waker());
        while sink.room() > 0 {
            if let Some(piece) = state.flow.read(sink.room()) {
                sink.put(piece);
                read = true;
            } else if state.flow.is_read_to_end()
                || state.broken.is_some()
                || self.poll_arrival(state, false).is_pending()
            {
                break;
            } else {
                arrived = true;
            }
        }
        if arrived {
            Self::heard(state);
        }
        if !read && sink.room() > 0 && !state.flow.is_read_to_end() {
            if let Some(broken) = state.broken {
                return Poll::Ready(Err(broken.into()));
            }
            state.reader_waits = true;
            self.stir(state);
            return Poll::Pending;
        }
        if state.wire.is_some() {
            // A due confirmation is sent at once; other bytes wait for the companion.
            let _ = self.poll_send(state);
        }
        let held = state.flow.held_bytes();
        state.share.settle(held);
        self.stir(state);
        Poll::Ready(Ok(()))
    }

    fn room(state: &State) -> usize {
        let room = state.flow.room();
        room.min(state.share.room(state.flow.held_bytes()))
    }

    /// Number of bytes, of `length`, that may be written.
    fn poll_room(
        &self,
        state: &mut State,
        cx: &mut Context<'_>,
        length: usize,
    ) -> Poll<io::Result<usize>> {
        if let Some(broken) = state.broken {
            return Poll::Ready(Err(broken.into()));
        }
        if state.flow.has_ended() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if length == 0 {
            return Poll::Ready(Ok(0));
        }
        self.waiters.writer.register(cx.waker());
        if state.flow.unsent() > 0 {
            let _ = self.poll_send(state);
        }
        // Little room is not used: it grows as long as any byte is unconfirmed, and larger writes
        // cost less.
        let wanted = length.min(ROOM_BYTES_MIN);
        if Self::room(state) < wanted {
            // Confirmations may wait behind bytes that the application does not read.
            self.drain(state);
        }
        if let Some(broken) = state.broken {
            return Poll::Ready(Err(broken.into()));
        }
        let room = Self::room(state);
        if room < wanted || state.flow.unsent() >= UNSENT_BYTES_MAX {
            self.stir(state);
            return Poll::Pending;
        }
        Poll::Ready(Ok(length.min(WRITE_BYTES_MAX).min(room)))
    }

    fn written(&self, state: &mut State) {
        let _ = self.poll_send(state);
        let held = state.flow.held_bytes();
        state.share.settle(held);
        self.stir(state);
    }

    fn poll_write(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let state = &mut *self.state.lock();
        let taken = ready!(self.poll_room(state, cx, buf.len()))?;
        if taken > 0 {
            state.flow.write(&buf[..taken]);
            self.written(state);
        }
        Poll::Ready(Ok(taken))
    }

    /// Ready once all of it is written, without a copy if the parcel may be kept.
    fn poll_write_parcel(&self, cx: &mut Context<'_>, parcel: &mut Parcel) -> Poll<io::Result<()>> {
        let state = &mut *self.state.lock();
        while !parcel.bytes().is_empty() {
            let taken = ready!(self.poll_room(state, cx, parcel.bytes().len()))?;
            if taken == parcel.bytes().len() && parcel.is_full() {
                let (buffer, start) = parcel.take();
                state.flow.write_owned(buffer, start);
            } else {
                state.flow.write(&parcel.bytes()[..taken]);
                parcel.advance(taken);
            }
            self.written(state);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let state = &mut *self.state.lock();
        self.waiters.writer.register(cx.waker());
        let sent = self.poll_send(state);
        if let Some(broken) = state.broken {
            return Poll::Ready(Err(broken.into()));
        }
        self.stir(state);
        sent.map(Ok)
    }

    fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.state.lock().flow.end();
        self.poll_flush(cx)
    }

    /// The application is gone. Bytes are still delivered if it ended its direction; otherwise the
    /// tunnel is reset.
    fn leave(&self) {
        let state = &mut *self.state.lock();
        if state.broken.is_some() {
            return;
        }
        if !state.flow.has_ended() {
            self.break_off(state, Broken::Here);
            return;
        }
        state.unwanted = state.flow.unread_bytes() > 0 && !state.flow.is_read_to_end();
        state.flow.discard();
        state.left_at = Some(Instant::now());
        self.waiters.companion.notify_one();
    }
}

/// The application's end of a resumable tunnel.
#[derive(Debug)]
pub(crate) struct ResumableStream {
    line: Arc<Line>,
}

impl ResumableStream {
    pub(in crate::resume) fn new(line: Arc<Line>) -> Self {
        Self { line }
    }

    pub(crate) fn poll_pieces(
        &self,
        cx: &mut Context<'_>,
        pieces: &mut Pieces,
    ) -> Poll<io::Result<()>> {
        self.line.poll_read(cx, pieces)
    }

    pub(crate) fn poll_parcel(
        &self,
        cx: &mut Context<'_>,
        parcel: &mut Parcel,
    ) -> Poll<io::Result<()>> {
        self.line.poll_write_parcel(cx, parcel)
    }

    pub(crate) fn switch(&self) -> StreamSwitch {
        StreamSwitch::of(&self.line)
    }

    pub(crate) fn abort(self) {
        self.line.fail(Broken::Here);
    }
}

impl Drop for ResumableStream {
    fn drop(&mut self) {
        self.line.leave();
    }
}

impl AsyncRead for ResumableStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.line.poll_read(cx, buf)
    }
}

impl AsyncWrite for ResumableStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.line.poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.line.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.line.poll_shutdown(cx)
    }
}
