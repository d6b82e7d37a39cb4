//! The error of a gateway's clock, and the correction of the times that it sends.
//!
//! Ingest corrects uploads, path-telemetry reports of paths; each learns for itself, since a
//! gateway may reach only one of them.
//!
//! A gateway sends its clock and its machine's uptime with each request. The time of arrival minus
//! either is a constant plus the delay of the way, and a delay is never negative. So the smallest
//! difference within one to two [`WINDOW_US`] is the best known. The uptime cannot be set. So with
//! it the error of the gateway's clock is known for every moment since the machine's start,
//! whatever steps that clock made. Without the uptime only the clock is used.
//!
//! The journal keeps with each entry the clocks' readings at that time, and the difference to the
//! core's clock if it was known. So a later step changes no earlier time: see
//! [`GatewayClock::error_at`].
//!
//! The first upload gives an error that is too large by its own delay, so an error below
//! [`TOLERATED_US`] counts as none. Errors are rounded to whole seconds and change only if they are
//! off by [`CHANGE_US`]. So replicas agree, and the times of one stream keep their distances.
//!
//! A device's own time shows which clock it uses: see [`ClockError::of_event_us`].

use std::collections::HashMap;

use contracts::{
    paths::PathReport,
    vitals::{EdgeAlert, Gap, Sample},
};

const SECOND_US: i64 = 1_000_000;
/// Width of a bucket of the minimum filter: longer than the time for which a backlog delays every
/// upload.
const WINDOW_US: i64 = 600 * SECOND_US;
/// Error of a clock that is left alone. A first upload may be that long on its way, because a
/// tunnel lives for two minutes without any network.
pub const TOLERATED_US: i64 = 120 * SECOND_US;
const CHANGE_US: i64 = 2 * SECOND_US;
/// Longest delay of an upload.
const DELAY_US_MAX: i64 = 600 * SECOND_US;
/// Largest error; beyond it the gateway's time is implausible and its times stay uncorrected, and
/// such samples are refused.
const ERROR_US_MAX: i64 = 400 * 86_400 * SECOND_US;
/// Gateways that must share an error before the core's own clock is in doubt.
const AGREEING_MIN: usize = 3;
const SHARED_WITHIN_US: u64 = 30_000_000;
/// Gateways remembered, 100 bytes each; at the bound all are forgotten, and each is learned again
/// with its next upload.
const GATEWAYS_MAX: usize = 100_000;

/// Time by which a gateway's clock is behind the core's; negative if it is ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockError {
    behind_us: i64,
}

impl ClockError {
    pub const fn behind(behind_us: i64) -> ClockError {
        ClockError { behind_us }
    }

    /// Correction of the time of an event that the gateway took at `taken_us` by its own clock.
    ///
    /// A device uses its gateway's clock, as a device without a clock does, or its own right one.
    /// An event cannot be reported before it happened, so the explanation holds under which it was
    /// not in the future. If both hold, the one with the shorter delay is chosen. A device with a
    /// right clock may store a reading for longer than the gateway's error. It is then taken for a
    /// device without one, and the other way round. Such a reading is off by the error, and stays
    /// late unless the error is smaller than its delay.
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

    /// Corrects a time of the gateway's clock.
    pub fn put_right_us(self, gateway_us: i64) -> i64 {
        gateway_us.saturating_add(self.behind_us)
    }

    /// The gateway's time of dropped samples is unknown: the gap's time counts as the gateway's
    /// unless that is in the future.
    pub fn put_right_gap(self, gap: &mut Gap, now_us: i64) {
        if self.put_right_us(gap.to_time_us) <= now_us.saturating_add(TOLERATED_US) {
            gap.from_time_us = self.put_right_us(gap.from_time_us);
            gap.to_time_us = self.put_right_us(gap.to_time_us);
        }
    }

    /// Corrects the end of an interval that the gateway's clock measured. A report of the future
    /// would hide for that long that its gateway is silent.
    pub fn put_right_report(self, report: &mut PathReport, now_us: i64) {
        report.time_us = self.put_right_us(report.time_us).min(now_us);
    }
}

/// The gateway's clocks as a request leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    pub wall_us: i64,
    /// Since the machine's start; it cannot be set.
    pub uptime_us: i64,
    /// Number of the machine's start; 0 if unknown.
    pub boot: u32,
}

/// A gateway's clocks in its journal: their readings when an entry was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    pub wall_us: i64,
    pub uptime_us: i64,
    pub boot: u32,
    /// Difference of the gateway's clock to the core's then, if the gateway knew it.
    pub behind_us: Option<i64>,
}

impl Taken {
    pub fn of_sample(sample: &Sample) -> Taken {
        Taken {
            wall_us: sample.gateway_time_us,
            uptime_us: sample.gateway_uptime_us,
            boot: sample.gateway_boot,
            behind_us: sample.gateway_behind_us,
        }
    }

    pub fn of_alert(alert: &EdgeAlert) -> Taken {
        Taken {
            // 0: raised before the gateway had this field.
            wall_us: match alert.gateway_time_us {
                0 => alert.time_us,
                taken_us => taken_us,
            },
            uptime_us: alert.gateway_uptime_us,
            boot: alert.gateway_boot,
            behind_us: alert.gateway_behind_us,
        }
    }
}

/// The core's knowledge of a gateway's clocks as a request arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatewayClock {
    current: ClockError,
    /// Start of the machine, and the core's time at which its uptime was 0.
    start: Option<(u32, i64)>,
    /// The gateway's time, corrected by what was known before this request.
    pub expected_us: Option<i64>,
}

impl GatewayClock {
    /// The error of the clock as the request left.
    pub fn current(&self) -> ClockError {
        self.current
    }

    /// The right time of an event. A device whose clock is more than [`TOLERATED_US`] ahead counts
    /// as having measured when the gateway took the reading.
    pub fn event_us(&self, event_us: i64, taken: Taken) -> i64 {
        let error = self.error_at(taken);
        let offset_us = error.of_event_us(event_us, taken.wall_us);
        let right_us = event_us.saturating_add(offset_us);
        let taken_us = error.put_right_us(taken.wall_us);
        if right_us > taken_us.saturating_add(TOLERATED_US) {
            taken_us
        } else {
            right_us
        }
    }

    /// Remaining error of a corrected time, as far as the gateway's clocks are concerned.
    pub fn doubt_us(&self, taken: Taken) -> i64 {
        let left_us = match (taken.behind_us, self.start) {
            (Some(behind_us), _) => behind_us.saturating_sub(given(behind_us)),
            (None, Some((boot, start_us))) if boot == taken.boot && boot != 0 => {
                let true_us = start_us.saturating_add(taken.uptime_us);
                let behind_us = true_us.saturating_sub(taken.wall_us);
                behind_us.saturating_sub(given(behind_us))
            }
            _ => TOLERATED_US,
        };
        left_us.saturating_abs().saturating_add(CHANGE_US)
    }

    /// The error of the clock when an entry was taken. A later step changes nothing.
    pub fn error_at(&self, taken: Taken) -> ClockError {
        let known = |behind_us: i64| ClockError::behind(given(behind_us));
        if let Some(behind_us) = taken.behind_us {
            return known(behind_us);
        }
        let Some((boot, start_us)) = self.start.filter(|_| taken.boot != 0) else {
            return self.current;
        };
        if taken.boot == boot {
            let true_us = start_us.saturating_add(taken.uptime_us);
            return known(true_us.saturating_sub(taken.wall_us));
        }
        // From an earlier start of the machine, without a known difference to the core: it was
        // taken before this start.
        let can_be = |error: ClockError| {
            error.put_right_us(taken.wall_us) <= start_us.saturating_add(TOLERATED_US)
        };
        let unknown = [ClockError::behind(0), self.current];
        unknown
            .into_iter()
            .find(|error| can_be(*error))
            .unwrap_or_else(|| known(start_us.saturating_sub(taken.wall_us)))
    }
}

/// Errors are rounded to whole seconds, and small ones count as none.
fn given(behind_us: i64) -> i64 {
    if behind_us.saturating_abs() <= TOLERATED_US {
        0
    } else {
        behind_us.div_euclid(SECOND_US).saturating_mul(SECOND_US)
    }
}

/// Time by which most gateways are behind the core; negative if they are ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedError {
    pub behind_us: i64,
    pub agreeing: usize,
    pub gateways: usize,
}

/// The known clocks of gateways, by tenant and id.
#[derive(Default)]
pub struct Clocks(HashMap<(String, String), Known>);

struct Known {
    /// The core's time minus the gateway's.
    wall: Least,
    wall_given_us: i64,
    /// Start of the machine, and the core's time minus its uptime.
    uptime: Option<(u32, Least)>,
    start_given_us: i64,
}

/// The smallest difference within one to two [`WINDOW_US`].
#[derive(Clone, Copy)]
struct Least {
    bucket_from_us: i64,
    current_us: i64,
    previous_us: i64,
}

impl Clocks {
    /// A request arrives at `now_us`. `None`: the gateway sends no plausible time.
    pub fn on_request(
        &mut self,
        tenant: &str,
        gateway: &str,
        sent: Sent,
        now_us: i64,
    ) -> Option<GatewayClock> {
        let difference_us = now_us.saturating_sub(sent.wall_us);
        if sent.wall_us <= 0 || difference_us.saturating_abs() > ERROR_US_MAX {
            return None;
        }
        let key = (tenant.to_owned(), gateway.to_owned());
        if self.0.len() >= GATEWAYS_MAX && !self.0.contains_key(&key) {
            self.0.clear();
        }
        let before_us = self.0.get(&key).map(|known| known.wall_given_us);
        let known = self.0.entry(key).or_insert_with(|| Known {
            wall: Least::first(difference_us, now_us),
            wall_given_us: 0,
            uptime: None,
            start_given_us: 0,
        });
        known.observe(sent, now_us);
        if known.wall_given_us != before_us.unwrap_or_default() {
            tracing::warn!(
                gateway,
                behind_s = known.wall_given_us / SECOND_US,
                "the clock of a gateway is wrong, or was; its times are put right"
            );
        }
        let start = known.uptime.map(|(boot, _)| (boot, known.start_given_us));
        Some(GatewayClock {
            current: ClockError::behind(known.wall_given_us),
            start,
            expected_us: before_us.map(|before_us| sent.wall_us.saturating_add(before_us)),
        })
    }

    /// The error that most gateways share. Gateways have independent clocks, so then the core's own
    /// clock is in doubt.
    pub fn shared_error(&self) -> Option<SharedError> {
        let mut errors: Vec<i64> = self.0.values().map(|it| it.wall_given_us).collect();
        errors.sort_unstable();
        let median_us = *errors.get(errors.len() / 2)?;
        let near = |error_us: &&i64| error_us.abs_diff(median_us) <= SHARED_WITHIN_US;
        let agreeing = errors.iter().filter(near).count();
        let is_shared = median_us != 0 && agreeing >= AGREEING_MIN && agreeing * 2 > errors.len();
        is_shared.then_some(SharedError {
            behind_us: median_us,
            agreeing,
            gateways: errors.len(),
        })
    }

    /// The core's own clock has stepped: every difference is learned again.
    pub fn forget(&mut self) {
        self.0.clear();
    }
}

impl Known {
    fn observe(&mut self, sent: Sent, now_us: i64) {
        if sent.boot != 0 {
            let start_us = now_us.saturating_sub(sent.uptime_us);
            let is_same = self.uptime.is_some_and(|(boot, _)| boot == sent.boot);
            let (_, least) = match &mut self.uptime {
                Some(uptime) if is_same => uptime,
                other => other.insert((sent.boot, Least::first(start_us, now_us))),
            };
            least.observe(start_us, now_us);
            let best_us = least.us();
            if !is_same || best_us.abs_diff(self.start_given_us) > CHANGE_US.unsigned_abs() {
                self.start_given_us = best_us;
            }
            // By the uptime, so that a step is recognised at once.
            let true_us = self.start_given_us.saturating_add(sent.uptime_us);
            self.give(true_us.saturating_sub(sent.wall_us));
            return;
        }
        self.uptime = None;
        self.wall
            .observe(now_us.saturating_sub(sent.wall_us), now_us);
        self.give(self.wall.us());
    }

    fn give(&mut self, error_us: i64) {
        if error_us.abs_diff(self.wall_given_us) > CHANGE_US.unsigned_abs() {
            self.wall_given_us = given(error_us);
        }
    }
}

impl Least {
    fn first(difference_us: i64, now_us: i64) -> Least {
        Least {
            bucket_from_us: now_us,
            current_us: difference_us,
            previous_us: difference_us,
        }
    }

    fn us(&self) -> i64 {
        self.current_us.min(self.previous_us)
    }

    fn observe(&mut self, difference_us: i64, now_us: i64) {
        if difference_us.saturating_sub(self.us()) > DELAY_US_MAX {
            *self = Least::first(difference_us, now_us);
        } else if now_us.saturating_sub(self.bucket_from_us) >= WINDOW_US {
            self.previous_us = self.current_us;
            self.current_us = difference_us;
            self.bucket_from_us = now_us;
        } else {
            self.current_us = self.current_us.min(difference_us);
        }
    }
}

#[cfg(test)]
#[path = "gateways_tests.rs"]
mod tests;
