//! How late something was, in a histogram of fixed size: the measure of whether a run in real time
//! may be believed.

use std::time::Duration;

use serde::Serialize;

/// Width of one bucket, and how many there are: 10 us up to 50 ms; what is later counts in the last
/// one.
const BUCKET: Duration = Duration::from_micros(10);
const BUCKETS: usize = 5_000;

#[derive(Debug, Clone)]
pub struct Lateness {
    buckets: Vec<u32>,
    count: u64,
    max: Duration,
}

impl Default for Lateness {
    fn default() -> Self {
        Self {
            buckets: vec![0; BUCKETS],
            count: 0,
            max: Duration::ZERO,
        }
    }
}

/// In milliseconds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct LatenessReport {
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

impl Lateness {
    pub fn add(&mut self, late: Duration) {
        let bucket = (late.as_nanos() / BUCKET.as_nanos()) as usize;
        self.buckets[bucket.min(BUCKETS - 1)] += 1;
        self.count += 1;
        self.max = self.max.max(late);
    }

    /// The upper end of the bucket that holds the sample at `share`; the maximum when that is the
    /// last bucket.
    pub fn percentile(&self, share: f64) -> Duration {
        let rank = ((share * self.count as f64).ceil() as u64).max(1);
        let mut seen = 0;
        for (index, &count) in self.buckets.iter().enumerate() {
            seen += u64::from(count);
            if seen >= rank {
                return if index == BUCKETS - 1 {
                    self.max
                } else {
                    (BUCKET * (index as u32 + 1)).min(self.max)
                };
            }
        }
        self.max
    }

    pub fn report(&self) -> LatenessReport {
        let ms = |late: Duration| late.as_secs_f64() * 1e3;
        LatenessReport {
            p50_ms: ms(self.percentile(0.5)),
            p99_ms: ms(self.percentile(0.99)),
            max_ms: ms(self.max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_sample() {
        let mut lateness = Lateness::default();
        assert_eq!(lateness.percentile(0.99), Duration::ZERO);
        for us in 1..=1000 {
            lateness.add(Duration::from_micros(us));
        }
        lateness.add(Duration::from_secs(1));
        assert_eq!(lateness.percentile(0.5), Duration::from_micros(510));
        assert_eq!(lateness.percentile(0.99), Duration::from_micros(1000));
        assert_eq!(lateness.percentile(1.0), Duration::from_secs(1));
    }
}
