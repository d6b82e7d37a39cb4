//! HTTP Datagrams (RFC 9297) of CONNECT-UDP (RFC 9298) and CONNECT-IP (RFC 9484). Each has a
//! context id. With context 0 the payload is one UDP datagram or one IP packet. With context 2 its
//! sequence number comes before it. With context 4 it is a question: the numbers of packets that
//! did not come. On a stream each is the value of a capsule of type DATAGRAM.
//!
//! Other contexts and unknown capsule types are skipped, as the RFCs demand. A datagram that is too
//! long for UDP or IP, or without a context, is malformed and ends the request. So does a stream
//! that ends within a capsule.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{kind::Kind, repair::QUESTION_MAX, sequence_number::SequenceNumber};
use crate::{
    carried::ip_tunnel::capsule::{self, Raw},
    http::varint,
};

/// The type of the capsule (RFC 9297, 3.5).
const DATAGRAM: u64 = 0;

/// The context of payloads, for UDP and for IP.
const PAYLOAD: u64 = 0;

/// The context of payloads with a lane (one byte) and a number (four). Both ends agree on it by
/// the header `braid-order`.
const ORDERED: u64 = 2;

/// The context of questions: as many lanes and numbers as there is room for. Both ends agree on it
/// by the header `braid-repair`.
const QUESTION: u64 = 4;

/// Bytes of a lane and a number.
const SEQUENCE_BYTES: usize = 5;

/// Bytes of a context id.
const CONTEXT_BYTES_MAX: usize = 8;

/// Bytes of two variable-length integers.
const HEADER_BYTES_MAX: usize = 16;

/// A payload that has arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Payload {
    /// `None` in the context of payloads without an order.
    pub(crate) sequence: Option<SequenceNumber>,
    pub(crate) bytes: Bytes,
}

/// The content of an HTTP Datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Opened {
    Payload(Payload),
    /// The peer asks for these packets.
    Question(Vec<SequenceNumber>),
}

impl Kind {
    /// The longest payload of UDP (RFC 9298, 5) and of IP without jumbograms.
    pub(super) fn payload_bytes_max(self) -> usize {
        match self {
            Self::Udp => 65_527,
            Self::Ip => 65_535,
        }
    }

    fn knows(self, kind: u64) -> bool {
        self == Self::Ip && capsule::is_known(kind)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MalformedDatagram {
    #[error("a datagram or capsule of {0} bytes, more than permitted")]
    TooLong(u64),
    #[error("a datagram without a context")]
    NoContext,
    #[error("the stream ended within a capsule")]
    Torn,
}

/// The content of an HTTP Datagram; `None` for another context.
pub(crate) fn open(kind: Kind, mut datagram: Bytes) -> Result<Option<Opened>, MalformedDatagram> {
    let (context, used) = varint::read(&datagram).ok_or(MalformedDatagram::NoContext)?;
    datagram.advance(used);
    let sequence = match context {
        PAYLOAD => None,
        // A peer that has not agreed may mean something else, so a short one is no mistake.
        ORDERED if datagram.len() >= SEQUENCE_BYTES => Some(sequence(&mut datagram)),
        QUESTION => {
            let mut asked = Vec::new();
            while datagram.len() >= SEQUENCE_BYTES && asked.len() < QUESTION_MAX {
                asked.push(sequence(&mut datagram));
            }
            return Ok(Some(Opened::Question(asked)));
        }
        _ => return Ok(None),
    };
    if datagram.len() > kind.payload_bytes_max() {
        return Err(MalformedDatagram::TooLong(datagram.len() as u64));
    }
    let bytes = datagram;
    Ok(Some(Opened::Payload(Payload { sequence, bytes })))
}

fn sequence(datagram: &mut Bytes) -> SequenceNumber {
    SequenceNumber {
        lane: datagram.get_u8(),
        number: datagram.get_u32(),
    }
}

/// A question that leaves as a datagram behind [`Head::of_question`].
pub(super) fn question(asked: &[SequenceNumber]) -> Bytes {
    let mut question = BytesMut::with_capacity(asked.len() * SEQUENCE_BYTES);
    for SequenceNumber { lane, number } in asked {
        question.put_u8(*lane);
        question.put_u32(*number);
    }
    question.freeze()
}

/// Bytes before a payload in an HTTP Datagram.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    bytes: [u8; 1 + SEQUENCE_BYTES],
    length: usize,
}

impl Head {
    pub(super) fn new(sequence: Option<SequenceNumber>) -> Self {
        let mut bytes = [0; 1 + SEQUENCE_BYTES];
        let length = match sequence {
            // Both contexts are integers of one byte.
            None => 1,
            Some(SequenceNumber { lane, number }) => {
                (bytes[0], bytes[1]) = (ORDERED as u8, lane);
                bytes[2..].copy_from_slice(&number.to_be_bytes());
                bytes.len()
            }
        };
        Self { bytes, length }
    }

    pub(super) fn of_question() -> Self {
        let mut head = Self::new(None);
        head.bytes[0] = QUESTION as u8;
        head
    }

    /// As long as any, with or without an order.
    pub(crate) fn longest(is_ordered: bool) -> Self {
        Self::new(is_ordered.then_some(SequenceNumber { lane: 0, number: 0 }))
    }
}

impl std::ops::Deref for Head {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// A capsule around one payload.
pub(super) fn capsule(head: &Head, payload: &[u8]) -> Bytes {
    let mut capsule = BytesMut::with_capacity(HEADER_BYTES_MAX + head.len() + payload.len());
    varint::put(&mut capsule, DATAGRAM);
    varint::put(&mut capsule, (head.len() + payload.len()) as u64);
    capsule.put_slice(head);
    capsule.put_slice(payload);
    capsule.freeze()
}

/// An item of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Arrived {
    Payload(Payload),
    /// A capsule that this kind of tunnel knows beside datagrams.
    Capsule(Raw),
}

#[derive(Debug)]
enum State {
    Header,
    Value { kind: u64, length: usize },
    Skip { left: u64 },
}

/// Decodes a byte stream; a capsule may be split anywhere.
#[derive(Debug)]
pub(super) struct Decoder {
    of: Kind,
    state: State,
    /// An incomplete header or value: at most a context and the longest payload.
    part: BytesMut,
}

impl Decoder {
    pub(super) fn new(of: Kind) -> Self {
        Self {
            of,
            state: State::Header,
            part: BytesMut::new(),
        }
    }

    /// Decodes the next item from the front of `input`; `None` if no complete item is left.
    pub(super) fn next(&mut self, input: &mut Bytes) -> Result<Option<Arrived>, MalformedDatagram> {
        loop {
            match self.state {
                State::Header => {
                    let Some((kind, length)) = self.header(input) else {
                        return Ok(None);
                    };
                    let most = match kind {
                        DATAGRAM => CONTEXT_BYTES_MAX + self.of.payload_bytes_max(),
                        known if self.of.knows(known) => capsule::VALUE_BYTES_MAX,
                        _ => {
                            self.state = State::Skip { left: length };
                            continue;
                        }
                    };
                    self.state = match usize::try_from(length) {
                        Ok(length) if length <= most => State::Value { kind, length },
                        _ => return Err(MalformedDatagram::TooLong(length)),
                    };
                }
                State::Value { kind, length } => {
                    let Some(value) = self.value(input, length) else {
                        return Ok(None);
                    };
                    self.state = State::Header;
                    if kind != DATAGRAM {
                        return Ok(Some(Arrived::Capsule(Raw { kind, value })));
                    }
                    // A stream loses nothing, so no question comes by it.
                    if let Some(Opened::Payload(payload)) = open(self.of, value)? {
                        return Ok(Some(Arrived::Payload(payload)));
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

    /// Must be called when the stream has ended.
    pub(super) fn end(&self) -> Result<(), MalformedDatagram> {
        match self.state {
            State::Header if self.part.is_empty() => Ok(()),
            State::Skip { left: 0 } => Ok(()),
            _ => Err(MalformedDatagram::Torn),
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

    /// Does not copy a value that has arrived completely.
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

    fn capsule(payload: &[u8]) -> Bytes {
        super::capsule(&Head::new(None), payload)
    }

    fn put(wire: &mut BytesMut, kind: u64, value: &[u8]) {
        varint::put(wire, kind);
        varint::put(wire, value.len() as u64);
        wire.put_slice(value);
    }

    fn decode_all(of: Kind, wire: &[u8], size: usize) -> Result<Vec<Arrived>, MalformedDatagram> {
        let mut decoder = Decoder::new(of);
        let mut found = Vec::new();
        for piece in wire.chunks(size) {
            let mut piece = Bytes::copy_from_slice(piece);
            while let Some(arrived) = decoder.next(&mut piece)? {
                found.push(arrived);
            }
            assert!(piece.is_empty());
        }
        decoder.end()?;
        Ok(found)
    }

    fn decode(wire: &[u8], size: usize) -> Result<Vec<Bytes>, MalformedDatagram> {
        let arrived = decode_all(Kind::Udp, wire, size)?.into_iter();
        let payloads = arrived.map(|arrived| match arrived {
            Arrived::Payload(payload) => payload.bytes,
            Arrived::Capsule(other) => panic!("{other:?}"),
        });
        Ok(payloads.collect())
    }

    #[test]
    fn capsules_of_ip_are_handed_on_in_order_among_packets() {
        let mut wire = BytesMut::new();
        put(&mut wire, 1, b"given");
        wire.put_slice(&capsule(b"packet"));
        put(&mut wire, 4, b"unknown");
        put(&mut wire, 3, &[7; 3_000]);
        let raw = |kind, value: &[u8]| {
            let value = Bytes::copy_from_slice(value);
            Arrived::Capsule(Raw { kind, value })
        };
        let packet = Arrived::Payload(Payload {
            sequence: None,
            bytes: Bytes::from_static(b"packet"),
        });
        let expected = [raw(1, b"given"), packet, raw(3, &[7; 3_000])];
        for size in [1, 2, 7, 100, wire.len()] {
            assert_eq!(decode_all(Kind::Ip, &wire, size).unwrap(), expected);
        }
        // For UDP these capsules are unknown.
        assert_eq!(decode(&wire, 3).unwrap(), ["packet"]);
        let mut endless = BytesMut::new();
        varint::put(&mut endless, 2);
        varint::put(&mut endless, capsule::VALUE_BYTES_MAX as u64 + 1);
        let length = capsule::VALUE_BYTES_MAX as u64 + 1;
        assert_eq!(
            decode_all(Kind::Ip, &endless, 1),
            Err(MalformedDatagram::TooLong(length))
        );
    }

    #[test]
    fn payloads_survive_any_cut_and_unknown_capsules_are_skipped() {
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
    fn a_sequence_number_survives_the_wire() {
        let sequence = Some(SequenceNumber {
            lane: 200,
            number: 0x0102_0304,
        });
        let wire = super::capsule(&Head::new(sequence), b"packet");
        assert_eq!(wire[..8], [0, 12, 2, 200, 1, 2, 3, 4]);
        let bytes = Bytes::from_static(b"packet");
        let expected = [Arrived::Payload(Payload { sequence, bytes })];
        for kind in [Kind::Ip, Kind::Udp] {
            assert_eq!(decode_all(kind, &wire, 3).unwrap(), expected);
        }
        // Too short for a sequence number.
        assert_eq!(decode_all(Kind::Ip, &[0, 3, 2, 1, 1], 3).unwrap(), []);
    }

    #[test]
    fn a_question_survives_the_wire_as_a_datagram() {
        let asked: Vec<_> = (0..QUESTION_MAX as u32)
            .map(|number| SequenceNumber { lane: 9, number })
            .collect();
        let mut wire = BytesMut::from(&*Head::of_question());
        wire.put_slice(&super::question(&asked));
        let opened = open(Kind::Udp, wire.clone().freeze()).unwrap();
        assert_eq!(opened, Some(Opened::Question(asked.clone())));
        // A torn number and those beyond the bound are left out.
        wire.put_slice(&[1; 23]);
        assert_eq!(open(Kind::Ip, wire.freeze()).unwrap(), opened);
        let torn = Bytes::from_static(&[4, 1, 0, 0]);
        assert_eq!(
            open(Kind::Ip, torn).unwrap(),
            Some(Opened::Question(Vec::new()))
        );
    }

    #[test]
    fn the_longest_payload_passes_and_a_longer_one_is_refused() {
        let most = vec![1; Kind::Udp.payload_bytes_max()];
        assert_eq!(decode(&capsule(&most), 1_000).unwrap(), [most.as_slice()]);
        let more = capsule(&vec![1; Kind::Udp.payload_bytes_max() + 1]);
        let too_long = |length| Err(MalformedDatagram::TooLong(length));
        assert_eq!(decode(&more, 1_000), too_long(65_528));
        let mut endless = BytesMut::new();
        varint::put(&mut endless, DATAGRAM);
        varint::put(&mut endless, varint::MAX);
        assert_eq!(decode(&endless, 1), too_long(varint::MAX));
    }

    #[test]
    fn torn_datagrams_and_those_without_a_context_are_refused() {
        let mut wire = BytesMut::new();
        put(&mut wire, DATAGRAM, b"");
        assert_eq!(decode(&wire, 1), Err(MalformedDatagram::NoContext));
        wire.clear();
        // A context of four bytes of which only one has arrived.
        put(&mut wire, DATAGRAM, &[0x80]);
        assert_eq!(decode(&wire, 1), Err(MalformedDatagram::NoContext));
        let whole = capsule(b"payload");
        for length in 1..whole.len() {
            assert_eq!(decode(&whole[..length], 2), Err(MalformedDatagram::Torn));
        }
        wire.clear();
        put(&mut wire, 0x17, &[9; 70]);
        assert_eq!(
            decode(&wire[..wire.len() - 1], 7),
            Err(MalformedDatagram::Torn)
        );
    }
}
