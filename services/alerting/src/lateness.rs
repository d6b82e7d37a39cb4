//! How late a reading reached the core if the device's clock may be wrong.
//!
//! Arrival minus device time is the delay plus the clock's error. The smallest difference over the
//! last one to two [`WINDOW_US`] is taken as the error, as one-way delay filters do. The rest of a
//! reading's difference is its lateness. An error that lasts is learned within two windows.
//!
//! In doubt a reading is not late, so that its alert notifies:
//! - At the first contact nothing is known of a device's clock. Only the wait at the gateway counts
//!   as lateness, where ingest has checked the gateway's clock. The rest may be the clock's error.
//! - A known clock may be set back. Its readings then seem late, but follow each other at the pace
//!   of time. Stored readings come faster or in another order. After [`CERTAIN_AFTER_US`] at that
//!   pace the difference counts as the error.
//!
//! A gateway numbers a stream in the order of its readings. A higher number with an earlier gateway
//! time means that the gateway's clock was set back. The error then grows by as much at once.
//! Otherwise all later readings would count as late, and no person would be notified.
//!
//! Ingest has already corrected both clocks of a gateway that reports its time. Only a device's own
//! wrong clock remains. Learned clocks are stored with the state of the rules.

use contracts::vitals::{EdgeAlert, Sample};
use serde::{Deserialize, Serialize};

/// One bucket of the minimum filter.
const WINDOW_US: i64 = 600_000_000;
/// A clock that goes back by more than this was set. Two readings taken at once may differ by less.
const STEP_US: i64 = 1_000_000;
/// Lateness beyond the wait at the gateway from which a clock is in doubt.
const DOUBT_FROM_US: i64 = 30_000_000;
/// Readings at the pace of time for this long show that their clock was set back.
const CERTAIN_AFTER_US: i64 = 20_000_000;
/// Tolerance of that pace: a sensor collects readings before it sends, and paths take time.
const PACE_SLACK_US: u64 = 6_000_000;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Lateness {
    /// The newest reading that the gateway took, by its own clock.
    newest: Option<Taken>,
    bucket_from_us: Option<i64>,
    current_us: i64,
    previous_us: i64,
    doubt: Option<Doubt>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Taken {
    stream: String,
    sequence: u64,
    gateway_us: i64,
    arrived_us: i64,
}

/// The first of the readings that seem late and follow each other at the pace of time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Doubt {
    device_us: i64,
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
        let waited_us = match sample.device_offset_us {
            Some(offset_us) if taken_us > 0 => {
                arrived_us.saturating_sub(taken_us.saturating_add(offset_us))
            }
            _ => 0,
        };
        self.observe(sample.device_time_us, arrived_us, waited_us)
    }

    /// An excess does no harm, because the next reading that is less late corrects it.
    fn step_back(&mut self, by_us: i64) {
        self.current_us = self.current_us.saturating_add(by_us);
        self.previous_us = self.previous_us.saturating_add(by_us);
    }

    /// How far the clock is known to be behind.
    fn error_us(&self) -> i64 {
        self.current_us.min(self.previous_us)
    }

    /// Lateness of a reading that arrived at `arrived_us` by the core's clock. `waited_us`: since
    /// the gateway took it, as far as that is certain.
    fn observe(&mut self, device_us: i64, arrived_us: i64, waited_us: i64) -> i64 {
        let difference = arrived_us.saturating_sub(device_us);
        match self.bucket_from_us {
            None => {
                self.bucket_from_us = Some(arrived_us);
                let late_us = waited_us.clamp(0, difference.max(0));
                self.set(difference.saturating_sub(late_us));
            }
            Some(from_us) if arrived_us.saturating_sub(from_us) >= WINDOW_US => {
                self.previous_us = self.current_us;
                self.current_us = difference;
                self.bucket_from_us = Some(arrived_us);
            }
            Some(_) => self.current_us = self.current_us.min(difference),
        }
        let late_us = difference.saturating_sub(self.error_us());
        let waited_us = waited_us.clamp(0, late_us.max(0));
        if self.is_set_back(device_us, arrived_us, late_us.saturating_sub(waited_us)) {
            self.set(difference.saturating_sub(waited_us));
        }
        difference.saturating_sub(self.error_us())
    }

    fn set(&mut self, error_us: i64) {
        self.current_us = error_us;
        self.previous_us = error_us;
        self.doubt = None;
    }

    fn is_set_back(&mut self, device_us: i64, arrived_us: i64, unexplained_us: i64) -> bool {
        if unexplained_us <= DOUBT_FROM_US {
            self.doubt = None;
            return false;
        }
        let first = Doubt {
            device_us,
            arrived_us,
        };
        let doubt = self.doubt.get_or_insert(first);
        let passed_us = arrived_us.saturating_sub(doubt.arrived_us);
        let went_us = device_us.saturating_sub(doubt.device_us);
        if went_us.abs_diff(passed_us) > PACE_SLACK_US {
            *doubt = first;
            return false;
        }
        passed_us >= CERTAIN_AFTER_US
    }
}

/// Lateness of an alert of the edge. `clock`: what is known of its device's clock. Without it only
/// the wait at the gateway counts.
pub(crate) fn of_edge_alert(clock: Option<&Lateness>, edge: &EdgeAlert, arrived_us: i64) -> i64 {
    let difference = arrived_us.saturating_sub(edge.time_us);
    match clock {
        Some(clock) => difference.saturating_sub(clock.error_us().max(0)),
        // 0: a gateway of an older version.
        None if edge.gateway_time_us == 0 => difference,
        None => difference.min(arrived_us.saturating_sub(edge.gateway_time_us)),
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
            assert_eq!(
                lateness.observe(second * S, second * S + 50_000, 50_000),
                50_000
            );
        }
        // A backlog of one hour arrives within a minute.
        for second in 100..3700 {
            let arrived = 3700 * S + second * S / 60;
            let late = arrived - second * S;
            assert_eq!(lateness.observe(second * S, arrived, late), late);
        }
        assert!(lateness.observe(3760 * S, 3761 * S, S) < 2 * S);
    }

    #[test]
    fn at_the_first_contact_only_the_wait_at_the_gateway_is_late() {
        assert_eq!(Lateness::default().observe(0, HOUR, 0), 0);
        assert_eq!(Lateness::default().observe(0, HOUR, HOUR), HOUR);
        // The gateway's clock is ahead, or further behind than the reading is old.
        assert_eq!(Lateness::default().observe(0, HOUR, -HOUR), 0);
        assert_eq!(Lateness::default().observe(0, S, HOUR), S);
        // A backlog of a gateway that is new here, from a device that is ten minutes behind.
        let mut lateness = Lateness::default();
        for second in 0..1800 {
            let arrived = HOUR + second * S / 60;
            let waited = arrived - second * S;
            assert_eq!(
                lateness.observe((second - 600) * S, arrived, waited),
                waited
            );
        }
        assert!(lateness.observe(HOUR - 500 * S, HOUR + 100 * S, 0) <= 0);
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
            device_offset_us: Some(0),
            ..Sample::default()
        };
        for second in 0..100 {
            sample.sequence += 1;
            sample.gateway_time_us = 2 * HOUR + second * S;
            sample.device_time_us = sample.gateway_time_us;
            assert!(lateness.of(&sample, sample.gateway_time_us) < S);
        }
        // Twice as fast as they were measured, then at that pace between new ones.
        for second in 0..1200 {
            sample.gateway_time_us += S;
            sample.device_time_us = HOUR + second * if second < 600 { 2 * S } else { S };
            let now_us = sample.gateway_time_us;
            assert!(lateness.of(&sample, now_us) >= HOUR / 2, "{second} s");
            if second >= 600 {
                sample.device_time_us = now_us;
                assert!(lateness.of(&sample, now_us) < S);
            }
        }
    }

    /// Lateness in seconds of a second's reading, whose clock is behind by `behind_s`.
    fn late_s(lateness: &mut Lateness, second: i64, behind_s: i64) -> i64 {
        let now_us = 2 * HOUR + second * S;
        let sample = Sample {
            stream: "heart-rate".into(),
            sequence: second as u64 + 1,
            device_time_us: now_us - behind_s * S,
            gateway_time_us: now_us,
            device_offset_us: Some(0),
            ..Sample::default()
        };
        lateness.of(&sample, now_us + 20_000) / S
    }

    #[test]
    fn a_wrong_clock_makes_no_reading_late_at_any_time() {
        for behind_s in [601, 3600, -3600] {
            let mut lateness = Lateness::default();
            for second in 0..3600 {
                assert_eq!(late_s(&mut lateness, second, behind_s), 0, "{second} s");
            }
        }
    }

    #[test]
    fn a_right_clock_that_is_set_back_is_in_doubt_for_20_s() {
        let mut lateness = Lateness::default();
        for second in 0..1000 {
            assert_eq!(late_s(&mut lateness, second, 0), 0);
        }
        for second in 1000..3600 {
            let late_s = late_s(&mut lateness, second, 3600);
            assert_eq!(late_s, if second < 1020 { 3600 } else { 0 }, "{second} s");
        }
        // Set right again.
        assert_eq!(late_s(&mut lateness, 3600, 0), 0);
    }
}
