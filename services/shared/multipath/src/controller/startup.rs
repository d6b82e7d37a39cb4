//! The first phase of a path. The window grows by the acknowledged bytes, which doubles it every
//! round, until the rate stops growing or a queue shows.
//!
//! A path may carry only pings at first. A queue that they cannot have made is of other senders.
//! It says nothing about the path's rate, so the start-up lasts until this sender adds to it.

use std::time::Duration;

/// Rounds with less than this growth that end the start-up.
const FLAT_ROUNDS: u32 = 3;
const GROWTH: f64 = 1.25;
/// Acknowledgements in a row that saw a queue and end the start-up.
const QUEUED_SAMPLES: u32 = 4;
/// A round trip has seen a queue when it is longer by a quarter and by this time, or by the time of
/// two packets.
const QUEUE_PART: u32 = 4;
const QUEUE_MIN: Duration = Duration::from_millis(4);
const QUEUE_PACKETS: f64 = 2.0;
/// A queue is known to be of others only while at most so many packets are in flight. With more, a
/// rate that falls would look the same.
const FEW_PACKETS: u64 = 4;

#[derive(Debug, Clone)]
pub(super) struct Startup {
    window: u64,
    /// Rate of the last round that grew.
    rate: f64,
    flat_rounds: u32,
    queued_samples: u32,
    /// Acknowledgements that saw a queue of others, since the last one without a queue.
    foreign_samples: u32,
    /// The last round trip through such a queue.
    others_rtt: Option<Duration>,
}

impl Startup {
    pub(super) fn new(window: u64) -> Self {
        Self {
            window,
            rate: 0.0,
            flat_rounds: 0,
            queued_samples: 0,
            foreign_samples: 0,
            others_rtt: None,
        }
    }

    /// Whether other senders keep a queue.
    pub(super) fn has_met_others(&self) -> bool {
        self.others_rtt.is_some()
    }

    pub(super) fn window(&self) -> u64 {
        self.window
    }

    pub(super) fn acked(&mut self, bytes: u64) {
        self.window += bytes;
    }

    /// Whether the rate has stopped growing.
    pub(super) fn is_over_after_round(&mut self, rate: f64) -> bool {
        if rate >= self.rate * GROWTH {
            self.rate = rate;
            self.flat_rounds = 0;
        } else {
            self.flat_rounds += 1;
        }
        self.flat_rounds >= FLAT_ROUNDS
    }

    /// Whether a queue of the own packets has shown. `own_bytes` were in flight with the packet of
    /// this round trip.
    pub(super) fn is_over_after_round_trip(
        &mut self,
        rtt: Duration,
        own_bytes: u64,
        rtt_min: Duration,
        rate: f64,
        mtu: u64,
    ) -> bool {
        let time = |bytes: f64| Duration::from_secs_f64(bytes / rate.max(mtu as f64));
        let least = time(QUEUE_PACKETS * mtu as f64).max(QUEUE_MIN);
        let is_above = |base: Duration| rate > 0.0 && rtt > base + base / QUEUE_PART + least;
        if !is_above(rtt_min) {
            self.queued_samples = 0;
            self.foreign_samples = 0;
            self.others_rtt = None;
            return false;
        }
        if own_bytes <= FEW_PACKETS * mtu && rtt > rtt_min + time(own_bytes as f64) {
            self.queued_samples = 0;
            self.foreign_samples += 1;
            if self.foreign_samples >= QUEUED_SAMPLES {
                self.others_rtt = Some(rtt);
            }
            return false;
        }
        if is_above(self.others_rtt.unwrap_or(rtt_min)) {
            self.queued_samples += 1;
        } else {
            self.queued_samples = 0;
        }
        self.queued_samples >= QUEUED_SAMPLES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_window_doubles_until_the_rate_stays() {
        let mut startup = Startup::new(1_000);
        for rate in [1e5, 2e5, 4e5, 4.9e5, 4.9e5] {
            assert!(!startup.is_over_after_round(rate));
            startup.acked(startup.window());
        }
        assert_eq!(startup.window(), 32_000);
        assert!(startup.is_over_after_round(4.9e5));
    }

    #[test]
    fn a_queue_is_four_late_samples_in_a_row() {
        let mut startup = Startup::new(1_000);
        let mut is_over =
            |rtt: Duration| startup.is_over_after_round_trip(rtt, 30_000, 20 * MS, 1e6, 1_000);
        for rtt in [30, 30, 30, 25, 30, 30, 30] {
            assert!(!is_over(rtt * MS));
        }
        assert!(is_over(30 * MS));
    }

    #[test]
    fn a_queue_of_others_is_no_end_until_the_own_packets_add_to_it() {
        let mut startup = Startup::new(1_000);
        let mut sees = |rtt: u32, own_bytes: u64| {
            let is_over =
                startup.is_over_after_round_trip(rtt * MS, own_bytes, 100 * MS, 1e5, 1_000);
            (is_over, startup.has_met_others())
        };
        for number in 1..=20 {
            assert_eq!(sees(500, 100), (false, number >= 4), "pings");
        }
        for _ in 0..20 {
            assert_eq!(sees(600, 60_000), (false, true), "their queue");
        }
        for _ in 0..3 {
            assert_eq!(sees(700, 70_000), (false, true));
        }
        assert_eq!(sees(700, 70_000), (true, true));
        assert_eq!(sees(100, 100), (false, false), "their queue is gone");
        for number in 1..=4 {
            // Four packets take 40 ms at this rate.
            assert_eq!(sees(160, 6_000), (number == 4, false), "own packets");
        }
    }
}
