//! An inclusive range of addresses, and addresses as numbers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An inclusive range of addresses of one version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct IpRange {
    /// Bits of an address: 32 or 128.
    pub(super) width: u8,
    pub(super) first: u128,
    pub(super) last: u128,
}

impl IpRange {
    /// `None` if the versions differ or the last address lies before the first.
    pub fn new(first: IpAddr, last: IpAddr) -> Option<Self> {
        let ((first, width), (last, other)) = (bits(first), bits(last));
        (width == other && first <= last).then_some(Self { width, first, last })
    }

    pub(super) fn within(width: u8, first: u128, last: u128) -> Self {
        Self { width, first, last }
    }

    pub fn first(&self) -> IpAddr {
        address(self.first, self.width)
    }

    pub fn last(&self) -> IpAddr {
        address(self.last, self.width)
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        let (bits, width) = bits(address);
        width == self.width && (self.first..=self.last).contains(&bits)
    }
}

/// The bits of an address, at the low end, and their number.
pub(super) fn bits(address: IpAddr) -> (u128, u8) {
    match address {
        IpAddr::V4(address) => (address.to_bits().into(), 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    }
}

/// The address with these bits.
pub(super) fn address(bits: u128, width: u8) -> IpAddr {
    match width {
        // The caller passes no more bits than an address has.
        32 => Ipv4Addr::from_bits(bits as u32).into(),
        _ => Ipv6Addr::from_bits(bits).into(),
    }
}

/// This many ones at the low end.
pub(super) fn ones(count: u8) -> u128 {
    u128::MAX
        .checked_shr(128 - u32::from(count))
        .unwrap_or_default()
}
