//! A network as an address and a prefix length.

use std::{fmt, net::IpAddr, str::FromStr};

use crate::range::{IpRange, address, bits, ones};

/// Invariant: no bit after the prefix is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpPrefix {
    network: IpAddr,
    length: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotAPrefix {
    #[error("is not ADDRESS/LENGTH")]
    Form,
    #[error("has a length beyond its address, or bits after its prefix")]
    Length,
}

impl IpPrefix {
    /// `None` if the length exceeds the address, or a bit after the prefix is set.
    pub fn new(network: IpAddr, length: u8) -> Option<Self> {
        let (bits, width) = bits(network);
        (length <= width && bits & ones(width - length) == 0).then_some(Self { network, length })
    }

    /// The prefix of a single address.
    pub fn host(address: IpAddr) -> Self {
        let (_, length) = bits(address);
        Self {
            network: address,
            length,
        }
    }

    pub fn network(&self) -> IpAddr {
        self.network
    }

    pub fn length(&self) -> u8 {
        self.length
    }

    pub fn range(&self) -> IpRange {
        let (bits, width) = bits(self.network);
        IpRange::within(width, bits, bits | ones(width - self.length))
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        self.range().contains(address)
    }

    /// Whether it contains all of `other`.
    pub fn covers(&self, other: &Self) -> bool {
        self.length <= other.length && self.contains(other.network)
    }

    /// The address at this offset from the first, if it is within the prefix.
    pub fn nth(&self, offset: u128) -> Option<IpAddr> {
        let (bits, width) = bits(self.network);
        (offset <= ones(width - self.length)).then(|| address(bits + offset, width))
    }

    /// Offset of the last address.
    pub fn last_offset(&self) -> u128 {
        let (_, width) = bits(self.network);
        ones(width - self.length)
    }
}

impl IpRange {
    /// The smallest sorted set of prefixes that covers it: at most two for each bit.
    pub fn prefixes(&self) -> Vec<IpPrefix> {
        let mut prefixes = Vec::new();
        let mut at = self.first;
        loop {
            // As large as the alignment of `at` and the end permit.
            let mut free = (at.trailing_zeros() as u8).min(self.width);
            while ones(free) > self.last - at {
                free -= 1;
            }
            prefixes.extend(IpPrefix::new(address(at, self.width), self.width - free));
            match at.checked_add(ones(free)).filter(|last| *last < self.last) {
                Some(last) => at = last + 1,
                None => return prefixes,
            }
        }
    }
}

impl FromStr for IpPrefix {
    type Err = NotAPrefix;

    fn from_str(text: &str) -> Result<Self, NotAPrefix> {
        let (network, length) = text.split_once('/').ok_or(NotAPrefix::Form)?;
        let network = network.parse().map_err(|_| NotAPrefix::Form)?;
        // `parse` accepts a sign.
        let digits = length.bytes().all(|byte| byte.is_ascii_digit());
        let length = length.parse().ok().filter(|_| digits);
        Self::new(network, length.ok_or(NotAPrefix::Form)?).ok_or(NotAPrefix::Length)
    }
}

impl fmt::Display for IpPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.length)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::Ipv6Addr;

    use super::*;

    #[test]
    fn prefixes_are_read_or_refused() {
        for text in [
            "0.0.0.0/0",
            "10.64.0.0/16",
            "192.0.2.7/32",
            "::/0",
            "fd00::/112",
        ] {
            let prefix: IpPrefix = text.parse().unwrap();
            assert_eq!(prefix.to_string(), text);
        }
        for text in [
            "",
            "10.0.0.0",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "a/8",
            "10.0.0.0/256",
        ] {
            assert_eq!(text.parse::<IpPrefix>(), Err(NotAPrefix::Form), "{text}");
        }
        for text in [
            "10.0.0.0/33",
            "10.0.0.1/31",
            "0.0.0.1/0",
            "::1/127",
            "::/129",
        ] {
            assert_eq!(text.parse::<IpPrefix>(), Err(NotAPrefix::Length), "{text}");
        }
    }

    #[test]
    fn a_prefix_contains_its_addresses() {
        let prefix: IpPrefix = "10.64.0.0/30".parse().unwrap();
        let at = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(prefix.contains(at("10.64.0.3")) && !prefix.contains(at("10.64.0.4")));
        assert!(!prefix.contains(at("::10.64.0.3")));
        assert_eq!(prefix.nth(3), Some(at("10.64.0.3")));
        assert_eq!((prefix.nth(4), prefix.last_offset()), (None, 3));
        let all: IpPrefix = "::/0".parse().unwrap();
        assert_eq!(
            all.nth(u128::MAX),
            Some(Ipv6Addr::from_bits(u128::MAX).into())
        );
        assert!(prefix.covers(&"10.64.0.2/31".parse().unwrap()));
        assert!(!prefix.covers(&"10.64.0.0/29".parse().unwrap()));
    }
}
