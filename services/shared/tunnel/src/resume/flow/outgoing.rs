//! One direction at its sender: the bytes kept for the peer, and the position of the carrying
//! stream in them.

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
    /// The next byte to send on this attachment: index in `kept`, offset in the piece, offset in
    /// the direction.
    piece: usize,
    offset: usize,
    pub(super) cursor: u64,
    /// Highest position of the cursor so far, including the end.
    pub(super) sent_max: u64,
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

    /// Moves the cursor to `offset`, which is not below `base`.
    pub(super) fn restart(&mut self, offset: u64) {
        self.close_tail();
        self.cursor = offset;
        (self.piece, self.offset) = (0, 0);
        let mut left = (offset - self.base.min(offset)) as usize;
        while let Some(piece) = self.kept.get(self.piece)
            && left >= piece.len()
        {
            left -= piece.len();
            self.piece += 1;
        }
        self.offset = left;
        if self.piece >= self.kept.len() {
            self.offset = 0;
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
        while left > 0
            && let Some(first) = self.kept.front_mut()
        {
            if first.len() <= left {
                left -= first.len();
                self.kept.pop_front();
                if self.piece == 0 {
                    self.offset = 0;
                } else {
                    self.piece -= 1;
                }
            } else {
                first.advance(left);
                if self.piece == 0 {
                    self.offset = self.offset.saturating_sub(left);
                }
                left = 0;
            }
        }
        self.base = offset;
        // Bytes under way on the old attachment have arrived after all, and are not sent again.
        if self.cursor < self.base {
            self.cursor = self.base;
            (self.piece, self.offset) = (0, 0);
        }
        Ok(true)
    }

    /// Bytes to send on this attachment.
    pub(super) fn unsent(&self) -> u64 {
        self.written.saturating_sub(self.cursor)
    }

    /// The next DATA capsule, or its header and its bytes separately if only a part of a piece is
    /// left.
    pub(super) fn next_data(&mut self) -> Option<(Bytes, Option<Bytes>)> {
        if self.unsent() == 0 {
            return None;
        }
        if self.piece >= self.kept.len() {
            self.close_tail();
        }
        let whole = self.kept.get(self.piece)?;
        let (start, length) = (self.cursor, whole.len());
        let next = self.kept.get(self.piece + 1);
        let small = |piece: &Piece| piece.len() <= SMALL_BYTES;
        if small(whole) && next.is_some_and(small) {
            return Some((self.next_joined(start), None));
        }
        if self.offset == 0 && whole.header > 0 && length <= CHUNK_BYTES_MAX {
            let capsule = whole.capsule.clone();
            self.advance(length);
            return Some((capsule, None));
        }
        let stop = length.min(self.offset + CHUNK_BYTES_MAX);
        let bytes = whole.bytes(self.offset, stop);
        self.advance(bytes.len());
        let mut header = BytesMut::with_capacity(DATA_HEADER_BYTES_MAX);
        capsule::put_data_header(&mut header, start, bytes.len());
        Some((header.freeze(), Some(bytes)))
    }

    /// Waiting small pieces travel together.
    fn next_joined(&mut self, start: u64) -> Bytes {
        let mut joined = BytesMut::with_capacity(JOINED_BYTES);
        while let Some(piece) = self.kept.get(self.piece)
            && piece.len() <= SMALL_BYTES
            && joined.len() + piece.len() <= JOINED_BYTES
        {
            let bytes = piece.bytes(self.offset, piece.len());
            joined.extend_from_slice(&bytes);
            self.advance(bytes.len());
        }
        Piece::new(start, &joined).capsule
    }

    fn advance(&mut self, length: usize) {
        self.cursor += length as u64;
        self.sent_max = self.sent_max.max(self.cursor);
        self.offset += length;
        if self
            .kept
            .get(self.piece)
            .is_some_and(|piece| piece.len() <= self.offset)
        {
            self.piece += 1;
            self.offset = 0;
        }
    }

    pub(super) fn next_end(&mut self) -> Option<u64> {
        if !self.ended || self.cursor != self.written {
            return None;
        }
        self.cursor += 1;
        self.sent_max = self.sent_max.max(self.cursor);
        Some(self.written)
    }
}
