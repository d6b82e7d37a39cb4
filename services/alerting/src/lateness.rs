//! How late a reading reached the core, when the device's clock may be wrong.
//!
//! Arrival minus device time is the delay plus the clock's error. The smallest difference over the last
//! [`WINDOW_US`] to twice that is taken for the error, as one-way delay filters do; what a reading has above it is its
//! lateness. A clock is trusted until seen otherwise, and an error that lasts is learned within two windows. In doubt
//! a reading is not late, so that somebody is called.

/// One bucket of the minimum filter.
const WINDOW_US: i64 = 600_000_000;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Lateness {
    bucket_from_us: Option<i64>,
    current_us: i64,
    previous_us: i64,
}

impl Lateness {
    /// Lateness of a reading that arrived at `arrived_us` by the core's clock.
    pub(crate) fn observe(&mut self, device_us: i64, arrived_us: i64) -> i64 {
        let difference = arrived_us.saturating_sub(device_us);
        match self.bucket_from_us {
            None => {
                self.bucket_from_us = Some(arrived_us);
                // Not the difference itself: a first contact after an outage is late, not wrong.
                self.current_us = difference.min(0);
                self.previous_us = self.current_us;
            }
            Some(from_us) if arrived_us.saturating_sub(from_us) >= WINDOW_US => {
                self.previous_us = self.current_us;
                self.current_us = difference;
                self.bucket_from_us = Some(arrived_us);
            }
            Some(_) => self.current_us = self.current_us.min(difference),
        }
        difference - self.current_us.min(self.previous_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000;
    const HOUR: i64 = 3600 * S;

    #[test]
    fn a_backlog_is_late_until_it_has_caught_up() {
        let mut lateness = Lateness::default();
        for second in 0..100 {
            assert_eq!(lateness.observe(second * S, second * S + 50_000), 50_000);
        }
        // An hour's backlog arrives in a minute.
        for second in 100..3700 {
            let arrived = 3700 * S + second * S / 60;
            let late = lateness.observe(second * S, arrived);
            assert_eq!(late, arrived - second * S);
        }
        assert!(lateness.observe(3760 * S, 3761 * S) < 2 * S);
    }

    #[test]
    fn a_first_contact_may_be_late() {
        assert_eq!(Lateness::default().observe(0, HOUR), HOUR);
    }

    #[test]
    fn a_wrong_clock_is_learned() {
        for skew in [HOUR, -HOUR] {
            let mut lateness = Lateness::default();
            let mut late_s = 0;
            for second in 0..3600 {
                let late = lateness.observe(second * S - skew, second * S + 20_000);
                late_s = if late > 600 * S { second } else { late_s };
            }
            assert!(late_s <= 2 * 600, "still late after {late_s} s");
            assert!(
                skew > 0 || late_s == 0,
                "a clock ahead never makes a reading late"
            );
        }
    }
}
