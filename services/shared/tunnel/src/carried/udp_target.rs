//! The path of a CONNECT-UDP request (RFC 9298, 2 and 3), which names the destination:
//!
//! `/.well-known/masque/udp/{target_host}/{target_port}/`.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::uri::Authority;

const PREFIX: &str = "/.well-known/masque/udp/";

/// Bytes of a host name; a longer name is refused.
const HOST_BYTES_MAX: usize = 255;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("not the path of a UDP destination")]
    Path,
    #[error("the host is neither a name nor an address")]
    Host,
    #[error("the port is not within 1 to 65535")]
    Port,
}

/// The path of a request for `authority`, which must have a port.
pub(crate) fn path(authority: &Authority) -> Result<String, Malformed> {
    let port = authority.port_u16().ok_or(Malformed::Port)?;
    // Only the colons of an IPv6 address need escaping.
    let host = bare(authority.host()).replace(':', "%3A");
    Ok(format!("{PREFIX}{host}/{port}/"))
}

pub(crate) fn parse(path: &str) -> Result<Authority, Malformed> {
    let rest = path.strip_prefix(PREFIX).ok_or(Malformed::Path)?;
    let rest = rest.strip_suffix('/').ok_or(Malformed::Path)?;
    let (host, port) = rest.split_once('/').ok_or(Malformed::Path)?;
    let port = decode(port).ok_or(Malformed::Port)?;
    let port = match port.parse::<u16>() {
        // `parse` accepts a sign.
        Ok(number) if number > 0 && port.bytes().all(|byte| byte.is_ascii_digit()) => number,
        _ => return Err(Malformed::Port),
    };
    let host = decode(host).ok_or(Malformed::Host)?;
    let text = match host.parse::<IpAddr>() {
        Ok(address) => SocketAddr::new(address, port).to_string(),
        Err(_) if is_name(&host) => format!("{host}:{port}"),
        Err(_) => return Err(Malformed::Host),
    };
    text.parse().map_err(|_| Malformed::Host)
}

/// Without the brackets of an IPv6 address.
fn bare(host: &str) -> &str {
    let inner = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    inner
        .filter(|inner| inner.parse::<Ipv6Addr>().is_ok())
        .unwrap_or(host)
}

fn is_name(host: &str) -> bool {
    (1..=HOST_BYTES_MAX).contains(&host.len())
        && host
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'))
}

/// Percent-decodes one segment; `None` if the result is no text.
pub(crate) fn decode(segment: &str) -> Option<String> {
    let mut bytes = segment.bytes();
    let mut decoded = Vec::with_capacity(segment.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                (digit()? << 4 | digit()?) as u8
            }
            byte => byte,
        });
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn destinations_survive_the_path() {
        for (authority, expected) in [
            ("dns.example.org:53", "dns.example.org/53/"),
            ("192.0.2.6:443", "192.0.2.6/443/"),
            ("[2001:db8::42]:65535", "2001%3Adb8%3A%3A42/65535/"),
        ] {
            let authority: Authority = authority.parse().unwrap();
            let path = path(&authority).unwrap();
            assert_eq!(path.strip_prefix(PREFIX), Some(expected));
            assert_eq!(parse(&path).unwrap(), authority);
        }
        let without_port: Authority = "dns.example.org".parse().unwrap();
        assert_eq!(path(&without_port), Err(Malformed::Port));
    }

    #[test]
    fn other_encodings_of_a_destination_are_read() {
        let read = |rest: &str| parse(&format!("{PREFIX}{rest}")).unwrap();
        assert_eq!(read("2001:db8::42/443/"), "[2001:db8::42]:443");
        assert_eq!(read("2001%3adb8%3a%3a42/443/"), "[2001:db8::42]:443");
        assert_eq!(read("%64ns/%353/"), "dns:53");
    }

    #[test]
    fn a_path_without_a_destination_is_refused() {
        for (path, expected) in [
            ("/", Malformed::Path),
            ("/.well-known/masque/ip/a/1/", Malformed::Path),
            ("/.well-known/masque/udp/", Malformed::Path),
            ("/.well-known/masque/udp/a/1", Malformed::Path),
            ("/.well-known/masque/udp/a/", Malformed::Path),
            ("/.well-known/masque/udp/a/1/b/", Malformed::Port),
            ("/.well-known/masque/udp/a//", Malformed::Port),
            ("/.well-known/masque/udp/a/0/", Malformed::Port),
            ("/.well-known/masque/udp/a/+1/", Malformed::Port),
            ("/.well-known/masque/udp/a/65536/", Malformed::Port),
            ("/.well-known/masque/udp/a/%/", Malformed::Port),
            ("/.well-known/masque/udp//1/", Malformed::Host),
            ("/.well-known/masque/udp/a%2/1/", Malformed::Host),
            ("/.well-known/masque/udp/a%40b/1/", Malformed::Host),
            ("/.well-known/masque/udp/a%2Fb/1/", Malformed::Host),
            ("/.well-known/masque/udp/%ff/1/", Malformed::Host),
            ("/.well-known/masque/udp/a%+1/1/", Malformed::Host),
            (
                "/.well-known/masque/udp/fe80%3A%3A1%25eth0/1/",
                Malformed::Host,
            ),
        ] {
            assert_eq!(parse(path), Err(expected), "{path}");
        }
    }
}
