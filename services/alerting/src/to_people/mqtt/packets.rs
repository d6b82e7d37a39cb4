//! The packets of MQTT 3.1.1 that a publisher at QoS 1 needs. Pure: bytes in, bytes out.
//!
//! It writes CONNECT and PUBLISH, and reads CONNACK and PUBACK. A client that subscribes to nothing
//! and sends no ping receives no other packet, so any other one ends the connection. A heartbeat
//! subscribes at QoS 0 for its reply. Sections refer to OASIS, MQTT Version 3.1.1.

use bytes::{Buf, BufMut, BytesMut};
use service_kit::Secret;

/// A longer packet is not sent.
pub(super) const PACKET_BYTES_MAX: usize = 256 << 10;
/// Content of CONNACK and of PUBACK (3.2.1, 3.4.1). A packet of another length is refused.
const ANSWER_BYTES: u8 = 2;

const CONNECT: u8 = 0x10;
const CONNACK: u8 = 0x20;
/// QoS 1, neither retained nor a duplicate: a session lasts as long as its connection.
const PUBLISH_QOS_1: u8 = 0x32;
pub(super) const PUBACK: u8 = 0x40;
/// The kind of a publication alone, without its flags.
pub(super) const PUBLISH: u8 = 0x30;
/// With the flags that the standard demands (3.8.1).
const SUBSCRIBE: u8 = 0x82;
pub(super) const SUBACK: u8 = 0x90;
/// A longer reply to a heartbeat ends the connection.
pub(super) const REPLY_BYTES_MAX: usize = 4 << 10;
/// Protocol level of MQTT 3.1.1 (3.1.2.2).
const LEVEL: u8 = 4;
const CLEAN_SESSION: u8 = 0x02;
const WITH_USER_AND_PASSWORD: u8 = 0xc0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The broker accepted the connection.
    Connected,
    /// The broker has the publication with this identifier.
    Acknowledged(u16),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PacketError {
    #[error("the broker refused the connection: {}", reason(*.0))]
    Refused(u8),
    #[error("the broker sent a packet that a publisher does not expect: {0:#04x}")]
    Unexpected(u8),
    #[error("a {0} of {1} bytes is too long for MQTT")]
    TooLong(&'static str, usize),
}

/// Table 3.1: return codes of CONNACK.
fn reason(code: u8) -> &'static str {
    match code {
        1 => "it does not speak MQTT 3.1.1",
        2 => "it does not accept the client identifier",
        3 => "it is unavailable",
        4 => "wrong user name or password",
        5 => "not authorized",
        _ => "unknown return code",
    }
}

#[derive(Clone)]
pub(super) struct Login {
    pub(super) user: String,
    pub(super) password: Secret,
}

pub(super) fn connect(
    client: &str,
    login: Option<&Login>,
    keep_alive_s: u16,
) -> Result<BytesMut, PacketError> {
    let mut body = BytesMut::new();
    text(&mut body, "protocol name", "MQTT")?;
    body.put_u8(LEVEL);
    body.put_u8(login.map_or(CLEAN_SESSION, |_| CLEAN_SESSION | WITH_USER_AND_PASSWORD));
    body.put_u16(keep_alive_s);
    text(&mut body, "client identifier", client)?;
    if let Some(login) = login {
        text(&mut body, "user name", &login.user)?;
        text(&mut body, "password", login.password.expose())?;
    }
    framed(CONNECT, &body)
}

/// `id` is not zero (2.3.1).
pub(super) fn publish(id: u16, topic: &str, payload: &str) -> Result<BytesMut, PacketError> {
    let mut body = BytesMut::with_capacity(topic.len() + payload.len() + 4);
    text(&mut body, "topic", topic)?;
    body.put_u16(id);
    body.put_slice(payload.as_bytes());
    framed(PUBLISH_QOS_1, &body)
}

/// At QoS 0, so that replies need no answer.
pub(super) fn subscribe(id: u16, topic: &str) -> Result<BytesMut, PacketError> {
    let mut body = BytesMut::with_capacity(topic.len() + 5);
    body.put_u16(id);
    text(&mut body, "topic", topic)?;
    body.put_u8(0);
    framed(SUBSCRIBE, &body)
}

/// The payload of a publication at QoS 0 (3.3).
pub(super) fn message(body: &[u8]) -> Option<&[u8]> {
    let (length, rest) = body.split_first_chunk::<2>()?;
    rest.get(usize::from(u16::from_be_bytes(*length))..)
}

/// A text has a length of two bytes (1.5.3).
fn text(body: &mut BytesMut, what: &'static str, text: &str) -> Result<(), PacketError> {
    let length = u16::try_from(text.len()).map_err(|_| PacketError::TooLong(what, text.len()))?;
    body.put_u16(length);
    body.put_slice(text.as_bytes());
    Ok(())
}

/// Prepends the type and the remaining length: seven bits in each byte, lowest first (2.2.3).
fn framed(kind: u8, body: &[u8]) -> Result<BytesMut, PacketError> {
    if body.len() > PACKET_BYTES_MAX {
        return Err(PacketError::TooLong("packet", body.len()));
    }
    let mut packet = BytesMut::with_capacity(body.len() + 5);
    packet.put_u8(kind);
    let mut rest = body.len();
    while rest >= 0x80 {
        packet.put_u8((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    packet.put_u8(rest as u8);
    packet.put_slice(body);
    Ok(packet)
}

/// Takes the next answer out of the received bytes. `None`: more bytes are needed. Four bytes are
/// an answer or an error, so the buffer stays small.
pub(super) fn answer(received: &mut BytesMut) -> Result<Option<Answer>, PacketError> {
    let Some(kind) = received.first().copied() else {
        return Ok(None);
    };
    if kind != CONNACK && kind != PUBACK {
        return Err(PacketError::Unexpected(kind));
    }
    match received.get(1) {
        None => return Ok(None),
        Some(&ANSWER_BYTES) => {}
        Some(_) => return Err(PacketError::Unexpected(kind)),
    }
    if received.len() < 4 {
        return Ok(None);
    }
    received.advance(2);
    let content = received.get_u16();
    match (kind, content.to_be_bytes()) {
        (PUBACK, _) => Ok(Some(Answer::Acknowledged(content))),
        (_, [_, 0]) => Ok(Some(Answer::Connected)),
        (_, [_, code]) => Err(PacketError::Refused(code)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn login() -> Login {
        Login {
            user: "u".into(),
            password: Secret::new("pw"),
        }
    }

    /// Figures 3.2 to 3.6 and 3.10 of the standard give the layout of these bytes.
    #[test]
    fn packets_have_the_bytes_of_the_standard() {
        let plain = connect("id", None, 300).unwrap();
        assert_eq!(
            plain[..],
            *b"\x10\x0e\x00\x04MQTT\x04\x02\x01\x2c\x00\x02id"
        );
        let with_login = connect("id", Some(&login()), 10).unwrap();
        assert_eq!(
            with_login[..],
            *b"\x10\x15\x00\x04MQTT\x04\xc2\x00\x0a\x00\x02id\x00\x01u\x00\x02pw"
        );
        let publication = publish(0x0102, "a/b", "hello").unwrap();
        assert_eq!(publication[..], *b"\x32\x0c\x00\x03a/b\x01\x02hello");
        let subscription = subscribe(10, "a/b").unwrap();
        assert_eq!(subscription[..], *b"\x82\x08\x00\x0a\x00\x03a/b\x00");
        assert_eq!(message(b"\x00\x03a/bhello"), Some(&b"hello"[..]));
        assert_eq!(message(b"\x00\x09a/b"), None);
        assert_eq!(message(b"\x00"), None);
    }

    /// Table 2.4: the largest lengths of one, two and three bytes, and the smallest after them.
    #[test]
    fn the_remaining_length_grows_by_seven_bits() {
        let head = |length: usize| {
            let packet = framed(PUBLISH_QOS_1, &vec![0; length]).unwrap();
            packet[1..packet.len() - length].to_vec()
        };
        assert_eq!(head(0), [0]);
        assert_eq!(head(127), [0x7f]);
        assert_eq!(head(128), [0x80, 0x01]);
        assert_eq!(head(16_383), [0xff, 0x7f]);
        assert_eq!(head(16_384), [0x80, 0x80, 0x01]);
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        let long = "x".repeat(usize::from(u16::MAX) + 1);
        let refused = |packet: Result<BytesMut, PacketError>| packet.unwrap_err();
        let too_long = |what| PacketError::TooLong(what, long.len());
        assert_eq!(refused(publish(1, &long, "")), too_long("topic"));
        assert_eq!(
            refused(connect(&long, None, 0)),
            too_long("client identifier")
        );
        let payload = "x".repeat(PACKET_BYTES_MAX);
        assert!(matches!(
            refused(publish(1, "t", &payload)),
            PacketError::TooLong("packet", _)
        ));
    }

    #[test]
    fn an_answer_is_read_whole_however_it_arrives() {
        let sent = [0x20, 2, 0, 0, 0x40, 2, 0x01, 0x02, 0x40, 2, 0, 7];
        let expected = [
            Answer::Connected,
            Answer::Acknowledged(0x0102),
            Answer::Acknowledged(7),
        ];
        for size in 1..=sent.len() {
            let mut received = BytesMut::new();
            let mut answers = Vec::new();
            for part in sent.chunks(size) {
                received.extend_from_slice(part);
                while let Some(answer) = answer(&mut received).unwrap() {
                    answers.push(answer);
                }
            }
            assert_eq!(answers, expected, "parts of {size} bytes");
        }
    }

    #[test]
    fn foreign_bytes_end_the_connection() {
        let read = |bytes: &[u8]| answer(&mut BytesMut::from(bytes));
        assert_eq!(read(&[0x20, 2, 0, 5]), Err(PacketError::Refused(5)));
        assert_eq!(read(&[0x20, 3, 0, 0]), Err(PacketError::Unexpected(0x20)));
        // No two bytes begin a long packet: nothing is collected for it.
        for first in 0..=u8::MAX {
            for second in 0..=u8::MAX {
                let result = read(&[first, second]);
                let is_answer = (first == CONNACK || first == PUBACK) && second == ANSWER_BYTES;
                assert_eq!(result.is_ok(), is_answer, "{first:#x} {second:#x}");
            }
        }
        let refused = read(&[0x20, 2, 0, 4]).unwrap_err().to_string();
        assert_eq!(
            refused,
            "the broker refused the connection: wrong user name or password"
        );
    }
}
