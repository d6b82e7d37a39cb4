//! One direction at its sender: the bytes kept for the peer, and positions in them. One position is
//! that of the carrying stream, and one that of the stream with copies.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

use super::{
    super::capsule::{self, DATA_HEADER_BYTES_MAX},
    violation::Violation,
};
use crate::carried::pieces::HEADROOM_BYTES;

/// Payload of one DATA capsule.
pub(crate) const CHUNK_BYTES_MAX: usize = 64 * 1024;

const _: () = assert!(DATA_HEADER_BYTES_MAX <= HEADROOM_BYTES);

/// Pieces up to this size are copied together instead of being sent and kept one by one.
const SMALL_BYTES: usize = 4 * 1024;

/// Small pieces are copied together up to this size.
const JOINED_BYTES: usize = 16 * 1024;

/// A copy that is further behind leaves bytes out: what waits for a slow path in bulk gains nothing
/// from it.
const COPY_BEHIND_MAX: u64 = 64 * 1024;

/// Cost of keeping a piece beside its bytes. Many tiny writes close the window before their
/// bookkeeping exceeds it.
const PIECE_COST_BYTES: usize = 64;

/// Kept bytes with the header of their DATA capsule in front, so that both leave in one piece.
#[derive(Debug)]
struct Piece {
    capsule: Bytes,
    /// Length of that header; zero once part of the bytes was confirmed.
    header: usize,
}

impl Piece {
    fn new(offset: u64, bytes: &[u8]) -> Self {
        let mut capsule = BytesMut::with_capacity(bytes.len() + DATA_HEADER_BYTES_MAX);
        capsule::put_data_header(&mut capsule, offset, bytes.len());
        let header = capsule.len();
        capsule.extend_from_slice(bytes);
        Self {
            capsule: capsule.freeze(),
            header,
        }
    }

    /// For the bytes of `buffer` from `start` on; the header is put before them.
    fn within(offset: u64, mut buffer: BytesMut, start: usize) -> Self {
        let mut beginning = [0; DATA_HEADER_BYTES_MAX];
        let mut rest = &mut beginning[..];
        capsule::put_data_header(&mut rest, offset, buffer.len() - start);
        let header = DATA_HEADER_BYTES_MAX - rest.len();
        buffer[start - header..start].copy_from_slice(&beginning[..header]);
        buffer.advance(start - header);
        Self {
            capsule: buffer.freeze(),
            header,
        }
    }

    fn len(&self) -> usize {
        self.capsule.len() - self.header
    }

    fn bytes(&self, start: usize, stop: usize) -> Bytes {
        self.capsule.slice(self.header + start..self.header + stop)
    }

    fn advance(&mut self, length: usize) {
        self.capsule.advance(self.header + length);
        self.header = 0;
    }
}

#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// Bytes from `base` on, in order, without `tail`.
    kept: VecDeque<Piece>,
    /// Small writes that were not sent yet; they follow `kept`.
    tail: BytesMut,
    pub(super) base: u64,
    pub(super) written: u64,
    pub(super) ended: bool,
    /// On the carrying stream.
    pub(super) original: Position,
    /// On the stream with copies, if there is one.
    pub(super) copy: Option<Position>,
    /// Highest position so far, including the end.
    pub(super) sent_max: u64,
}

/// The next byte to send on a stream: index in `kept`, offset in the piece, offset in the
/// direction.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Position {
    piece: usize,
    offset: usize,
    pub(super) cursor: u64,
}

impl Position {
    /// Whole pieces at the front, and then a part of the first one, were confirmed up to `base`.
    fn confirmed(&mut self, base: u64, whole: usize, part: usize) {
        // Bytes that the peer has by another stream are not sent again.
        if self.cursor < base {
            (self.piece, self.offset, self.cursor) = (0, 0, base);
            return;
        }
        self.piece = self.piece.saturating_sub(whole);
        if self.piece == 0 {
            self.offset = self.offset.saturating_sub(part);
        }
    }
}

/// The streams of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// Also carries confirmations and pings.
    Original,
    /// Carries the same bytes once more, by another path.
    Copy,
}

impl Outgoing {
    pub(super) fn end(&self) -> u64 {
        self.written + u64::from(self.ended)
    }

    pub(super) fn kept_bytes(&self) -> usize {
        (self.written - self.base.min(self.written)) as usize
            + (self.kept.len() + 1) * PIECE_COST_BYTES
    }

    pub(super) fn write(&mut self, bytes: &[u8]) {
        if bytes.len() <= SMALL_BYTES && self.tail.len() + bytes.len() <= JOINED_BYTES {
            self.tail.extend_from_slice(bytes);
        } else {
            self.close_tail();
            self.kept.push_back(Piece::new(self.written, bytes));
        }
        self.written += bytes.len() as u64;
    }

    /// Keeps the buffer itself; its bytes begin at `start`, at least `HEADROOM_BYTES` after its
    /// front.
    pub(super) fn write_owned(&mut self, buffer: BytesMut, start: usize) {
        self.close_tail();
        let length = buffer.len() - start;
        let piece = Piece::within(self.written, buffer, start);
        self.kept.push_back(piece);
        self.written += length as u64;
    }

    /// Joins the last small writes into one piece.
    fn close_tail(&mut self) {
        if !self.tail.is_empty() {
            let offset = self.written - self.tail.len() as u64;
            self.kept.push_back(Piece::new(offset, &self.tail));
            self.tail.clear();
        }
    }

    /// The carrying stream goes on at `offset`, which is not below `base`, without copies.
    pub(super) fn restart(&mut self, offset: u64) {
        self.original = self.seek(offset);
        self.copy = None;
    }

    /// A stream with copies begins at the first byte that `received` leaves out.
    pub(super) fn begin_copy(&mut self, received: u64) {
        self.copy = Some(self.seek(received.max(self.base)));
    }

    /// The copy goes on with the bytes that are written next, if it is too far behind.
    pub(super) fn keep_copy_up(&mut self) {
        let is_behind =
            |copy: &Position| self.written.saturating_sub(copy.cursor) > COPY_BEHIND_MAX;
        if self.copy.as_ref().is_some_and(is_behind) {
            self.copy = Some(self.seek(self.written));
        }
    }

    /// The position of an offset that is not below `base`.
    fn seek(&mut self, offset: u64) -> Position {
        self.close_tail();
        let mut piece = 0;
        let mut left = (offset - self.base.min(offset)) as usize;
        while let Some(kept) = self.kept.get(piece)
            && left >= kept.len()
        {
            left -= kept.len();
            piece += 1;
        }
        Position {
            piece,
            offset: if piece >= self.kept.len() { 0 } else { left },
            cursor: offset,
        }
    }

    pub(super) fn confirm(&mut self, offset: u64) -> Result<bool, Violation> {
        if offset <= self.base {
            return Ok(false);
        }
        if offset > self.sent_max {
            return Err(Violation::Offset {
                offset,
                kept: self.base,
                sent: self.sent_max,
            });
        }
        let mut left = (offset.min(self.written) - self.base.min(self.written)) as usize;
        let mut whole = 0;
        while let Some(first) = self.kept.front()
            && left > 0
            && first.len() <= left
        {
            left -= first.len();
            whole += 1;
            self.kept.pop_front();
        }
        if left > 0
            && let Some(first) = self.kept.front_mut()
        {
            first.advance(left);
        }
        self.base = offset;
        self.original.confirmed(offset, whole, left);
        if let Some(copy) = &mut self.copy {
            copy.confirmed(offset, whole, left);
        }
        Ok(true)
    }

    /// Bytes to send on this attachment.
    pub(super) fn unsent(&self) -> u64 {
        self.written.saturating_sub(self.original.cursor)
    }

    fn position(&self, on: Carrier) -> Option<Position> {
        match on {
            Carrier::Original => Some(self.original),
            Carrier::Copy => self.copy,
        }
    }

    fn advance_to(&mut self, on: Carrier, at: Position) {
        self.sent_max = self.sent_max.max(at.cursor);
        match on {
            Carrier::Original => self.original = at,
            Carrier::Copy => self.copy = Some(at),
        }
    }

    /// The next DATA capsule of a stream, or its header and its bytes separately if only a part of
    /// a piece is left.
    pub(super) fn next_data(&mut self, on: Carrier) -> Option<(Bytes, Option<Bytes>)> {
        let mut at = self.position(on)?;
        if at.cursor >= self.written {
            return None;
        }
        if at.piece >= self.kept.len() {
            self.close_tail();
        }
        let next = self.data_at(&mut at)?;
        self.advance_to(on, at);
        Some(next)
    }

    fn data_at(&self, at: &mut Position) -> Option<(Bytes, Option<Bytes>)> {
        let whole = self.kept.get(at.piece)?;
        let (start, length) = (at.cursor, whole.len());
        let next = self.kept.get(at.piece + 1);
        let small = |piece: &Piece| piece.len() <= SMALL_BYTES;
        if small(whole) && next.is_some_and(small) {
            return Some((self.joined_at(at), None));
        }
        if at.offset == 0 && whole.header > 0 && length <= CHUNK_BYTES_MAX {
            self.advance(at, length);
            return Some((whole.capsule.clone(), None));
        }
        let stop = length.min(at.offset + CHUNK_BYTES_MAX);
        let bytes = whole.bytes(at.offset, stop);
        self.advance(at, bytes.len());
        let mut header = BytesMut::with_capacity(DATA_HEADER_BYTES_MAX);
        capsule::put_data_header(&mut header, start, bytes.len());
        Some((header.freeze(), Some(bytes)))
    }

    /// Waiting small pieces travel together.
    fn joined_at(&self, at: &mut Position) -> Bytes {
        let start = at.cursor;
        let mut joined = BytesMut::with_capacity(JOINED_BYTES);
        while let Some(piece) = self.kept.get(at.piece)
            && piece.len() <= SMALL_BYTES
            && joined.len() + piece.len() <= JOINED_BYTES
        {
            let bytes = piece.bytes(at.offset, piece.len());
            joined.extend_from_slice(&bytes);
            self.advance(at, bytes.len());
        }
        Piece::new(start, &joined).capsule
    }

    fn advance(&self, at: &mut Position, length: usize) {
        at.cursor += length as u64;
        at.offset += length;
        let is_over = |piece: &Piece| piece.len() <= at.offset;
        if self.kept.get(at.piece).is_some_and(is_over) {
            at.piece += 1;
            at.offset = 0;
        }
    }

    pub(super) fn next_end(&mut self, on: Carrier) -> Option<u64> {
        let mut at = self.position(on)?;
        if !self.ended || at.cursor != self.written {
            return None;
        }
        at.cursor += 1;
        self.advance_to(on, at);
        Some(self.written)
    }
}
