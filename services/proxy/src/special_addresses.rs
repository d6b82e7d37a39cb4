//! Addresses outside the public network: IANA's special-purpose registries, metadata addresses of
//! clouds, and addresses that embed such an address.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::LazyLock,
};

use ip_packets::IpPrefix;

/// IPv4 in this order: this network, private, carrier NAT, loopback, Azure's public management
/// address, link-local, private, protocols, documentation, private, benchmarks, documentation
/// twice, multicast, reserved. IPv6 in this order: unspecified, loopback and IPv4-compatible, local
/// NAT64, discard, Teredo, documentation twice, segment routing, unique local, link-local,
/// site-local, multicast.
const SPECIAL: [&str; 26] = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "168.63.129.16/32",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "::/96",
    "64:ff9b:1::/48",
    "100::/64",
    "2001::/32",
    "2001:db8::/32",
    "3fff::/20",
    "5f00::/16",
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
];

/// Mapped, NAT64 and 6to4 addresses lead to the IPv4 address that they embed.
const EMBEDDING: [&str; 3] = ["::ffff:0:0/96", "64:ff9b::/96", "2002::/16"];

static PREFIXES: LazyLock<Vec<IpPrefix>> = LazyLock::new(|| {
    let all = SPECIAL.iter().chain(&EMBEDDING);
    all.filter_map(|text| text.parse().ok()).collect()
});

pub(crate) fn is_special(address: IpAddr) -> bool {
    match embedded(address) {
        Some(address) => is_special(address.into()),
        None => prefixes().iter().any(|prefix| prefix.contains(address)),
    }
}

/// All special prefixes, including those that embed an address.
pub(crate) fn prefixes() -> &'static [IpPrefix] {
    &PREFIXES
}

/// The address that packets reach: the embedded IPv4 address, if there is one.
pub(crate) fn innermost(address: IpAddr) -> IpAddr {
    embedded(address).map_or(address, IpAddr::V4)
}

fn embedded(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(address) = address else {
        return None;
    };
    let (high, low) = match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => (high, low),
        [0x2002, high, low, ..] => (high, low),
        _ => return None,
    };
    Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_prefix_is_one() {
        assert_eq!(prefixes().len(), SPECIAL.len() + EMBEDDING.len());
    }

    #[test]
    fn an_embedded_address_is_found() {
        for (address, inside) in [
            ("9.9.9.9", "9.9.9.9"),
            ("::ffff:9.9.9.9", "9.9.9.9"),
            ("64:ff9b::9.9.9.9", "9.9.9.9"),
            ("2002:909:909::1", "9.9.9.9"),
            ("2606:4700::1111", "2606:4700::1111"),
        ] {
            let [address, inside]: [IpAddr; 2] =
                [address, inside].map(|text| text.parse().unwrap());
            assert_eq!(innermost(address), inside);
        }
    }

    #[test]
    fn special_addresses_are_known_in_every_embedding() {
        for special in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "198.18.0.1",
            "192.0.0.8",
            "203.0.113.1",
            "240.0.0.1",
            "::",
            "::1",
            "fe80::1",
            "fc00::1",
            "ff02::1",
            "fec0::1",
            "::ffff:127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001::1",
            "2001:db8::1",
            "100::1",
            "64:ff9b:1::1",
            "::7f00:1",
            "168.63.129.16",
            "3fff::1",
            "5f00::1",
        ] {
            assert!(is_special(special.parse().unwrap()), "{special}");
        }
        for public in [
            "1.1.1.1",
            "172.32.0.1",
            "100.128.0.1",
            "2606:4700::1111",
            "::ffff:1.1.1.1",
            "64:ff9b::101:101",
            "2002:101:101::",
        ] {
            assert!(!is_special(public.parse().unwrap()), "{public}");
        }
    }
}
