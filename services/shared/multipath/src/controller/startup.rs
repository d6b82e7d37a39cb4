//! The first phase of a path. The window grows by the acknowledged bytes, which doubles it every
//! round, until the rate stops growing or a queue shows.

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

#[derive(Debug, Clone)]
pub(super) struct Startup {
    window: u64,
    /// Rate of the last round that grew.
    rate: f64,
    flat_rounds: u32,
    queued_samples: u32,
}

impl Startup {
    pub(super) fn new(window: u64) -> Self {
        Self {
            window,
            rate: 0.0,
            flat_rounds: 0,
            queued_samples: 0,
        }
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

    /// Whether a queue has shown.
    pub(super) fn is_over_after_round_trip(
        &mut self,
        rtt: Duration,
        rtt_min: Duration,
        rate: f64,
        mtu: u64,
    ) -> bool {
        let packets = Duration::from_secs_f64(QUEUE_PACKETS * mtu as f64 / rate.max(mtu as f64));
        let queue = rtt_min / QUEUE_PART + packets.max(QUEUE_MIN);
        if rtt > rtt_min + queue && rate > 0.0 {
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
            |rtt: Duration| startup.is_over_after_round_trip(rtt, 20 * MS, 1e6, 1_000);
        for rtt in [30, 30, 30, 25, 30, 30, 30] {
            assert!(!is_over(rtt * MS));
        }
        assert!(is_over(30 * MS));
    }
}
