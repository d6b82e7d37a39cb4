//! One end of a resumable tunnel as a state machine, without socket, clock or lock.
//!
//! Both ends are alike. A direction is a sequence of bytes with offsets from zero. Its end counts
//! as one more byte, so "received up to" also covers the end. The sender keeps the bytes that the
//! peer's reader has not taken (`kept`, from `base` on). The receiver holds the bytes that its own
//! reader has not taken (`unread`), and confirms the others.
//!
//! Data carry their offset, so duplicates are detected and dropped. One attachment carries the
//! tunnel at a time, a stream that may die at any moment. A second stream may carry a copy of the
//! same bytes by another path; the reader gets the bytes that come first. A copy that is far behind
//! leaves bytes out.
//!
//! Each of these streams begins with both ends' received offsets; each end then sends from there.
//! Attachments are numbered by a rising epoch. The server accepts only an epoch that is higher than
//! all before, so of two concurrent attempts the later holds, and a straggler is refused.
//!
//! Invariants
//! - `confirmed by the peer = base <= cursor <= written`, and no byte below `base` is requested
//!   again.
//! - At most `WINDOW_BYTES` lie between `base` and `written`. So a peer without confirmations stops
//!   the writer, and the receiver holds no more.
//! - The reader gets bytes in order and once, and an end only at the sender's offset.

mod outgoing;
mod violation;

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::{Buf, Bytes, BytesMut};

pub(crate) use outgoing::Carrier;
use outgoing::{CHUNK_BYTES_MAX, Outgoing};
pub(crate) use violation::Violation;

use super::{
    capsule::{self, Capsule, Decoder},
    header::{Attach, Attached},
};

/// Bytes of one direction that the peer's reader has not taken; at the bound the writer waits. It
/// exceeds the stream's window (2.3 MB) because confirmations arrive late.
pub(crate) const WINDOW_BYTES: u64 = 4_000_000;

/// Read and unconfirmed bytes that are confirmed at once; a confirmation costs 18 bytes on the
/// wire.
const CONFIRM_BYTES: u64 = 128 * 1024;

/// Read and unconfirmed bytes that are confirmed at the next tick; fewer bytes are confirmed after
/// `CONFIRM_DELAY`. So the peer's writer goes on and the peer sees progress.
const CONFIRM_SOON_BYTES: u64 = 32 * 1024;
const CONFIRM_DELAY: Duration = Duration::from_millis(200);

/// Why an attachment is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AttachRefused {
    #[error("a later attachment was here first")]
    Stale,
    #[error("{0}")]
    Violation(#[from] Violation),
}

/// Events for the shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Arrived {
    /// The peer has reset the tunnel.
    pub(crate) reset: bool,
    /// The peer's reader took bytes: the writer may go on.
    pub(crate) confirmed: bool,
    /// Bytes, or the end, for the reader.
    pub(crate) data: bool,
}

#[derive(Debug, Default)]
struct Incoming {
    decoder: Decoder,
    /// Decodes the stream with copies.
    copy_decoder: Decoder,
    /// In the reader's order; `joined` follows.
    unread: VecDeque<Bytes>,
    joined: BytesMut,
    received: u64,
    consumed: u64,
    /// Confirmed on this attachment.
    advertised: u64,
    ended: bool,
    /// The reader is gone: arriving bytes count as read.
    discarding: bool,
    /// A confirmation is due although little was read.
    confirm: bool,
    unconfirmed_since: Option<Instant>,
}

impl Incoming {
    fn data(
        &mut self,
        from: Carrier,
        offset: u64,
        mut piece: Bytes,
        join: bool,
    ) -> Result<bool, Violation> {
        let stop = offset + piece.len() as u64;
        if offset > self.received {
            // A copy may leave bytes out, and is of no use before these have come.
            if from == Carrier::Copy {
                return Ok(false);
            }
            return Err(Violation::Gap {
                offset,
                received: self.received,
            });
        }
        // After a change of attachment, bytes may arrive again.
        if stop <= self.received - u64::from(self.ended) {
            return Ok(false);
        }
        if self.ended {
            return Err(Violation::BehindEnd);
        }
        piece.advance((self.received - offset) as usize);
        self.received = stop;
        if self.received - self.consumed > WINDOW_BYTES {
            return Err(Violation::Window);
        }
        if self.discarding {
            self.consumed = self.received;
        } else if join {
            self.joined.extend_from_slice(&piece);
            if self.joined.len() >= CHUNK_BYTES_MAX {
                self.unread.push_back(self.joined.split().freeze());
            }
        } else {
            self.close_joined();
            self.unread.push_back(piece);
        }
        Ok(true)
    }

    fn close_joined(&mut self) {
        if !self.joined.is_empty() {
            self.unread.push_back(self.joined.split().freeze());
        }
    }

    fn end(&mut self, from: Carrier, declared: u64) -> Result<bool, Violation> {
        let received = self.received - u64::from(self.ended);
        if declared > received && from == Carrier::Copy {
            return Ok(false);
        }
        if declared != received {
            return Err(Violation::End { declared, received });
        }
        if self.ended {
            return Ok(false);
        }
        self.ended = true;
        self.received += 1;
        self.read_end();
        Ok(true)
    }

    /// The end is read together with the last byte.
    fn read_end(&mut self) {
        if self.ended && self.consumed + 1 == self.received {
            self.consumed = self.received;
        }
    }

    fn read(&mut self, max: usize) -> Option<Bytes> {
        if self.unread.is_empty() {
            self.close_joined();
        }
        let first = self.unread.front_mut()?;
        let piece = if first.len() <= max {
            self.unread.pop_front()?
        } else {
            first.split_to(max)
        };
        self.consumed += piece.len() as u64;
        self.read_end();
        Some(piece)
    }

    fn unread_bytes(&self) -> usize {
        (self.received - self.consumed) as usize
    }

    fn next_confirm(&mut self) -> Option<u64> {
        let read = self.consumed - self.advertised.min(self.consumed);
        let at_end = self.ended && self.consumed == self.received;
        let due = read > 0 && (self.confirm || at_end || read >= CONFIRM_BYTES);
        if !due {
            return None;
        }
        self.confirm = false;
        self.unconfirmed_since = None;
        self.advertised = self.consumed;
        Some(self.consumed)
    }

    fn tick(&mut self, now: Instant) {
        let read = self.consumed - self.advertised.min(self.consumed);
        if read == 0 {
            return;
        }
        let since = *self.unconfirmed_since.get_or_insert(now);
        self.confirm |=
            read >= CONFIRM_SOON_BYTES || now.saturating_duration_since(since) >= CONFIRM_DELAY;
    }
}

/// The state of one end.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    out: Outgoing,
    inc: Incoming,
    epoch: u64,
    /// The second half of a capsule whose first half was returned.
    payload: Option<Bytes>,
    /// The same on the stream with copies.
    copy_payload: Option<Bytes>,
    ping: Option<u64>,
    pong: Option<u64>,
    pongs: u64,
    replayed_bytes: u64,
}

impl Flow {
    /// Number of bytes that may be written now.
    pub(crate) fn room(&self) -> usize {
        (WINDOW_BYTES as usize).saturating_sub(self.out.kept_bytes())
    }

    /// Must not follow the end of the direction; at most `room` bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        debug_assert!(!self.out.ended && bytes.len() <= self.room());
        if !bytes.is_empty() {
            self.out.write(bytes);
        }
    }

    /// The same without a copy: the bytes of `buffer` from `start` on, with at least
    /// `HEADROOM_BYTES` before them.
    pub(crate) fn write_owned(&mut self, buffer: BytesMut, start: usize) {
        debug_assert!(!self.out.ended && buffer.len() - start <= self.room());
        self.out.write_owned(buffer, start);
    }

    /// Ends the direction. Idempotent.
    pub(crate) fn end(&mut self) {
        self.out.ended = true;
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.out.ended
    }

    /// The next bytes for the reader, at most `max`; `None` if there are none now.
    pub(crate) fn read(&mut self, max: usize) -> Option<Bytes> {
        self.inc.read(max)
    }

    /// The peer has ended its direction and the reader has all of it.
    pub(crate) fn is_read_to_end(&self) -> bool {
        self.inc.ended && self.inc.consumed == self.inc.received
    }

    /// The reader is gone: drops unread and later bytes.
    pub(crate) fn discard(&mut self) {
        self.inc.discarding = true;
        self.inc.unread.clear();
        self.inc.joined.clear();
        self.inc.consumed = self.inc.received;
    }

    pub(crate) fn unread_bytes(&self) -> usize {
        self.inc.unread_bytes()
    }

    /// Bytes written and not sent on this attachment.
    pub(crate) fn unsent(&self) -> u64 {
        self.out.unsent()
    }

    /// Bytes that this end holds, for the budget.
    pub(crate) fn held_bytes(&self) -> usize {
        self.out.kept_bytes() + self.inc.unread_bytes()
    }

    /// Whether the peer has read everything written, including the end.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.out.base == self.out.end()
    }

    /// Both directions have ended, and both ends know it, as far as this end can see.
    pub(crate) fn is_complete(&self) -> bool {
        self.out.ended
            && self.is_confirmed()
            && self.is_read_to_end()
            && self.inc.advertised == self.inc.consumed
    }

    /// No data and no confirmation is under way, as far as this end can see.
    pub(crate) fn is_quiet(&self) -> bool {
        self.is_confirmed() && self.inc.advertised == self.inc.consumed && self.pong.is_none()
    }

    pub(crate) fn ping(&mut self, number: u64) {
        self.ping = Some(number);
    }

    /// The number of the last answered ping.
    pub(crate) fn ponged(&self) -> u64 {
        self.pongs
    }

    /// Bytes sent again because of changes of attachment.
    pub(crate) fn take_replayed_bytes(&mut self) -> u64 {
        std::mem::take(&mut self.replayed_bytes)
    }

    /// Passes the time; must be called every few tens of milliseconds while the tunnel is not
    /// quiet.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.inc.tick(now);
    }

    /// The next bytes for the attachment. DATA comes in two parts if the payload is large; no other
    /// bytes may come between.
    pub(crate) fn emit(&mut self) -> Option<Bytes> {
        if let Some(payload) = self.payload.take() {
            return Some(payload);
        }
        let control = if let Some(offset) = self.inc.next_confirm() {
            Capsule::Confirm(offset)
        } else if let Some(number) = self.pong.take() {
            Capsule::Pong(number)
        } else if let Some(number) = self.ping.take() {
            Capsule::Ping(number)
        } else if let Some((capsule, payload)) = self.out.next_data(Carrier::Original) {
            self.payload = payload;
            return Some(capsule);
        } else {
            Capsule::End(self.out.next_end(Carrier::Original)?)
        };
        Some(capsule::whole(&control))
    }

    /// The next bytes for the stream with copies, in the same way.
    pub(crate) fn emit_copy(&mut self) -> Option<Bytes> {
        if let Some(payload) = self.copy_payload.take() {
            return Some(payload);
        }
        self.out.keep_copy_up();
        if let Some((capsule, payload)) = self.out.next_data(Carrier::Copy) {
            self.copy_payload = payload;
            return Some(capsule);
        }
        let end = Capsule::End(self.out.next_end(Carrier::Copy)?);
        Some(capsule::whole(&end))
    }

    /// Processes arriving bytes. With `join` small pieces are copied together, since they may stay
    /// here for long.
    pub(crate) fn receive(
        &mut self,
        from: Carrier,
        mut bytes: Bytes,
        join: bool,
    ) -> Result<Arrived, Violation> {
        let mut arrived = Arrived::default();
        loop {
            let decoder = match from {
                Carrier::Original => &mut self.inc.decoder,
                Carrier::Copy => &mut self.inc.copy_decoder,
            };
            let Some(capsule) = decoder.next(&mut bytes)? else {
                return Ok(arrived);
            };
            match capsule {
                Capsule::Data(offset, piece) => {
                    arrived.data |= self.inc.data(from, offset, piece, join)?;
                }
                Capsule::End(offset) => arrived.data |= self.inc.end(from, offset)?,
                Capsule::Confirm(offset) => arrived.confirmed |= self.out.confirm(offset)?,
                Capsule::Ping(number) => self.pong = Some(number),
                Capsule::Pong(number) => self.pongs = number,
                Capsule::Reset => arrived.reset = true,
            }
        }
    }

    /// The client's request for an attachment; the old attachment goes on until the answer.
    pub(crate) fn begin_attach(&mut self) -> Attach {
        self.epoch += 1;
        Attach {
            epoch: self.epoch,
            received: self.inc.received,
            is_copy: false,
        }
    }

    /// The client's request for a stream with copies beside the attachment in force.
    pub(crate) fn begin_copy(&self) -> Attach {
        Attach {
            epoch: self.epoch,
            received: self.inc.received,
            is_copy: true,
        }
    }

    /// A stream with copies begins; the peer has received all bytes up to this offset.
    pub(crate) fn copied(&mut self, peer_received: u64) -> Result<(), Violation> {
        self.check_received(peer_received)?;
        self.copy_payload = None;
        self.inc.copy_decoder = Decoder::default();
        self.out.begin_copy(peer_received);
        Ok(())
    }

    /// The stream with copies is gone.
    pub(crate) fn end_copy(&mut self) {
        self.out.copy = None;
        self.copy_payload = None;
    }

    /// The server's answer to a request for a stream with copies. The epoch may be that of an
    /// attempt which never arrived here.
    pub(crate) fn copy(&mut self, attach: Attach) -> Result<Attached, AttachRefused> {
        if attach.epoch < self.epoch {
            return Err(AttachRefused::Stale);
        }
        self.copied(attach.received)?;
        Ok(self.answer())
    }

    fn answer(&self) -> Attached {
        Attached {
            received: self.inc.received,
            takes_copies: true,
        }
    }

    fn check_received(&self, offset: u64) -> Result<(), Violation> {
        let (kept, sent) = (self.out.base, self.out.sent_max);
        match offset > sent {
            true => Err(Violation::Offset { offset, kept, sent }),
            false => Ok(()),
        }
    }

    /// The server has answered: the new attachment carries the tunnel from now on.
    pub(crate) fn attached(&mut self, answer: Attached) -> Result<(), Violation> {
        self.restart(answer.received)
    }

    /// The server's answer to a request for an attachment; the old attachment is void from now on.
    pub(crate) fn attach(&mut self, attach: Attach) -> Result<Attached, AttachRefused> {
        if attach.epoch <= self.epoch {
            return Err(AttachRefused::Stale);
        }
        self.restart(attach.received)?;
        self.epoch = attach.epoch;
        Ok(self.answer())
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    fn restart(&mut self, peer_received: u64) -> Result<(), Violation> {
        self.check_received(peer_received)?;
        self.payload = None;
        self.copy_payload = None;
        (self.ping, self.pong) = (None, None);
        // Meanwhile the old attachment may have brought further confirmations.
        let from = peer_received.max(self.out.base);
        self.replayed_bytes += self.out.sent_max - from;
        self.out.restart(from);
        self.inc.decoder = Decoder::default();
        // Confirmations may have been lost with the old attachment.
        self.inc.advertised = 0;
        Ok(())
    }

    /// The capsule that resets the tunnel.
    pub(crate) fn reset_capsule() -> Bytes {
        capsule::whole(&Capsule::Reset)
    }
}
