//! What is wrong with a gateway's clock, and what that makes of the times in what it sends. Times in, times out.
//!
//! Ingest puts right uploads, path-telemetry reports of paths; each learns for itself, for a gateway may speak to one alone. A gateway puts right
//! what it took before its own clock was set.
//!
//! A gateway says in each request what time it has. The time of arrival minus that is the clock's error and the delay of the way, and a
//! delay is never negative: so the smallest difference of the last [`WINDOW_US`] to twice that is the best one known, and one that
//! is far above it is a clock that was set back. The first upload gives an error that is too large by its own delay, therefore
//! one below [`TOLERATED_US`] passes for none. What is known is given out in whole seconds and changes only when it is
//! [`CHANGE_US`] off: so replicas agree, and the times of one stream keep their distances.
//!
//! Which clock a device goes by follows from its own time: see [`ClockError::of_event_us`].

mod arrivals;
mod checked;
mod own;

use std::collections::HashMap;

use contracts::{
    paths::PathReport,
    vitals::{EdgeAlert, Gap},
};

pub use arrivals::Arrivals;
pub use checked::{CheckedClock, Condition, Source};
pub use own::{Adoption, CONFIRM_US, Moment, OwnClock, PAUSE_US, SETTLE_US, STEP_US, Seen, Steps};

const SECOND_US: i64 = 1_000_000;
/// One bucket of the minimum filter: longer than a backlog makes every upload late.
const WINDOW_US: i64 = 600 * SECOND_US;
/// A clock that is less off is left alone: it harms nobody, and a first upload may be as long on its way, because a tunnel lives on
/// for two minutes without any network.
const TOLERATED_US: i64 = 120 * SECOND_US;
const CHANGE_US: i64 = 2 * SECOND_US;
/// No upload is on its way for so long.
const DELAY_US_MAX: i64 = 600 * SECOND_US;
/// Beyond it what a gateway says is no time, and its times stay as they are: samples so far off are refused.
const ERROR_US_MAX: i64 = 400 * 86_400 * SECOND_US;
/// Gateways remembered, 100 bytes each; beyond it all are forgotten, and each is known again with its next upload.
const GATEWAYS_MAX: usize = 100_000;

/// How far a gateway's clock is behind the core's; negative: ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockError {
    behind_us: i64,
}

impl ClockError {
    pub const fn behind(behind_us: i64) -> ClockError {
        ClockError { behind_us }
    }

    /// What is missing in the time of an event that the gateway took at `taken_us` by its own clock.
    ///
    /// A device goes by its gateway's clock (as one without a clock does) or by a right one of its own. Nobody reports what has
    /// not happened yet, so the explanation holds by which the event was not in the future; of two, the one by which it waited
    /// less. A device with a right clock that kept a reading for longer than the gateway's clock is off is so taken for one
    /// without, and the other way round: such a reading is off by the error, and stays a late one unless that is smaller than its delay.
    pub fn of_event_us(self, event_us: i64, taken_us: i64) -> i64 {
        let waited_us = taken_us.saturating_sub(event_us);
        let waited_by_own_us = waited_us.saturating_add(self.behind_us);
        let rank = |waited_us: i64| (waited_us < -TOLERATED_US, waited_us.saturating_abs());
        if rank(waited_by_own_us) < rank(waited_us) {
            0
        } else {
            self.behind_us
        }
    }

    /// The right time for one that is the gateway's.
    pub fn put_right_us(self, gateway_us: i64) -> i64 {
        gateway_us.saturating_add(self.behind_us)
    }

    pub fn put_right_alert(self, alert: &mut EdgeAlert) {
        let taken_us = match alert.gateway_time_us {
            // Raised before the gateway knew this field.
            0 => alert.time_us,
            taken_us => taken_us,
        };
        let offset_us = self.of_event_us(alert.time_us, taken_us);
        alert.time_us = alert.time_us.saturating_add(offset_us);
        if alert.since_us != 0 {
            alert.since_us = alert.since_us.saturating_add(offset_us);
        }
    }

    /// Nothing tells when the gateway took what it dropped since: it is taken for the gateway's time unless that is in the future.
    pub fn put_right_gap(self, gap: &mut Gap, now_us: i64) {
        if self.put_right_us(gap.to_time_us) <= now_us.saturating_add(TOLERATED_US) {
            gap.from_time_us = self.put_right_us(gap.from_time_us);
            gap.to_time_us = self.put_right_us(gap.to_time_us);
        }
    }

    /// The end of an interval that was measured by the gateway's clock. Nobody measures what has not happened yet: a report of the
    /// future would hide for so long that its gateway has fallen silent.
    pub fn put_right_report(self, report: &mut PathReport, now_us: i64) {
        report.time_us = self.put_right_us(report.time_us).min(now_us);
    }
}

/// What is known of the clocks of gateways, by tenant and id.
#[derive(Default)]
pub struct Clocks(HashMap<(String, String), Known>);

struct Known {
    bucket_from_us: i64,
    current_us: i64,
    previous_us: i64,
    given_us: i64,
}

impl Clocks {
    /// A request arrives at `now_us`. None: the gateway does not say what time it has, or nothing that could be one.
    pub fn on_request(
        &mut self,
        tenant: &str,
        gateway: &str,
        sent_us: i64,
        now_us: i64,
    ) -> Option<ClockError> {
        let difference_us = now_us.saturating_sub(sent_us);
        if sent_us <= 0 || difference_us.saturating_abs() > ERROR_US_MAX {
            return None;
        }
        let key = (tenant.to_owned(), gateway.to_owned());
        if self.0.len() >= GATEWAYS_MAX && !self.0.contains_key(&key) {
            self.0.clear();
        }
        let known = self
            .0
            .entry(key)
            .or_insert_with(|| Known::first(difference_us, now_us));
        let before_us = known.given_us;
        known.observe(difference_us, now_us);
        if known.given_us != before_us {
            tracing::warn!(
                gateway,
                behind_s = known.given_us / SECOND_US,
                "the clock of a gateway is wrong, or was; its times are put right"
            );
        }
        Some(ClockError::behind(known.given_us))
    }
}

impl Known {
    fn first(difference_us: i64, now_us: i64) -> Known {
        Known {
            bucket_from_us: now_us,
            current_us: difference_us,
            previous_us: difference_us,
            given_us: 0,
        }
    }

    fn observe(&mut self, difference_us: i64, now_us: i64) {
        let least_us = self.current_us.min(self.previous_us);
        if difference_us.saturating_sub(least_us) > DELAY_US_MAX {
            *self = Known {
                given_us: self.given_us,
                ..Known::first(difference_us, now_us)
            };
        } else if now_us.saturating_sub(self.bucket_from_us) >= WINDOW_US {
            self.previous_us = self.current_us;
            self.current_us = difference_us;
            self.bucket_from_us = now_us;
        } else {
            self.current_us = self.current_us.min(difference_us);
        }
        let error_us = self.current_us.min(self.previous_us);
        if error_us.abs_diff(self.given_us) > CHANGE_US.unsigned_abs() {
            self.given_us = if error_us.saturating_abs() <= TOLERATED_US {
                0
            } else {
                error_us.div_euclid(SECOND_US) * SECOND_US
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = SECOND_US;
    const HOUR: i64 = 3600 * S;
    const T0: i64 = 1_800_000_000 * S;

    fn gateway(n: usize) -> String {
        format!("g{n}")
    }

    /// Uploads each second with these delays, by a clock that is `behind_us` behind: what is given out.
    fn given(clocks: &mut Clocks, from_s: i64, behind_us: i64, delays_ms: &[i64]) -> Vec<i64> {
        let uploads = delays_ms.iter().zip(from_s..).map(|(delay_ms, second)| {
            let sent_us = T0 + second * S;
            let error = clocks.on_request(
                "t",
                &gateway(0),
                sent_us - behind_us,
                sent_us + delay_ms * 1000,
            );
            error.map_or(i64::MIN, |error| error.behind_us)
        });
        uploads.collect()
    }

    #[test]
    fn an_hour_off_is_known_by_the_first_upload() {
        for behind_us in [HOUR, -HOUR] {
            let mut clocks = Clocks::default();
            let first = given(&mut clocks, 0, behind_us, &[300]);
            assert!((first[0] - behind_us).abs() <= S, "{first:?}");
            let later = given(&mut clocks, 1, behind_us, &[40, 900, 1500, 60]);
            assert!(later.iter().all(|it| *it == first[0]), "{later:?}");
        }
    }

    #[test]
    fn a_first_upload_that_was_long_on_its_way_is_put_right_by_the_next() {
        let mut clocks = Clocks::default();
        let given = given(&mut clocks, 0, HOUR, &[40_000, 200, 40_000]);
        assert_eq!(given, [HOUR + 40 * S, HOUR, HOUR]);
    }

    #[test]
    fn a_right_clock_is_left_alone_however_long_the_way() {
        let mut clocks = Clocks::default();
        let delays: Vec<i64> = (0..600).map(|n| [99_000, 20, 500_000][n % 3]).collect();
        for behind_us in [0, 20 * S, -20 * S] {
            let given = given(&mut clocks, 0, behind_us, &delays);
            assert!(given.iter().all(|it| *it == 0), "{given:?}");
        }
    }

    #[test]
    fn a_clock_that_is_set_is_followed_at_once() {
        let mut clocks = Clocks::default();
        for (from_s, behind_us) in [(0, -HOUR), (100, 0), (200, HOUR), (300, -HOUR)] {
            let given = given(&mut clocks, from_s, behind_us, &[50; 100]);
            assert!(given.iter().all(|it| *it == behind_us), "{given:?}");
        }
    }

    #[test]
    fn a_clock_that_drifts_is_followed() {
        let mut clocks = Clocks::default();
        for minute in 0..240 {
            let behind_us = HOUR + minute * S;
            let given = given(&mut clocks, minute * 60, behind_us, &[50; 60]);
            // A growing error is known once both buckets are newer than it.
            assert!((given[59] - behind_us).abs() <= 23 * S, "{given:?}");
        }
    }

    #[test]
    fn who_says_no_time_has_none() {
        let mut clocks = Clocks::default();
        for sent_us in [0, -1, 1, i64::MIN, i64::MAX, T0 - 401 * 24 * HOUR] {
            assert_eq!(clocks.on_request("t", &gateway(0), sent_us, T0), None);
        }
        assert!(clocks.0.is_empty());
    }

    #[test]
    fn gateways_are_apart_and_bounded() {
        let mut clocks = Clocks::default();
        for n in 0..=GATEWAYS_MAX {
            let behind_us = if n % 2 == 0 { HOUR } else { 0 };
            let error = clocks.on_request("t", &gateway(n), T0 - behind_us, T0);
            assert_eq!(error, Some(ClockError::behind(behind_us)));
        }
        assert_eq!(clocks.0.len(), 1);
    }

    #[test]
    fn each_device_is_known_by_what_is_possible() {
        for behind_us in [HOUR, -HOUR, 130 * S, -130 * S] {
            let error = ClockError::behind(behind_us);
            let taken_us = T0;
            let true_us = taken_us + behind_us;
            // Without a clock, or set by the gateway; also what it kept for a while, but less long than the clock is off.
            for kept_us in [0, 10 * S, behind_us.abs() / 3] {
                assert_eq!(error.of_event_us(taken_us - kept_us, taken_us), behind_us);
                // By a right one of its own, even if slightly ahead.
                if behind_us.abs() == HOUR {
                    assert_eq!(error.of_event_us(true_us - kept_us, taken_us), 0);
                    assert_eq!(error.of_event_us(true_us + 5 * S, taken_us), 0);
                }
            }
        }
        assert_eq!(ClockError::behind(0).of_event_us(T0 - HOUR, T0), 0);
        for nonsense in [i64::MIN, i64::MAX] {
            ClockError::behind(HOUR).of_event_us(nonsense, T0);
            ClockError::behind(-HOUR).of_event_us(T0, nonsense);
        }
    }

    #[test]
    fn alerts_and_gaps_move_with_their_samples() {
        let error = ClockError::behind(-HOUR);
        let mut alert = EdgeAlert {
            time_us: T0,
            gateway_time_us: T0 + S,
            ..EdgeAlert::default()
        };
        error.put_right_alert(&mut alert);
        assert_eq!(alert.time_us, T0 - HOUR);
        alert.gateway_time_us = 0;
        error.put_right_alert(&mut alert);
        assert_eq!(alert.time_us, T0 - 2 * HOUR);
        let gap = |behind_us, to_time_us| {
            let mut gap = Gap {
                from_time_us: to_time_us - S,
                to_time_us,
                ..Gap::default()
            };
            ClockError::behind(behind_us).put_right_gap(&mut gap, T0);
            assert_eq!(gap.to_time_us - gap.from_time_us, S);
            gap.to_time_us
        };
        assert_eq!(gap(-HOUR, T0), T0 - HOUR);
        assert_eq!(gap(HOUR, T0 - 2 * HOUR), T0 - HOUR);
        assert_eq!(gap(HOUR, T0), T0, "that would not have happened yet");
    }

    #[test]
    fn a_report_is_put_right_and_never_of_the_future() {
        let put_right = |behind_us, time_us| {
            let mut report = PathReport {
                time_us,
                ..PathReport::default()
            };
            ClockError::behind(behind_us).put_right_report(&mut report, T0);
            report.time_us
        };
        assert_eq!(put_right(HOUR, T0 - HOUR - S), T0 - S);
        assert_eq!(put_right(-HOUR, T0 + HOUR - S), T0 - S);
        // Taken by a clock that was set since, or of a gateway that does not say what time it has.
        assert_eq!(put_right(0, T0 - HOUR), T0 - HOUR);
        assert_eq!(put_right(0, T0 + HOUR), T0);
        assert_eq!(put_right(HOUR, i64::MAX), T0);
    }
}
