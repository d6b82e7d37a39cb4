//! Encoding and decoding of netlink messages that no library in use covers.

pub(crate) const HEADER_BYTES: usize = 16;
pub(crate) const ATTRIBUTE_HEADER_BYTES: usize = 4;
/// Flag of an attribute that contains others.
pub(crate) const NESTED: u16 = 0x8000;
/// Type of an answer with an error code.
pub(crate) const ERROR: u16 = 2;

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
                Some(code) if kind == ERROR => {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_filled_up() {
        assert_eq!(attribute(2, &[7]).len(), 8);
        assert_eq!(attribute(2, &[7])[..2], 5_u16.to_ne_bytes());
        assert_eq!(attribute(2, b"four").len(), 8);
    }
}
