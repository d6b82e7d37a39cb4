//! One end of a resumable tunnel as a state machine: no socket, no clock, no lock.
//!
//! Both ends are alike. A direction is a sequence of bytes with offsets from zero; its end counts as one more, so that "received
//! up to" also says whether the end has arrived. The sender keeps what the peer's reader has not taken (`kept`, from
//! `base` on); the receiver holds what its own reader has not taken (`unread`), and confirms what it has.
//!
//! Data say at which offset they belong, so what comes twice is noticed and dropped. The tunnel is carried by one attachment at a time, a stream that may die at any moment. An attachment begins with both ends saying
//! what they have received; each then sends from there. Attachments are numbered by a rising epoch: the server
//! takes an attachment only if its epoch is higher than all before, so of two under way at once the later one holds, and a
//! straggler is refused.
//!
//! Invariants
//! - `confirmed by the peer = base <= cursor <= written`, and no byte below `base` is ever asked for again;
//! - at most `WINDOW_BYTES` lie between `base` and `written`, so a peer that confirms nothing stops the writer, and the
//!   receiver holds no more than that;
//! - bytes are handed to the reader in order, once, and an end only at the offset that the sender gave.

mod outgoing;

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::{Buf, Bytes, BytesMut};

use outgoing::Outgoing;

use super::{
    capsule::{self, Capsule, Decoder, Malformed},
    header::{Attach, Attached},
};

/// Bytes of one direction that the peer's reader has not taken; beyond it the writer waits. The window of the stream beneath (2.3 MB) and
/// what is confirmed late: with 2.4 MB the writer, and not the stream, was what a bulk transfer waited for.
pub(crate) const WINDOW_BYTES: u64 = 4_000_000;

/// Payload of one DATA capsule.
const CHUNK_BYTES_MAX: usize = 64 * 1024;

/// Read and not confirmed: so much is confirmed at once, which costs 18 bytes on the wire, 0.014 %.
const CONFIRM_BYTES: u64 = 128 * 1024;

/// So much is confirmed at the next tick, and anything after `CONFIRM_DELAY`, so that the peer's writer goes on and the peer sees progress.
const CONFIRM_SOON_BYTES: u64 = 32 * 1024;
const CONFIRM_DELAY: Duration = Duration::from_millis(200);

/// What a peer may not do; the tunnel is broken off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    #[error("{0}")]
    Malformed(#[from] Malformed),
    #[error("more was sent than the window allows")]
    Window,
    #[error("data behind the end")]
    BehindEnd,
    #[error("the end is at {told}, but {received} bytes arrived")]
    End { told: u64, received: u64 },
    #[error("the peer goes on at {offset}, but only {received} bytes arrived")]
    Gap { offset: u64, received: u64 },
    #[error("{offset} bytes are said to be received, of which {kept} to {sent} are possible")]
    Offset { offset: u64, kept: u64, sent: u64 },
}

/// Why an attachment is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AttachRefused {
    #[error("a later attachment was here first")]
    Stale,
    #[error("{0}")]
    Violation(#[from] Violation),
}

/// What has arrived, for the shell to act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Arrived {
    /// The peer broke the tunnel off.
    pub(crate) reset: bool,
    /// The peer's reader took something: the writer may go on.
    pub(crate) confirmed: bool,
    /// Bytes, or the end, for the reader.
    pub(crate) data: bool,
}

#[derive(Debug, Default)]
struct Incoming {
    decoder: Decoder,
    /// In order, the reader's next; then `joined`.
    unread: VecDeque<Bytes>,
    joined: BytesMut,
    received: u64,
    consumed: u64,
    /// Confirmed on this attachment.
    told: u64,
    ended: bool,
    /// The reader is gone: what arrives is counted as read.
    discarding: bool,
    /// Confirm although little was read.
    confirm: bool,
    unconfirmed_since: Option<Instant>,
}

impl Incoming {
    fn data(&mut self, offset: u64, mut piece: Bytes, join: bool) -> Result<bool, Violation> {
        let stop = offset + piece.len() as u64;
        if offset > self.received {
            return Err(Violation::Gap {
                offset,
                received: self.received,
            });
        }
        // What has arrived before may come again after a change of attachment.
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

    fn end(&mut self, told: u64) -> Result<bool, Violation> {
        let received = self.received - u64::from(self.ended);
        if told != received {
            return Err(Violation::End { told, received });
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
        let read = self.consumed - self.told.min(self.consumed);
        let at_end = self.ended && self.consumed == self.received;
        let due = read > 0 && (self.confirm || at_end || read >= CONFIRM_BYTES);
        if !due {
            return None;
        }
        self.confirm = false;
        self.unconfirmed_since = None;
        self.told = self.consumed;
        Some(self.consumed)
    }

    fn tick(&mut self, now: Instant) {
        let read = self.consumed - self.told.min(self.consumed);
        if read == 0 {
            return;
        }
        let since = *self.unconfirmed_since.get_or_insert(now);
        self.confirm |=
            read >= CONFIRM_SOON_BYTES || now.saturating_duration_since(since) >= CONFIRM_DELAY;
    }
}

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    out: Outgoing,
    inc: Incoming,
    epoch: u64,
    /// The second half of a capsule whose first half was given out.
    payload: Option<Bytes>,
    ping: Option<u64>,
    pong: Option<u64>,
    pongs: u64,
    replayed_bytes: u64,
}

impl Flow {
    /// How many bytes may be written at the moment.
    pub(crate) fn room(&self) -> usize {
        (WINDOW_BYTES as usize).saturating_sub(self.out.kept_bytes())
    }

    /// The end of the direction has not been written; at most `room` bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        debug_assert!(!self.out.ended && bytes.len() <= self.room());
        if !bytes.is_empty() {
            self.out.write(bytes);
        }
    }

    /// The same without a copy: the bytes from `start` on of `buffer`, which has `HEADROOM_BYTES` or more before them.
    pub(crate) fn write_owned(&mut self, buffer: BytesMut, start: usize) {
        debug_assert!(!self.out.ended && buffer.len() - start <= self.room());
        self.out.write_owned(buffer, start);
    }

    /// Nothing more will be written. Idempotent.
    pub(crate) fn end(&mut self) {
        self.out.ended = true;
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.out.ended
    }

    /// The next bytes for the reader, at most `max`; none if there are none at the moment.
    pub(crate) fn read(&mut self, max: usize) -> Option<Bytes> {
        self.inc.read(max)
    }

    /// The peer has ended its direction and the reader has all of it.
    pub(crate) fn is_read_to_end(&self) -> bool {
        self.inc.ended && self.inc.consumed == self.inc.received
    }

    /// Nobody reads any more: drops what is unread and what will come.
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

    /// What this end holds, for the budget.
    pub(crate) fn held_bytes(&self) -> usize {
        self.out.kept_bytes() + self.inc.unread_bytes()
    }

    /// Whether the peer has read all that was written, the end included.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.out.base == self.out.end()
    }

    /// Both directions have ended, and both ends know it as far as this one can tell.
    pub(crate) fn is_complete(&self) -> bool {
        self.out.ended
            && self.is_confirmed()
            && self.is_read_to_end()
            && self.inc.told == self.inc.consumed
    }

    /// Nothing is under way that this end knows of.
    pub(crate) fn is_quiet(&self) -> bool {
        self.is_confirmed() && self.inc.told == self.inc.consumed && self.pong.is_none()
    }

    pub(crate) fn ping(&mut self, number: u64) {
        self.ping = Some(number);
    }

    /// The number of the last ping that was answered.
    pub(crate) fn ponged(&self) -> u64 {
        self.pongs
    }

    /// Sent again because of changes of attachment.
    pub(crate) fn take_replayed_bytes(&mut self) -> u64 {
        std::mem::take(&mut self.replayed_bytes)
    }

    /// Time passes; to be called every few tens of milliseconds while the tunnel is not quiet.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.inc.tick(now);
    }

    /// What to put on the attachment next. DATA comes in two parts where the payload is large; nothing else may come between.
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
        } else if let Some((capsule, payload)) = self.out.next_data() {
            self.payload = payload;
            return Some(capsule);
        } else {
            Capsule::End(self.out.next_end()?)
        };
        let mut capsule = BytesMut::with_capacity(16);
        capsule::put(&mut capsule, &control);
        Some(capsule.freeze())
    }

    /// Takes in what the attachment brought. With `join`, small pieces are copied together, since they may lie here for long.
    pub(crate) fn receive(&mut self, mut bytes: Bytes, join: bool) -> Result<Arrived, Violation> {
        let mut arrived = Arrived::default();
        while let Some(capsule) = self.inc.decoder.next(&mut bytes)? {
            match capsule {
                Capsule::Data(offset, piece) => {
                    arrived.data |= self.inc.data(offset, piece, join)?;
                }
                Capsule::End(offset) => arrived.data |= self.inc.end(offset)?,
                Capsule::Confirm(offset) => arrived.confirmed |= self.out.confirm(offset)?,
                Capsule::Ping(number) => self.pong = Some(number),
                Capsule::Pong(number) => self.pongs = number,
                Capsule::Reset => arrived.reset = true,
            }
        }
        Ok(arrived)
    }

    /// The client asks for an attachment with this; the one before goes on until the answer is there.
    pub(crate) fn begin_attach(&mut self) -> Attach {
        self.epoch += 1;
        Attach {
            epoch: self.epoch,
            received: self.inc.received,
        }
    }

    /// The server has answered: from here on the new attachment carries the tunnel.
    pub(crate) fn attached(&mut self, answer: Attached) -> Result<(), Violation> {
        self.restart(answer.received)
    }

    /// The server is asked for an attachment. Returns what to answer; from here on the one before is void.
    pub(crate) fn attach(&mut self, attach: Attach) -> Result<Attached, AttachRefused> {
        if attach.epoch <= self.epoch {
            return Err(AttachRefused::Stale);
        }
        self.restart(attach.received)?;
        self.epoch = attach.epoch;
        Ok(Attached {
            received: self.inc.received,
        })
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    fn restart(&mut self, peer_received: u64) -> Result<(), Violation> {
        let (kept, sent) = (self.out.base, self.out.sent_max);
        if peer_received > sent {
            return Err(Violation::Offset {
                offset: peer_received,
                kept,
                sent,
            });
        }
        self.payload = None;
        (self.ping, self.pong) = (None, None);
        // While the request was under way, the attachment before may have brought confirmations of more.
        let from = peer_received.max(kept);
        self.replayed_bytes += sent - from;
        self.out.restart(from);
        self.inc.decoder = Decoder::default();
        // Confirmations may have been lost with the attachment before.
        self.inc.told = 0;
        Ok(())
    }

    /// The message that breaks the tunnel off.
    pub(crate) fn reset_capsule() -> Bytes {
        let mut capsule = BytesMut::with_capacity(4);
        capsule::put(&mut capsule, &Capsule::Reset);
        capsule.freeze()
    }
}
