//! Input of one round.

use contracts::paths::PathReport;
use store::Silent;
use vitals::RuleSet;

use super::{signals::Signals, worn::Arrival};
use crate::signs_of_life::Sign;

/// A report of a path with its sign of life.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub report: PathReport,
    pub sign: Sign,
}

/// An open silence of the store.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    pub silent: Silent,
    /// Since when this member knows it, by the monotonic clock.
    pub known_us: i64,
    /// The register says that the assignment is over.
    pub has_ended: bool,
}

/// Facts of the store and the clock in one round.
pub(crate) struct Known<'a> {
    /// Readings, attributed by `worn`.
    pub latest: &'a [Arrival],
    pub signals: &'a Signals,
    pub reports: &'a [Report],
    pub open: &'a [Open],
    /// Rules with the maximum age of each metric.
    pub rules: &'a RuleSet,
    pub silent_after_us: i64,
    pub now_us: i64,
    pub monotonic_us: i64,
}

impl Known<'_> {
    pub(super) fn is_old(&self, time_us: i64) -> bool {
        self.age_us(time_us) > self.silent_after_us
    }

    pub(super) fn age_us(&self, time_us: i64) -> i64 {
        self.now_us.saturating_sub(time_us)
    }
}
