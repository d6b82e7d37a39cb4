//! The agreement of the two ends on a resumable tunnel: the header `braid-resume` of the request
//! and of its answer.
//!
//! | | |
//! |---|---|
//! | a new tunnel | `v=1; token=<32 hexadecimal digits>` |
//! | its answer | `v=1; received=0; copies=1` |
//! | a resumed tunnel | `v=1; token=...; epoch=<rising number>; received=<offset>` |
//! | a copy of it | `v=1; token=...; epoch=<number in force>; received=<offset>; copy=1` |
//! | their answer | `v=1; received=<offset>; copies=1` |
//!
//! A server that accepts no copies leaves `copies` out, and refuses the epoch of one as stale.
//!
//! A header of another version, or an unreadable one, counts as absent: the tunnel is plain.

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::http::varint;

const NAME: HeaderName = HeaderName::from_static("braid-resume");

/// Names a tunnel while both ends keep it. The client draws it at random; only the client's
/// identity can use it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Token(u128);

impl Token {
    pub(crate) fn random() -> Self {
        Self(rand::random())
    }

    fn parse(text: &str) -> Option<Self> {
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        digits.then(|| u128::from_str_radix(text, 16).ok().map(Self))?
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A token alone gives no access, but it stays out of logs as a whole.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}..", self.0 >> 96)
    }
}

/// A client's offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) token: Token,
    /// `None`: the tunnel is new.
    pub(crate) attach: Option<Attach>,
}

/// The position at which a client resumes a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attach {
    /// Rises with each attempt; the highest epoch holds the tunnel.
    pub(crate) epoch: u64,
    /// Offset up to which the client has received.
    pub(crate) received: u64,
    /// The stream carries a copy beside the attachment of this epoch.
    pub(crate) is_copy: bool,
}

impl Offer {
    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        let mut text = format!("v=1; token={}", self.token);
        if let Some(attach) = self.attach {
            text += &format!("; epoch={}; received={}", attach.epoch, attach.received);
            if attach.is_copy {
                text += "; copy=1";
            }
        }
        insert(headers, text);
    }

    pub(crate) fn read(headers: &HeaderMap) -> Option<Self> {
        let fields = Fields::read(headers)?;
        let token = Token::parse(fields.get("token")?)?;
        let attach = match (fields.get("epoch"), fields.get("received")) {
            (None, None) => None,
            (Some(epoch), Some(received)) => Some(Attach {
                epoch: number(epoch)?,
                received: number(received)?,
                is_copy: fields.get("copy") == Some("1"),
            }),
            _ => return None,
        };
        Some(Self { token, attach })
    }
}

/// The server's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Attached {
    /// Offset up to which the server has received.
    pub(crate) received: u64,
    /// The server accepts a second stream with copies.
    pub(crate) takes_copies: bool,
}

impl Attached {
    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        let copies = if self.takes_copies { "; copies=1" } else { "" };
        insert(headers, format!("v=1; received={}{copies}", self.received));
    }

    /// `None`: the server does not resume this tunnel.
    pub(crate) fn read(headers: &HeaderMap) -> Option<Self> {
        let fields = Fields::read(headers)?;
        Some(Self {
            received: number(fields.get("received")?)?,
            takes_copies: fields.get("copies") == Some("1"),
        })
    }
}

fn insert(headers: &mut HeaderMap, text: String) {
    if let Ok(value) = HeaderValue::try_from(text) {
        headers.insert(NAME, value);
    }
}

/// Offsets and epochs have the bound of variable-length integers, because capsules carry them so.
fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| text.parse().ok())??;
    (number <= varint::MAX).then_some(number)
}

struct Fields<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Fields<'a> {
    fn read(headers: &'a HeaderMap) -> Option<Self> {
        let text = headers.get(NAME)?.to_str().ok()?;
        let fields = text.split(';').map(|field| field.trim().split_once('='));
        let fields = Self(fields.collect::<Option<_>>()?);
        (fields.get("v") == Some("1")).then_some(fields)
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        let mut found = self.0.iter().filter(|(key, _)| *key == name);
        found.next().map(|(_, value)| *value)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn offers_and_answers_survive_the_header() {
        let token = Token::random();
        for attach in [
            None,
            Some(Attach {
                epoch: 7,
                received: varint::MAX,
                is_copy: false,
            }),
            Some(Attach {
                epoch: 0,
                received: 3,
                is_copy: true,
            }),
        ] {
            let mut headers = HeaderMap::new();
            let offer = Offer { token, attach };
            offer.write(&mut headers);
            assert_eq!(Offer::read(&headers), Some(offer));
        }
        for takes_copies in [false, true] {
            let mut headers = HeaderMap::new();
            let answer = Attached {
                received: 42,
                takes_copies,
            };
            answer.write(&mut headers);
            assert_eq!(Attached::read(&headers), Some(answer));
        }
        assert_eq!(Attached::read(&HeaderMap::new()), None);
    }

    #[test]
    fn an_unreadable_header_counts_as_absent() {
        let token = "0123456789abcdef0123456789abcdef";
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(NAME, text.parse().unwrap());
            Offer::read(&headers)
        };
        assert!(read(&format!("v=1; token={token}")).is_some());
        assert!(read(&format!("v=1; token={token}; colour=red")).is_some());
        for refused in [
            format!("v=2; token={token}"),
            format!("token={token}"),
            format!("v=1; token={token}; epoch=1"),
            format!("v=1; token={token}; epoch=-1; received=0"),
            format!("v=1; token={token}; epoch=1; received={}", varint::MAX + 1),
            format!("v=1; token={}", &token[1..]),
            format!("v=1; token=+{}", &token[1..]),
            "v=1".into(),
            String::new(),
        ] {
            assert_eq!(read(&refused), None, "{refused}");
        }
    }
}
