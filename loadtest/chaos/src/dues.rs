//! All alerts that are due for the readings of a run: thresholds, falls and NEWS2.

use crate::{
    facts::Reading,
    falls, news2,
    oracle::{self, Due, Stretch, Timing, episodes},
    scenario::{ACTIVITY, FALL, RULES, SCORES},
};

/// The stretches of one rule for one patient.
#[derive(Clone, Debug)]
pub struct Course {
    pub patient: &'static str,
    pub timing: Timing,
    pub stretches: Vec<Stretch>,
    /// Time of the patient's last reading.
    pub now_us: i64,
}

/// The kinds of alerts, each with its own oracle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Threshold,
    Fall,
    Score,
}

pub fn kind(rule: &str) -> Kind {
    if rule == FALL.id {
        Kind::Fall
    } else if SCORES.iter().any(|it| it.id == rule) {
        Kind::Score
    } else {
        Kind::Threshold
    }
}

/// The courses of all rules. `readings` are of one device, sorted by time, and may have several
/// wearers.
pub fn courses(readings: &[Reading]) -> Vec<Course> {
    let mut courses = Vec::new();
    for own in readings.chunk_by(|one, next| one.patient == next.patient) {
        let (Some(first), Some(last)) = (own.first(), own.last()) else {
            continue;
        };
        let series = |metric: &str| -> Vec<(i64, f64)> {
            let of = own.iter().filter(|reading| reading.metric == metric);
            of.map(|reading| (reading.time_us, reading.value)).collect()
        };
        let mut add = |timing, stretches| {
            courses.push(Course {
                patient: first.patient,
                timing,
                stretches,
                now_us: last.time_us,
            });
        };
        for rule in &RULES {
            let stretches = oracle::stretches(rule, &series(rule.metric));
            add(Timing::of(rule), stretches);
        }
        add(falls::timing(), falls::stretches(&series(ACTIVITY)));
        let scores = own.iter().map(|it| (it.metric, it.time_us, it.value));
        let scores = news2::scores(scores);
        for rule in &SCORES {
            add(news2::timing(rule), news2::stretches(rule, &scores));
        }
    }
    courses
}

/// The due alerts. `acknowledged_us` says when the alert of a patient and rule with that beginning
/// was acknowledged.
pub fn due(
    courses: &[Course],
    acknowledged_us: impl Fn(&str, &str, i64) -> Option<i64>,
) -> Vec<Due> {
    let of = |course: &Course| {
        let Course {
            patient,
            timing,
            stretches,
            now_us,
        } = course;
        episodes(patient, *timing, stretches, *now_us, |since_us| {
            acknowledged_us(patient, timing.rule, since_us)
        })
    };
    courses.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{plan::Plan, scenario::METRICS};

    #[test]
    fn runs_of_three_minutes_have_every_kind_and_two_wearers() {
        let mut kinds = [0; 3];
        for seed in 0..10 {
            let plan = Plan::new(seed, 180);
            for script in &plan.scripts {
                let readings: Vec<Reading> = (0..180)
                    .filter_map(|second: u32| Some((second, script.wearer(second)?)))
                    .flat_map(|(second, patient)| {
                        METRICS
                            .iter()
                            .zip(&script.series)
                            .map(move |(metric, values)| Reading {
                                patient,
                                metric: metric.1,
                                number: u64::from(second) + 1,
                                time_us: i64::from(second) * 1_000_000,
                                value: values[second as usize],
                            })
                    })
                    .collect();
                let courses = courses(&readings);
                let wearers = 1 + usize::from(script.moved.is_some());
                assert_eq!(courses.len(), wearers * (RULES.len() + 1 + SCORES.len()));
                for due in due(&courses, |_, _, _| None) {
                    kinds[kind(due.rule) as usize] += 1;
                    // No alert is open at the change of wearers, and no delay waits at the end.
                    let is_last = script.wearer(179) == Some(due.patient.as_str());
                    assert!(
                        is_last || due.until_us < i64::MAX || due.state == oracle::State::Latched,
                        "{due:?}"
                    );
                }
                for course in &courses {
                    let last = course.stretches.last();
                    let waits = last
                        .and_then(|it| it.ended_us)
                        .is_some_and(|ended_us| course.now_us - ended_us < course.timing.clear_us);
                    assert!(!waits, "{seed}: {course:?}");
                }
            }
        }
        assert!(kinds.iter().all(|count| *count > 20), "{kinds:?}");
    }
}
