//! The stream that carries a copy of the tunnel's bytes by another path.
//!
//! Invariant: the stream may end at any moment, and the tunnel goes on without it. It brings the
//! tunnel neither an end nor a reset of its own.

use std::{
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
    time::Instant,
};

use super::{AttachRefused, Line, State};
use crate::{
    http::{copy_number::CopyNumber, stream::ConnectStream},
    resume::{
        flow::Carrier,
        header::{Attach, Attached},
    },
};

/// Number of the copy; the original has 0.
const COPY: u8 = 1;

fn number(number: u8) -> CopyNumber {
    let copy = CopyNumber::default();
    copy.set(number);
    copy
}

impl State {
    pub(super) fn end_copy(&mut self) {
        if let Some(copy) = self.copy.take() {
            copy.abort();
            self.flow.end_copy();
            if let Some(wire) = &self.wire {
                wire.set_copy(None);
            }
        }
    }

    /// The carrying stream and this one keep to different paths from now on.
    fn carry_copy(&mut self, copy: ConnectStream) {
        copy.set_copy(Some(number(COPY)));
        if let Some(wire) = &self.wire {
            wire.set_copy(Some(CopyNumber::default()));
        }
        self.copy = Some(copy);
    }
}

impl Line {
    /// Whether the client asks for a stream with copies.
    fn want_copies(&self, wanted: bool) {
        let state = &mut *self.state.lock();
        if std::mem::replace(&mut state.copies_wanted, wanted) != wanted {
            if !wanted {
                state.end_copy();
            }
            self.waiters.companion.notify_one();
        }
    }

    /// While it is held, nothing is received for an application that does not read.
    fn hold(&self, held: bool) {
        let state = &mut *self.state.lock();
        if std::mem::replace(&mut state.held, held) != held {
            // It was not silent.
            state.heard_at = Instant::now();
            self.waiters.companion.notify_one();
        }
    }

    /// The client's request for a stream with copies.
    pub(in crate::resume) fn begin_copy(&self) -> Attach {
        self.state.lock().flow.begin_copy()
    }

    /// The server has answered the request of that epoch over `copy`.
    pub(in crate::resume) fn copied(&self, copy: ConnectStream, epoch: u64, answer: Attached) {
        let state = &mut *self.state.lock();
        if state.broken.is_some()
            || state.flow.epoch() != epoch
            || !state.copies_wanted
            || state.finished_at.is_some()
        {
            copy.abort();
            return;
        }
        state.end_copy();
        if let Err(violation) = state.flow.copied(answer.received) {
            copy.abort();
            self.break_off(state, violation.into());
            return;
        }
        state.carry_copy(copy);
        self.waiters.wake_all();
    }

    /// The server's answer to a request for a stream with copies.
    pub(in crate::resume) fn copy(&self, attach: Attach) -> Result<Attached, AttachRefused> {
        let state = &mut *self.state.lock();
        state.end_copy();
        let answer = state.flow.copy(attach);
        if let Err(AttachRefused::Violation(violation)) = answer {
            self.break_off(state, violation.into());
        }
        answer
    }

    /// The server has sent its answer for that epoch over `copy`.
    pub(in crate::resume) fn install_copy(&self, copy: ConnectStream, epoch: u64) {
        let state = &mut *self.state.lock();
        if state.broken.is_some() || state.flow.epoch() > epoch || state.finished_at.is_some() {
            copy.abort();
            return;
        }
        state.carry_copy(copy);
        self.waiters.wake_all();
    }

    /// Sends what the stream with copies accepts now.
    pub(super) fn send_copy(&self, state: &mut State) {
        let cx = &mut Context::from_waker(&self.on_copy_room);
        while let Some(copy) = &mut state.copy {
            let sent = match copy.poll_sent(cx) {
                Poll::Pending => return,
                Poll::Ready(Ok(())) => match state.flow.emit_copy() {
                    Some(bytes) => copy.send(cx, bytes),
                    None => return,
                },
                Poll::Ready(Err(error)) => Err(error),
            };
            if let Err(error) = sent {
                self.lose_copy(state, &error);
            }
        }
    }

    pub(super) fn poll_copy_arrival(&self, state: &mut State, join: bool) -> Poll<()> {
        let cx = &mut Context::from_waker(&self.on_arrival);
        let Some(copy) = &mut state.copy else {
            return Poll::Pending;
        };
        match ready!(copy.poll_chunk(cx)) {
            Ok(Some(chunk)) => {
                let before = state.flow.unread_bytes();
                self.take_in(state, Carrier::Copy, chunk, join);
                // The reader takes nothing in between.
                let came_first = state.flow.unread_bytes().saturating_sub(before);
                metrics::counter!("braid_tunnel_copies_first_bytes_total")
                    .increment(came_first as u64);
                return Poll::Ready(());
            }
            Ok(None) => self.lose_copy(state, &"it has ended"),
            Err(error) => self.lose_copy(state, &error),
        }
        Poll::Pending
    }

    fn lose_copy(&self, state: &mut State, why: &dyn std::fmt::Display) {
        tracing::debug!(%why, "a tunnel lost the stream with its copies");
        state.end_copy();
        self.waiters.companion.notify_one();
    }
}

/// Changes a resumable stream as the rules say. A plain one, or one that has ended, stays as it is.
#[derive(Debug, Clone, Default)]
pub struct StreamSwitch(Weak<Line>);

impl StreamSwitch {
    pub(super) fn of(line: &Arc<Line>) -> Self {
        Self(Arc::downgrade(line))
    }

    /// Whether a second stream has copies; both directions follow.
    pub fn copy(&self, copied: bool) {
        if let Some(line) = self.0.upgrade() {
            line.want_copies(copied);
        }
    }

    /// Whether the stream stands still. Bytes of the peer then stay in the stream's window.
    pub fn hold(&self, held: bool) {
        if let Some(line) = self.0.upgrade() {
            line.hold(held);
        }
    }
}
