//! The content of a resumable tunnel's stream: capsules (RFC 9297, 3.2), each a type, a length and
//! a value.
//!
//! The types are Braid's own, from the two-byte range; a capsule of an unknown type is skipped (RFC
//! 9297, 3.2). The payload of DATA is an offset and bytes, which are passed on piece by piece as
//! they arrive.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::http::varint;

const DATA: u64 = 0x3b01;
const CONFIRM: u64 = 0x3b02;
const END: u64 = 0x3b03;
const RESET: u64 = 0x3b04;
const PING: u64 = 0x3b05;
const PONG: u64 = 0x3b06;

/// Longest header: two variable-length integers (RFC 9000, 16).
const HEADER_BYTES_MAX: usize = 16;

/// The output of a decoder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Capsule {
    /// A non-empty piece of the payload of DATA, and the offset of its first byte.
    Data(u64, Bytes),
    /// The reader took all bytes before this offset; the end of the direction counts as one byte.
    Confirm(u64),
    /// The direction ends at this offset.
    End(u64),
    /// The tunnel is reset.
    Reset,
    Ping(u64),
    Pong(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("the value of a capsule of type {0:#x} is malformed")]
    Value(u64),
}

#[derive(Debug)]
enum State {
    Header,
    /// Within the offset of a DATA capsule that has `left` bytes left.
    Offset {
        left: u64,
    },
    Data {
        offset: u64,
        left: u64,
    },
    Value {
        kind: u64,
        length: usize,
    },
    Skip {
        left: u64,
    },
}

/// Decodes a byte stream; a capsule may be split anywhere.
#[derive(Debug)]
pub(super) struct Decoder {
    state: State,
    /// An incomplete header or value.
    part: [u8; HEADER_BYTES_MAX],
    filled: usize,
}

impl Default for Decoder {
    fn default() -> Self {
        Self {
            state: State::Header,
            part: [0; HEADER_BYTES_MAX],
            filled: 0,
        }
    }
}

impl Decoder {
    /// Decodes from the front of `input`; `None` if no complete item is left.
    pub(super) fn next(&mut self, input: &mut Bytes) -> Result<Option<Capsule>, Malformed> {
        loop {
            match self.state {
                State::Header => {
                    let Some((kind, length)) = self.header(input) else {
                        return Ok(None);
                    };
                    self.state = match kind {
                        DATA => State::Offset { left: length },
                        RESET if length == 0 => return Ok(Some(Capsule::Reset)),
                        CONFIRM | END | RESET | PING | PONG => State::Value {
                            kind,
                            length: usize::try_from(length)
                                .ok()
                                .filter(|length| matches!(length, 1 | 2 | 4 | 8))
                                .ok_or(Malformed::Value(kind))?,
                        },
                        _ => State::Skip { left: length },
                    };
                }
                State::Offset { left } => {
                    let Some((offset, used)) = self.integer(input, left)? else {
                        return Ok(None);
                    };
                    let left = left - used;
                    // No offset in the stream is larger.
                    if offset > varint::MAX - left.min(varint::MAX) {
                        return Err(Malformed::Value(DATA));
                    }
                    self.state = State::Data { offset, left };
                }
                State::Data { left: 0, .. } | State::Skip { left: 0 } => self.state = State::Header,
                State::Data { offset, left } => {
                    if input.is_empty() {
                        return Ok(None);
                    }
                    let taken = cut(left, input.len());
                    self.state = State::Data {
                        offset: offset + taken as u64,
                        left: left - taken as u64,
                    };
                    return Ok(Some(Capsule::Data(offset, input.split_to(taken))));
                }
                State::Skip { left } => {
                    if input.is_empty() {
                        return Ok(None);
                    }
                    let taken = cut(left, input.len());
                    input.advance(taken);
                    self.state = State::Skip {
                        left: left - taken as u64,
                    };
                }
                State::Value { kind, length } => {
                    while self.filled < length {
                        if input.is_empty() {
                            return Ok(None);
                        }
                        self.part[self.filled] = input.get_u8();
                        self.filled += 1;
                    }
                    let value = &self.part[..length];
                    let (value, used) = varint::read(value).ok_or(Malformed::Value(kind))?;
                    if used != length {
                        return Err(Malformed::Value(kind));
                    }
                    self.filled = 0;
                    self.state = State::Header;
                    return Ok(Some(match kind {
                        CONFIRM => Capsule::Confirm(value),
                        END => Capsule::End(value),
                        PING => Capsule::Ping(value),
                        PONG => Capsule::Pong(value),
                        _ => Capsule::Reset,
                    }));
                }
            }
        }
    }

    /// The integer at the front of a DATA payload with `left` bytes, and its length.
    fn integer(&mut self, input: &mut Bytes, left: u64) -> Result<Option<(u64, u64)>, Malformed> {
        loop {
            if let Some((value, used)) = varint::read(&self.part[..self.filled]) {
                self.filled = 0;
                return Ok(Some((value, used as u64)));
            }
            if self.filled as u64 >= left {
                return Err(Malformed::Value(DATA));
            }
            if input.is_empty() {
                return Ok(None);
            }
            self.part[self.filled] = input.get_u8();
            self.filled += 1;
        }
    }

    fn header(&mut self, input: &mut Bytes) -> Option<(u64, u64)> {
        loop {
            let part = &self.part[..self.filled];
            if let Some((kind, used)) = varint::read(part)
                && let Some((length, _)) = varint::read(&part[used..])
            {
                self.filled = 0;
                return Some((kind, length));
            }
            if input.is_empty() {
                return None;
            }
            // Two integers of eight bytes each are complete when the buffer is full.
            self.part[self.filled] = input.get_u8();
            self.filled += 1;
        }
    }
}

fn cut(left: u64, available: usize) -> usize {
    usize::try_from(left).map_or(available, |left| left.min(available))
}

/// Longest header and offset of a DATA capsule of up to a gigabyte.
pub(super) const DATA_HEADER_BYTES_MAX: usize = 2 + 4 + 8;

/// Writes a DATA capsule up to its payload of `length` bytes.
pub(super) fn put_data_header(out: &mut impl BufMut, offset: u64, length: usize) {
    varint::put(out, DATA);
    varint::put(out, varint::length(offset) + length as u64);
    varint::put(out, offset);
}

/// A complete capsule.
pub(super) fn whole(capsule: &Capsule) -> Bytes {
    let mut out = BytesMut::with_capacity(HEADER_BYTES_MAX);
    put(&mut out, capsule);
    out.freeze()
}

/// Writes a complete capsule.
pub(super) fn put(out: &mut BytesMut, capsule: &Capsule) {
    let (kind, value) = match capsule {
        Capsule::Data(offset, payload) => {
            put_data_header(out, *offset, payload.len());
            out.put_slice(payload);
            return;
        }
        Capsule::Reset => {
            varint::put(out, RESET);
            varint::put(out, 0);
            return;
        }
        Capsule::Confirm(offset) => (CONFIRM, *offset),
        Capsule::End(offset) => (END, *offset),
        Capsule::Ping(number) => (PING, *number),
        Capsule::Pong(number) => (PONG, *number),
    };
    varint::put(out, kind);
    varint::put(out, varint::length(value));
    varint::put(out, value);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn decode(decoder: &mut Decoder, mut input: Bytes) -> Vec<Capsule> {
        let mut found = Vec::new();
        while let Some(capsule) = decoder.next(&mut input).unwrap() {
            found.push(capsule);
        }
        assert!(input.is_empty());
        found
    }

    #[test]
    fn capsules_survive_any_cut() {
        let sent = [
            Capsule::Data(70, Bytes::from_static(b"hello")),
            Capsule::Confirm(63),
            Capsule::Confirm(64),
            Capsule::Confirm(0x3fff_ffff),
            Capsule::Confirm(varint::MAX),
            Capsule::End(5),
            Capsule::Ping(0),
            Capsule::Pong(16_384),
            Capsule::Reset,
        ];
        let mut wire = BytesMut::new();
        for capsule in &sent {
            put(&mut wire, capsule);
        }
        let wire = wire.freeze();
        for size in 1..=wire.len() {
            let mut decoder = Decoder::default();
            let mut found = Vec::new();
            for piece in wire.chunks(size) {
                found.extend(decode(&mut decoder, Bytes::copy_from_slice(piece)));
            }
            let data: Vec<u8> = found
                .iter()
                .filter_map(|capsule| match capsule {
                    Capsule::Data(offset, piece) => {
                        assert_eq!(b"hello"[*offset as usize - 70..][..piece.len()], piece[..]);
                        Some(piece.to_vec())
                    }
                    _ => None,
                })
                .flatten()
                .collect();
            assert_eq!(data, b"hello");
            found.retain(|capsule| !matches!(capsule, Capsule::Data(..)));
            assert_eq!(found, sent[1..]);
        }
    }

    #[test]
    fn unknown_capsules_are_skipped() {
        let mut wire = BytesMut::new();
        varint::put(&mut wire, 0x17);
        varint::put(&mut wire, 70);
        wire.put_bytes(7, 70);
        put(&mut wire, &Capsule::Ping(3));
        let found = decode(&mut Decoder::default(), wire.freeze());
        assert_eq!(found, [Capsule::Ping(3)]);
    }

    #[test]
    fn a_value_that_is_no_integer_is_refused() {
        for (length, value) in [(0_u8, &[][..]), (3, &[1, 2, 3]), (2, &[1, 2]), (9, &[0; 9])] {
            let mut wire = BytesMut::new();
            varint::put(&mut wire, CONFIRM);
            wire.put_u8(length);
            wire.put_slice(value);
            let refused = Decoder::default().next(&mut wire.freeze());
            assert_eq!(refused, Err(Malformed::Value(CONFIRM)), "{length}");
        }
    }

    #[test]
    fn data_costs_less_than_a_thousandth() {
        let mut header = BytesMut::new();
        put_data_header(&mut header, 1 << 40, 32 * 1024);
        assert!(header.len() * 1000 < 32 * 1024, "{}", header.len());
    }
}
