//! Compares the found state with the expected one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;

use crate::{
    dues,
    facts::{Call, Found, Letter, Raised, Reading, Row},
    oracle::{Due, State},
    recovery::{self, Percentiles},
    scenario::{MOVED, is_judged, nurse_of, on_call_of},
};

/// Differences that are listed; further ones are only counted.
const LISTED_MAX: usize = 200;
/// Tolerance of stored values, which are doubles as sent.
const VALUE_ERROR_MAX: f64 = 1e-9;

/// Number of errors by kind. A run is good when every count is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    ReadingNotAccepted,
    ReadingLost,
    ReadingDoubled,
    ReadingWrongTime,
    ReadingWrongValue,
    ReadingWrongPatient,
    ReadingNeverSent,
    AlertMissing,
    AlertDoubled,
    AlertWrongSince,
    AlertWrongState,
    AlertWrongEnd,
    AlertNotDue,
    AlertAcknowledgedByNobody,
    AcknowledgementLost,
    ReminderAfterAcknowledgement,
    ReminderMissing,
    AlertUntold,
    CallNotDue,
    CallKeyReused,
    AlertUnmailed,
    LetterToOtherTenant,
    SilenceMissing,
    SilenceEndedUnheard,
    SilenceOutlived,
    SilenceDoubled,
    SilenceUntold,
    ProofOfTheLost,
    ProofOfNoLoss,
}

impl Fault {
    pub const ALL: [Fault; 29] = [
        Fault::ReadingNotAccepted,
        Fault::ReadingLost,
        Fault::ReadingDoubled,
        Fault::ReadingWrongTime,
        Fault::ReadingWrongValue,
        Fault::ReadingWrongPatient,
        Fault::ReadingNeverSent,
        Fault::AlertMissing,
        Fault::AlertDoubled,
        Fault::AlertWrongSince,
        Fault::AlertWrongState,
        Fault::AlertWrongEnd,
        Fault::AlertNotDue,
        Fault::AlertAcknowledgedByNobody,
        Fault::AcknowledgementLost,
        Fault::ReminderAfterAcknowledgement,
        Fault::ReminderMissing,
        Fault::AlertUntold,
        Fault::CallNotDue,
        Fault::CallKeyReused,
        Fault::AlertUnmailed,
        Fault::LetterToOtherTenant,
        Fault::SilenceMissing,
        Fault::SilenceEndedUnheard,
        Fault::SilenceOutlived,
        Fault::SilenceDoubled,
        Fault::SilenceUntold,
        Fault::ProofOfTheLost,
        Fault::ProofOfNoLoss,
    ];

    pub fn what(self) -> &'static str {
        match self {
            Fault::ReadingNotAccepted => "readings that no gateway accepted",
            Fault::ReadingLost => "accepted readings that are not stored",
            Fault::ReadingDoubled => "readings stored more than once",
            Fault::ReadingWrongTime => "readings stored with another time",
            Fault::ReadingWrongValue => "readings stored with another value",
            Fault::ReadingWrongPatient => "readings in another patient's record",
            Fault::ReadingNeverSent => "stored readings that no sensor took",
            Fault::AlertMissing => "due alerts that were not raised",
            Fault::AlertDoubled => "due alerts raised more than once",
            Fault::AlertWrongSince => "due alerts with another beginning",
            Fault::AlertWrongState => "due alerts in another state",
            Fault::AlertWrongEnd => "alerts that ended before their last reading",
            Fault::AlertNotDue => "alerts that were not due",
            Fault::AlertAcknowledgedByNobody => "acknowledgements that nobody made",
            Fault::AcknowledgementLost => "accepted acknowledgements that are lost",
            Fault::ReminderAfterAcknowledgement => "reminders after an acknowledgement",
            Fault::ReminderMissing => "open alerts without further reminders",
            Fault::AlertUntold => "raised alerts of which nobody was told",
            Fault::CallNotDue => "calls about alerts that were not due",
            Fault::CallKeyReused => "idempotency keys with two contents",
            Fault::AlertUnmailed => "raised alerts of which on-call got no letter",
            Fault::LetterToOtherTenant => "letters about a patient of another tenant",
            Fault::SilenceMissing => "silences that were not raised",
            Fault::SilenceEndedUnheard => "silences that ended without a reading",
            Fault::SilenceOutlived => "open silences of sensors that were heard",
            Fault::SilenceDoubled => "silences raised more than once",
            Fault::SilenceUntold => "silences of which nobody was told",
            Fault::ProofOfTheLost => "proofs that call a lost reading stored",
            Fault::ProofOfNoLoss => "proofs of a loss where nothing is lost",
        }
    }
}

/// The judgement of silences.
#[derive(Clone, Debug, Default)]
pub struct Silences {
    /// Each in words.
    pub faults: Vec<(Fault, String)>,
    /// Number of silences of sensors and of everybody.
    pub count: usize,
}

/// Number of alerts by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Kinds {
    pub thresholds: usize,
    pub falls: usize,
    pub scores: usize,
}

impl Kinds {
    fn of(due: &[Due]) -> Kinds {
        let count = |kind| {
            due.iter()
                .filter(|due| dues::kind(due.rule) == kind)
                .count()
        };
        Kinds {
            thresholds: count(dues::Kind::Threshold),
            falls: count(dues::Kind::Fall),
            scores: count(dues::Kind::Score),
        }
    }
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Verdict {
    pub readings_accepted: usize,
    pub readings_stored: usize,
    pub alerts_due: usize,
    pub alerts_due_by_kind: Kinds,
    pub acknowledged: usize,
    /// Alerts that were over before somebody could acknowledge them.
    pub alerts_over: usize,
    pub reminders: usize,
    /// Returns of latched alerts that are alerts of their own.
    pub returns_apart: usize,
    /// Readings of patients who got the device of another one.
    pub readings_of_next_wearers: usize,
    /// From the end of a fault to the first reading after it.
    pub recovery: Percentiles,
    /// From due to told.
    pub told: Percentiles,
    pub alerts_raised: usize,
    pub silences: usize,
    /// Alerts of other rules, for example lost paths, which are not judged.
    pub alerts_of_other_rules: usize,
    pub calls: usize,
    /// Calls that repeated an earlier key, which is permitted.
    pub calls_repeated: usize,
    pub letters: usize,
    pub counts: BTreeMap<Fault, usize>,
    /// The first differences in words.
    pub listed: Vec<String>,
}

impl Verdict {
    pub fn of(
        accepted: &[Reading],
        refused: &[Reading],
        due: &[Due],
        silences: Silences,
        found: &Found,
    ) -> Verdict {
        let is_next = |row: &&Row| MOVED.iter().any(|(_, next)| *next == row.patient);
        let mut verdict = Verdict {
            readings_accepted: accepted.len(),
            readings_stored: found.rows.len(),
            alerts_due: due.len(),
            alerts_due_by_kind: Kinds::of(due),
            acknowledged: due
                .iter()
                .filter(|due| due.acknowledged_us.is_some())
                .count(),
            reminders: found.reminders(),
            readings_of_next_wearers: found.rows.iter().filter(is_next).count(),
            told: recovery::of_alerts(due, &found.calls),
            calls: found.calls.len(),
            letters: found.letters.len(),
            ..Verdict::default()
        };
        for reading in refused {
            verdict.count(Fault::ReadingNotAccepted, || describe(reading));
        }
        verdict.judge_rows(accepted, refused, &found.rows);
        let ids = verdict.judge_alerts(due, &found.alerts);
        verdict.judge_calls(&ids, due, &found.calls);
        verdict.judge_letters(&ids, due, &found.letters);
        verdict.add(silences.faults);
        verdict.silences = silences.count;
        verdict.alerts_of_other_rules -= silences.count;
        verdict
    }

    pub fn is_good(&self) -> bool {
        self.counts.is_empty()
    }

    /// Adds the judgements of others.
    pub fn add(&mut self, faults: Vec<(Fault, String)>) {
        faults
            .into_iter()
            .for_each(|(fault, text)| self.count(fault, || text));
    }

    fn count(&mut self, fault: Fault, text: impl FnOnce() -> String) {
        *self.counts.entry(fault).or_default() += 1;
        if self.listed.len() < LISTED_MAX {
            self.listed.push(format!("{}: {}", fault.what(), text()));
        }
    }

    fn judge_rows(&mut self, accepted: &[Reading], refused: &[Reading], rows: &[Row]) {
        let mut stored: HashMap<(String, &str, u64), Vec<&Row>> = HashMap::new();
        for row in rows {
            let key = (row.device.clone(), row.metric, row.number);
            stored.entry(key).or_default().push(row);
        }
        for reading in accepted {
            let device = crate::scenario::device_of(reading.patient);
            let rows = stored.remove(&(device, reading.metric, reading.number));
            let Some(rows) = rows else {
                self.count(Fault::ReadingLost, || describe(reading));
                continue;
            };
            if rows.len() > 1 {
                self.count(Fault::ReadingDoubled, || describe(reading));
            }
            let differs =
                |differ: fn(&Row, &Reading) -> bool| rows.iter().find(|row| differ(row, reading));
            if let Some(row) = differs(|row, reading| row.time_us != reading.time_us) {
                let off_us = row.time_us - reading.time_us;
                self.count(Fault::ReadingWrongTime, || {
                    format!("{} is off by {off_us} us", describe(reading))
                });
            }
            if let Some(row) =
                differs(|row, reading| (row.value - reading.value).abs() > VALUE_ERROR_MAX)
            {
                let value = row.value;
                self.count(Fault::ReadingWrongValue, || {
                    format!("{} became {value}", describe(reading))
                });
            }
            if let Some(row) = differs(|row, reading| row.patient != reading.patient) {
                let of = row.patient.clone();
                self.count(Fault::ReadingWrongPatient, || {
                    format!("{} is in the record of {of}", describe(reading))
                });
            }
        }
        // A reading whose acceptance the sensor never learned may be stored.
        for reading in refused {
            let device = crate::scenario::device_of(reading.patient);
            stored.remove(&(device, reading.metric, reading.number));
        }
        for row in stored.into_values().flatten() {
            self.count(Fault::ReadingNeverSent, || format!("{row:?}"));
        }
    }

    /// Ids of the due alerts, each with its due alert.
    fn judge_alerts<'a>(
        &mut self,
        due: &'a [Due],
        alerts: &'a [Raised],
    ) -> HashMap<&'a str, usize> {
        let is_ours = |alert: &&Raised| is_judged(&alert.rule);
        let mut left: Vec<&Raised> = alerts.iter().filter(is_ours).collect();
        self.alerts_raised = left.len();
        self.alerts_of_other_rules = alerts.len() - left.len();
        let mut matched: Vec<Option<&Raised>> = vec![None; due.len()];
        let mut take = |matched: &mut Vec<Option<&'a Raised>>, fits: fn(&Due, &Raised) -> bool| {
            for (slot, due) in matched
                .iter_mut()
                .zip(due)
                .filter(|(slot, _)| slot.is_none())
            {
                let at = left
                    .iter()
                    .position(|alert| is_of(due, alert) && fits(due, alert));
                *slot = at.map(|at| left.swap_remove(at));
            }
        };
        take(&mut matched, |due, alert| due.since_us == alert.since_us);
        take(&mut matched, overlaps);
        let return_of = |alert: &Raised| {
            let returns = |due: &Due| is_of(due, alert) && due.returns_us.contains(&alert.since_us);
            due.iter().position(returns)
        };
        let mut ids = HashMap::new();
        for (at, (due, raised)) in due.iter().zip(&matched).enumerate() {
            let Some(raised) = raised else {
                self.count(Fault::AlertMissing, || describe_due(due));
                continue;
            };
            ids.insert(raised.id.as_str(), at);
            self.judge_acknowledgement(due, raised);
            if raised.since_us != due.since_us {
                let off_us = raised.since_us - due.since_us;
                self.count(Fault::AlertWrongSince, || {
                    format!("{} is off by {off_us} us", describe_due(due))
                });
            }
            // The newest of the alerts carries the state; the others wait for a person.
            let is_apart =
                |alert: &&Raised| return_of(alert) == Some(at) && alert.state == name(due.state);
            let has_moved_on = raised.state == "latched" && left.iter().any(is_apart);
            if has_moved_on {
                continue;
            }
            if raised.state != name(due.state) {
                self.count(Fault::AlertWrongState, || {
                    format!("{} is {}", describe_due(due), raised.state)
                });
            } else if due.state == State::Resolved && raised.changed_us < due.until_us {
                let early_us = due.until_us - raised.changed_us;
                self.count(Fault::AlertWrongEnd, || {
                    format!("{} ended {early_us} us too early", describe_due(due))
                });
            }
        }
        for alert in left {
            let again = due
                .iter()
                .position(|due| is_of(due, alert) && overlaps(due, alert));
            match again {
                Some(at) if return_of(alert) == Some(at) && is_by_us(alert) => {
                    ids.insert(alert.id.as_str(), at);
                    self.returns_apart += 1;
                }
                Some(at) => {
                    ids.insert(alert.id.as_str(), at);
                    self.count(Fault::AlertDoubled, || {
                        format!("{} by {}", describe_due(&due[at]), show(alert))
                    });
                }
                None => self.count(Fault::AlertNotDue, || show(alert)),
            }
        }
        ids
    }

    fn judge_acknowledgement(&mut self, due: &Due, raised: &Raised) {
        let by = raised.acknowledged_by.as_str();
        let expected = match due.acknowledged_us {
            Some(_) => nurse_of(&due.patient),
            None => String::new(),
        };
        if by == expected {
            return;
        }
        let fault = match due.acknowledged_us {
            Some(_) => Fault::AcknowledgementLost,
            None => Fault::AlertAcknowledgedByNobody,
        };
        self.count(fault, || format!("{} by {by:?}", describe_due(due)));
    }

    fn judge_calls(&mut self, ids: &HashMap<&str, usize>, due: &[Due], calls: &[Call]) {
        let mut contents: HashMap<&str, &Call> = HashMap::new();
        let mut told = BTreeSet::new();
        for call in calls.iter().filter(|call| is_judged(&call.rule)) {
            if let Some(first) = contents.get(call.key.as_str()) {
                self.calls_repeated += 1;
                if !call.repeats(first) {
                    self.count(Fault::CallKeyReused, || format!("{first:?} and {call:?}"));
                }
            }
            contents.entry(&call.key).or_insert(call);
            let Some(at) = ids.get(call.id.as_str()) else {
                self.count(Fault::CallNotDue, || format!("{call:?}"));
                continue;
            };
            if matches!(call.state.as_str(), "active" | "latched") {
                told.insert(*at);
            }
        }
        let raised: BTreeSet<usize> = ids.values().copied().collect();
        for at in raised.difference(&told) {
            self.count(Fault::AlertUntold, || describe_due(&due[*at]));
        }
    }
}

impl Verdict {
    /// Every raised alert reached the person on call of the patient's tenant, and nobody else.
    fn judge_letters(&mut self, ids: &HashMap<&str, usize>, due: &[Due], letters: &[Letter]) {
        let mut mailed = BTreeSet::new();
        for letter in letters {
            for id in &letter.alerts {
                let Some(at) = ids.get(id.as_str()) else {
                    continue;
                };
                if on_call_of(&due[*at].patient) == letter.to {
                    mailed.insert(*at);
                } else {
                    self.count(Fault::LetterToOtherTenant, || {
                        format!("{} to {}", describe_due(&due[*at]), letter.to)
                    });
                }
            }
        }
        let raised: BTreeSet<usize> = ids.values().copied().collect();
        for at in raised.difference(&mailed) {
            self.count(Fault::AlertUnmailed, || describe_due(&due[*at]));
        }
    }
}

fn is_of(due: &Due, alert: &Raised) -> bool {
    due.patient == alert.patient && due.rule == alert.rule
}

/// Acknowledged by nobody, or by the people of the run.
fn is_by_us(alert: &Raised) -> bool {
    let by = alert.acknowledged_by.as_str();
    by.is_empty() || by == nurse_of(&alert.patient)
}

/// An open alert has no end yet.
fn overlaps(due: &Due, alert: &Raised) -> bool {
    let until_us = if alert.state == name(State::Resolved) {
        alert.changed_us
    } else {
        i64::MAX
    };
    alert.since_us <= due.until_us && due.since_us <= until_us
}

pub fn name(state: State) -> &'static str {
    match state {
        State::Active => "active",
        State::Acknowledged => "acknowledged",
        State::Latched => "latched",
        State::Resolved => "resolved",
    }
}

fn describe(reading: &Reading) -> String {
    let Reading {
        patient,
        metric,
        number,
        time_us,
        value,
    } = reading;
    format!("{metric} {number} of {patient} ({value} at {time_us})")
}

fn describe_due(due: &Due) -> String {
    let Due {
        patient,
        rule,
        since_us,
        state,
        ..
    } = due;
    format!("{rule} of {patient} since {since_us}, {}", name(*state))
}

fn show(alert: &Raised) -> String {
    let (id, rule, patient) = (&alert.id, &alert.rule, &alert.patient);
    let (since_us, state) = (alert.since_us, &alert.state);
    format!("{id} ({rule} of {patient} since {since_us}, {state})")
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: &str = crate::scenario::RULES[0].id;

    fn reading(number: u64) -> Reading {
        Reading {
            patient: "ada",
            metric: "heart-rate",
            number,
            time_us: number.cast_signed() * 1_000_000,
            value: 70.0,
        }
    }

    fn row(number: u64) -> Row {
        let Reading {
            patient,
            metric,
            number,
            time_us,
            value,
        } = reading(number);
        Row {
            device: crate::scenario::device_of(patient),
            patient: patient.into(),
            metric,
            number,
            time_us,
            arrived_us: time_us,
            value,
        }
    }

    fn due() -> Due {
        Due {
            patient: "ada".into(),
            rule: RULE,
            since_us: 10,
            until_us: 20,
            state: State::Resolved,
            due_us: 13,
            acknowledged_us: None,
            returns_us: Vec::new(),
        }
    }

    fn raised() -> Raised {
        Raised {
            id: "one".into(),
            patient: "ada".into(),
            gateway: "gw-1".into(),
            rule: RULE.into(),
            since_us: 10,
            changed_us: 23,
            state: "resolved".into(),
            acknowledged_by: String::new(),
        }
    }

    fn call() -> Call {
        Call {
            key: "one/1".into(),
            id: "one".into(),
            patient: "ada".into(),
            rule: RULE.into(),
            since_us: 10,
            revision: 1,
            state: "active".into(),
            is_reminder: false,
            at_us: 15,
        }
    }

    fn letter() -> Letter {
        Letter {
            to: on_call_of("ada"),
            alerts: vec!["one".into(), "of another rule".into()],
        }
    }

    fn good() -> Found {
        Found {
            proofs: Vec::new(),
            rows: vec![row(1), row(2)],
            alerts: vec![raised()],
            calls: vec![call(), call()],
            letters: vec![letter()],
        }
    }

    fn judged(edit: impl FnOnce(&mut Found)) -> Vec<Fault> {
        let mut found = good();
        edit(&mut found);
        let verdict = Verdict::of(
            &[reading(1), reading(2)],
            &[],
            &[due()],
            Silences::default(),
            &found,
        );
        verdict.counts.into_keys().collect()
    }

    #[test]
    fn everything_in_its_place_is_good() {
        assert_eq!(judged(|_| {}), []);
        let path = |found: &mut Found| {
            found.alerts.push(Raised {
                rule: "path-degraded".into(),
                id: "two".into(),
                ..raised()
            });
        };
        assert_eq!(
            judged(path),
            [],
            "rules of others are no affair of this run"
        );
    }

    #[test]
    fn every_difference_of_readings_is_found() {
        assert_eq!(judged(|it| it.rows.truncate(1)), [Fault::ReadingLost]);
        assert_eq!(judged(|it| it.rows.push(row(1))), [Fault::ReadingDoubled]);
        assert_eq!(judged(|it| it.rows.push(row(3))), [Fault::ReadingNeverSent]);
        assert_eq!(
            judged(|it| it.rows[0].time_us += 1),
            [Fault::ReadingWrongTime]
        );
        assert_eq!(
            judged(|it| it.rows[0].value += 0.1),
            [Fault::ReadingWrongValue]
        );
        assert_eq!(
            judged(|it| it.rows[0].patient = "ben".into()),
            [Fault::ReadingWrongPatient]
        );
        let verdict = Verdict::of(
            &[],
            &[reading(1)],
            &[],
            Silences::default(),
            &Found::default(),
        );
        assert_eq!(
            verdict.counts.into_keys().collect::<Vec<_>>(),
            [Fault::ReadingNotAccepted]
        );
    }

    #[test]
    fn every_difference_of_alerts_is_found() {
        let alert = |edit: fn(&mut Raised)| judged(|it| edit(&mut it.alerts[0]));
        assert_eq!(alert(|it| it.since_us = 12), [Fault::AlertWrongSince]);
        assert_eq!(
            alert(|it| it.state = "active".into()),
            [Fault::AlertWrongState]
        );
        assert_eq!(alert(|it| it.changed_us = 19), [Fault::AlertWrongEnd]);
        assert_eq!(
            alert(|it| it.acknowledged_by = "eve".into()),
            [Fault::AlertAcknowledgedByNobody]
        );
        assert_eq!(
            judged(|it| it.alerts.clear()),
            [Fault::AlertMissing, Fault::CallNotDue]
        );
        let again = |since_us| Raised {
            id: "two".into(),
            since_us,
            changed_us: since_us,
            ..raised()
        };
        assert_eq!(
            judged(|it| it.alerts.push(again(15))),
            [Fault::AlertDoubled]
        );
        assert_eq!(judged(|it| it.alerts.push(again(40))), [Fault::AlertNotDue]);
    }

    #[test]
    fn every_difference_of_acknowledgements_is_found() {
        let judged = |by: &str, acknowledged_us| {
            let mut found = good();
            found.alerts[0].acknowledged_by = by.into();
            let due = Due {
                acknowledged_us,
                ..due()
            };
            let accepted = [reading(1), reading(2)];
            let verdict = Verdict::of(&accepted, &[], &[due], Silences::default(), &found);
            verdict.counts.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(judged("", None), []);
        assert_eq!(judged(&nurse_of("ada"), Some(15)), []);
        assert_eq!(judged("", Some(15)), [Fault::AcknowledgementLost]);
        assert_eq!(
            judged(&nurse_of("gus"), Some(15)),
            [Fault::AcknowledgementLost]
        );
        assert_eq!(
            judged(&nurse_of("ada"), None),
            [Fault::AlertAcknowledgedByNobody]
        );
    }

    /// Falls and scores are judged as thresholds are: each is due once.
    #[test]
    fn a_doubled_and_an_untold_fall_or_score_is_found() {
        for rule in [crate::scenario::FALL.id, crate::scenario::SCORES[1].id] {
            let judged = |edit: fn(&mut Found)| {
                let mut found = good();
                found.alerts[0].rule = rule.into();
                found
                    .calls
                    .iter_mut()
                    .for_each(|call| call.rule = rule.into());
                edit(&mut found);
                let due = Due { rule, ..due() };
                let accepted = [reading(1), reading(2)];
                let verdict = Verdict::of(&accepted, &[], &[due], Silences::default(), &found);
                verdict.counts.into_keys().collect::<Vec<_>>()
            };
            assert_eq!(judged(|_| {}), []);
            let again = |found: &mut Found| {
                let again = Raised {
                    id: "two".into(),
                    since_us: 15,
                    ..found.alerts[0].clone()
                };
                found.alerts.push(again);
            };
            assert_eq!(judged(again), [Fault::AlertDoubled]);
            assert_eq!(judged(|found| found.calls.clear()), [Fault::AlertUntold]);
            let unraised = |found: &mut Found| {
                found.alerts.clear();
                found.calls.clear();
            };
            assert_eq!(judged(unraised), [Fault::AlertMissing]);
        }
    }

    #[test]
    fn a_return_may_be_an_alert_of_its_own_and_nothing_else_may() {
        let judged = |since_us, returns_us: &[i64]| {
            let mut found = good();
            found.alerts[0].state = "latched".into();
            let again = Raised {
                id: "two".into(),
                since_us,
                ..found.alerts[0].clone()
            };
            found.alerts.push(again);
            let due = Due {
                until_us: i64::MAX,
                state: State::Latched,
                returns_us: returns_us.to_vec(),
                ..due()
            };
            let accepted = [reading(1), reading(2)];
            let verdict = Verdict::of(&accepted, &[], &[due], Silences::default(), &found);
            verdict.counts.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(judged(15, &[15]), []);
        assert_eq!(judged(16, &[15]), [Fault::AlertDoubled]);
        assert_eq!(judged(15, &[]), [Fault::AlertDoubled]);
    }

    #[test]
    fn every_difference_of_calls_is_found() {
        assert_eq!(judged(|it| it.calls.clear()), [Fault::AlertUntold]);
        let only_the_end = |it: &mut Found| {
            it.calls
                .iter_mut()
                .for_each(|call| call.state = "resolved".into())
        };
        assert_eq!(judged(only_the_end), [Fault::AlertUntold]);
        assert_eq!(
            judged(|it| it.calls[1].revision = 2),
            [Fault::CallKeyReused]
        );
        let undue = Call {
            id: "two".into(),
            key: "two/1".into(),
            ..call()
        };
        assert_eq!(judged(|it| it.calls.push(undue)), [Fault::CallNotDue]);
    }

    #[test]
    fn every_difference_of_letters_is_found() {
        assert_eq!(judged(|it| it.letters.clear()), [Fault::AlertUnmailed]);
        let elsewhere = |it: &mut Found| it.letters[0].to = on_call_of("gus");
        assert_eq!(
            judged(elsewhere),
            [Fault::AlertUnmailed, Fault::LetterToOtherTenant]
        );
        assert_eq!(judged(|it| it.letters.push(letter())), []);
    }
}
