//! SOCKS5 (RFC 1928) with user name and password (RFC 1929): CONNECT, and UDP ASSOCIATE with the
//! header of its datagrams.

pub(super) mod datagram;

use bytes::{Buf, BytesMut};
use service_kit::Secret;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use tunnel::{Authority, OpenError, StatusCode};

use super::{
    refusal::Refusal,
    step::{Step, Wanted},
};

const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const USER_AND_PASSWORD: u8 = 2;
const NO_ACCEPTABLE_METHOD: u8 = 0xff;
/// Version of the user-and-password negotiation.
const PASSWORD_VERSION: u8 = 1;
const CONNECT: u8 = 1;
const UDP_ASSOCIATE: u8 = 3;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

/// Replies of RFC 1928, 6.
const SUCCEEDED: u8 = 0;
const GENERAL_FAILURE: u8 = 1;
const NOT_ALLOWED: u8 = 2;
const NETWORK_UNREACHABLE: u8 = 3;
const HOST_UNREACHABLE: u8 = 4;
const COMMAND_NOT_SUPPORTED: u8 = 7;
const ADDRESS_TYPE_NOT_SUPPORTED: u8 = 8;

/// The awaited message. Every message has at most 515 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Greeting,
    Password,
    Request,
}

pub(super) struct Negotiation {
    phase: Phase,
    token: Option<Secret>,
    /// At most 255 bytes.
    user: Option<String>,
}

impl Negotiation {
    pub(super) fn new(token: Option<Secret>) -> Self {
        Self {
            phase: Phase::Greeting,
            token,
            user: None,
        }
    }

    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    pub(super) fn step(&mut self, input: &mut BytesMut) -> Step {
        match self.phase {
            Phase::Greeting => self.greeting(input),
            Phase::Password => self.password(input),
            Phase::Request => match request(input) {
                Step::Want(wanted) => Step::Want(Wanted {
                    user: self.user.clone(),
                    ..wanted
                }),
                Step::Associate { port, .. } => Step::Associate {
                    port,
                    user: self.user.clone(),
                },
                step => step,
            },
        }
    }

    /// `version, count, methods`.
    fn greeting(&mut self, input: &mut BytesMut) -> Step {
        let [_, count, rest @ ..] = &input[..] else {
            return Step::More;
        };
        let count = usize::from(*count);
        let Some(methods) = rest.get(..count) else {
            return Step::More;
        };
        // Without a token the user still names the application for steering rules.
        let names_user = self.token.is_some() || methods.contains(&USER_AND_PASSWORD);
        let (method, next) = if names_user {
            (USER_AND_PASSWORD, Phase::Password)
        } else {
            (NO_AUTHENTICATION, Phase::Request)
        };
        if !methods.contains(&method) {
            return Step::Refuse(Refusal::Unauthorized);
        }
        input.advance(2 + count);
        self.phase = next;
        Step::Say(vec![VERSION, method])
    }

    /// `version, length, user, length, password`; any user is accepted.
    fn password(&mut self, input: &mut BytesMut) -> Step {
        let (version, name, password, whole) = {
            let [version, user, rest @ ..] = &input[..] else {
                return Step::More;
            };
            let user = usize::from(*user);
            let name = rest.get(..user).map(String::from_utf8_lossy);
            let Some([length, rest @ ..]) = rest.get(user..) else {
                return Step::More;
            };
            let length = usize::from(*length);
            let Some(password) = rest.get(..length) else {
                return Step::More;
            };
            let name = name.map(|name| name.into_owned());
            (*version, name, password, 3 + user + length)
        };
        if version != PASSWORD_VERSION {
            return Step::Refuse(Refusal::Malformed("not a password message of RFC 1929"));
        }
        if self.token.as_ref().is_some_and(|token| !token.is(password)) {
            return Step::Refuse(Refusal::Unauthorized);
        }
        self.user = name;
        input.advance(whole);
        self.phase = Phase::Request;
        Step::Say(vec![PASSWORD_VERSION, SUCCEEDED])
    }
}

/// `version, command, 0, address type, address, port`.
fn request(input: &mut BytesMut) -> Step {
    let [version, command, _, kind, rest @ ..] = &input[..] else {
        return Step::More;
    };
    if *version != VERSION {
        return Step::Refuse(Refusal::Malformed("not a request of SOCKS5"));
    }
    let Target {
        address,
        port,
        length,
    } = match target(*kind, rest) {
        Ok(Some(target)) => target,
        Ok(None) => return Step::More,
        Err(refusal) => return Step::Refuse(refusal),
    };
    match *command {
        CONNECT => {}
        // The application's address is known better from its connection.
        UDP_ASSOCIATE => return Step::Associate { port, user: None },
        _ => return Step::Refuse(Refusal::NotConnect),
    }
    let Some(authority) = authority(address, *kind, port) else {
        return Step::Refuse(Refusal::Malformed("the name is not a valid host name"));
    };
    input.advance(4 + length);
    Step::Want(Wanted {
        authority,
        urgency: None,
        user: None,
        early: input.split().freeze(),
    })
}

/// An address with its port.
struct Target<'a> {
    /// Without the length byte of a name.
    address: &'a [u8],
    port: u16,
    /// Length of the whole field.
    length: usize,
}

/// The address after its type byte; `None` while it is incomplete.
fn target(kind: u8, rest: &[u8]) -> Result<Option<Target<'_>>, Refusal> {
    let (before, length) = match (kind, rest.first()) {
        (IPV4, _) => (0, 4),
        (IPV6, _) => (0, 16),
        (NAME, Some(length)) => (1, usize::from(*length)),
        (NAME, None) => return Ok(None),
        _ => return Err(Refusal::AddressKind),
    };
    let end = before + length;
    Ok(match (rest.get(before..end), rest.get(end..end + 2)) {
        (Some(address), Some([high, low])) => Some(Target {
            address,
            port: u16::from_be_bytes([*high, *low]),
            length: end + 2,
        }),
        _ => None,
    })
}

fn authority(address: &[u8], kind: u8, port: u16) -> Option<Authority> {
    let text = match kind {
        IPV4 => {
            let octets: [u8; 4] = address.try_into().ok()?;
            SocketAddr::new(IpAddr::from(octets), port).to_string()
        }
        IPV6 => {
            let octets: [u8; 16] = address.try_into().ok()?;
            SocketAddr::new(IpAddr::V6(Ipv6Addr::from(octets)), port).to_string()
        }
        _ => {
            let name = std::str::from_utf8(address).ok()?;
            // An authority may contain more than a host; a name must not bring that in.
            let is_host = !name.is_empty()
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'));
            if !is_host {
                // Some applications send an address as a name.
                let ip: IpAddr = name.parse().ok()?;
                return SocketAddr::new(ip, port).to_string().parse().ok();
            }
            format!("{name}:{port}")
        }
    };
    text.parse().ok()
}

/// The bound address is the proxy's, which is not known here.
fn reply(code: u8) -> Vec<u8> {
    vec![VERSION, code, 0, IPV4, 0, 0, 0, 0, 0, 0]
}

pub(super) fn opened() -> Vec<u8> {
    reply(SUCCEEDED)
}

/// The address for the application's datagrams.
pub(super) fn associated(relay: SocketAddr) -> Vec<u8> {
    let mut reply = vec![VERSION, SUCCEEDED, 0];
    match relay.ip() {
        IpAddr::V4(ip) => {
            reply.push(IPV4);
            reply.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            reply.push(IPV6);
            reply.extend(ip.octets());
        }
    }
    reply.extend(relay.port().to_be_bytes());
    reply
}

pub(super) fn refused(phase: Phase, refusal: &Refusal) -> Vec<u8> {
    match phase {
        Phase::Greeting => vec![VERSION, NO_ACCEPTABLE_METHOD],
        // Any status but 0.
        Phase::Password => vec![PASSWORD_VERSION, 1],
        Phase::Request => reply(code(refusal)),
    }
}

fn code(refusal: &Refusal) -> u8 {
    match refusal {
        Refusal::NotConnect => COMMAND_NOT_SUPPORTED,
        Refusal::AddressKind => ADDRESS_TYPE_NOT_SUPPORTED,
        Refusal::Malformed(_)
        | Refusal::TooLarge(_)
        | Refusal::TooSlow
        | Refusal::Unauthorized
        | Refusal::NoSocket(_)
        | Refusal::Full(_)
        | Refusal::Crowded(_) => GENERAL_FAILURE,
        Refusal::Steered(_) => NOT_ALLOWED,
        Refusal::NotOpened(error) => match error {
            OpenError::Refused(StatusCode::FORBIDDEN) => NOT_ALLOWED,
            OpenError::Refused(StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT)
            | OpenError::TimedOut(_) => HOST_UNREACHABLE,
            OpenError::NoSession(_) => NETWORK_UNREACHABLE,
            OpenError::Refused(_) | OpenError::Closed => GENERAL_FAILURE,
        },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Feeds `bytes` one by one; returns the answers and the result.
    fn hear(bytes: &[u8], token: Option<&str>) -> (Vec<u8>, Step, Phase) {
        let mut negotiation = Negotiation::new(token.map(Secret::new));
        let (mut input, mut said) = (BytesMut::new(), Vec::new());
        for (at, byte) in bytes.iter().enumerate() {
            input.extend_from_slice(&[*byte]);
            loop {
                match negotiation.step(&mut input) {
                    Step::More => break,
                    Step::Say(answer) => said.extend(answer),
                    end => {
                        assert_eq!(at + 1, bytes.len(), "ended before the request was complete");
                        return (said, end, negotiation.phase());
                    }
                }
            }
        }
        (said, Step::More, negotiation.phase())
    }

    fn to(kind_and_address: &[u8]) -> Vec<u8> {
        [&[5, 1, 0, 5, 1, 0], kind_and_address, &[0x1b, 0x59]].concat()
    }

    fn wanted(bytes: &[u8]) -> String {
        match hear(bytes, None) {
            (said, Step::Want(wanted), _) => {
                assert_eq!(said, [5, 0]);
                wanted.authority.to_string()
            }
            (_, other, _) => panic!("{other:?}"),
        }
    }

    #[test]
    fn names_and_addresses_of_both_families_are_understood() {
        assert_eq!(wanted(&to(b"\x03\x06ingest")), "ingest:7001");
        assert_eq!(wanted(&to(&[1, 127, 0, 0, 1])), "127.0.0.1:7001");
        let mut v6 = [0; 17];
        (v6[0], v6[16]) = (4, 1);
        assert_eq!(wanted(&to(&v6)), "[::1]:7001");
        assert_eq!(wanted(&to(b"\x03\x03::1")), "[::1]:7001");
        for name in [&b"\x03\x03a@b"[..], b"\x03\x03a:1", b"\x03\x02\xff\xfe"] {
            let (_, step, phase) = hear(&to(name), None);
            let Step::Refuse(refusal) = step else {
                panic!("{name:?} gives {step:?}");
            };
            assert_eq!(refused(phase, &refusal)[1], GENERAL_FAILURE);
        }
    }

    #[test]
    fn bytes_after_the_request_are_kept() {
        let mut negotiation = Negotiation::new(None);
        let mut input = BytesMut::from(&[5, 1, 0][..]);
        assert!(matches!(negotiation.step(&mut input), Step::Say(_)));
        input.extend_from_slice(&[5, 1, 0, 1, 127, 0, 0, 1, 0, 80]);
        input.extend_from_slice(b"early");
        match negotiation.step(&mut input) {
            Step::Want(wanted) => assert_eq!(wanted.early, "early"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn other_commands_and_kinds_of_address_have_their_reply() {
        for command in [0, 2, 4] {
            let bytes = [5, 1, 0, 5, command, 0, 1, 127, 0, 0, 1, 0, 80];
            let (_, step, phase) = hear(&bytes, None);
            let Step::Refuse(refusal) = step else {
                panic!("{step:?}");
            };
            assert_eq!(refused(phase, &refusal)[1], COMMAND_NOT_SUPPORTED);
        }
        let (_, step, phase) = hear(&[5, 1, 0, 5, 1, 0, 9], None);
        assert!(matches!(step, Step::Refuse(_)));
        let Step::Refuse(refusal) = step else { return };
        assert_eq!(refused(phase, &refusal)[1], ADDRESS_TYPE_NOT_SUPPORTED);
    }

    #[test]
    fn an_association_accepts_any_kind_of_address() {
        let addresses = [&[1, 0, 0, 0, 0][..], &[4; 17], b"\x03\x00", b"\x03\x02me"];
        for address in addresses {
            let bytes = [&[5, 1, 0, 5, 3, 0], address, &[0x1b, 0x59]].concat();
            match hear(&bytes, None) {
                (_, Step::Associate { port, .. }, _) => assert_eq!(port, 7_001),
                (_, other, _) => panic!("{other:?}"),
            }
        }
        let v4 = associated(([127, 0, 0, 1], 80).into());
        assert_eq!(v4, [5, 0, 0, 1, 127, 0, 0, 1, 0, 80]);
        let v6 = associated((Ipv6Addr::LOCALHOST, 80).into());
        assert_eq!((&v6[..4], v6.len()), (&[5, 0, 0, 4][..], 22));
    }

    #[test]
    fn a_token_is_required_and_checked() {
        let right = [
            &[5, 2, 0, 2, 1, 1],
            &b"u\x04open"[..],
            &[5, 1, 0, 1, 1, 2, 3, 4, 0, 80],
        ]
        .concat();
        let (said, step, _) = hear(&right, Some("open"));
        assert!(matches!(step, Step::Want(_)), "{step:?}");
        assert_eq!(said, [5, 2, 1, 0]);
        let (said, step, phase) =
            hear(&[&[5, 1, 2, 1, 1], &b"u\x03ope"[..]].concat(), Some("open"));
        assert_eq!((&said[..], phase), (&[5, 2][..], Phase::Password));
        assert!(matches!(step, Step::Refuse(Refusal::Unauthorized)));
        assert_eq!(refused(phase, &Refusal::Unauthorized), [1, 1]);
        let (said, step, phase) = hear(&[5, 1, 0], Some("open"));
        assert!(said.is_empty() && matches!(step, Step::Refuse(Refusal::Unauthorized)));
        assert_eq!(refused(phase, &Refusal::Unauthorized), [5, 0xff]);
    }

    #[test]
    fn the_proxys_refusal_has_its_reply() {
        let given = |status: u16| {
            let status = StatusCode::from_u16(status).unwrap();
            code(&Refusal::NotOpened(OpenError::Refused(status)))
        };
        assert_eq!([403, 502, 504, 429].map(given), [2, 4, 4, 1]);
        assert_eq!(code(&Refusal::Full(1)), GENERAL_FAILURE);
    }
}
