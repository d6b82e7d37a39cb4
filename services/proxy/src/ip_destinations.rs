//! Prefixes that packets of gateways may reach: the list of `destinations`, for IP.
//!
//! The entries of a tenant together are its routes. Special ranges (private, loopback and others)
//! are cut out of a wider entry, so `0.0.0.0/0` means the public network. An entry within a special
//! range permits it. The same holds for the addresses of the pools: only an entry within a pool
//! lets one gateway reach another.
//!
//! The public addresses of this machine are cut out as well. Its other services have no firewall
//! against packets from the tunnel. A client that routed the proxy's address into its tunnel would
//! cut itself off.

use std::net::IpAddr;

use ip_packets::{IpPrefix, IpRanges};
use service_kit::ConfigError;

use crate::special_addresses::{self, is_special};

/// Entries of the list; a longer list is refused. With the ranges that are cut out, they make less
/// than half of the ranges of one capsule.
const ENTRIES_MAX: usize = 256;

/// Public addresses of this machine; with more of them IP is refused. Each splits at most one range
/// in two, so they make the other half of a capsule.
pub(crate) const OWN_MAX: usize = 512;

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
    /// `pools` are the address pools of gateways.
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
        let list = Self { entries, pools };
        Self::check_count([&list])?;
        Ok(list)
    }

    /// Refuses lists that are too long together.
    pub(crate) fn check_count<'a>(
        lists: impl IntoIterator<Item = &'a Self>,
    ) -> Result<(), ConfigError> {
        let count: usize = lists.into_iter().map(|list| list.entries.len()).sum();
        if count > ENTRIES_MAX {
            let reason = format!("{count} entries are more than {ENTRIES_MAX}");
            let example = "--allow-ip 0.0.0.0/0 --allow-ip acme@10.1.0.0/16";
            return Err(ConfigError::new("allow_ip", reason, example));
        }
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The routes of a tenant's gateways on a machine with these addresses; `None` if there are
    /// more than `OWN_MAX`.
    pub(crate) fn routes(&self, tenant: &str, own: &[IpAddr]) -> Option<IpRanges> {
        let mut routes = IpRanges::default();
        // Special addresses are cut out with their ranges, or listed on purpose.
        let own = own.iter().filter(|address| !is_special(**address));
        let own: Vec<IpPrefix> = own.copied().map(IpPrefix::host).collect();
        if own.len() > OWN_MAX {
            return None;
        }
        for entry in &self.entries {
            if entry.tenant.as_deref().is_some_and(|only| only != tenant) {
                continue;
            }
            let mut allowed = IpRanges::default();
            allowed.add(entry.prefix.range());
            let hidden = special_addresses::prefixes()
                .iter()
                .chain(&self.pools)
                .chain(&own);
            for hidden in hidden.filter(|hidden| !hidden.covers(&entry.prefix)) {
                allowed.remove(hidden.range());
            }
            for range in allowed.as_slice() {
                routes.add(*range);
            }
        }
        Some(routes)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn list(allow: &[&str]) -> IpDestinations {
        let allow: Vec<String> = allow.iter().map(|text| (*text).to_owned()).collect();
        let pools = ["10.64.0.0/16", "fd00:64::/112"].map(|text| text.parse().unwrap());
        IpDestinations::parse(&allow, pools.into()).unwrap()
    }

    fn routes(list: &IpDestinations, tenant: &str) -> IpRanges {
        list.routes(tenant, &[]).unwrap()
    }

    fn allows(list: &IpDestinations, address: &str) -> bool {
        routes(list, "acme").contains(address.parse().unwrap())
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
        let routes = routes(&list, "acme");
        let of_v4 = routes.as_slice().iter().filter(|it| it.first().is_ipv4());
        assert_eq!(of_v4.count(), 13);
    }

    #[test]
    fn special_ranges_need_entries_within_them() {
        let list = list(&["10.0.0.0/8", "192.168.0.0/15", "127.0.0.1/32"]);
        assert!(allows(&list, "10.1.2.3") && allows(&list, "127.0.0.1"));
        // The entry is wider than 192.168.0.0/16, so it does not permit that range.
        assert!(!allows(&list, "192.168.1.1") && allows(&list, "192.169.0.1"));
        // Other gateways are not reachable either without an entry of their own.
        assert!(!allows(&list, "10.64.0.2"));
        let neighbours = self::list(&["10.64.0.0/16"]);
        assert!(allows(&neighbours, "10.64.0.2") && !allows(&neighbours, "10.65.0.2"));
    }

    #[test]
    fn the_machines_own_public_addresses_need_their_own_entries() {
        let own = ["5.0.0.7", "2600::7", "10.1.0.7", "5.0.1.7"].map(|text| text.parse().unwrap());
        let list = list(&["0.0.0.0/0", "::/0", "10.1.0.0/16", "5.0.1.7/32"]);
        let routes = list.routes("acme", &own).unwrap();
        let leads = |to: &str| routes.contains(to.parse().unwrap());
        assert!(!leads("5.0.0.7") && leads("5.0.0.6") && leads("5.0.0.8"));
        assert!(!leads("2600::7") && leads("2600::6") && leads("2600::8"));
        // A private address belongs to a cut-out range; an address that is listed itself is
        // reachable.
        assert!(leads("10.1.0.7") && leads("5.0.1.7"));
        // One capsule holds the largest number of ranges.
        let entries = (0..ENTRIES_MAX as u32)
            .map(|n| format!("{}/25", Ipv4Addr::from_bits((80 << 24) + (n << 8))));
        let entries: Vec<String> = entries.chain(["::/0".to_owned()]).skip(1).collect();
        let list = IpDestinations::parse(&entries, Vec::new()).unwrap();
        let mut own: Vec<IpAddr> = (0..OWN_MAX as u128)
            .map(|n| IpAddr::from(Ipv6Addr::from_bits((0x2600 << 112) + (n << 64))))
            .collect();
        let routes = list.routes("acme", &own).unwrap();
        assert!(
            (700..1_024).contains(&routes.as_slice().len()),
            "{}",
            routes.as_slice().len()
        );
        own.push("6.0.0.1".parse().unwrap());
        assert_eq!(list.routes("acme", &own), None);
    }

    #[test]
    fn a_tenant_has_its_entries_and_those_of_all() {
        let list = list(&["acme@1.0.0.0/24", "other@2.0.0.0/24", "3.0.0.0/24"]);
        let has = |tenant: &str| {
            let routes = routes(&list, tenant);
            ["1.0.0.1", "2.0.0.1", "3.0.0.1"].map(|at| routes.contains(at.parse().unwrap()))
        };
        assert_eq!(has("acme"), [true, false, true]);
        assert_eq!(has("other"), [false, true, true]);
        assert!(routes(&IpDestinations::default(), "acme").is_empty());
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
