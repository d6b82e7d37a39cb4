//! The negotiation of an application before bytes flow; sans-IO.

use bytes::BytesMut;
use service_kit::Secret;

use super::{
    http_connect,
    refusal::Refusal,
    socks5::{self, Negotiation},
    step::Step,
};

/// First byte of SOCKS5 (RFC 1928); no HTTP method begins with it.
const SOCKS5: u8 = 5;
/// First byte of SOCKS4, which has no names and no IPv6.
const SOCKS4: u8 = 4;

/// The protocol that an application speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Unknown,
    Http,
    Socks5 {
        /// The phase of the negotiation: each has its own form of refusal.
        phase: socks5::Phase,
    },
}

impl Dialect {
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Http => "http",
            Self::Socks5 { .. } => "socks5",
        }
    }

    /// The message that bytes may flow.
    pub(super) fn opened(self) -> Vec<u8> {
        match self {
            Self::Socks5 { .. } => socks5::opened(),
            Self::Http | Self::Unknown => http_connect::opened(),
        }
    }

    pub(super) fn refused(self, refusal: &Refusal) -> Vec<u8> {
        match self {
            Self::Http => http_connect::refused(refusal),
            Self::Socks5 { phase } => socks5::refused(phase, refusal),
            Self::Unknown => Vec::new(),
        }
    }
}

enum Phase {
    First,
    Http,
    Socks5(Negotiation),
}

pub(super) struct Conversation {
    input: BytesMut,
    phase: Phase,
    token: Option<Secret>,
}

impl Conversation {
    pub(super) fn new(token: Option<Secret>) -> Self {
        Self {
            input: BytesMut::new(),
            phase: Phase::First,
            token,
        }
    }

    /// The buffer for the application's bytes. The protocols bound it: both refuse before it
    /// exceeds a head and one read.
    pub(super) fn input(&mut self) -> &mut BytesMut {
        &mut self.input
    }

    pub(super) fn dialect(&self) -> Dialect {
        match &self.phase {
            Phase::First => Dialect::Unknown,
            Phase::Http => Dialect::Http,
            Phase::Socks5(negotiation) => Dialect::Socks5 {
                phase: negotiation.phase(),
            },
        }
    }

    pub(super) fn step(&mut self) -> Step {
        if let Phase::First = self.phase {
            self.phase = match self.input.first() {
                None => return Step::More,
                Some(&SOCKS5) => Phase::Socks5(Negotiation::new(self.token.take())),
                Some(&SOCKS4) => {
                    return Step::Refuse(Refusal::Malformed("SOCKS4 is not supported"));
                }
                Some(byte) if byte.is_ascii_alphabetic() => Phase::Http,
                Some(_) => return Step::Refuse(Refusal::Malformed("neither HTTP nor SOCKS5")),
            };
        }
        match &mut self.phase {
            Phase::First => Step::More,
            Phase::Http => http_connect::step(&mut self.input, self.token.as_ref()),
            Phase::Socks5(negotiation) => negotiation.step(&mut self.input),
        }
    }
}
