//! An HTTP/2 CONNECT request as the carrier of bytes.
//!
//! HTTP/2 resets a stream as a whole. So an end that was sent stays sent, and only a deliberate
//! reset withdraws the bytes before it.

use std::{
    io,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream};

use super::wire_error::{Broken, WireError};

pub(crate) struct H2Wire {
    send: SendStream<Bytes>,
    receive: RecvStream,
    /// Begun, and not yet accepted by the transport.
    pending: Bytes,
}

impl H2Wire {
    pub(crate) fn new(send: SendStream<Bytes>, receive: RecvStream) -> Self {
        Self {
            send,
            receive,
            pending: Bytes::new(),
        }
    }

    pub(super) fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, WireError>> {
        Poll::Ready(match ready!(self.receive.poll_data(cx)) {
            Some(Ok(chunk)) => {
                // Opens the peer's window again; a slow reader does not get here.
                self.receive.flow_control().release_capacity(chunk.len())?;
                Ok(Some(chunk))
            }
            Some(Err(error)) => Err(error.into()),
            None => Ok(None),
        })
    }

    /// Only once everything before is flushed.
    pub(super) fn begin_data(&mut self, chunk: Bytes) {
        debug_assert!(self.pending.is_empty());
        self.pending = chunk;
    }

    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), WireError>> {
        while !self.pending.is_empty() {
            self.send.reserve_capacity(self.pending.len());
            let mut room = self.send.capacity();
            if room == 0 {
                room = match ready!(self.send.poll_capacity(cx)) {
                    Some(room) => room?,
                    None => return Poll::Ready(Err(self.why_closed(cx))),
                };
            }
            let chunk = self.pending.split_to(room.min(self.pending.len()));
            if self.send.send_data(chunk, false).is_err() {
                return Poll::Ready(Err(self.why_closed(cx)));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Must be called once, when everything is flushed.
    pub(super) fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), WireError>> {
        let finished = self.send.send_data(Bytes::new(), true);
        Poll::Ready(finished.map_err(|_| self.why_closed(cx)))
    }

    pub(super) fn break_off(&mut self, broken: Broken) {
        if broken.deliberately {
            self.send.send_reset(Reason::CONNECT_ERROR);
        } else if broken.sending {
            self.send.send_reset(Reason::CANCEL);
        }
        // The other case is a reader that goes away, which the library reports to the peer.
    }

    fn why_closed(&mut self, cx: &mut Context<'_>) -> WireError {
        match self.send.poll_reset(cx) {
            Poll::Ready(Ok(Reason::CONNECT_ERROR)) => WireError::Aborted,
            Poll::Ready(Ok(reason)) => {
                let reason = reason.description();
                WireError::Lost(io::Error::new(io::ErrorKind::ConnectionReset, reason))
            }
            Poll::Ready(Err(error)) => error.into(),
            Poll::Pending => WireError::Lost(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl From<h2::Error> for WireError {
    fn from(error: h2::Error) -> Self {
        if error.is_reset() && error.is_remote() && error.reason() == Some(Reason::CONNECT_ERROR) {
            return Self::Aborted;
        }
        let kind = match error.is_reset() {
            true => io::ErrorKind::ConnectionReset,
            false => io::ErrorKind::ConnectionAborted,
        };
        Self::Lost(io::Error::new(kind, error))
    }
}
