//! The path of a CONNECT-IP request (RFC 9484, 3 and 4.6):
//! `/.well-known/masque/ip/{target}/{ipproto}/`.

use crate::carried::udp_target::decode;

const PREFIX: &str = "/.well-known/masque/ip/";

/// The value of either variable for everything that the proxy permits.
const ANY: &str = "*";

/// The path of a request for everything that the proxy permits.
pub(crate) const ANY_PATH: &str = "/.well-known/masque/ip/*/*/";

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotTaken {
    #[error("not the path of a request for IP")]
    Malformed,
    /// A single destination or protocol: CONNECT and CONNECT-UDP serve that.
    #[error("asks for a single destination or protocol")]
    Scoped,
}

/// Checks that the request asks for everything that the proxy permits.
pub(crate) fn check(path: &str) -> Result<(), NotTaken> {
    let rest = path.strip_prefix(PREFIX).ok_or(NotTaken::Malformed)?;
    let rest = rest.strip_suffix('/').ok_or(NotTaken::Malformed)?;
    let (target, protocol) = rest.split_once('/').ok_or(NotTaken::Malformed)?;
    let target = decode(target).ok_or(NotTaken::Malformed)?;
    let protocol = decode(protocol).ok_or(NotTaken::Malformed)?;
    match (target.as_str(), protocol.as_str()) {
        (ANY, ANY) => Ok(()),
        ("", _) => Err(NotTaken::Malformed),
        (_, ANY) => Err(NotTaken::Scoped),
        (_, number) if number.parse::<u8>().is_ok() => Err(NotTaken::Scoped),
        _ => Err(NotTaken::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unscoped_requests_are_distinguished_from_scoped_and_invalid_ones() {
        for (path, expected) in [
            (ANY_PATH, Ok(())),
            ("/.well-known/masque/ip/%2A/%2a/", Ok(())),
            (
                "/.well-known/masque/ip/192.0.2.0%2F24/*/",
                Err(NotTaken::Scoped),
            ),
            ("/.well-known/masque/ip/*/17/", Err(NotTaken::Scoped)),
            ("/.well-known/masque/ip/*/256/", Err(NotTaken::Malformed)),
            ("/.well-known/masque/ip/*/tcp/", Err(NotTaken::Malformed)),
            ("/.well-known/masque/ip/*/*", Err(NotTaken::Malformed)),
            ("/.well-known/masque/ip/*/", Err(NotTaken::Malformed)),
            ("/.well-known/masque/ip//*/", Err(NotTaken::Malformed)),
            ("/.well-known/masque/ip/%f/*/", Err(NotTaken::Malformed)),
            ("/.well-known/masque/udp/*/*/", Err(NotTaken::Malformed)),
        ] {
            assert_eq!(check(path), expected, "{path}");
        }
    }
}
