//! The access networks of `--interface`.

use std::net::{IpAddr, SocketAddr};

use service_kit::ConfigError;
use tunnel::{AccessRule, Family};

/// Access networks of one gateway.
const INTERFACES_MAX: usize = 8;
/// The kernel's bound of a device name.
const DEVICE_BYTES_MAX: usize = 15;

/// One rule for each text, without duplicates; without a text, the kernel's route to the proxy.
pub(super) fn rules(texts: &[String]) -> Result<Vec<AccessRule>, ConfigError> {
    if texts.is_empty() {
        return Ok(vec![AccessRule::Routed {
            name: "default".to_owned(),
        }]);
    }
    if texts.len() > INTERFACES_MAX {
        return Err(ConfigError::new(
            "interface",
            format!("at most {INTERFACES_MAX} are taken"),
            "--interface wifi=192.168.1.7@wlan0",
        ));
    }
    let rules: Vec<AccessRule> = texts
        .iter()
        .map(|text| parse_rule(text))
        .collect::<Result<_, _>>()?;
    for (n, rule) in rules.iter().enumerate() {
        if rules[..n].iter().any(|other| repeats(rule, other)) {
            return Err(ConfigError::new(
                "interface",
                format!("{:?} repeats a name, a device or an address", texts[n]),
                "--interface wifi=192.168.1.7 --interface lte=10.0.0.3",
            ));
        }
    }
    Ok(rules)
}

fn repeats(a: &AccessRule, b: &AccessRule) -> bool {
    match (a, b) {
        (
            AccessRule::Address { name, local_ip, .. },
            AccessRule::Address {
                name: other,
                local_ip: other_ip,
                ..
            },
        ) => name == other || local_ip == other_ip,
        (
            AccessRule::Devices { pattern, name, .. },
            AccessRule::Devices {
                pattern: other,
                name: other_name,
                ..
            },
        ) => pattern == other || name.is_some() && name == other_name,
        (AccessRule::Subnet { name, .. }, AccessRule::Subnet { name: other, .. }) => name == other,
        _ => false,
    }
}

fn parse_rule(text: &str) -> Result<AccessRule, ConfigError> {
    let refuse = |reason: String| {
        Err(ConfigError::new(
            "interface",
            reason,
            "--interface wlan0 --interface 'wwan*' --interface wifi=192.168.1.7@wlan0",
        ))
    };
    let (name, rest) = match text.split_once('=') {
        Some((name, rest)) => (Some(name), rest),
        None => (None, text),
    };
    if let Some(name) = name
        && !tunnel::is_name(name)
    {
        return refuse(format!("{name:?} is not a valid name of an access network"));
    }
    let (address, device) = match rest.split_once('@') {
        Some((address, device)) => (address, Some(device.to_owned())),
        None => (rest, None),
    };
    match (address.parse(), name) {
        (Ok(local_ip), Some(name)) => {
            return Ok(AccessRule::Address {
                name: name.to_owned(),
                local_ip,
                device,
            });
        }
        (Ok(_), None) => return refuse(format!("{text:?} has no name")),
        (Err(_), _) if device.is_some() => {
            return refuse(format!("{address:?} is not an IP address"));
        }
        (Err(_), _) => {}
    }
    if let Some((network, prefix)) = rest.split_once('/')
        && let Ok(network) = network.parse::<IpAddr>()
    {
        let bits = if network.is_ipv6() { 128 } else { 32 };
        return match (prefix.parse(), name) {
            (Ok(prefix), Some(name)) if prefix <= bits => Ok(AccessRule::Subnet {
                name: name.to_owned(),
                network,
                prefix,
            }),
            (_, None) => refuse(format!("{text:?} has no name")),
            _ => refuse(format!(
                "{prefix:?} is not a valid prefix length of {network}"
            )),
        };
    }
    let (pattern, family) = match rest.split_once('/') {
        None => (rest, Family::Any),
        Some((pattern, "ipv4")) => (pattern, Family::V4),
        Some((pattern, "ipv6")) => (pattern, Family::V6),
        Some((_, other)) => return refuse(format!("{other:?} is neither ipv4 nor ipv6")),
    };
    let is_device = |byte: u8| byte.is_ascii_graphic() && !b"/:@=".contains(&byte);
    if pattern.is_empty()
        || pattern.len() > DEVICE_BYTES_MAX
        || pattern.parse::<SocketAddr>().is_ok()
        || !pattern.bytes().all(is_device)
    {
        return refuse(format!("{rest:?} is neither a device nor an address"));
    }
    if name.is_some() && pattern.contains(['*', '?']) {
        return refuse(format!(
            "{text:?} gives one name to all matching devices; each must have its own"
        ));
    }
    Ok(AccessRule::Devices {
        pattern: pattern.to_owned(),
        name: name.map(str::to_owned),
        family,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_network_names_its_device() {
        let subnet = |network: &str, prefix| AccessRule::Subnet {
            name: "wifi".to_owned(),
            network: network.parse().unwrap(),
            prefix,
        };
        assert_eq!(parse_rule("wifi=10.89.1.0/24"), Ok(subnet("10.89.1.0", 24)));
        assert_eq!(parse_rule("wifi=fd00::/64"), Ok(subnet("fd00::", 64)));
        for text in ["10.89.1.0/24", "wifi=10.89.1.0/33", "wifi=10.89.1.0/ipv4"] {
            assert!(parse_rule(text).is_err(), "{text}");
        }
        // A device's name may look like anything except an address.
        assert!(matches!(
            parse_rule("lte=wwan0/ipv6"),
            Ok(AccessRule::Devices { .. })
        ));
    }

    #[test]
    fn no_network_is_named_twice() {
        let refused = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
            rules(&texts).is_err()
        };
        for texts in [
            ["wlan0", "wlan0"],
            ["lte=wwan0", "lte=wwan1"],
            ["wifi=192.0.2.7", "lte=192.0.2.7"],
            ["wifi=192.0.2.7", "wifi=192.0.2.8"],
            ["wifi=192.0.2.0/24", "wifi=198.51.100.0/24"],
        ] {
            assert!(refused(&texts), "{texts:?}");
        }
        assert!(!refused(&["wlan0", "wwan*", "wifi=192.0.2.7"]));
        let many: Vec<String> = (0..=INTERFACES_MAX).map(|n| format!("eth{n}")).collect();
        assert!(rules(&many[1..]).is_ok() && rules(&many).is_err());
    }

    #[test]
    fn access_networks_are_read_or_refused() {
        let devices = |pattern: &str, name: Option<&str>, family| AccessRule::Devices {
            pattern: pattern.to_owned(),
            name: name.map(str::to_owned),
            family,
        };
        let address = |name: &str, local_ip: [u8; 4], device: Option<&str>| AccessRule::Address {
            name: name.to_owned(),
            local_ip: local_ip.into(),
            device: device.map(str::to_owned),
        };
        for (text, rule) in [
            ("wlan0", devices("wlan0", None, Family::Any)),
            ("wwan*", devices("wwan*", None, Family::Any)),
            ("eth?/ipv6", devices("eth?", None, Family::V6)),
            ("lte=wwan0/ipv4", devices("wwan0", Some("lte"), Family::V4)),
            ("wifi=192.168.1.7", address("wifi", [192, 168, 1, 7], None)),
            (
                "wifi=192.168.1.7@wlan0",
                address("wifi", [192, 168, 1, 7], Some("wlan0")),
            ),
        ] {
            assert_eq!(parse_rule(text).ok(), Some(rule), "{text}");
        }
        for text in [
            "",
            "lte=",
            "lte=wwan*",
            "192.168.1.7",
            "=wlan0",
            "wi fi=wlan0",
            "wlan0/ipv5",
            "wifi=192.168.1.700@wlan0",
            "a-name-that-is-too-long",
            "wifi=192.168.1.7:80",
        ] {
            assert!(parse_rule(text).is_err(), "{text:?}");
        }
    }
}
