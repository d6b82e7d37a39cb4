//! The time of the clock that stamps arrivals, as far as a reader can know it. Sans-IO.
//!
//! A reader that compares arrival times with its own wall clock takes an error of that clock for
//! silence. The newest arrival time is a lower bound of the stamping clock's present, and the
//! reader's monotonic clock continues it. Without arrivals the time goes on, so real silence grows.

const SECOND_US: i64 = 1_000_000;
/// Width of a bucket of the maximum filter. A bucket is left only while new arrivals come, so
/// silence forgets nothing.
const WINDOW_US: i64 = 600 * SECOND_US;

#[derive(Clone, Debug, Default)]
pub struct Arrivals {
    newest_us: i64,
    bucket: Option<Bucket>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    from_us: i64,
    current_us: i64,
    previous_us: i64,
}

impl Arrivals {
    /// Records the newest arrival time that is known at `monotonic_us`; returns the lower bound of
    /// the stamping clock.
    pub fn observe(&mut self, newest_us: i64, monotonic_us: i64) -> i64 {
        let offset_us = newest_us.saturating_sub(monotonic_us);
        let is_new = newest_us != self.newest_us;
        self.newest_us = newest_us;
        match &mut self.bucket {
            None => {
                self.bucket = Some(Bucket {
                    from_us: monotonic_us,
                    current_us: offset_us,
                    previous_us: offset_us,
                });
            }
            Some(bucket) if is_new && monotonic_us - bucket.from_us >= WINDOW_US => {
                *bucket = Bucket {
                    from_us: monotonic_us,
                    current_us: offset_us,
                    previous_us: bucket.current_us,
                };
            }
            Some(bucket) => bucket.current_us = bucket.current_us.max(offset_us),
        }
        let offset_us = self.bucket.map_or(offset_us, Bucket::offset_us);
        monotonic_us.saturating_add(offset_us)
    }

    /// The same without a new arrival; `None` before the first arrival.
    pub fn now_us(&self, monotonic_us: i64) -> Option<i64> {
        let offset_us = self.bucket.map(Bucket::offset_us)?;
        Some(monotonic_us.saturating_add(offset_us))
    }
}

impl Bucket {
    fn offset_us(self) -> i64 {
        self.current_us.max(self.previous_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = SECOND_US;
    const T0: i64 = 1_800_000_000 * S;

    #[test]
    fn the_readers_own_clock_does_not_matter() {
        let mut arrivals = Arrivals::default();
        for second in 0..3600 {
            let now_us = arrivals.observe(T0 + second * S, 7 * S + second * S);
            assert_eq!(now_us, T0 + second * S);
        }
    }

    #[test]
    fn silence_goes_on_however_long_it_is() {
        let mut arrivals = Arrivals::default();
        arrivals.observe(T0, 0);
        for second in 0..100_000 {
            assert_eq!(arrivals.observe(T0, second * S), T0 + second * S);
        }
    }

    #[test]
    fn a_stamping_clock_that_went_back_is_followed_in_two_windows() {
        let mut arrivals = Arrivals::default();
        arrivals.observe(T0, 0);
        for second in 1..=2 * WINDOW_US / S + 1 {
            arrivals.observe(T0 + (second - 3600) * S, second * S);
        }
        let at_us = 2 * WINDOW_US + 2 * S;
        let expected_us = T0 + at_us - 3600 * S;
        assert_eq!(arrivals.observe(expected_us, at_us), expected_us);
    }
}
