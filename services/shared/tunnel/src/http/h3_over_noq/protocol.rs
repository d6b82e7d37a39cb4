//! CONNECT-IP through `h3`, which knows only two values of `:protocol` and refuses requests with
//! others.
//!
//! Inside this process `webtransport`, which is not offered, stands in for `connect-ip`. Between
//! `h3` and the wire the two values are exchanged in the header section that begins a request. Each
//! replaces the other, so neither can be mistaken. The wire follows RFC 9484.
//!
//! `:protocol` is not in QPACK's static table, and no dynamic table is agreed, so a peer sends the
//! name as a literal. Name and value have a plain and a Huffman form. So the lines of a section are
//! parsed (RFC 9204, 4.5) without decoding. An unexpected section, and one that names a protocol
//! twice, stays as it is, and `h3` judges it.

use std::ops::Range;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h3::ext::Protocol;

use crate::http::{request::CONNECT_IP, varint};

/// The value that stands for `connect-ip` within `h3`.
pub(crate) const STAND_IN: Protocol = Protocol::WEB_TRANSPORT;

/// The name of a protocol on the wire.
pub(crate) fn name(protocol: &Protocol) -> &str {
    match *protocol == STAND_IN {
        true => CONNECT_IP,
        false => protocol.as_str(),
    }
}

/// RFC 9114, 7.2.2.
const HEADERS: u64 = 1;

/// Largest frame type with a meaning (RFC 9114, 7.2); frames of other types may precede the
/// headers.
const FRAME_MEANT_MAX: u64 = 0xd;

/// Bytes of two variable-length integers.
const FRAME_HEADER_BYTES_MAX: usize = 16;

/// The longest section that is parsed; `h3`, which permits 16 KiB decoded, gets a longer one
/// unchanged. A byte of a value takes at most 30 bits on the wire, and mostly fewer than 8.
const SECTION_BYTES_MAX: u64 = 32 * 1024;

/// The two forms of a string literal (RFC 7541, 5.2): plain, and Huffman coded.
struct Word {
    plain: &'static [u8],
    huffman: &'static [u8],
}

const NAME: Word = Word {
    plain: b":protocol",
    huffman: &[0xb9, 0x5d, 0x87, 0x49, 0xc8, 0x7a, 0x3f],
};

/// Each replaces the other.
const EXCHANGED: [Word; 2] = [
    Word {
        plain: b"connect-ip",
        huffman: &[0x21, 0xea, 0xa8, 0xa4, 0x4a, 0xc6, 0xaf],
    },
    Word {
        plain: b"webtransport",
        huffman: &[0xf0, 0x58, 0xd3, 0x60, 0xea, 0x45, 0x67, 0xb1, 0x3f],
    },
];

impl Word {
    fn is(&self, literal: &Literal<'_>) -> bool {
        literal.bytes
            == match literal.huffman {
                true => self.huffman,
                false => self.plain,
            }
    }
}

struct Literal<'a> {
    huffman: bool,
    bytes: &'a [u8],
}

/// The replacement of an outgoing frame; `None` leaves the frame as it is.
pub(super) fn leaving(frame: &[u8]) -> Option<Bytes> {
    let (kind, at) = varint::read(frame)?;
    let (length, used) = varint::read(&frame[at..])?;
    let section = &frame[at + used..];
    if kind != HEADERS || section.len() as u64 != length {
        return None;
    }
    exchanged(section).map(|section| headers(&section))
}

fn headers(section: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(FRAME_HEADER_BYTES_MAX + section.len());
    varint::put(&mut frame, HEADERS);
    varint::put(&mut frame, section.len() as u64);
    frame.put_slice(section);
    frame.freeze()
}

/// The section with the other protocol; `None` if it names neither.
fn exchanged(section: &[u8]) -> Option<Vec<u8>> {
    let value = protocol(section)?;
    let mut walk = Walk {
        section,
        at: value.start,
    };
    let literal = walk.string(7)?;
    let found = EXCHANGED.iter().position(|word| word.is(&literal))?;
    let other = EXCHANGED[1 - found].plain;
    let mut changed = Vec::with_capacity(section.len() + other.len());
    changed.extend_from_slice(&section[..value.start]);
    // Without Huffman coding; both lengths are less than 7 bits can hold.
    changed.push(other.len() as u8);
    changed.extend_from_slice(other);
    changed.extend_from_slice(&section[value.end..]);
    Some(changed)
}

/// Position of the value of the only `:protocol`.
fn protocol(section: &[u8]) -> Option<Range<usize>> {
    let mut walk = Walk { section, at: 0 };
    // Required Insert Count and Base (4.5.1), which refer to the dynamic table.
    walk.integer(8)?;
    walk.integer(7)?;
    let mut found = None;
    while let Some(first) = section.get(walk.at) {
        match first {
            // Indexed (4.5.2), and with a post-base index (4.5.3).
            0x80.. => drop(walk.integer(6)?),
            0x10..0x20 => drop(walk.integer(4)?),
            // A literal with the name of a table (4.5.4, 4.5.5).
            0x40..0x80 => {
                walk.integer(4)?;
                walk.string(7)?;
            }
            0x00..0x10 => {
                walk.integer(3)?;
                walk.string(7)?;
            }
            // A literal with a literal name (4.5.6).
            0x20..0x40 => {
                let is_protocol = NAME.is(&walk.string(3)?);
                let start = walk.at;
                walk.string(7)?;
                if is_protocol && found.replace(start..walk.at).is_some() {
                    return None;
                }
            }
        }
    }
    found
}

/// Reads a section from the front; `None` if it ends too early.
struct Walk<'a> {
    section: &'a [u8],
    at: usize,
}

impl<'a> Walk<'a> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.section.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    /// An integer with this many bits in the first byte (RFC 7541, 5.1); `None` beyond 32 bits.
    fn integer(&mut self, bits: u32) -> Option<usize> {
        let most = u32::MAX >> (32 - bits);
        let mut value = u32::from(self.byte()?) & most;
        if value < most {
            return usize::try_from(value).ok();
        }
        let mut shift = 0;
        loop {
            let byte = self.byte()?;
            let more = u32::from(byte & 0x7f);
            let shifted = more.checked_shl(shift).filter(|it| it >> shift == more)?;
            value = value.checked_add(shifted)?;
            if byte & 0x80 == 0 {
                return usize::try_from(value).ok();
            }
            shift += 7;
        }
    }

    /// A string whose length has this many bits in the first byte, with the coding flag above them.
    fn string(&mut self, bits: u32) -> Option<Literal<'a>> {
        let huffman = *self.section.get(self.at)? & 1 << bits != 0;
        let length = self.integer(bits)?;
        let bytes = self.section.get(self.at..)?.get(..length)?;
        self.at += length;
        Some(Literal { huffman, bytes })
    }
}

/// Exchanges values in the first bytes of a request's stream, however they are split.
pub(super) struct Arriving {
    state: State,
    /// An incomplete frame: at most `FRAME_HEADER_BYTES_MAX` and `SECTION_BYTES_MAX`, and the chunk
    /// of its last byte.
    held: BytesMut,
}

enum State {
    Frame,
    /// Within a frame without meaning.
    Skip {
        left: u64,
    },
    /// The headers are complete.
    Passing,
}

impl Arriving {
    pub(super) fn new() -> Self {
        Self {
            state: State::Frame,
            held: BytesMut::new(),
        }
    }

    /// The bytes that may be read now; possibly none.
    pub(super) fn take(&mut self, chunk: Bytes) -> Bytes {
        if let State::Passing = self.state {
            return chunk;
        }
        self.held.extend_from_slice(&chunk);
        let mut through = BytesMut::new();
        loop {
            match self.state {
                State::Passing => {
                    through.unsplit(self.held.split());
                    return through.freeze();
                }
                State::Skip { left } => {
                    let taken = usize::try_from(left)
                        .map_or(self.held.len(), |left| left.min(self.held.len()));
                    through.extend_from_slice(&self.held.split_to(taken));
                    let left = left - taken as u64;
                    if left > 0 {
                        self.state = State::Skip { left };
                        return through.freeze();
                    }
                    self.state = State::Frame;
                }
                State::Frame => {
                    let Some((kind, used)) = varint::read(&self.held) else {
                        return through.freeze();
                    };
                    let Some((length, more)) = varint::read(&self.held[used..]) else {
                        return through.freeze();
                    };
                    let header = used + more;
                    self.state = match kind {
                        HEADERS if length <= SECTION_BYTES_MAX => {
                            // Fits, because the line before bounds it.
                            let length = length as usize;
                            if self.held.len() - header < length {
                                return through.freeze();
                            }
                            let section = &self.held[header..header + length];
                            if let Some(section) = exchanged(section) {
                                self.held.advance(header + length);
                                through.extend_from_slice(&headers(&section));
                            }
                            State::Passing
                        }
                        0..=FRAME_MEANT_MAX => State::Passing,
                        _ => State::Skip {
                            left: header as u64 + length,
                        },
                    };
                }
            }
        }
    }

    /// The bytes that were held when the stream ended.
    pub(super) fn rest(&mut self) -> Option<Bytes> {
        self.state = State::Passing;
        (!self.held.is_empty()).then(|| self.held.split().freeze())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    const CONNECT_UDP: Word = Word {
        plain: b"connect-udp",
        huffman: &[0x21, 0xea, 0xa8, 0xa4, 0x4a, 0xd6, 0xc9, 0x5f],
    };

    /// Writes a string whose length has this many bits beside `flags`.
    fn put_string(out: &mut Vec<u8>, flags: u8, bits: u32, word: &Word, huffman: bool) {
        let bytes = match huffman {
            true => word.huffman,
            false => word.plain,
        };
        let most = (1 << bits) - 1;
        let first = flags | u8::from(huffman) << bits;
        if bytes.len() < most {
            out.push(first | bytes.len() as u8);
        } else {
            out.extend([first | most as u8, (bytes.len() - most) as u8]);
        }
        out.extend_from_slice(bytes);
    }

    fn put_protocol(out: &mut Vec<u8>, value: &Word, huffman: [bool; 2]) {
        put_string(out, 0x20, 3, &NAME, huffman[0]);
        put_string(out, 0, 7, value, huffman[1]);
    }

    /// Writes lines of every form, none of which names a protocol.
    fn put_others(out: &mut Vec<u8>) {
        // `:method CONNECT`, and a line with a large index.
        out.extend([0xc0 | 15, 0xff, 0x24]);
        // `:path` with a literal value, plain and Huffman coded.
        out.extend([0x51, 3, b'/', b'i', b'p', 0x51, 0x82, 0x60, 0xd5]);
        // References to tables that do not exist.
        out.extend([0x12, 0x05, 0x00]);
        // A literal name with the same beginning.
        out.extend(b"\x27\x03:protocols\x0aconnect-ip");
    }

    fn section(value: &Word, huffman: [bool; 2]) -> Vec<u8> {
        let mut section = vec![0, 0];
        put_others(&mut section);
        put_protocol(&mut section, value, huffman);
        put_others(&mut section);
        section
    }

    const CODINGS: [[bool; 2]; 4] = [[false, false], [false, true], [true, false], [true, true]];

    fn pass(wire: &[u8], size: usize) -> Vec<u8> {
        let mut arriving = Arriving::new();
        let mut out = Vec::new();
        for piece in wire.chunks(size) {
            out.extend_from_slice(&arriving.take(Bytes::copy_from_slice(piece)));
        }
        out.extend_from_slice(&arriving.rest().unwrap_or_default());
        assert!(arriving.rest().is_none());
        out
    }

    #[test]
    fn each_protocol_becomes_the_other_in_every_coding_and_back() {
        for huffman in CODINGS {
            for (index, word) in EXCHANGED.iter().enumerate() {
                let other = &EXCHANGED[1 - index];
                let changed = exchanged(&section(word, huffman)).unwrap();
                assert_eq!(changed, section(other, [huffman[0], false]));
                let back = exchanged(&changed).unwrap();
                assert_eq!(back, section(word, [huffman[0], false]));
            }
            assert_eq!(exchanged(&section(&CONNECT_UDP, huffman)), None);
        }
    }

    #[test]
    fn two_protocols_or_none_are_left_alone() {
        let [connect_ip, other] = &EXCHANGED;
        for second in [connect_ip, other, &CONNECT_UDP] {
            let mut twice = section(connect_ip, [false, true]);
            put_protocol(&mut twice, second, [true, false]);
            assert_eq!(exchanged(&twice), None);
        }
        let mut none = vec![0, 0];
        put_others(&mut none);
        assert_eq!(exchanged(&none), None);
        assert_eq!(leaving(&headers(&none)), None);
    }

    #[test]
    fn a_request_is_exchanged_however_it_is_cut_and_the_rest_passes() {
        let [connect_ip, stand_in] = &EXCHANGED;
        // First a frame without meaning, then data that look like headers.
        let before = b"\x21\x03abc\x40\x5f\x00";
        let inside = headers(&section(stand_in, [true, false]));
        let outside = headers(&section(connect_ip, [true, true]));
        let after = [&b"\x00\x05hello"[..], &outside].concat();
        let wire = [&before[..], &outside, &after].concat();
        let expected = [&before[..], &inside, &after].concat();
        for size in 1..=wire.len() {
            assert_eq!(pass(&wire, size), expected, "{size}");
        }
        // No byte of a torn frame is lost.
        for length in 0..before.len() + outside.len() - 1 {
            assert_eq!(pass(&wire[..length], 7), wire[..length], "{length}");
        }
    }

    #[test]
    fn outgoing_and_incoming_exchanges_are_inverse() {
        for huffman in CODINGS {
            let inside = headers(&section(&EXCHANGED[1], huffman));
            let wire = leaving(&inside).unwrap();
            let expected = headers(&section(&EXCHANGED[1], [huffman[0], false]));
            assert_eq!(pass(&wire, 5), expected);
        }
        assert_eq!(leaving(b""), None);
        assert_eq!(leaving(b"\x01\x05"), None);
        assert_eq!(leaving(b"\x00\x01a"), None);
    }

    #[test]
    fn frames_with_another_meaning_and_endless_sections_pass_untouched() {
        let request = headers(&section(&EXCHANGED[0], [true, true]));
        for first in [&b"\x00\x00"[..], b"\x04\x00", b"\x0d\x00"] {
            let wire = [first, &request].concat();
            assert_eq!(pass(&wire, 3), wire);
        }
        let mut wire = BytesMut::new();
        varint::put(&mut wire, HEADERS);
        varint::put(&mut wire, SECTION_BYTES_MAX + 1);
        wire.extend_from_slice(&request);
        // No byte is held.
        let mut arriving = Arriving::new();
        assert_eq!(arriving.take(wire.clone().freeze()), wire);
    }

    /// Random bytes, and valid requests with a changed byte: no panic, and unchanged parts stay
    /// intact.
    #[test]
    fn random_bytes_pass_unchanged() {
        for seed in 0..2_000 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut wire = match seed % 2 {
                0 => (0..rng.random_range(0..200))
                    .map(|_| rng.random())
                    .collect(),
                _ => headers(&section(&EXCHANGED[0], [true, true])).to_vec(),
            };
            for _ in 0..rng.random_range(0..4) {
                if !wire.is_empty() {
                    let at = rng.random_range(0..wire.len());
                    wire[at] = rng.random();
                }
            }
            let whole = pass(&wire, wire.len().max(1));
            let size = rng.random_range(1..20);
            assert_eq!(pass(&wire, size), whole, "{seed}");
            assert!(whole == wire || whole.len() > wire.len(), "{seed}");
            let _ = leaving(&wire);
            let _ = exchanged(&wire);
        }
    }
}
