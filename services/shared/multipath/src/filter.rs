//! Windowed extremes: the largest bandwidth of the last rounds, the smallest round-trip time of the
//! last seconds.
//!
//! Each keeps at most three candidates (best, second best of the younger part, newest), as in
//! Kathleen Nichols' windowed filter. Memory is constant, and when the best expires a recent one is
//! at hand.

use std::time::{Duration, Instant};

/// Largest value over a sliding window counted in rounds.
#[derive(Debug, Clone)]
pub(crate) struct MaxFilter {
    window_rounds: u64,
    samples: [(u64, f64); 3],
}

impl MaxFilter {
    pub(crate) fn new(window_rounds: u64) -> Self {
        Self {
            window_rounds,
            samples: [(0, 0.0); 3],
        }
    }

    pub(crate) fn get(&self) -> f64 {
        self.samples[0].1
    }

    pub(crate) fn update(&mut self, round: u64, value: f64) {
        let sample = (round, value);
        if value >= self.samples[0].1
            || round.saturating_sub(self.samples[2].0) > self.window_rounds
        {
            self.samples = [sample; 3];
            return;
        }
        if value >= self.samples[1].1 {
            self.samples[1] = sample;
            self.samples[2] = sample;
        } else if value >= self.samples[2].1 {
            self.samples[2] = sample;
        }
        let age = round.saturating_sub(self.samples[0].0);
        if age > self.window_rounds {
            self.samples = [self.samples[1], self.samples[2], sample];
            if round.saturating_sub(self.samples[0].0) > self.window_rounds {
                self.samples = [self.samples[1], self.samples[2], sample];
            }
        } else if self.samples[1].0 == self.samples[0].0 && age > self.window_rounds / 4 {
            self.samples[1] = sample;
            self.samples[2] = sample;
        } else if self.samples[2].0 == self.samples[1].0 && age > self.window_rounds / 2 {
            self.samples[2] = sample;
        }
    }
}

/// Smallest round-trip time since the last restart of the filter.
///
/// The owner restarts the filter after an RTT probe or a change of the acknowledgements' route.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MinRtt {
    value: Option<Duration>,
    since: Instant,
}

impl MinRtt {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            value: None,
            since: now,
        }
    }

    pub(crate) fn get(&self) -> Option<Duration> {
        self.value
    }

    /// When the current minimum was last confirmed (a sample at most 1/64 above it counts).
    pub(crate) fn confirmed(&self) -> Instant {
        self.since
    }

    pub(crate) fn update(&mut self, now: Instant, rtt: Duration) {
        match self.value {
            Some(value) if rtt > value + value / 64 => {}
            Some(value) => {
                self.value = Some(value.min(rtt));
                self.since = now;
            }
            None => {
                self.value = Some(rtt);
                self.since = now;
            }
        }
    }

    pub(crate) fn replace(&mut self, now: Instant, rtt: Duration) {
        self.value = Some(rtt);
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_filter_forgets_a_peak_after_its_window() {
        let mut filter = MaxFilter::new(4);
        filter.update(1, 100.0);
        for round in 2..=5 {
            filter.update(round, 10.0);
            assert_eq!(filter.get(), 100.0);
        }
        filter.update(6, 10.0);
        assert_eq!(filter.get(), 10.0);
    }

    #[test]
    fn max_filter_falls_back_to_the_best_of_the_younger_part() {
        let mut filter = MaxFilter::new(4);
        filter.update(1, 100.0);
        filter.update(3, 60.0);
        filter.update(4, 20.0);
        filter.update(6, 20.0);
        assert_eq!(filter.get(), 60.0);
    }

    #[test]
    fn min_rtt_keeps_the_smallest_and_remembers_its_confirmation() {
        let start = Instant::now();
        let mut filter = MinRtt::new(start);
        filter.update(start, Duration::from_millis(50));
        let later = start + Duration::from_secs(1);
        filter.update(later, Duration::from_millis(70));
        assert_eq!(filter.get(), Some(Duration::from_millis(50)));
        assert_eq!(filter.confirmed(), start);
        filter.update(later, Duration::from_micros(50_100));
        assert_eq!(filter.get(), Some(Duration::from_millis(50)));
        assert_eq!(filter.confirmed(), later);
    }
}
