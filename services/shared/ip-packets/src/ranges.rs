//! Sets of addresses, as sorted ranges.

use std::net::IpAddr;

use crate::range::{IpRange, bits};

/// Sorted ranges that neither overlap nor touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IpRanges(Vec<IpRange>);

impl IpRanges {
    pub fn add(&mut self, range: IpRange) {
        let mut whole = range;
        self.0.retain(|other| {
            let touches = other.width == whole.width
                && other.first <= whole.last.saturating_add(1)
                && whole.first <= other.last.saturating_add(1);
            if touches {
                whole.first = whole.first.min(other.first);
                whole.last = whole.last.max(other.last);
            }
            !touches
        });
        let at = self.0.partition_point(|other| *other < whole);
        self.0.insert(at, whole);
    }

    pub fn remove(&mut self, range: IpRange) {
        let parts = self.0.iter().flat_map(|&it| {
            if it.width != range.width || it.last < range.first || it.first > range.last {
                return [Some(it), None];
            }
            let before = (it.first < range.first).then(|| IpRange {
                last: range.first - 1,
                ..it
            });
            let behind = (it.last > range.last).then(|| IpRange {
                first: range.last + 1,
                ..it
            });
            [before, behind]
        });
        self.0 = parts.flatten().collect();
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        let (bits, width) = bits(address);
        let at = (self.0).partition_point(|range| (range.width, range.last) < (width, bits));
        self.0.get(at).is_some_and(|range| range.contains(address))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn as_slice(&self) -> &[IpRange] {
        &self.0
    }
}

impl FromIterator<IpRange> for IpRanges {
    fn from_iter<T: IntoIterator<Item = IpRange>>(ranges: T) -> Self {
        let mut all = Self::default();
        for range in ranges {
            all.add(range);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::{prefix::IpPrefix, range::address};

    fn prefix(text: &str) -> IpPrefix {
        text.parse().unwrap()
    }

    #[test]
    fn a_range_is_the_fewest_prefixes() {
        let range = |first: &str, last: &str| {
            IpRange::new(first.parse().unwrap(), last.parse().unwrap()).unwrap()
        };
        for (range, expected) in [
            (range("0.0.0.0", "255.255.255.255"), &["0.0.0.0/0"][..]),
            (
                range("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
                &["::/0"],
            ),
            (range("10.0.0.1", "10.0.0.1"), &["10.0.0.1/32"]),
            (
                range("10.0.0.1", "10.0.0.6"),
                &["10.0.0.1/32", "10.0.0.2/31", "10.0.0.4/31", "10.0.0.6/32"],
            ),
            (
                range("11.0.0.0", "100.63.255.255"),
                &[
                    "11.0.0.0/8",
                    "12.0.0.0/6",
                    "16.0.0.0/4",
                    "32.0.0.0/3",
                    "64.0.0.0/3",
                    "96.0.0.0/6",
                    "100.0.0.0/10",
                ],
            ),
        ] {
            let expected: Vec<_> = expected.iter().map(|text| prefix(text)).collect();
            assert_eq!(range.prefixes(), expected);
        }
        assert_eq!(
            IpRange::new("10.0.0.2".parse().unwrap(), "10.0.0.1".parse().unwrap()),
            None
        );
        assert_eq!(
            IpRange::new("::".parse().unwrap(), "10.0.0.1".parse().unwrap()),
            None
        );
    }

    /// Compared with a set of single addresses.
    #[test]
    fn sets_hold_what_was_added_and_not_removed() {
        for seed in 0..300 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let (mut ranges, mut known) = (IpRanges::default(), [[false; 64]; 2]);
            // The low end of one version and the high end of the other, where arithmetic must not
            // overflow.
            let widths = [(32, 0), (128, u128::MAX - 63)];
            for _ in 0..30 {
                let version = rng.random_range(0..2_usize);
                let (width, from) = widths[version];
                let first = rng.random_range(0..64_usize);
                let last = rng.random_range(first..64.min(first + 20));
                let adds = rng.random_bool(0.6);
                known[version][first..=last].fill(adds);
                let range = IpRange::within(width, from + first as u128, from + last as u128);
                match adds {
                    true => ranges.add(range),
                    false => ranges.remove(range),
                }
            }
            for ((width, from), known) in widths.iter().zip(known) {
                for (offset, known) in known.iter().enumerate() {
                    let address = address(from + offset as u128, *width);
                    assert_eq!(ranges.contains(address), *known, "{seed} {address}");
                    let by_prefix = ranges.as_slice().iter().flat_map(IpRange::prefixes);
                    let count = by_prefix.filter(|prefix| prefix.contains(address)).count();
                    assert_eq!(count, usize::from(*known), "{seed} {address}");
                }
            }
            for pair in ranges.as_slice().windows(2) {
                let apart = pair[0].width < pair[1].width || pair[0].last + 1 < pair[1].first;
                assert!(apart, "{seed}");
            }
        }
    }
}
