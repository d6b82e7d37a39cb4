//! Compares the found state with the expected one.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;

use crate::{
    oracle::{Due, State},
    scenario::{RULES, on_call_of},
};

/// Differences that are listed; further ones are only counted.
const LISTED_MAX: usize = 200;
/// Tolerance of stored values, which are doubles as sent.
const VALUE_ERROR_MAX: f64 = 1e-9;

/// One reading of a sensor. Patient, metric and number identify it.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    pub patient: &'static str,
    pub metric: &'static str,
    pub number: u64,
    pub time_us: i64,
    pub value: f64,
}

/// A row of the store.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub device: String,
    pub patient: String,
    pub metric: &'static str,
    pub number: u64,
    pub time_us: i64,
    /// When ingest received it.
    pub arrived_us: i64,
    pub value: f64,
}

/// The newest state of an alert in the store.
#[derive(Clone, Debug, PartialEq)]
pub struct Raised {
    pub id: String,
    pub patient: String,
    pub gateway: String,
    pub rule: String,
    pub since_us: i64,
    pub changed_us: i64,
    /// Lower-case: `active`, `latched`, `resolved`.
    pub state: String,
    pub acknowledged_by: String,
}

/// A call of the webhook.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub key: String,
    pub id: String,
    pub patient: String,
    pub rule: String,
    pub revision: u64,
    pub state: String,
}

/// A letter to somebody on call.
#[derive(Clone, Debug, PartialEq)]
pub struct Letter {
    pub to: String,
    /// Ids of the alerts to which it links.
    pub alerts: Vec<String>,
}

#[derive(Clone, Debug, Default)]
pub struct Found {
    pub rows: Vec<Row>,
    pub alerts: Vec<Raised>,
    pub calls: Vec<Call>,
    pub letters: Vec<Letter>,
}

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
}

impl Fault {
    pub const ALL: [Fault; 24] = [
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

#[derive(Clone, Debug, Default, Serialize)]
pub struct Verdict {
    pub readings_accepted: usize,
    pub readings_stored: usize,
    pub alerts_due: usize,
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
        let mut verdict = Verdict {
            readings_accepted: accepted.len(),
            readings_stored: found.rows.len(),
            alerts_due: due.len(),
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
        for (fault, text) in silences.faults {
            verdict.count(fault, || text);
        }
        verdict.silences = silences.count;
        verdict.alerts_of_other_rules -= silences.count;
        verdict
    }

    pub fn is_good(&self) -> bool {
        self.counts.is_empty()
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
        let is_ours = |alert: &&Raised| RULES.iter().any(|rule| rule.id == alert.rule);
        let mut left: Vec<&Raised> = alerts.iter().filter(is_ours).collect();
        self.alerts_raised = left.len();
        self.alerts_of_other_rules = alerts.len() - left.len();
        for alert in left
            .iter()
            .filter(|alert| !alert.acknowledged_by.is_empty())
        {
            self.count(Fault::AlertAcknowledgedByNobody, || show(alert));
        }
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
        let mut ids = HashMap::new();
        for (at, (due, raised)) in due.iter().zip(&matched).enumerate() {
            let Some(raised) = raised else {
                self.count(Fault::AlertMissing, || describe_due(due));
                continue;
            };
            ids.insert(raised.id.as_str(), at);
            if raised.since_us != due.since_us {
                let off_us = raised.since_us - due.since_us;
                self.count(Fault::AlertWrongSince, || {
                    format!("{} is off by {off_us} us", describe_due(due))
                });
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

    fn judge_calls(&mut self, ids: &HashMap<&str, usize>, due: &[Due], calls: &[Call]) {
        let mut contents: HashMap<&str, &Call> = HashMap::new();
        let mut told = BTreeSet::new();
        for call in calls
            .iter()
            .filter(|call| RULES.iter().any(|rule| rule.id == call.rule))
        {
            if let Some(first) = contents.get(call.key.as_str()) {
                self.calls_repeated += 1;
                if *first != call {
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
    let Raised {
        id,
        patient,
        rule,
        since_us,
        state,
        ..
    } = alert;
    format!("{id} ({rule} of {patient} since {since_us}, {state})")
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: &str = RULES[0].id;

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
            revision: 1,
            state: "active".into(),
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
