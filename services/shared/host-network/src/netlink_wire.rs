//! Encoding and decoding of netlink messages that no library in use covers.

use std::io;

use rtnetlink::sys::{Socket, SocketAddr};

pub(crate) const HEADER_BYTES: usize = 16;
pub(crate) const ATTRIBUTE_HEADER_BYTES: usize = 4;
/// Flag of an attribute that contains others.
pub(crate) const NESTED: u16 = 0x8000;
/// Type of an answer with an error code.
pub(crate) const ERROR: u16 = 2;
/// Type of the last answer of several.
const DONE: u16 = 3;
/// Bits of an attribute's type that are flags.
const ATTRIBUTE_FLAGS: u16 = 0xc000;

/// A socket to the kernel, in the network namespace of the calling thread.
pub(crate) fn connect(protocol: isize) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.set_non_blocking(true)?;
    Ok(socket)
}

/// A message with its header. `parts` follow one another.
pub(crate) fn message(kind: u16, flags: u16, sequence: u32, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let length = (HEADER_BYTES + body.len()) as u32;
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend([kind.to_ne_bytes(), flags.to_ne_bytes()].concat());
    bytes.extend(sequence.to_ne_bytes());
    // The sender's port: the kernel knows it.
    bytes.extend(0_u32.to_ne_bytes());
    bytes.extend(body);
    bytes
}

/// An attribute, padded to a multiple of four bytes.
pub(crate) fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
    let length = (ATTRIBUTE_HEADER_BYTES + payload.len()) as u16;
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer<'a> {
    /// Zero means success.
    Ended(i32),
    Data(&'a [u8]),
}

/// The answers to the request with this sequence number in a datagram, as far as they are readable.
pub(crate) fn answers(mut datagram: &[u8], wanted: u32) -> Vec<Answer<'_>> {
    let mut answers = Vec::new();
    while let Some((length, rest)) = datagram.split_first_chunk() {
        let length = u32::from_ne_bytes(*length) as usize;
        let field = |at: usize| rest.get(at..at + 4).and_then(|it| it.try_into().ok());
        let (Some(sequence), true) = (field(4), (HEADER_BYTES..=datagram.len()).contains(&length))
        else {
            break;
        };
        let kind = u16::from_ne_bytes([rest[0], rest[1]]);
        let payload = &datagram[HEADER_BYTES..length];
        if u32::from_ne_bytes(sequence) == wanted {
            match payload.first_chunk() {
                Some(code) if kind == ERROR || kind == DONE => {
                    answers.push(Answer::Ended(i32::from_ne_bytes(*code)))
                }
                _ => answers.push(Answer::Data(payload)),
            }
        }
        datagram = datagram
            .get(length.next_multiple_of(4)..)
            .unwrap_or_default();
    }
    answers
}

/// The attributes by type, as far as they are readable.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let header = bytes.first_chunk::<ATTRIBUTE_HEADER_BYTES>()?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & !ATTRIBUTE_FLAGS;
        let value = bytes.get(ATTRIBUTE_HEADER_BYTES..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_as_far_as_they_go() {
        let mut bytes = attribute(7 | NESTED, &[1, 2, 3]);
        bytes.extend(attribute(2, b"four"));
        let read: Vec<(u16, &[u8])> = attributes(&bytes).collect();
        assert_eq!(read, [(7, &[1_u8, 2, 3][..]), (2, b"four")]);
        for length in 0..bytes.len() {
            assert!(attributes(&bytes[..length]).count() < 2);
        }
        // A length below the header's would never end.
        assert_eq!(attributes(&[0; 8]).count(), 0);
    }

    #[test]
    fn attributes_are_filled_up() {
        assert_eq!(attribute(2, &[7]).len(), 8);
        assert_eq!(attribute(2, &[7])[..2], 5_u16.to_ne_bytes());
        assert_eq!(attribute(2, b"four").len(), 8);
    }
}
