//! The order in which a ward's patients are shown. Sans-IO.
//!
//! 1. Unwatched patients: nothing arrives, so no rule will raise an alert. First those with an
//!    unacknowledged alert of high priority, then those with any unacknowledged alert, then by the
//!    time since which they are unwatched.
//! 2. Patients with an unacknowledged alert of high priority, of which people were notified.
//! 3. Patients without a score: a parameter of a worn sensor is too old, or nothing was ever
//!    measured.
//! 4. All others.
//!
//! Within 2 to 4 the higher NEWS2 comes first. A lower bound counts, and stale readings count as if
//! they still held, so that a patient whose sensor fell off does not sink. Then follow a parameter
//! that scores 3, the worst open alert, and the name.

use std::cmp::Reverse;

use contracts::vitals::Priority;

/// The values that the order depends on.
pub(crate) struct RankCriteria<'a> {
    /// `Some`: nothing has arrived since then.
    pub unwatched_since_us: Option<i64>,
    /// A worn parameter is too old, or nothing was ever measured.
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
    awaiting: Reverse<i32>,
    since_us: i64,
    score: Reverse<u32>,
    red: Reverse<bool>,
    worst: Reverse<i32>,
    name: String,
    id: String,
}

impl Rank {
    pub(crate) fn of(criteria: &RankCriteria<'_>) -> Rank {
        let is_unwatched = criteria.unwatched_since_us.is_some();
        Rank {
            group: if is_unwatched {
                1
            } else if criteria.awaiting == Priority::High {
                2
            } else if criteria.has_no_score {
                3
            } else {
                4
            },
            // Among watched patients the score decides before their alerts do.
            awaiting: Reverse(match (is_unwatched, criteria.awaiting) {
                (false, _) => 0,
                (true, Priority::High) => 2,
                (true, Priority::Unspecified) => 0,
                (true, _) => 1,
            }),
            since_us: criteria.unwatched_since_us.unwrap_or_default(),
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
    fn who_is_unwatched_comes_before_who_is_ill() {
        let criteria = |id| RankCriteria {
            unwatched_since_us: None,
            has_no_score: false,
            awaiting: Priority::Unspecified,
            worst: Priority::Unspecified,
            score: 0,
            is_red: false,
            name: "",
            id,
        };
        let unwatched = |id, since_us, awaiting| RankCriteria {
            unwatched_since_us: Some(since_us),
            awaiting,
            ..criteria(id)
        };
        let mut ward = [
            criteria("calm"),
            RankCriteria {
                score: 9,
                ..criteria("ill")
            },
            RankCriteria {
                has_no_score: true,
                ..criteria("sensor off")
            },
            RankCriteria {
                awaiting: Priority::High,
                ..criteria("fall")
            },
            unwatched("silent", 20, Priority::Unspecified),
            unwatched("silent longer", 10, Priority::Unspecified),
            unwatched("silent, alert open", 30, Priority::Medium),
            unwatched("silent after a fall", 40, Priority::High),
        ];
        ward.sort_by_key(Rank::of);
        assert_eq!(
            ward.map(|it| it.id),
            [
                "silent after a fall",
                "silent, alert open",
                "silent longer",
                "silent",
                "fall",
                "sensor off",
                "ill",
                "calm"
            ]
        );
    }
}
