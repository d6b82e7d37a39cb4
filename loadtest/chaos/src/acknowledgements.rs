//! Whether people acknowledge, and whether reminders follow that.
//!
//! A wish names a due alert and the time from which a person acknowledges it, once they were told
//! of it. The person's answers are facts for the oracle: an alert is acknowledged by that person,
//! or by nobody. An acknowledged alert sends no further reminder. An alert of high priority that
//! nobody acknowledges sends them as long as it is open.

use rand::{Rng, RngExt};

use crate::{
    dues::Course,
    facts::{Call, Found},
    oracle::{Due, State, Timing, episodes},
    scenario::{REMIND_EVERY_S, is_latched},
    verdict::Fault,
};

/// Share of the due alerts that somebody acknowledges.
const ACKNOWLEDGED: f64 = 0.4;
/// Time from the moment at which an alert is due until the person acts.
const AFTER_US: std::ops::Range<i64> = 500_000..20_000_000;
/// A request may wait in a process that is paused twice, and for so long beyond that.
const UNDER_WAY_MARGIN_US: i64 = 20_000_000;
const SECOND_US: i64 = 1_000_000;
const REMIND_EVERY_US: i64 = REMIND_EVERY_S as i64 * SECOND_US;
/// A reminder that is decided together with the acknowledgement may still be sent.
const REMINDERS_BESIDE: i64 = 1;

#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    pub patient: String,
    pub rule: &'static str,
    pub since_us: i64,
    pub from_us: i64,
    /// A latched alert is not acknowledged later than this, so that the next stretch is certainly
    /// another alert.
    pub until_us: i64,
}

/// An acknowledgement that the system accepted.
#[derive(Clone, Debug, PartialEq)]
pub struct Acknowledgement {
    pub patient: String,
    pub rule: &'static str,
    pub since_us: i64,
    pub id: String,
    /// When the first request was sent, and when the answer came.
    pub sent_us: i64,
    pub answered_us: i64,
}

/// The wishes of a run, sorted by time. `longest_us`: its longest fault.
pub fn wishes(random: &mut impl Rng, courses: &[Course], longest_us: i64) -> Vec<Wish> {
    let under_way_us = 2 * longest_us + UNDER_WAY_MARGIN_US;
    let mut wishes = Vec::new();
    for course in courses {
        // As if each alert had been acknowledged before the next one.
        let apart = Timing {
            is_latched: false,
            ..course.timing
        };
        let dues = episodes(
            course.patient,
            apart,
            &course.stretches,
            course.now_us,
            |_| None,
        );
        for due in dues {
            if !random.random_bool(ACKNOWLEDGED) {
                continue;
            }
            let mut later = course.stretches.iter().map(|it| it.since_us);
            let next_us = later.find(|since_us| *since_us > due.until_us);
            let until_us = match next_us {
                Some(next_us) if course.timing.is_latched => next_us - under_way_us,
                _ => i64::MAX,
            };
            wishes.push(Wish {
                patient: due.patient,
                rule: due.rule,
                since_us: due.since_us,
                from_us: due.due_us + random.random_range(AFTER_US),
                until_us,
            });
        }
    }
    wishes.sort_by_key(|wish| wish.from_us);
    wishes
}

/// Reminders of a run. `until_us`: the sensors stop, and all faults have ended before.
pub fn judge_reminders(until_us: i64, due: &[Due], found: &Found) -> Vec<(Fault, String)> {
    let mut faults = Vec::new();
    for due in due.iter().filter(|due| is_latched(due.rule)) {
        let is_of = |call: &&Call| call.patient == due.patient && call.rule == due.rule;
        let raised = found.alerts.iter().find(|alert| {
            (&alert.patient, alert.rule.as_str(), alert.since_us)
                == (&due.patient, due.rule, due.since_us)
        });
        let Some(raised) = raised else {
            continue;
        };
        let reminders = || {
            let calls = found.calls.iter().filter(is_of);
            calls.filter(|call| call.id == raised.id && call.is_reminder)
        };
        let text = || format!("{} of {} since {}", due.rule, due.patient, due.since_us);
        if let Some(acknowledged_us) = due.acknowledged_us {
            let mut keys: Vec<&str> = reminders().map(|call| call.key.as_str()).collect();
            keys.sort_unstable();
            keys.dedup();
            let count_max =
                (acknowledged_us - due.due_us).max(0) / REMIND_EVERY_US + REMINDERS_BESIDE;
            if keys.len() as i64 > count_max {
                let text = format!("{}: {} reminders", text(), keys.len());
                faults.push((Fault::ReminderAfterAcknowledgement, text));
            }
        } else if due.state != State::Resolved && !reminders().any(|call| call.at_us > until_us) {
            faults.push((Fault::ReminderMissing, text()));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::{facts::Raised, falls, oracle::Stretch, scenario::FALL};

    const S: i64 = SECOND_US;

    fn fall(acknowledged_us: Option<i64>) -> Due {
        Due {
            patient: "ada".into(),
            rule: FALL.id,
            since_us: 10 * S,
            until_us: i64::MAX,
            state: State::Latched,
            due_us: 14 * S,
            acknowledged_us,
            returns_us: Vec::new(),
        }
    }

    fn found(reminders_s: &[i64]) -> Found {
        let raised = Raised {
            id: "one".into(),
            patient: "ada".into(),
            gateway: "gw-1".into(),
            rule: FALL.id.into(),
            since_us: 10 * S,
            changed_us: 40 * S,
            state: "latched".into(),
            acknowledged_by: String::new(),
        };
        let call = |at_s: &i64| Call {
            key: format!("one/reminder-{at_s}"),
            id: "one".into(),
            patient: "ada".into(),
            rule: FALL.id.into(),
            since_us: 10 * S,
            revision: 1,
            state: "latched".into(),
            is_reminder: true,
            at_us: at_s * S,
        };
        Found {
            proofs: Vec::new(),
            alerts: vec![raised],
            calls: reminders_s.iter().map(call).collect(),
            ..Found::default()
        }
    }

    fn judged(acknowledged_us: Option<i64>, reminders_s: &[i64]) -> Vec<Fault> {
        let faults = judge_reminders(200 * S, &[fall(acknowledged_us)], &found(reminders_s));
        faults.into_iter().map(|(fault, _)| fault).collect()
    }

    #[test]
    fn a_fall_that_nobody_acknowledges_is_repeated() {
        assert_eq!(judged(None, &[34, 54, 210]), []);
        assert_eq!(judged(None, &[34, 54]), [Fault::ReminderMissing]);
    }

    #[test]
    fn a_reminder_after_the_acknowledgement_is_found() {
        assert_eq!(judged(Some(40 * S), &[34]), []);
        assert_eq!(judged(Some(40 * S), &[]), []);
        let on = judged(Some(40 * S), &[34, 54, 74]);
        assert_eq!(on, [Fault::ReminderAfterAcknowledgement]);
    }

    #[test]
    fn a_latched_alert_is_acknowledged_well_before_the_next_stretch_or_not_at_all() {
        let stretch = |since_s: i64| Stretch {
            since_us: since_s * S,
            last_us: (since_s + 8) * S,
            ended_us: Some((since_s + 9) * S),
        };
        let course = Course {
            patient: "ada",
            timing: falls::timing(),
            stretches: vec![stretch(10), stretch(100)],
            now_us: 200 * S,
        };
        let courses = vec![course; 40];
        let wishes = wishes(&mut ChaCha8Rng::seed_from_u64(1), &courses, 20 * S);
        assert!(wishes.iter().any(|wish| wish.until_us == 40 * S));
        assert!(wishes.iter().any(|wish| wish.until_us == i64::MAX));
        for wish in &wishes {
            assert!(wish.from_us > wish.since_us + 4 * S);
        }
        assert!(wishes.len() < 80, "some alerts stay without a person");
    }
}
