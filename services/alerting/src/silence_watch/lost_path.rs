//! Paths that a gateway has lost while it continues over others.

use std::collections::BTreeMap;

use contracts::paths::{PathReport, PathState};

use super::known::Report;

/// A path without a report for a day, while its gateway reports others, was removed by a person.
const REMOVED_US: i64 = 86_400_000_000;

/// The newest report of either end for each path of one gateway. Ages are those between reports, so
/// no process and no clock changes them.
pub(super) struct Paths<'a> {
    newest: BTreeMap<&'a str, &'a Report>,
    latest_us: i64,
    silent_after_us: i64,
}

impl<'a> Paths<'a> {
    pub(super) fn new(reports: &[&'a Report], silent_after_us: i64) -> Option<Paths<'a>> {
        let latest_us = reports.iter().map(|report| report.sign.at_us).max()?;
        let mut newest: BTreeMap<&str, &Report> = BTreeMap::new();
        for report in reports.iter().copied() {
            if latest_us.saturating_sub(report.sign.at_us) > REMOVED_US {
                continue;
            }
            let there = newest.entry(&report.report.path).or_insert(report);
            if report.sign.at_us > there.sign.at_us {
                *there = report;
            }
        }
        Some(Paths {
            newest,
            latest_us,
            silent_after_us,
        })
    }

    pub(super) fn latest_us(&self) -> i64 {
        self.latest_us
    }

    pub(super) fn is_one_well(&self) -> bool {
        self.newest.values().any(|report| self.is_well(report))
    }

    pub(super) fn lost(&self) -> impl Iterator<Item = &'a Report> + '_ {
        let reports = self.newest.values().copied();
        reports.filter(|report| !self.is_well(report))
    }

    fn is_well(&self, report: &Report) -> bool {
        !is_lost(&report.report)
            && self.latest_us.saturating_sub(report.sign.at_us) <= self.silent_after_us
    }
}

pub(super) fn is_lost(report: &PathReport) -> bool {
    matches!(report.state(), PathState::Suspect | PathState::Closed)
}
