//! One patient's newest values and open alerts. Sans-IO.

use std::collections::BTreeMap;

use contracts::alerts::{Alert, AlertState};
use contracts::patients::PatientStatus;
use contracts::vitals::{Metric, Priority};
use vitals::cadence::{Cadence, SHORTEST_US};
use vitals::news2::Spo2Scale;
use vitals::silence;

use super::watched::SILENT_AFTER_US;

/// A clock that is further ahead of the core than this is wrong.
const AHEAD_US_MAX: i64 = 120_000_000;

#[derive(Default)]
pub(crate) struct Bed {
    /// `None` until the register names the patient. Until then no person sees the patient, because
    /// the tenant is unknown.
    pub tenant: Option<String>,
    pub name: String,
    pub gateway: String,
    pub spo2_scale: Spo2Scale,
    pub status: PatientStatus,
    /// Beginning of the newest assignment that holds now. `None`: the patient wears no sensor.
    pub assigned_us: Option<i64>,
    pub latest: BTreeMap<i32, Latest>,
    pub open: BTreeMap<String, Open>,
    /// Open alerts had to be forgotten.
    pub has_more_alerts: bool,
    pub last_seen_us: i64,
    /// Event time of the newest reading, and never later than its arrival, so that a clock that is
    /// ahead does not hide a silence.
    pub heard_us: i64,
    pub has_waveform: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct Latest {
    pub value: f64,
    pub time_us: i64,
    /// The event time, or the arrival if the sensor's clock is a little ahead.
    pub heard_us: i64,
    cadence: Cadence,
    /// The store had it at the start, and nothing newer has come since.
    is_of_before: bool,
}

impl Latest {
    fn new(value: f64, time_us: i64, arrived_us: i64) -> Latest {
        let mut latest = Latest {
            value,
            time_us,
            heard_us: time_us,
            cadence: Cadence::default(),
            is_of_before: false,
        };
        latest.put(value, time_us, arrived_us);
        latest
    }

    fn put(&mut self, value: f64, time_us: i64, arrived_us: i64) {
        if time_us < self.time_us {
            self.cadence.set_back(time_us);
        } else {
            self.cadence.learn(time_us);
        }
        let is_ahead = arrived_us > 0 && (1..=AHEAD_US_MAX).contains(&(time_us - arrived_us));
        self.heard_us = if is_ahead { arrived_us } else { time_us };
        (self.value, self.time_us) = (value, time_us);
    }

    /// Age from which the value is stale. A value of a worn sensor from before the start of this
    /// process calms nobody: the sensor may be off. Its rhythm is unknown, so the shortest age
    /// holds until the next reading.
    pub(crate) fn stale_after_us(&self, limit_us: i64) -> i64 {
        if self.is_of_before && silence::is_worn(limit_us) {
            limit_us.min(SHORTEST_US)
        } else {
            self.cadence.stale_after_us(limit_us)
        }
    }
}

pub(crate) struct Open {
    pub priority: Priority,
    pub stage: Stage,
    pub revision: u32,
    pub since_us: i64,
    /// Rule and summary of a silence alert; otherwise empty.
    pub rule: &'static str,
    pub summary: String,
    /// Resolved alerts stay as tombstones, so that a late, older transition cannot reopen them.
    pub resolved: bool,
}

/// Whether the arriving value replaces the known one. After a sensor's clock was corrected, its
/// times are earlier. Without this rule the old value would stand as the newest for hours.
fn replaces(time_us: i64, known_us: i64, arrived_us: i64) -> bool {
    let was_ahead = arrived_us > 0 && known_us.saturating_sub(arrived_us) > AHEAD_US_MAX;
    time_us >= known_us || was_ahead
}

/// How far people have dealt with an open alert, in ascending order of urgency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Acknowledged,
    /// Over, and not acknowledged.
    Ended,
    /// The condition holds, and nobody has acknowledged it.
    Active,
}

impl Stage {
    fn of(state: AlertState) -> Stage {
        match state {
            AlertState::Active => Stage::Active,
            AlertState::Latched => Stage::Ended,
            _ => Stage::Acknowledged,
        }
    }

    pub(crate) fn awaits(self) -> bool {
        self != Stage::Acknowledged
    }
}

impl Open {
    pub(crate) fn of(alert: &Alert) -> Open {
        let state = alert.state();
        let rule = silence::ALL.into_iter().find(|rule| *rule == alert.rule);
        Open {
            priority: alert.priority(),
            stage: Stage::of(state),
            revision: alert.revision,
            since_us: alert.since_us,
            summary: rule.map_or_else(String::new, |_| alert.summary.clone()),
            rule: rule.unwrap_or_default(),
            resolved: matches!(
                state,
                AlertState::Resolved | AlertState::Pending | AlertState::Unspecified
            ),
        }
    }
}

impl Bed {
    pub(crate) fn open(&self) -> impl Iterator<Item = &Open> {
        self.open.values().filter(|open| !open.resolved)
    }

    /// Whether the ward shows the patient. True with an assigned sensor, with readings that
    /// arrive, and with an open alert of high priority that waits for a person.
    pub(crate) fn is_listed(&self, now_us: i64) -> bool {
        self.assigned_us.is_some()
            || (self.heard_us > 0 && now_us - self.heard_us <= SILENT_AFTER_US)
            || self
                .open()
                .any(|open| open.priority == Priority::High && open.stage.awaits())
    }

    pub(crate) fn seen(&mut self, time_us: i64, arrived_us: i64, gateway: &str) {
        let heard_us = match arrived_us {
            ..=0 => time_us,
            arrived_us => time_us.min(arrived_us),
        };
        self.heard_us = self.heard_us.max(heard_us);
        if replaces(time_us, self.last_seen_us, arrived_us) {
            self.last_seen_us = time_us;
            if !gateway.is_empty() && self.gateway != gateway {
                gateway.clone_into(&mut self.gateway);
            }
        }
    }

    pub(crate) fn value(&mut self, metric: Metric, value: f64, time_us: i64, arrived_us: i64) {
        let new = || Latest::new(value, time_us, arrived_us);
        let latest = self.latest.entry(metric.number()).or_insert_with(new);
        if replaces(time_us, latest.time_us, arrived_us) {
            latest.put(value, time_us, arrived_us);
            latest.is_of_before = false;
        }
    }

    /// As [`Bed::value`], for a value of the store, which may be old.
    pub(crate) fn stored(&mut self, metric: Metric, value: f64, time_us: i64, arrived_us: i64) {
        match self.latest.get(&metric.number()) {
            Some(known) if known.time_us == time_us => {}
            Some(_) => self.value(metric, value, time_us, arrived_us),
            None => {
                let mut latest = Latest::new(value, time_us, arrived_us);
                latest.is_of_before = true;
                self.latest.insert(metric.number(), latest);
            }
        }
    }
}
