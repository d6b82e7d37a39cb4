//! Where packets of gateways may go: the list of `destinations`, for IP.
//!
//! A tenant's entries together are its routes. Private, loopback and other special ranges are taken out of an entry that holds more than
//! such a range, so that `0.0.0.0/0` means the public network; an entry within one means it. So it is with the addresses that gateways get: no
//! entry for more than them lets one gateway reach another.

use service_kit::ConfigError;
use tunnel::{IpPrefix, IpRanges};

use crate::special;

/// Entries of the list. With what is taken out of them that makes less than half of the ranges that one capsule may tell.
const ENTRIES_MAX: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    tenant: Option<String>,
    prefix: IpPrefix,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct IpDestinations {
    entries: Vec<Entry>,
    pools: Vec<IpPrefix>,
}

impl IpDestinations {
    /// `pools` are the addresses of gateways.
    pub(crate) fn parse(allow: &[String], pools: Vec<IpPrefix>) -> Result<Self, ConfigError> {
        let refuse = |reason: String| {
            ConfigError::new(
                "allow_ip",
                reason,
                "--allow-ip 0.0.0.0/0 --allow-ip acme@10.1.0.0/16",
            )
        };
        let given = allow.iter().map(|text| text.trim());
        let given = given.filter(|text| !text.is_empty());
        let entry = |text: &str| {
            let (tenant, prefix) = match text.split_once('@') {
                Some(("", _)) => {
                    return Err(refuse(format!("{text:?} names no tenant before the @")));
                }
                Some((tenant, prefix)) => (Some(tenant.to_owned()), prefix),
                None => (None, text),
            };
            let prefix = prefix.parse::<IpPrefix>();
            let prefix = prefix.map_err(|error| refuse(format!("{text:?} {error}")))?;
            Ok(Entry { tenant, prefix })
        };
        let entries: Vec<Entry> = given.map(entry).collect::<Result<_, _>>()?;
        if entries.len() > ENTRIES_MAX {
            return Err(refuse(format!(
                "{} entries are more than {ENTRIES_MAX}",
                entries.len()
            )));
        }
        Ok(Self { entries, pools })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What a tenant's gateways may reach.
    pub(crate) fn routes(&self, tenant: &str) -> IpRanges {
        let mut routes = IpRanges::default();
        for entry in &self.entries {
            if entry.tenant.as_deref().is_some_and(|only| only != tenant) {
                continue;
            }
            let mut allowed = IpRanges::default();
            allowed.add(entry.prefix.range());
            let hidden = special::prefixes().iter().chain(&self.pools);
            for hidden in hidden.filter(|hidden| !hidden.covers(&entry.prefix)) {
                allowed.remove(hidden.range());
            }
            for range in allowed.as_slice() {
                routes.add(*range);
            }
        }
        routes
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::IpAddr;

    use super::*;

    fn list(allow: &[&str]) -> IpDestinations {
        let allow: Vec<String> = allow.iter().map(|text| (*text).to_owned()).collect();
        let pools = ["10.64.0.0/16", "fd00:64::/112"].map(|text| text.parse().unwrap());
        IpDestinations::parse(&allow, pools.into()).unwrap()
    }

    fn allows(list: &IpDestinations, address: &str) -> bool {
        let address: IpAddr = address.parse().unwrap();
        list.routes("acme").contains(address)
    }

    #[test]
    fn a_wide_entry_means_the_public_network() {
        let list = list(&["0.0.0.0/0", "::/0"]);
        for public in [
            "1.1.1.1",
            "100.128.0.1",
            "223.255.255.255",
            "2606:4700::1111",
        ] {
            assert!(allows(&list, public), "{public}");
        }
        for special in [
            "127.0.0.1",
            "10.0.0.1",
            "10.64.0.2",
            "192.168.1.1",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "fd00:64::2",
            "fe80::1",
            "::ffff:10.0.0.1",
            "64:ff9b::a00:1",
            "2002:a00:1::",
        ] {
            assert!(!allows(&list, special), "{special}");
        }
        let routes = list.routes("acme");
        let of_v4 = routes.as_slice().iter().filter(|it| it.first().is_ipv4());
        assert_eq!(of_v4.count(), 12);
    }

    #[test]
    fn special_ranges_are_meant_by_entries_within_them() {
        let list = list(&["10.0.0.0/8", "192.168.0.0/15", "127.0.0.1/32"]);
        assert!(allows(&list, "10.1.2.3") && allows(&list, "127.0.0.1"));
        // Wider than 192.168.0.0/16, so that is not meant.
        assert!(!allows(&list, "192.168.1.1") && allows(&list, "192.169.0.1"));
        // Gateways are not, either: they want an entry of their own.
        assert!(!allows(&list, "10.64.0.2"));
        let neighbours = self::list(&["10.64.0.0/16"]);
        assert!(allows(&neighbours, "10.64.0.2") && !allows(&neighbours, "10.65.0.2"));
    }

    #[test]
    fn a_tenant_has_its_entries_and_those_of_all() {
        let list = list(&["acme@1.0.0.0/24", "other@2.0.0.0/24", "3.0.0.0/24"]);
        let has = |tenant: &str| {
            let routes = list.routes(tenant);
            ["1.0.0.1", "2.0.0.1", "3.0.0.1"].map(|at| routes.contains(at.parse().unwrap()))
        };
        assert_eq!(has("acme"), [true, false, true]);
        assert_eq!(has("other"), [false, true, true]);
        assert!(IpDestinations::default().routes("acme").is_empty());
    }

    #[test]
    fn bad_entries_name_the_field() {
        for bad in ["1.0.0.1", "1.0.0.1/24", "@1.0.0.0/24", "acme@x", "host/24"] {
            let error = IpDestinations::parse(&[bad.to_owned()], Vec::new()).unwrap_err();
            assert_eq!(error.field, "allow_ip", "{bad}");
        }
        let many = vec!["1.0.0.0/24".to_owned(); ENTRIES_MAX + 1];
        assert!(IpDestinations::parse(&many, Vec::new()).is_err());
    }
}
