//! The parts of a DNS message that a relay reads and changes (RFC 1035, RFC 6891). Sans-IO.
//!
//! A message is relayed as it is, except for its id. An answer that a datagram cannot hold is cut
//! down to its question, with the flag that asks for TCP (RFC 2181, 9).

/// Bytes of a header; a shorter message is dropped.
pub(super) const HEADER_BYTES: usize = 12;

/// The longest message: a length of 16 bits (RFC 1035, 4.2.2).
pub(super) const MESSAGE_BYTES_MAX: usize = 65_535;

/// Bytes that every receiver of UDP takes (RFC 1035, 4.2.1).
pub(super) const DATAGRAM_BYTES: usize = 512;

/// Longest answer by UDP, whatever the client takes: it fits into a packet of every network. A
/// longer one is asked for again by TCP.
pub(super) const DATAGRAM_BYTES_MAX: usize = 1_232;

const IS_ANSWER: u8 = 0x80;
const IS_TRUNCATED: u8 = 0x02;
const KEPT_OF_A_QUERY: u8 = 0x79;
const CAN_RECURSE: u8 = 0x80;
const SERVER_FAILURE: u8 = 2;
const OPT: u16 = 41;
/// Type, class, time to live and length of a record.
const RECORD_BYTES: usize = 10;
const IS_POINTER: u8 = 0xc0;

pub(super) fn is_query(message: &[u8]) -> bool {
    is_message(message) && message[2] & IS_ANSWER == 0 && count(message, 4) == 1
}

pub(super) fn is_answer(message: &[u8]) -> bool {
    is_message(message) && message[2] & IS_ANSWER != 0
}

fn is_message(message: &[u8]) -> bool {
    (HEADER_BYTES..=MESSAGE_BYTES_MAX).contains(&message.len())
}

pub(super) fn id(message: &[u8]) -> u16 {
    count(message, 0)
}

pub(super) fn set_id(message: &mut [u8], id: u16) {
    if let Some(place) = message.get_mut(..2) {
        place.copy_from_slice(&id.to_be_bytes());
    }
}

/// The only question: name, type and class. `None` if the message is torn.
pub(super) fn question(message: &[u8]) -> Option<&[u8]> {
    if count(message, 4) != 1 {
        return None;
    }
    let end = past_name(message, HEADER_BYTES)?.checked_add(4)?;
    message.get(HEADER_BYTES..end)
}

/// Bytes of the longest answer that the client takes by UDP, as its query says.
pub(super) fn room(query: &[u8]) -> usize {
    let size = opt_class(query).map_or(DATAGRAM_BYTES, usize::from);
    size.clamp(DATAGRAM_BYTES, DATAGRAM_BYTES_MAX)
}

/// The class of the OPT record.
fn opt_class(message: &[u8]) -> Option<u16> {
    let mut at = HEADER_BYTES + question(message)?.len();
    let before = u32::from(count(message, 6)) + u32::from(count(message, 8));
    // Each record takes bytes, so a count that is too large ends with the message.
    for _ in 0..before + u32::from(count(message, 10)) {
        at = past_name(message, at)?;
        let record = message.get(at..at.checked_add(RECORD_BYTES)?)?;
        if count(record, 0) == OPT {
            return Some(count(record, 2));
        }
        at += RECORD_BYTES + usize::from(count(record, 8));
    }
    None
}

/// The answer without its records, with the flag for "ask by TCP".
pub(super) fn truncated(answer: &[u8]) -> Vec<u8> {
    let mut short = answer.get(..HEADER_BYTES).unwrap_or_default().to_vec();
    if let Some(flags) = short.get_mut(2) {
        *flags |= IS_TRUNCATED;
    }
    with_question_only(short, answer)
}

/// The answer that nobody could be asked.
pub(super) fn failure(query: &[u8]) -> Vec<u8> {
    let mut answer = query.get(..HEADER_BYTES).unwrap_or_default().to_vec();
    if let [_, _, first, second, ..] = answer.as_mut_slice() {
        *first = IS_ANSWER | (*first & KEPT_OF_A_QUERY);
        *second = CAN_RECURSE | SERVER_FAILURE;
    }
    with_question_only(answer, query)
}

fn with_question_only(mut header: Vec<u8>, of: &[u8]) -> Vec<u8> {
    let question = question(of).unwrap_or_default();
    if let Some(counts) = header.get_mut(4..HEADER_BYTES) {
        counts.fill(0);
        counts[1] = u8::from(!question.is_empty());
    }
    header.extend(question);
    header
}

/// The number of 16 bits at this offset; 0 beyond the end.
fn count(message: &[u8], at: usize) -> u16 {
    match message.get(at..at + 2) {
        Some(&[high, low]) => u16::from_be_bytes([high, low]),
        _ => 0,
    }
}

/// The offset behind a name, which ends with an empty label or a pointer.
fn past_name(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        let length = *message.get(at)?;
        match (length, length & IS_POINTER) {
            (0, _) => return Some(at + 1),
            (_, IS_POINTER) => return Some(at + 2),
            (_, 0) => at += 1 + usize::from(length),
            _ => return None,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    /// A query for an A record, which says how long an answer may be if `size` is given.
    pub(in super::super) fn query(id: u16, name: &str, size: Option<u16>) -> Vec<u8> {
        let mut message = id.to_be_bytes().to_vec();
        message.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(size.is_some())]);
        for label in name.split('.') {
            message.push(label.len() as u8);
            message.extend(label.bytes());
        }
        message.extend([0, 0, 1, 0, 1]);
        if let Some(size) = size {
            message.extend([0, 0, 41]);
            message.extend(size.to_be_bytes());
            message.extend([0; 6]);
        }
        message
    }

    /// The answer with so many addresses.
    pub(in super::super) fn answer(query: &[u8], records: u16) -> Vec<u8> {
        let mut message = query[..HEADER_BYTES + question(query).unwrap().len()].to_vec();
        message[2] |= IS_ANSWER;
        message[6..8].copy_from_slice(&records.to_be_bytes());
        message[10..12].fill(0);
        for _ in 0..records {
            message.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 10, 8, 0, 2]);
        }
        message
    }

    #[test]
    fn a_query_says_how_long_an_answer_may_be() {
        for (size, expected) in [
            (None, 512),
            (Some(100), 512),
            (Some(900), 900),
            (Some(4_096), 1_232),
        ] {
            assert_eq!(room(&query(7, "a.example", size)), expected);
        }
    }

    #[test]
    fn a_long_answer_is_cut_down_to_its_question() {
        let query = query(7, "long.example", None);
        let short = truncated(&answer(&query, 60));
        assert_eq!(question(&short), question(&query));
        assert_eq!(short.len(), query.len());
        assert!(is_answer(&short) && short[2] & IS_TRUNCATED != 0);
        assert_eq!(short[4..12], [0, 1, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_failure_is_the_answer_to_its_query() {
        let query = query(0x1234, "gone.example", Some(1_232));
        let failed = failure(&query);
        assert_eq!((id(&failed), failed[3] & 0xf), (0x1234, SERVER_FAILURE));
        assert_eq!(question(&failed), question(&query));
        assert!(is_answer(&failed) && failed[2] & 1 == 1);
    }

    #[test]
    fn no_message_is_read_beyond_its_end() {
        let whole = answer(&query(7, "a.b.example", Some(900)), 3);
        for seed in 0..20_000 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut message = whole[..rng.random_range(0..=whole.len())].to_vec();
            for _ in 0..rng.random_range(0..4) {
                if !message.is_empty() {
                    let at = rng.random_range(0..message.len());
                    message[at] = rng.random();
                }
            }
            assert!((512..=1_232).contains(&room(&message)));
            assert!(truncated(&message).len() <= message.len().max(HEADER_BYTES));
            assert!(failure(&message).len() <= message.len().max(HEADER_BYTES));
        }
    }
}
