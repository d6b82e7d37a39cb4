//! The capsules of CONNECT-IP (RFC 9484, 4.7): requested and assigned addresses, and routes.
//!
//! Malformed capsules in the RFC's sense are refused, and end the request:
//! - an incomplete entry,
//! - a version other than 4 and 6,
//! - bits after a prefix,
//! - a requested address without a number,
//! - unsorted ranges.
//!
//! Bounds: `ADDRESSES_MAX` and `ROUTES_MAX` entries.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use ip_packets::{IpPrefix, IpRange};

use crate::http::varint;

const ADDRESS_ASSIGN: u64 = 1;
const ADDRESS_REQUEST: u64 = 2;
const ROUTE_ADVERTISEMENT: u64 = 3;

/// Addresses in one capsule; more end the request.
pub(crate) const ADDRESSES_MAX: usize = 16;

/// Routes in one capsule; more end the request. A proxy that permits the whole public IPv4 network
/// sends 13.
pub const ROUTES_MAX: usize = 1_024;

/// The longest value that is buffered: the largest number of IPv6 routes.
pub(crate) const VALUE_BYTES_MAX: usize = ROUTES_MAX * 34;

/// Whether this is the type of such a capsule.
pub(crate) fn is_known(kind: u64) -> bool {
    (ADDRESS_ASSIGN..=ROUTE_ADVERTISEMENT).contains(&kind)
}

/// A capsule in its form on the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Raw {
    pub(crate) kind: u64,
    pub(crate) value: Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MalformedCapsule {
    #[error("a capsule that ends within an entry")]
    Torn,
    #[error("a capsule of an IP version {0}")]
    Version(u8),
    #[error("a prefix longer than its address, or with bits after it")]
    Prefix,
    #[error("a request for no address, or without a number")]
    Question,
    #[error("routes that are not in order, or overlap")]
    Order,
    #[error("more entries in a capsule than permitted")]
    TooMany,
    #[error("a capsule of an unknown type")]
    Unknown,
}

/// An address or prefix with the number of its request; 0 without a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpAddressEntry {
    pub request_id: u64,
    pub prefix: IpPrefix,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IpCapsule {
    /// All addresses that the receiver may use.
    AddressAssign(Vec<IpAddressEntry>),
    /// Addresses that the sender wants; an unspecified address leaves the choice to the receiver.
    AddressRequest(Vec<IpAddressEntry>),
    /// All ranges that the sender accepts packets for.
    RouteAdvertisement(Vec<IpRange>),
}

impl IpCapsule {
    /// The capsule with its header.
    pub(crate) fn encode(&self) -> Bytes {
        let mut value = BytesMut::new();
        let kind = match self {
            Self::AddressAssign(entries) => {
                put_entries(&mut value, entries);
                ADDRESS_ASSIGN
            }
            Self::AddressRequest(entries) => {
                put_entries(&mut value, entries);
                ADDRESS_REQUEST
            }
            Self::RouteAdvertisement(ranges) => {
                for range in ranges {
                    value.put_u8(version(range.first()));
                    put_address(&mut value, range.first());
                    put_address(&mut value, range.last());
                    value.put_u8(ANY_PROTOCOL);
                }
                ROUTE_ADVERTISEMENT
            }
        };
        let mut capsule = BytesMut::with_capacity(value.len() + 9);
        varint::put(&mut capsule, kind);
        varint::put(&mut capsule, value.len() as u64);
        capsule.put(value);
        capsule.freeze()
    }

    pub(crate) fn decode(raw: &Raw) -> Result<Self, MalformedCapsule> {
        let mut value = raw.value.clone();
        match raw.kind {
            ADDRESS_ASSIGN => Ok(Self::AddressAssign(take_entries(&mut value)?)),
            ADDRESS_REQUEST => {
                let entries = take_entries(&mut value)?;
                // 4.7.2: numbers are not 0, and there is at least one entry.
                if entries.is_empty() || entries.iter().any(|entry| entry.request_id == 0) {
                    return Err(MalformedCapsule::Question);
                }
                Ok(Self::AddressRequest(entries))
            }
            ROUTE_ADVERTISEMENT => take_routes(&mut value).map(Self::RouteAdvertisement),
            _ => Err(MalformedCapsule::Unknown),
        }
    }
}

/// The number for all protocols. A route for a single protocol is decoded and skipped, because a
/// device cannot route by protocol.
const ANY_PROTOCOL: u8 = 0;

fn version(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 4,
        IpAddr::V6(_) => 6,
    }
}

fn put_address(out: &mut impl BufMut, address: IpAddr) {
    match address {
        IpAddr::V4(address) => out.put_slice(&address.octets()),
        IpAddr::V6(address) => out.put_slice(&address.octets()),
    }
}

fn put_entries(out: &mut impl BufMut, entries: &[IpAddressEntry]) {
    for entry in entries {
        varint::put(out, entry.request_id);
        out.put_u8(version(entry.prefix.network()));
        put_address(out, entry.prefix.network());
        out.put_u8(entry.prefix.length());
    }
}

fn take_byte(value: &mut Bytes) -> Result<u8, MalformedCapsule> {
    value.try_get_u8().map_err(|_| MalformedCapsule::Torn)
}

fn take_address(value: &mut Bytes, version: u8) -> Result<IpAddr, MalformedCapsule> {
    let torn = |_| MalformedCapsule::Torn;
    match version {
        4 => Ok(Ipv4Addr::from_bits(value.try_get_u32().map_err(torn)?).into()),
        6 => Ok(Ipv6Addr::from_bits(value.try_get_u128().map_err(torn)?).into()),
        other => Err(MalformedCapsule::Version(other)),
    }
}

fn take_entries(value: &mut Bytes) -> Result<Vec<IpAddressEntry>, MalformedCapsule> {
    let mut entries = Vec::new();
    while !value.is_empty() {
        if entries.len() == ADDRESSES_MAX {
            return Err(MalformedCapsule::TooMany);
        }
        let (request_id, used) = varint::read(value).ok_or(MalformedCapsule::Torn)?;
        value.advance(used);
        let version = take_byte(value)?;
        let network = take_address(value, version)?;
        let length = take_byte(value)?;
        let prefix = IpPrefix::new(network, length).ok_or(MalformedCapsule::Prefix)?;
        entries.push(IpAddressEntry { request_id, prefix });
    }
    Ok(entries)
}

fn take_routes(value: &mut Bytes) -> Result<Vec<IpRange>, MalformedCapsule> {
    let mut routes: Vec<IpRange> = Vec::new();
    let mut before: Option<(u8, u8, IpAddr)> = None;
    let mut count = 0;
    while !value.is_empty() {
        count += 1;
        if count > ROUTES_MAX {
            return Err(MalformedCapsule::TooMany);
        }
        let version = take_byte(value)?;
        let first = take_address(value, version)?;
        let last = take_address(value, version)?;
        let protocol = take_byte(value)?;
        let range = IpRange::new(first, last).ok_or(MalformedCapsule::Order)?;
        // 4.7.3: sorted by version, protocol and address, without overlaps.
        if before.is_some_and(|before| before >= (version, protocol, first)) {
            return Err(MalformedCapsule::Order);
        }
        before = Some((version, protocol, last));
        if protocol == ANY_PROTOCOL {
            routes.push(range);
        }
    }
    Ok(routes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn decode(wire: &Bytes) -> Result<IpCapsule, MalformedCapsule> {
        let (kind, used) = varint::read(wire).unwrap();
        let (length, more) = varint::read(&wire[used..]).unwrap();
        let value = wire.slice(used + more..);
        assert_eq!(value.len() as u64, length);
        IpCapsule::decode(&Raw { kind, value })
    }

    fn raw(kind: u64, value: &'static [u8]) -> Result<IpCapsule, MalformedCapsule> {
        let value = Bytes::from_static(value);
        IpCapsule::decode(&Raw { kind, value })
    }

    fn entry(request_id: u64, prefix: &str) -> IpAddressEntry {
        let prefix = prefix.parse().unwrap();
        IpAddressEntry { request_id, prefix }
    }

    fn range(first: &str, last: &str) -> IpRange {
        IpRange::new(first.parse().unwrap(), last.parse().unwrap()).unwrap()
    }

    #[test]
    fn capsules_survive_the_wire_as_the_rfc_has_them() {
        let asked = IpCapsule::AddressRequest(vec![entry(1, "0.0.0.0/32"), entry(2, "::/128")]);
        let wire = asked.encode();
        assert_eq!(wire[..9], [2, 26, 1, 4, 0, 0, 0, 0, 32]);
        assert_eq!(decode(&wire), Ok(asked));
        for capsule in [
            IpCapsule::AddressAssign(Vec::new()),
            IpCapsule::AddressAssign(vec![entry(0, "10.64.0.0/16"), entry(70, "fd00::7/128")]),
            IpCapsule::RouteAdvertisement(vec![
                range("0.0.0.0", "9.255.255.255"),
                range("11.0.0.0", "255.255.255.255"),
                range("::", "ffff::"),
            ]),
        ] {
            assert_eq!(decode(&capsule.encode()), Ok(capsule));
        }
        // A route for ICMP alone is skipped.
        let by_protocol = raw(
            3,
            &[4, 1, 0, 0, 0, 1, 0, 0, 9, 0, 4, 1, 0, 0, 0, 1, 0, 0, 9, 1],
        );
        let expected = IpCapsule::RouteAdvertisement(vec![range("1.0.0.0", "1.0.0.9")]);
        assert_eq!(by_protocol, Ok(expected));
    }

    #[test]
    fn malformed_capsules_are_refused() {
        for (kind, value, expected) in [
            (1, &[0][..], MalformedCapsule::Torn),
            (1, &[0, 4, 1, 2, 3, 4], MalformedCapsule::Torn),
            (1, &[0, 5, 1, 2, 3, 4, 32], MalformedCapsule::Version(5)),
            (1, &[0, 4, 1, 2, 3, 4, 33], MalformedCapsule::Prefix),
            (1, &[0, 4, 1, 2, 3, 4, 24], MalformedCapsule::Prefix),
            (2, &[], MalformedCapsule::Question),
            (2, &[0, 4, 0, 0, 0, 0, 32], MalformedCapsule::Question),
            (3, &[4, 1, 2, 3, 4, 1, 2, 3, 3, 0], MalformedCapsule::Order),
            (3, &[4, 1, 2, 3, 4, 1, 2, 3], MalformedCapsule::Torn),
            (
                3,
                &[4, 1, 0, 0, 0, 1, 0, 0, 9, 0, 4, 1, 0, 0, 9, 1, 0, 1, 0, 0],
                MalformedCapsule::Order,
            ),
            (
                3,
                &[4, 1, 0, 0, 0, 1, 0, 0, 9, 6, 4, 2, 0, 0, 9, 2, 0, 1, 0, 0],
                MalformedCapsule::Order,
            ),
            (7, &[], MalformedCapsule::Unknown),
        ] {
            assert_eq!(raw(kind, value), Err(expected), "{kind} {value:?}");
        }
        let many = vec![entry(1, "10.0.0.1/32"); ADDRESSES_MAX + 1];
        let many = decode(&IpCapsule::AddressAssign(many).encode());
        assert_eq!(many, Err(MalformedCapsule::TooMany));
    }

    #[test]
    fn random_bytes_are_refused_or_survive_the_wire() {
        for seed in 0..5_000 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            // Mostly plausible values, so that some capsules are valid.
            let length = rng.random_range(0..60);
            let bytes = (0..length).map(|_| match rng.random_range(0..4_u8) {
                0 => 4,
                1 => 6,
                2 => rng.random_range(0..33),
                _ => rng.random(),
            });
            let value = bytes.collect();
            let kind = rng.random_range(0..5);
            let raw = Raw { kind, value };
            if let Ok(capsule) = IpCapsule::decode(&raw) {
                assert_eq!(decode(&capsule.encode()), Ok(capsule), "{seed}");
            }
        }
    }
}
