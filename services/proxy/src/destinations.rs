//! Destinations that a gateway may reach: the proxy is no open relay.
//!
//! A request is checked twice. First its `host:port` must match an entry of the list, for any
//! tenant or for the gateway's tenant. Then every address of the name is checked: private,
//! loopback, link-local and other special ranges are refused. An entry permits them if it lists the
//! address literally or stands in the list for private names. So the owner of a listed name cannot
//! point it into the proxy's network. A pattern, `*` or `*.suffix`, does not cover the public
//! addresses of this machine either (`Admitted::by_pattern`). No firewall stands between the proxy
//! and other services of this machine.

use std::net::IpAddr;

use service_kit::ConfigError;
use tunnel::Authority;

use crate::special_addresses::is_special;

/// Entries of the list; a longer list is refused, because every request is compared with each
/// entry.
const ENTRIES_MAX: usize = 1_024;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Host {
    Any,
    /// `*.suffix`, stored as `.suffix`.
    Under(String),
    Name(String),
    Address(IpAddr),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    tenant: Option<String>,
    host: Host,
    /// `None`: any port.
    port: Option<u16>,
    private: bool,
}

/// The allow-list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Destinations {
    entries: Vec<Entry>,
}

/// A destination that the list admits. Its addresses are not checked yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admitted {
    /// Without the brackets of an IPv6 address.
    pub host: String,
    pub port: u16,
    /// Only entries of the public list match, and all of them are patterns: `*` or `*.suffix`.
    pub by_pattern: bool,
    private: bool,
    literal: Option<IpAddr>,
}

impl Admitted {
    /// A destination by its address, which another list allows.
    pub(crate) fn address(address: IpAddr, port: u16) -> Self {
        Self {
            host: address.to_string(),
            port,
            by_pattern: false,
            private: false,
            literal: Some(address),
        }
    }

    /// Whether the name may lead to this address.
    pub fn permits(&self, address: IpAddr) -> bool {
        self.private || self.literal == Some(address) || !is_special(address)
    }
}

impl Destinations {
    pub fn parse(allow: &[String], allow_private: &[String]) -> Result<Self, ConfigError> {
        let public = allow.iter().map(|text| ("allow", text, false));
        let private = allow_private
            .iter()
            .map(|text| ("allow_private", text, true));
        let entries: Vec<Entry> = public
            .chain(private)
            .filter(|(_, text, _)| !text.trim().is_empty())
            .map(|(field, text, private)| parse_entry(field, text.trim(), private))
            .collect::<Result<_, _>>()?;
        let list = Self { entries };
        Self::check_count([&list])?;
        Ok(list)
    }

    /// Refuses lists that are too long together.
    pub(crate) fn check_count<'a>(
        lists: impl IntoIterator<Item = &'a Self>,
    ) -> Result<(), ConfigError> {
        let count: usize = lists.into_iter().map(|list| list.entries.len()).sum();
        if count > ENTRIES_MAX {
            return Err(ConfigError::new(
                "allow",
                format!("{count} entries are more than {ENTRIES_MAX}"),
                "--allow '*.example.org:443'",
            ));
        }
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns `None` if the destination is on none of the lists.
    pub fn admit<'a>(
        lists: impl Iterator<Item = &'a Self>,
        tenant: &str,
        authority: &Authority,
    ) -> Option<Admitted> {
        let port = authority.port_u16()?;
        let host = bare(authority.host()).to_ascii_lowercase();
        let host = host.strip_suffix('.').unwrap_or(&host).to_owned();
        let literal: Option<IpAddr> = host.parse().ok();
        let entries = lists.flat_map(|list| &list.entries);
        let matching = entries.filter(|entry| {
            entry.tenant.as_deref().is_none_or(|only| only == tenant)
                && entry.port.is_none_or(|only| only == port)
                && match (&entry.host, literal) {
                    (Host::Any, _) => true,
                    (Host::Address(listed), Some(asked)) => *listed == asked,
                    (Host::Name(listed), None) => *listed == host,
                    (Host::Under(suffix), None) => {
                        host.len() > suffix.len() && host.ends_with(suffix.as_str())
                    }
                    _ => false,
                }
        });
        let mut admitted: Option<Admitted> = None;
        for entry in matching {
            let so_far = admitted.get_or_insert_with(|| Admitted {
                host: host.clone(),
                port,
                by_pattern: true,
                private: false,
                literal: None,
            });
            let is_pattern = matches!(entry.host, Host::Any | Host::Under(_));
            so_far.by_pattern &= is_pattern && !entry.private;
            so_far.private |= entry.private;
            if let Host::Address(address) = entry.host {
                so_far.literal = Some(address);
            }
        }
        admitted
    }
}

fn bare(host: &str) -> &str {
    host.strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host)
}

fn parse_entry(field: &str, text: &str, private: bool) -> Result<Entry, ConfigError> {
    let refuse = |reason: &str| {
        ConfigError::new(
            field,
            format!("{text:?} {reason}"),
            format!("--{} ingest:7001", field.replace('_', "-")),
        )
    };
    let (tenant, rest) = match text.split_once('@') {
        Some(("", _)) => return Err(refuse("names no tenant before the @")),
        Some((tenant, rest)) => (Some(tenant.to_owned()), rest),
        None => (None, text),
    };
    let (host, port) = rest.rsplit_once(':').ok_or_else(|| refuse("has no port"))?;
    let port = match port {
        "*" => None,
        number => match number.parse::<u16>() {
            Ok(port) if port > 0 => Some(port),
            _ => return Err(refuse("has no port between 1 and 65535")),
        },
    };
    let host = match bare(host).to_ascii_lowercase() {
        host if host.is_empty() => return Err(refuse("has no host")),
        host if host == "*" => Host::Any,
        host => match host.parse::<IpAddr>() {
            Ok(address) => Host::Address(address),
            Err(_) => match host.strip_prefix('*') {
                Some(suffix) if suffix.starts_with('.') && is_name(&suffix[1..]) => {
                    Host::Under(suffix.to_owned())
                }
                _ if is_name(&host) => Host::Name(host),
                _ => return Err(refuse("has a host that is neither a name nor an address")),
            },
        },
    };
    Ok(Entry {
        tenant,
        host,
        port,
        private,
    })
}

fn is_name(host: &str) -> bool {
    !host.is_empty()
        && host.split('.').all(|label| {
            !label.is_empty()
                && label
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn list(allow: &[&str], private: &[&str]) -> Destinations {
        let own = |texts: &[&str]| {
            texts
                .iter()
                .map(|text| (*text).to_owned())
                .collect::<Vec<_>>()
        };
        Destinations::parse(&own(allow), &own(private)).unwrap()
    }

    fn admits(list: &Destinations, tenant: &str, authority: &str) -> bool {
        let authority = authority.parse().unwrap();
        Destinations::admit([list].into_iter(), tenant, &authority).is_some()
    }

    #[test]
    fn only_listed_destinations_are_admitted() {
        let list = list(
            &["ingest:7001", "*.example.org:443", "acme@billing.test:*"],
            &["[::1]:9"],
        );
        for (tenant, authority, expected) in [
            ("acme", "ingest:7001", true),
            ("acme", "INGEST.:7001", true),
            ("acme", "ingest:7002", false),
            ("acme", "xingest:7001", false),
            ("acme", "a.example.org:443", true),
            ("acme", "example.org:443", false),
            ("acme", "aexample.org:443", false),
            ("acme", "a.example.org:80", false),
            ("acme", "billing.test:1", true),
            ("other", "billing.test:1", false),
            ("acme", "[::1]:9", true),
            ("acme", "[::2]:9", false),
            ("acme", "ingest", false),
        ] {
            assert_eq!(
                admits(&list, tenant, authority),
                expected,
                "{tenant} {authority}"
            );
        }
        assert!(!admits(&Destinations::default(), "acme", "ingest:7001"));
    }

    #[test]
    fn private_addresses_need_a_literal_or_the_private_list() {
        let destinations = list(&["name.test:1", "10.0.0.5:1", "*:2"], &["inside.test:1"]);
        let admitted = |authority: &str| {
            let authority = authority.parse().unwrap();
            Destinations::admit([&destinations].into_iter(), "acme", &authority).unwrap()
        };
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(admitted("name.test:1").permits(ip("93.184.215.14")));
        assert!(!admitted("name.test:1").permits(ip("10.0.0.5")));
        assert!(admitted("10.0.0.5:1").permits(ip("10.0.0.5")));
        assert!(!admitted("10.0.0.5:2").permits(ip("10.0.0.5")));
        assert!(!admitted("localhost:2").permits(ip("127.0.0.1")));
        assert!(admitted("inside.test:1").permits(ip("127.0.0.1")));
    }

    #[test]
    fn a_pattern_covers_neither_this_machine_nor_special_addresses() {
        let destinations = list(
            &[
                "*.example.org:1",
                "*:2",
                "a.example.org:3",
                "*.example.org:3",
            ],
            &["*.inside.test:1"],
        );
        let admitted = |authority: &str| {
            let authority = authority.parse().unwrap();
            Destinations::admit([&destinations].into_iter(), "acme", &authority).unwrap()
        };
        for pattern in ["a.example.org:1", "a.example.org:2", "10.0.0.5:2"] {
            let admitted = admitted(pattern);
            assert!(admitted.by_pattern, "{pattern}");
            for special in [
                "127.0.0.1",
                "0.0.0.0",
                "169.254.1.1",
                "169.254.169.254",
                "::1",
                "::",
                "fe80::1",
                "fd00:ec2::254",
                "::ffff:127.0.0.1",
                "::ffff:169.254.169.254",
                "64:ff9b::127.0.0.1",
                "64:ff9b::a9fe:a9fe",
                "64:ff9b:1::1",
                "2002:7f00:1::",
            ] {
                assert!(!admitted.permits(special.parse().unwrap()), "{special}");
            }
        }
        assert!(!admitted("a.example.org:3").by_pattern, "it is named, too");
        assert!(!admitted("a.inside.test:1").by_pattern);
    }

    #[test]
    fn bad_entries_name_the_field() {
        for bad in [
            "ingest",
            "ingest:",
            "ingest:0",
            ":1",
            "@ingest:1",
            "a..b:1",
            "*x:1",
            "a b:1",
            "ingest:99999",
        ] {
            let error = Destinations::parse(&[], &[bad.to_owned()]).unwrap_err();
            assert_eq!(error.field, "allow_private", "{bad}");
        }
    }
}
