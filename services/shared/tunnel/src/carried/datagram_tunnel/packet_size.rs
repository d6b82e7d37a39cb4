//! The largest IP packet that fits into one packet of every open path, for the MTU of a TUN device.
//! A larger one would travel as a capsule, behind repairs of the stream. Sans-IO.
//!
//! A new path begins with the smallest size of QUIC and finds its own within some round trips. So a
//! size counts only once it has held for a while; until then larger packets are late, not lost.

use std::time::{Duration, Instant};

use ip_packets::PACKET_BYTES_MIN;

/// Interval of looks at the paths.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Time that a smaller size must hold: longer than a new path looks for its size.
const FALL_AFTER: Duration = Duration::from_secs(1);

/// Time that a larger size must hold: a path that comes and goes changes nothing.
const RISE_AFTER: Duration = Duration::from_secs(3);

#[derive(Debug, Default)]
pub(crate) struct PacketSize {
    settled: Option<u16>,
    /// A size that differs, and since when.
    candidate: Option<(u16, Instant)>,
}

impl PacketSize {
    /// Takes what one packet of the paths carries now; returns a size that is new.
    pub(crate) fn look(&mut self, now: Instant, carried: usize) -> Option<u16> {
        let carried = u16::try_from(carried)
            .unwrap_or(u16::MAX)
            .max(PACKET_BYTES_MIN);
        let rises = self.settled.is_some_and(|settled| carried > settled);
        if self.settled == Some(carried) {
            self.candidate = None;
            return None;
        }
        let (size, since) = match self.candidate {
            Some((before, since)) if rises == self.settled.is_some_and(|it| before > it) => {
                // While a path looks for its packet size, it reports ever larger sizes.
                let size = match rises {
                    true => before.min(carried),
                    false => before.max(carried),
                };
                (size, since)
            }
            _ => (carried, now),
        };
        self.candidate = Some((size, since));
        let after = if rises { RISE_AFTER } else { FALL_AFTER };
        if now.saturating_duration_since(since) < after {
            return None;
        }
        self.candidate = None;
        self.settled = Some(size);
        Some(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks every 100 ms; returns the changes and their times in tenths of a second.
    fn changes(carried: impl IntoIterator<Item = usize>) -> Vec<(usize, u16)> {
        let (mut size, start) = (PacketSize::default(), Instant::now());
        let looks = carried.into_iter().enumerate();
        let look = |(tenth, carried)| {
            let now = start + Duration::from_millis(100) * tenth as u32;
            size.look(now, carried).map(|size| (tenth, size))
        };
        looks.filter_map(look).collect()
    }

    #[test]
    fn the_first_size_is_the_largest_found_within_a_second() {
        let looks = [[1_150; 3], [1_300; 3], [1_404; 3], [1_404; 3]];
        assert_eq!(changes(looks.concat()), [(10, 1_404)]);
    }

    #[test]
    fn a_path_that_joins_lowers_it_to_its_own_size_only() {
        let looks = [vec![1_404; 20], vec![1_150; 5], vec![1_324; 30]];
        assert_eq!(changes(looks.concat()), [(10, 1_404), (30, 1_324)]);
        // As large as the others.
        let looks = [vec![1_404; 20], vec![1_150; 8], vec![1_404; 30]];
        assert_eq!(changes(looks.concat()), [(10, 1_404)]);
    }

    #[test]
    fn it_rises_only_when_the_small_path_has_left_for_good() {
        let looks = [vec![1_324; 20], vec![1_404; 40]];
        assert_eq!(changes(looks.concat()), [(10, 1_324), (50, 1_404)]);
        let flaps = [vec![1_324; 20], vec![1_404; 25], vec![1_324; 5]];
        let looks = [flaps.concat(), vec![1_404; 25], vec![1_324; 5]];
        assert_eq!(changes(looks.concat()), [(10, 1_324)]);
    }

    #[test]
    fn it_is_never_below_the_minimum_of_ipv6() {
        assert_eq!(changes(vec![1_100; 20]), [(10, PACKET_BYTES_MIN)]);
        assert_eq!(changes(vec![0; 20]), [(10, PACKET_BYTES_MIN)]);
        assert_eq!(changes(vec![100_000; 20]), [(10, u16::MAX)]);
    }
}
