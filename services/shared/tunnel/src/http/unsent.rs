//! The datagrams that the transport of one connection holds unsent. The transport sends them before
//! all streams, so they are as few as keep the paths busy: what all paths send in [`AHEAD`].

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::transport::UNSENT_BYTES_MAX;

/// Time that unsent datagrams take at the measured rate of all paths. An urgent stream waits so
/// long for them.
const AHEAD: Duration = Duration::from_millis(4);

/// Longest datagram in a frame, and unsent bytes at any rate.
pub(super) const LENGTH_MAX: usize = 1_472;

/// Unsent bytes at the highest rate, about two calls of the system with ten packets each.
const BYTES_MAX: usize = 28 * 1024;

/// Unsent datagrams, however short.
const COUNT_MAX: usize = 512;

/// Memory of one datagram in the transport beside its payload.
pub(super) const OVERHEAD_BYTES: usize = size_of::<Bytes>();

const _: () = assert!(BYTES_MAX + COUNT_MAX * OVERHEAD_BYTES <= UNSENT_BYTES_MAX);

/// Time without a datagram that leaves after which a datagram that is too large for the paths keeps
/// the others back.
const STUCK_AFTER: Duration = Duration::from_millis(500);

/// Lengths of the unsent datagrams in their order. The transport reports only the sum of bytes.
#[derive(Debug, Default)]
pub(super) struct Unsent {
    lengths: VecDeque<usize>,
    bytes: usize,
    /// When a datagram left last, or came when there was none.
    moved_at: Option<Instant>,
}

impl Unsent {
    /// The transport has so many bytes left, and sends in order.
    pub(super) fn follow(&mut self, now: Instant, left_bytes: usize) {
        if self.bytes > left_bytes || self.lengths.is_empty() {
            self.moved_at = Some(now);
        }
        while self.bytes > left_bytes
            && let Some(length) = self.lengths.pop_front()
        {
            self.bytes -= length;
        }
    }

    /// Whether no path can send the datagram that leaves next. `length_max` takes the connection's
    /// lock, so it is called only if nothing has moved for long.
    pub(super) fn is_stuck(&self, now: Instant, length_max: impl FnOnce() -> usize) -> bool {
        let Some(next) = self.lengths.front() else {
            return false;
        };
        let since = self.moved_at.map(|at| now.saturating_duration_since(at));
        since > Some(STUCK_AFTER) && *next > length_max()
    }

    pub(super) fn add(&mut self, length: usize) {
        self.lengths.push_back(length);
        self.bytes += length;
    }

    /// Whether a burst that begins with a datagram of this length may be sent. More than one packet
    /// waits until half of it has left, so that bursts stay large.
    pub(super) fn may_begin(&self, length: usize, rate_bytes_per_s: f64) -> bool {
        let begin_below = LENGTH_MAX.max(bytes_ahead(rate_bytes_per_s) / 2);
        self.bytes + length <= begin_below && self.lengths.len() < COUNT_MAX
    }

    /// Longest datagram with which a burst of `own_bytes` may go on; `None`: not even an empty one.
    /// Its request shares the room with others.
    pub(super) fn room(
        &self,
        rate_bytes_per_s: f64,
        own_bytes: usize,
        sharing: usize,
    ) -> Option<usize> {
        let ahead = bytes_ahead(rate_bytes_per_s);
        let of_all = ahead.checked_sub(self.bytes)?;
        let share = (ahead / sharing.max(1)).max(LENGTH_MAX);
        let of_burst = share.checked_sub(own_bytes)?;
        (self.lengths.len() < COUNT_MAX).then_some(of_all.min(of_burst))
    }

    /// The transport has refused the last `count` datagrams.
    pub(super) fn take_back(&mut self, count: usize) {
        for _ in 0..count {
            self.bytes -= self.lengths.pop_back().unwrap_or(0);
        }
    }
}

fn bytes_ahead(rate_bytes_per_s: f64) -> usize {
    let ahead = rate_bytes_per_s * AHEAD.as_secs_f64();
    (ahead as usize).clamp(LENGTH_MAX, BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: f64 = 1e9;
    const SLOW: f64 = 1e5;

    fn burst(unsent: &mut Unsent, length: usize, rate: f64) -> usize {
        shared_burst(unsent, length, rate, 1)
    }

    fn shared_burst(unsent: &mut Unsent, length: usize, rate: f64, sharing: usize) -> usize {
        if !unsent.may_begin(length, rate) {
            return 0;
        }
        unsent.add(length);
        let mut count = 1;
        while let Some(room) = unsent.room(rate, count * length, sharing)
            && length <= room
        {
            unsent.add(length);
            count += 1;
        }
        count
    }

    #[test]
    fn requests_that_share_the_room_have_a_part_each() {
        let mut unsent = Unsent::default();
        assert_eq!(shared_burst(&mut unsent, 1_000, FAST, 4), 7);
        assert_eq!(shared_burst(&mut unsent, 1_000, FAST, 4), 7);
        assert_eq!(shared_burst(&mut unsent, 1_000, FAST, 4), 0);
        unsent = Unsent::default();
        assert_eq!(shared_burst(&mut unsent, 1_000, FAST, 100), 1);
    }

    #[test]
    fn a_datagram_that_no_path_can_send_is_found_when_nothing_moves() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut unsent = Unsent::default();
        unsent.follow(at(0), 0);
        for length in [1_400, 100] {
            unsent.add(length);
        }
        unsent.follow(at(700), 1_500);
        assert!(unsent.is_stuck(at(700), || 1_200));
        assert!(!unsent.is_stuck(at(700), || 1_400), "it fits");
        assert!(!unsent.is_stuck(at(400), || 1_200), "too early");
        unsent.follow(at(800), 100);
        assert!(!unsent.is_stuck(at(2_000), || 1_200), "the next is short");
    }

    #[test]
    fn a_slow_connection_holds_one_packet_and_a_fast_one_what_leaves_in_the_time_ahead() {
        for (rate, long) in [(0.0, 1), (SLOW, 1), (2.5e6, 7), (FAST, 20)] {
            let mut unsent = Unsent::default();
            assert_eq!(burst(&mut unsent, 1_400, rate), long, "at {rate}");
            assert_eq!(burst(&mut unsent, 1_400, rate), 0, "at {rate}");
        }
        assert_eq!(burst(&mut Unsent::default(), 100, SLOW), 14);
    }

    #[test]
    fn the_next_burst_begins_when_half_has_left() {
        let mut unsent = Unsent::default();
        let all = burst(&mut unsent, 1_400, FAST);
        unsent.follow(Instant::now(), (all - 5) * 1_400);
        assert_eq!(burst(&mut unsent, 1_400, FAST), 0);
        unsent.follow(Instant::now(), 9 * 1_400);
        assert_eq!(burst(&mut unsent, 1_400, FAST), all - 9);
    }

    #[test]
    fn no_number_of_short_datagrams_fills_the_memory() {
        let mut unsent = Unsent::default();
        for length in [0, 2] {
            assert_eq!(burst(&mut unsent, length, FAST), COUNT_MAX);
            assert_eq!(burst(&mut unsent, length, FAST), 0);
            unsent = Unsent::default();
        }
        burst(&mut unsent, 2, FAST);
        unsent.follow(Instant::now(), 0);
        assert_eq!(unsent.bytes, 0);
        assert_eq!(burst(&mut unsent, LENGTH_MAX, FAST), 19);
    }

    #[test]
    fn datagrams_that_the_transport_dropped_out_of_order_are_forgotten_with_the_others() {
        let mut unsent = Unsent::default();
        for length in [1_000, 1_400, 1_000] {
            unsent.add(length);
        }
        unsent.follow(Instant::now(), 2_000);
        assert!(unsent.bytes <= 2_000);
        unsent.add(500);
        unsent.take_back(1);
        assert!(unsent.bytes <= 2_000);
        unsent.follow(Instant::now(), 0);
        assert!(unsent.lengths.is_empty());
    }
}
