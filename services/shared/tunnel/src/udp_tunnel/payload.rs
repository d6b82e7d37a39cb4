//! HTTP Datagrams (RFC 9297) of CONNECT-UDP (RFC 9298): a context id, and with context 0 the payload of one UDP datagram. On a stream
//! each is the value of a capsule of type DATAGRAM.
//!
//! Contexts other than 0 and capsules of other types are skipped, as both RFCs ask for. A datagram longer than UDP allows, one
//! without a context, and a stream that ends within a capsule are malformed, and end the request.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::varint;

/// The type of the capsule (RFC 9297, 3.5).
const DATAGRAM: u64 = 0;

/// What carries the payload of UDP itself.
const UDP: u64 = 0;

/// The longest payload (RFC 9298, 5).
pub(super) const PAYLOAD_BYTES_MAX: usize = 65_527;

/// The longest value of a DATAGRAM capsule: a context id and a payload. A decoder keeps no more.
const VALUE_BYTES_MAX: usize = 8 + PAYLOAD_BYTES_MAX;

/// Two variable-length integers.
const HEADER_BYTES_MAX: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("a datagram of {0} bytes, more than UDP carries")]
    TooLong(u64),
    #[error("a datagram without a context")]
    NoContext,
    #[error("the stream ended within a capsule")]
    Torn,
}

/// The payload of UDP in an HTTP Datagram; none where it is of another context.
pub(crate) fn open(mut datagram: Bytes) -> Result<Option<Bytes>, Malformed> {
    let (context, used) = varint::read(&datagram).ok_or(Malformed::NoContext)?;
    if context != UDP {
        return Ok(None);
    }
    datagram.advance(used);
    if datagram.len() > PAYLOAD_BYTES_MAX {
        return Err(Malformed::TooLong(datagram.len() as u64));
    }
    Ok(Some(datagram))
}

/// What stands before the payload in an HTTP Datagram.
pub(crate) fn put_context(out: &mut impl BufMut) {
    varint::put(out, UDP);
}

/// A capsule around one payload.
pub(super) fn capsule(payload: &[u8]) -> Bytes {
    let mut capsule = BytesMut::with_capacity(HEADER_BYTES_MAX + payload.len());
    varint::put(&mut capsule, DATAGRAM);
    varint::put(&mut capsule, varint::length(UDP) + payload.len() as u64);
    put_context(&mut capsule);
    capsule.put_slice(payload);
    capsule.freeze()
}

#[derive(Debug)]
enum State {
    Header,
    Datagram { length: usize },
    Skip { left: u64 },
}

/// Takes a byte stream apart; a capsule may be split anywhere.
#[derive(Debug)]
pub(super) struct Decoder {
    state: State,
    /// Of a header or a datagram that has not arrived as a whole: at most `VALUE_BYTES_MAX`.
    part: BytesMut,
}

impl Decoder {
    pub(super) fn new() -> Self {
        Self {
            state: State::Header,
            part: BytesMut::new(),
        }
    }

    /// Takes from the front of `input` the next payload of UDP; none once nothing whole is left in it.
    pub(super) fn next(&mut self, input: &mut Bytes) -> Result<Option<Bytes>, Malformed> {
        loop {
            match self.state {
                State::Header => {
                    let Some((kind, length)) = self.header(input) else {
                        return Ok(None);
                    };
                    self.state = match usize::try_from(length) {
                        _ if kind != DATAGRAM => State::Skip { left: length },
                        Ok(length) if length <= VALUE_BYTES_MAX => State::Datagram { length },
                        _ => return Err(Malformed::TooLong(length)),
                    };
                }
                State::Datagram { length } => {
                    let Some(datagram) = self.value(input, length) else {
                        return Ok(None);
                    };
                    self.state = State::Header;
                    if let Some(payload) = open(datagram)? {
                        return Ok(Some(payload));
                    }
                }
                State::Skip { left: 0 } => self.state = State::Header,
                State::Skip { left } => {
                    if input.is_empty() {
                        return Ok(None);
                    }
                    let taken = usize::try_from(left).map_or(input.len(), |it| it.min(input.len()));
                    input.advance(taken);
                    self.state = State::Skip {
                        left: left - taken as u64,
                    };
                }
            }
        }
    }

    /// To be asked when the stream has ended.
    pub(super) fn end(&self) -> Result<(), Malformed> {
        match self.state {
            State::Header if self.part.is_empty() => Ok(()),
            State::Skip { left: 0 } => Ok(()),
            _ => Err(Malformed::Torn),
        }
    }

    fn header(&mut self, input: &mut Bytes) -> Option<(u64, u64)> {
        loop {
            if let Some((kind, used)) = varint::read(&self.part)
                && let Some((length, _)) = varint::read(&self.part[used..])
            {
                self.part.clear();
                return Some((kind, length));
            }
            if input.is_empty() {
                return None;
            }
            self.part.put_u8(input.get_u8());
        }
    }

    /// Without a copy where it has arrived as a whole.
    fn value(&mut self, input: &mut Bytes, length: usize) -> Option<Bytes> {
        if self.part.is_empty() && input.len() >= length {
            return Some(input.split_to(length));
        }
        let taken = input.len().min(length - self.part.len());
        self.part.put_slice(&input.split_to(taken));
        (self.part.len() == length).then(|| self.part.split().freeze())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn put(wire: &mut BytesMut, kind: u64, value: &[u8]) {
        varint::put(wire, kind);
        varint::put(wire, value.len() as u64);
        wire.put_slice(value);
    }

    fn decode(wire: &[u8], size: usize) -> Result<Vec<Bytes>, Malformed> {
        let mut decoder = Decoder::new();
        let mut found = Vec::new();
        for piece in wire.chunks(size) {
            let mut piece = Bytes::copy_from_slice(piece);
            while let Some(payload) = decoder.next(&mut piece)? {
                found.push(payload);
            }
            assert!(piece.is_empty());
        }
        decoder.end()?;
        Ok(found)
    }

    #[test]
    fn payloads_survive_any_cut_and_what_is_unknown_is_skipped() {
        let long = [7; 300];
        let sent = [&b"first"[..], b"", &long, b"last"];
        let mut wire = BytesMut::new();
        for payload in sent {
            // A capsule of another type, and a datagram of context 5.
            put(&mut wire, 0x17, &[9; 70]);
            put(&mut wire, DATAGRAM, b"\x05other");
            wire.put_slice(&capsule(payload));
        }
        put(&mut wire, 0x3fff_ffff, b"");
        for size in 1..=wire.len() {
            assert_eq!(decode(&wire, size).unwrap(), sent, "{size}");
        }
    }

    #[test]
    fn the_longest_payload_passes_and_a_longer_one_is_refused() {
        let most = vec![1; PAYLOAD_BYTES_MAX];
        assert_eq!(decode(&capsule(&most), 1_000).unwrap(), [most.as_slice()]);
        let more = capsule(&vec![1; PAYLOAD_BYTES_MAX + 1]);
        let too_long = |length| Err(Malformed::TooLong(length));
        assert_eq!(decode(&more, 1_000), too_long(65_528));
        let mut endless = BytesMut::new();
        varint::put(&mut endless, DATAGRAM);
        varint::put(&mut endless, varint::MAX);
        assert_eq!(decode(&endless, 1), too_long(varint::MAX));
    }

    #[test]
    fn what_is_torn_or_has_no_context_is_refused() {
        let mut wire = BytesMut::new();
        put(&mut wire, DATAGRAM, b"");
        assert_eq!(decode(&wire, 1), Err(Malformed::NoContext));
        wire.clear();
        // A context of four bytes, of which one is there.
        put(&mut wire, DATAGRAM, &[0x80]);
        assert_eq!(decode(&wire, 1), Err(Malformed::NoContext));
        let whole = capsule(b"payload");
        for length in 1..whole.len() {
            assert_eq!(decode(&whole[..length], 2), Err(Malformed::Torn));
        }
        wire.clear();
        put(&mut wire, 0x17, &[9; 70]);
        assert_eq!(decode(&wire[..wire.len() - 1], 7), Err(Malformed::Torn));
    }
}
