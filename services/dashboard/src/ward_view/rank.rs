//! The order in which a ward's patients are shown. Sans-IO.
//!
//! 1. Patients with an open alert of high priority: active, then ended, then acknowledged. Within
//!    each, unwatched patients come first.
//! 2. Unwatched patients: nothing arrives, so no rule will raise an alert. First those with an
//!    unacknowledged alert, then by the time since which they are unwatched. A patient with a new
//!    assignment and no reading yet is one of them, since the assignment.
//! 3. Patients without a score: a parameter of a worn sensor is too old.
//! 4. All others.
//! 5. Patients whose monitoring rests (expected or paused), and patients who have had a sensor for
//!    [`NEVER_WORN_AFTER_US`] and never a reading.
//!
//! Then the higher NEWS2 comes first. A lower bound counts, and stale readings count as if they
//! still held, so that a patient whose sensor fell off does not sink. Then follow a parameter that
//! scores 3, the worst open alert, and the name. The list of alerts is in a like order: see
//! `store::AlertsStore::alerts`.

use std::cmp::Reverse;

use contracts::vitals::Priority;

use super::bed::Stage;

/// After a day without any reading an assigned sensor counts as not worn.
pub(crate) const NEVER_WORN_AFTER_US: i64 = 86_400_000_000;

/// The values that the order depends on.
pub(crate) struct RankCriteria<'a> {
    /// The most urgent of the open alerts of high priority.
    pub high: Option<Stage>,
    /// `Some`: nothing has arrived since then.
    pub unwatched_since_us: Option<i64>,
    /// A sensor was assigned long ago, and nothing was ever measured.
    pub is_never_worn: bool,
    /// Expected or paused: nobody misses readings.
    pub rests: bool,
    /// A worn parameter is too old.
    pub has_no_score: bool,
    /// Highest priority among unacknowledged alerts.
    pub awaiting: Priority,
    /// Highest priority among open alerts.
    pub worst: Priority,
    pub score: u32,
    pub is_red: bool,
    pub name: &'a str,
    pub id: &'a str,
}

/// Ascending: the first patient of the ward is the least.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    group: u8,
    high: Reverse<Option<Stage>>,
    unwatched: Reverse<u8>,
    since_us: i64,
    score: Reverse<u32>,
    red: Reverse<bool>,
    worst: Reverse<i32>,
    name: String,
    id: String,
}

impl Rank {
    pub(crate) fn of(criteria: &RankCriteria<'_>) -> Rank {
        let unwatched_since_us = criteria.unwatched_since_us.filter(|_| !criteria.rests);
        let is_unwatched = unwatched_since_us.is_some();
        Rank {
            group: if criteria.high.is_some() {
                1
            } else if is_unwatched {
                2
            } else if criteria.is_never_worn || criteria.rests {
                5
            } else if criteria.has_no_score {
                3
            } else {
                4
            },
            high: Reverse(criteria.high),
            // Among watched patients the score decides before their lesser alerts do.
            unwatched: Reverse(match (is_unwatched, criteria.awaiting) {
                (false, _) => 0,
                (true, Priority::Unspecified) => 1,
                (true, _) => 2,
            }),
            since_us: unwatched_since_us.unwrap_or_default(),
            score: Reverse(criteria.score),
            red: Reverse(criteria.is_red),
            worst: Reverse(criteria.worst as i32),
            name: criteria.name.to_owned(),
            id: criteria.id.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_high_alerts_come_first_then_who_is_unwatched_then_who_is_ill() {
        let criteria = |id| RankCriteria {
            high: None,
            unwatched_since_us: None,
            is_never_worn: false,
            rests: false,
            has_no_score: false,
            awaiting: Priority::Unspecified,
            worst: Priority::Unspecified,
            score: 0,
            is_red: false,
            name: "",
            id,
        };
        let high = |id, stage| RankCriteria {
            high: Some(stage),
            awaiting: Priority::High,
            worst: Priority::High,
            ..criteria(id)
        };
        let unwatched = |id, since_us, awaiting| RankCriteria {
            unwatched_since_us: Some(since_us),
            awaiting,
            ..criteria(id)
        };
        let mut ward = [
            criteria("calm"),
            RankCriteria {
                is_never_worn: true,
                has_no_score: true,
                ..criteria("guest")
            },
            RankCriteria {
                score: 9,
                ..criteria("ill")
            },
            RankCriteria {
                has_no_score: true,
                ..criteria("sensor off")
            },
            RankCriteria {
                score: 12,
                ..high("fall ended", Stage::Ended)
            },
            RankCriteria {
                score: 12,
                ..high("fall seen", Stage::Acknowledged)
            },
            high("fall", Stage::Active),
            unwatched("silent", 20, Priority::Unspecified),
            RankCriteria {
                rests: true,
                score: 9,
                ..unwatched("paused", 5, Priority::Unspecified)
            },
            unwatched("silent longer", 10, Priority::Unspecified),
            unwatched("silent, alert open", 30, Priority::Medium),
            RankCriteria {
                unwatched_since_us: Some(40),
                ..high("silent after a fall", Stage::Active)
            },
        ];
        ward.sort_by_key(Rank::of);
        assert_eq!(
            ward.map(|it| it.id),
            [
                "silent after a fall",
                "fall",
                "fall ended",
                "fall seen",
                "silent, alert open",
                "silent longer",
                "silent",
                "sensor off",
                "ill",
                "calm",
                "paused",
                "guest"
            ]
        );
    }
}
