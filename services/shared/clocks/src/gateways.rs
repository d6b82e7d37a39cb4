//! What is wrong with a gateway's clock, and what that makes of the times in what it sends.
//!
//! Ingest puts right uploads, path-telemetry reports of paths; each learns for itself, for a gateway may speak to one alone.
//!
//! A gateway says in each request what its clock and its machine's uptime show. The time of arrival minus either is a constant and the
//! delay of the way, and a delay is never negative: the smallest difference of the last [`WINDOW_US`] to twice that is the best one
//! known. Nobody sets the uptime, so by it the error of the gateway's clock is known for every moment since the machine was started,
//! whatever was done to that clock meanwhile. A gateway that does not say its uptime is judged by its clock alone.
//!
//! The journal keeps beside each entry what the clocks showed when it was taken, and by how much the gateway's was behind the core's
//! if that was known. So a later step moves no earlier time: see [`GatewayClock::error_at`].
//!
//! The first upload gives an error that is too large by its own delay, therefore one below [`TOLERATED_US`] passes for none. What is
//! known is given out in whole seconds and changes only when it is [`CHANGE_US`] off: so replicas agree, and the times of one
//! stream keep their distances.
//!
//! Which clock a device goes by follows from its own time: see [`ClockError::of_event_us`].

use std::collections::HashMap;

use contracts::{
    paths::PathReport,
    vitals::{EdgeAlert, Gap, Sample},
};

const SECOND_US: i64 = 1_000_000;
/// One bucket of the minimum filter: longer than a backlog makes every upload late.
const WINDOW_US: i64 = 600 * SECOND_US;
/// A clock that is less off is left alone: it harms nobody, and a first upload may be as long on its way, because a tunnel lives on
/// for two minutes without any network.
pub const TOLERATED_US: i64 = 120 * SECOND_US;
const CHANGE_US: i64 = 2 * SECOND_US;
/// No upload is on its way for so long.
const DELAY_US_MAX: i64 = 600 * SECOND_US;
/// Beyond it what a gateway says is no time, and its times stay as they are: samples so far off are refused.
const ERROR_US_MAX: i64 = 400 * 86_400 * SECOND_US;
/// So many gateways must share an error, and differ by no more than this, before the core's own clock is in doubt.
const AGREEING_MIN: usize = 3;
const SHARED_WITHIN_US: u64 = 30_000_000;
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

/// What a gateway says of its clocks as a request leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    pub wall_us: i64,
    /// Since the machine was started; nobody sets it.
    pub uptime_us: i64,
    /// Which start of the machine; 0: the gateway does not say.
    pub boot: u32,
}

/// What the journal of a gateway keeps of its clocks beside an entry: what they showed when it took the entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    pub wall_us: i64,
    pub uptime_us: i64,
    pub boot: u32,
    /// By how much the gateway's clock was behind the core's then, if the gateway had heard of the core.
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
            // 0: raised before the gateway knew this field.
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

/// What the core knows of a gateway's clocks as a request arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatewayClock {
    current: ClockError,
    /// Start of the machine, and the core's time at which its uptime was 0.
    start: Option<(u32, i64)>,
    /// What the gateway's clock, put right by what was known before this request, said that the time is.
    pub expected_us: Option<i64>,
}

impl GatewayClock {
    /// Of the clock as the request left.
    pub fn current(&self) -> ClockError {
        self.current
    }

    /// The right time of an event. Nobody reports what has not happened yet: a device whose clock is further ahead than
    /// [`TOLERATED_US`] is taken to have measured when the gateway took the reading.
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

    /// By how much a time that was put right may still be wrong, as far as the gateway's clocks are concerned.
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

    /// Of the clock as it was when an entry was taken. A later step of it changes nothing.
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
        // Of an earlier start of the machine, when the gateway had not heard of the core: it was taken before this start.
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

/// Errors are given out in whole seconds, and small ones pass for none.
fn given(behind_us: i64) -> i64 {
    if behind_us.saturating_abs() <= TOLERATED_US {
        0
    } else {
        behind_us.div_euclid(SECOND_US).saturating_mul(SECOND_US)
    }
}

/// By how much most gateways are behind the core; negative: ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedError {
    pub behind_us: i64,
    pub agreeing: usize,
    pub gateways: usize,
}

/// What is known of the clocks of gateways, by tenant and id.
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

/// The least difference of the last [`WINDOW_US`] to twice that.
#[derive(Clone, Copy)]
struct Least {
    bucket_from_us: i64,
    current_us: i64,
    previous_us: i64,
}

impl Clocks {
    /// A request arrives at `now_us`. None: the gateway does not say what time it has, or nothing that could be one.
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

    /// The error that most gateways share. They do not keep each other's time, so then the core's own clock is in doubt.
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

    /// The core's own clock has stepped: every difference is learned anew.
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
            // By the uptime, so that a step is known at once, and for what it is.
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
