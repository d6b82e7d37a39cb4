//! Addresses in configuration.

use http::Uri;

/// An address with one of the schemes and a host. An invalid port is refused, because it would be
/// replaced by the scheme's default. A user is refused as well: it would not be used, and would
/// count as part of the host. The reason does not repeat the text, which may contain a secret.
pub fn parse_address(text: &str, schemes: &[&str]) -> Result<Uri, String> {
    let uri: Uri = text.parse().map_err(|_| "is no URL".to_owned())?;
    if !uri.scheme_str().is_some_and(|it| schemes.contains(&it)) {
        return Err(format!(
            "does not begin with {}://",
            schemes.join(":// or ")
        ));
    }
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    if authority.contains('@') {
        return Err("names a user, which has no effect there: use its own setting".to_owned());
    }
    let host = uri.host().unwrap_or_default();
    if host.is_empty() || authority.starts_with(':') {
        return Err("has no host".to_owned());
    }
    match authority
        .strip_prefix(host)
        .and_then(|it| it.strip_prefix(':'))
    {
        Some(port) if port.parse::<u16>().is_err() || port.parse() == Ok(0_u16) => {
            Err(format!("has no port from 1 to 65535 in {port:?}"))
        }
        _ => Ok(uri),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_invalid_port_does_not_become_the_default() {
        let https = |text: &str| parse_address(text, &["https"]).map(|uri| uri.port_u16());
        assert_eq!(https("https://ingest:7001"), Ok(Some(7001)));
        assert_eq!(https("https://ingest"), Ok(None));
        assert_eq!(https("https://[::1]:7001/x"), Ok(Some(7001)));
        assert_eq!(https("https://[::1]"), Ok(None));
        assert_eq!(https("https://host:65535"), Ok(Some(65_535)));
        for text in [
            "",
            "ingest:7001",
            "http://ingest:7001",
            "https://",
            "https://:7001",
            "https://ingest:",
            "https://ingest:0",
            "https://ingest:65536",
            "https://host:99999",
            "https://host:-1",
            "https://host:port",
            "https://user@host:443",
            "https://user:password@host/hook",
            "https://[::1]:99999",
        ] {
            assert!(https(text).is_err(), "{text}");
        }
        let refused = parse_address("http://secret@host:99999", &["http", "https"]);
        assert!(!refused.unwrap_err().contains("secret"));
    }
}
