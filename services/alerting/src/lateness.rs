//! How late a reading reached the core if the device's clock may be wrong.
//!
//! Arrival minus device time is the delay plus the clock's error. The smallest difference over the
//! last one to two [`WINDOW_US`] is taken as the error, as one-way delay filters do. The rest of a
//! reading's difference is its lateness. A clock is trusted until proven wrong. An error that lasts
//! is learned within two windows. In doubt a reading is not late, so that its alert notifies.
//!
//! A gateway numbers a stream in the order of its readings. A higher number with an earlier gateway
//! time means that the gateway's clock was set back. The error then grows by as much at once.
//! Otherwise all later readings would count as late, and no person would be notified.
//!
//! Ingest has already corrected both clocks of a gateway that reports its time. Only a device's own
//! wrong clock remains.

use contracts::vitals::Sample;

/// One bucket of the minimum filter.
const WINDOW_US: i64 = 600_000_000;
/// A clock that goes back by more than this was set. Two readings taken at once may differ by less.
const STEP_US: i64 = 1_000_000;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Lateness {
    /// The newest reading that the gateway took, by its own clock.
    newest: Option<Taken>,
    bucket_from_us: Option<i64>,
    current_us: i64,
    previous_us: i64,
}

#[derive(Clone, Debug, PartialEq)]
struct Taken {
    stream: String,
    sequence: u64,
    gateway_us: i64,
    arrived_us: i64,
}

impl Lateness {
    /// Lateness of a sample that arrived at `arrived_us` by the core's clock.
    pub(crate) fn of(&mut self, sample: &Sample, arrived_us: i64) -> i64 {
        let taken_us = sample.gateway_time_us;
        if taken_us > 0 && sample.device_offset_us.is_none() {
            let mut passes = true;
            if let Some(newest) = &self.newest {
                let is_next = newest.stream == sample.stream && sample.sequence > newest.sequence;
                let back_us = newest.gateway_us.saturating_sub(taken_us);
                if is_next && back_us > STEP_US {
                    let passed_us = arrived_us.saturating_sub(newest.arrived_us).max(0);
                    self.step_back(back_us.saturating_add(passed_us));
                } else {
                    passes = back_us <= 0;
                }
            }
            if passes {
                self.newest = Some(Taken {
                    stream: sample.stream.clone(),
                    sequence: sample.sequence,
                    gateway_us: taken_us,
                    arrived_us,
                });
            }
        }
        self.observe(sample.device_time_us, arrived_us)
    }

    /// An excess does no harm, because the next reading that is less late corrects it.
    fn step_back(&mut self, by_us: i64) {
        self.current_us = self.current_us.saturating_add(by_us);
        self.previous_us = self.previous_us.saturating_add(by_us);
    }

    /// How far the clock is known to be behind.
    pub(crate) fn error_us(&self) -> i64 {
        self.current_us.min(self.previous_us)
    }

    /// Lateness of a reading that arrived at `arrived_us` by the core's clock.
    fn observe(&mut self, device_us: i64, arrived_us: i64) -> i64 {
        let difference = arrived_us.saturating_sub(device_us);
        match self.bucket_from_us {
            None => {
                self.bucket_from_us = Some(arrived_us);
                // A first contact after an outage is late, not wrong, so the difference itself does
                // not count.
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
        difference.saturating_sub(self.error_us())
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
        // A backlog of one hour arrives within a minute.
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
    fn a_clock_that_is_set_back_makes_nothing_late() {
        // Ahead and then corrected; right and then behind. The device uses the gateway's clock or a
        // right clock of its own.
        for (before, after) in [(HOUR, 0), (0, -HOUR), (HOUR, -HOUR)] {
            for own_clock in [false, true] {
                let mut lateness = Lateness::default();
                for second in 0..2400 {
                    let skew = if second < 1200 { before } else { after };
                    let sample = Sample {
                        stream: "heart-rate".into(),
                        sequence: 7 + second as u64,
                        device_time_us: 2 * HOUR + second * S + if own_clock { 0 } else { skew },
                        gateway_time_us: 2 * HOUR + second * S + skew,
                        ..Sample::default()
                    };
                    let late = lateness.of(&sample, 2 * HOUR + second * S + 20_000);
                    assert!(late < 2 * S, "{late} at {second} s, {before} {after}");
                }
            }
        }
    }

    #[test]
    fn what_a_sensor_kept_and_sends_later_stays_late() {
        let mut lateness = Lateness::default();
        let mut sample = Sample {
            stream: "heart-rate".into(),
            ..Sample::default()
        };
        for second in 0..100 {
            sample.sequence += 1;
            sample.gateway_time_us = 2 * HOUR + second * S;
            sample.device_time_us = sample.gateway_time_us;
            assert!(lateness.of(&sample, sample.gateway_time_us) < S);
        }
        sample.sequence += 1;
        sample.gateway_time_us += S;
        sample.device_time_us -= HOUR;
        assert!(lateness.of(&sample, sample.gateway_time_us) >= HOUR);
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
