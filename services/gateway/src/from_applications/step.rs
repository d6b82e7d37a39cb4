//! A step of the negotiation with an application, and what it asks for.

use bytes::Bytes;
use tunnel::{Authority, Urgency};

use super::refusal::Refusal;

/// The destination that an application asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) authority: Authority,
    /// The urgency that it asks for; `None`: the listener's default.
    pub(super) urgency: Option<Urgency>,
    /// User of SOCKS5, for steering rules.
    pub(super) user: Option<String>,
    /// Bytes for the destination that were sent early.
    pub(super) early: Bytes,
}

/// The next step.
#[derive(Debug)]
pub(super) enum Step {
    /// Read more into the input of the conversation.
    More,
    Say(Vec<u8>),
    Want(Wanted),
    /// UDP, from that port of the application if it is not 0.
    Associate {
        port: u16,
        /// User of SOCKS5, for steering rules.
        user: Option<String>,
    },
    Refuse(Refusal),
}
