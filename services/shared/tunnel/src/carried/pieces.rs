//! Bytes that move between a tunnel and a socket without being copied.
//!
//! From the tunnel they come as they arrived, in pieces as small as packets, and one call writes
//! them on ([`Pieces`]). Into the tunnel they go in the buffer of the read call, which has room in
//! front for the tunnel's header ([`Parcel`]).

use std::{collections::VecDeque, io::IoSlice};

use bytes::{Buf, BufMut, Bytes, BytesMut, buf::Limit};
use tokio::io::ReadBuf;

/// Pieces in one [`Pieces`]; the limit of one vectored write (tokio passes 64).
const PIECES_MAX: usize = 64;

/// Room in front of the bytes of a [`Parcel`].
pub(crate) const HEADROOM_BYTES: usize = 16;

/// The receiver of a tunnel's arriving data.
pub(crate) trait Sink {
    /// Number of bytes that it still accepts.
    fn room(&self) -> usize;
    /// At most `room` bytes.
    fn put(&mut self, piece: Bytes);
}

impl Sink for ReadBuf<'_> {
    fn room(&self) -> usize {
        self.remaining()
    }

    fn put(&mut self, piece: Bytes) {
        self.put_slice(&piece);
    }
}

/// Arrived and not yet written on: at most `PIECES_MAX` pieces.
pub(crate) struct Pieces {
    pieces: VecDeque<Bytes>,
    bytes: usize,
    bytes_max: usize,
}

impl Pieces {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            pieces: VecDeque::with_capacity(PIECES_MAX),
            bytes: 0,
            bytes_max,
        }
    }
}

impl Sink for Pieces {
    fn room(&self) -> usize {
        if self.pieces.len() < PIECES_MAX {
            self.bytes_max - self.bytes
        } else {
            0
        }
    }

    fn put(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.bytes += piece.len();
            self.pieces.push_back(piece);
        }
    }
}

impl Buf for Pieces {
    fn remaining(&self) -> usize {
        self.bytes
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.front().map_or(&[], Bytes::as_ref)
    }

    fn chunks_vectored<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        let slots = out.iter_mut().zip(&self.pieces);
        slots
            .map(|(slot, piece)| *slot = IoSlice::new(piece))
            .count()
    }

    fn advance(&mut self, count: usize) {
        assert!(count <= self.bytes, "beyond the end");
        self.bytes -= count;
        let mut left = count;
        while left > 0
            && let Some(first) = self.pieces.front_mut()
        {
            if first.len() > left {
                first.advance(left);
                return;
            }
            left -= first.len();
            self.pieces.pop_front();
        }
    }
}

/// A buffer filled by a read call, on its way into a tunnel.
pub(crate) struct Parcel {
    buffer: BytesMut,
    /// Offset of the first byte that is not handed over; at least `HEADROOM_BYTES`.
    start: usize,
}

impl Parcel {
    pub(crate) fn new() -> Self {
        Self {
            buffer: BytesMut::new(),
            start: HEADROOM_BYTES,
        }
    }

    /// Empties the parcel and lends it for up to `bytes_max` bytes.
    pub(crate) fn fill(&mut self, bytes_max: usize) -> Limit<&mut BytesMut> {
        self.start = HEADROOM_BYTES;
        self.buffer.clear();
        self.buffer.reserve(HEADROOM_BYTES + bytes_max);
        self.buffer.put_bytes(0, HEADROOM_BYTES);
        (&mut self.buffer).limit(bytes_max)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.buffer.get(self.start..).unwrap_or_default()
    }

    /// The first bytes were copied.
    pub(crate) fn advance(&mut self, count: usize) {
        self.start += count;
    }

    /// Whether the bytes fill most of the buffer; otherwise copying is cheaper than keeping it.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes().len() > self.buffer.capacity() / 2
    }

    /// The buffer and the offset of its bytes; the parcel is then empty.
    pub(crate) fn take(&mut self) -> (BytesMut, usize) {
        let start = std::mem::replace(&mut self.start, HEADROOM_BYTES);
        (std::mem::take(&mut self.buffer), start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_out_as_they_went_in() {
        let mut pieces = Pieces::new(10);
        pieces.put(Bytes::from_static(b"ab"));
        pieces.put(Bytes::new());
        pieces.put(Bytes::from_static(b"cdefg"));
        assert_eq!((pieces.room(), pieces.remaining()), (3, 7));
        let mut slices = [IoSlice::new(&[]); 4];
        assert_eq!(pieces.chunks_vectored(&mut slices), 2);
        assert_eq!(&*slices[1], b"cdefg");
        pieces.advance(3);
        assert_eq!(pieces.chunk(), b"defg");
        assert_eq!(pieces.copy_to_bytes(4), &b"defg"[..]);
        assert_eq!((pieces.room(), pieces.remaining()), (10, 0));
    }

    #[test]
    fn pieces_are_bounded_in_number() {
        let mut pieces = Pieces::new(1 << 20);
        while pieces.room() > 0 {
            pieces.put(Bytes::from_static(b"x"));
        }
        assert_eq!(pieces.remaining(), PIECES_MAX);
    }

    #[test]
    fn a_parcel_that_is_nearly_empty_is_not_kept() {
        let mut parcel = Parcel::new();
        parcel.fill(100).put_slice(b"few");
        assert_eq!((parcel.bytes(), parcel.is_full()), (&b"few"[..], false));
        let mut filled = parcel.fill(100);
        filled.put_slice(&[7; 100]);
        assert!(!filled.has_remaining_mut());
        assert!(parcel.is_full());
        parcel.advance(1);
        let (buffer, start) = parcel.take();
        assert_eq!(buffer[start..], [7; 99]);
        assert!(parcel.bytes().is_empty());
    }
}
