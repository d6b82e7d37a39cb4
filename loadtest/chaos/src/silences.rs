//! Judges what the system said about silence, from arrivals alone.
//!
//! The watch of alerting is not called here. A sensor was silent between two consecutive arrivals
//! of its readings at ingest, of any wearer. So:
//!
//! - A silence that lasted while a watch could work was raised: for the sensor, for its gateway or
//!   for everybody.
//! - A silence ends by a reading that arrived after it began, or when the patient no longer wears
//!   the sensor. No restart ends it.
//! - A silence whose sensor was heard again is not open.
//! - A watch whose clock is ahead names the beginning of a silence by that clock. Its decisions are
//!   judged by the true time.
//! - A sensor has at most one silence at a time.
//! - Somebody was told of it, or of the wider silence that explains it.

use std::collections::BTreeMap;

use crate::{
    facts::{Call, Raised, Row},
    plan::STEP_S,
    scenario::{SILENT_AFTER_S, device_of, patients},
    verdict::{Fault, Silences},
};

const DEVICE: &str = "device-silent";
const GATEWAY: &str = "gateway-silent";
const PIPELINE: &str = "pipeline-silent";

const SECOND_US: i64 = 1_000_000;
const SILENT_AFTER_US: i64 = SILENT_AFTER_S as i64 * SECOND_US;
/// A watch looks every 5 s. It may miss one look while the store answers slowly.
const JUDGED_WITHIN_US: i64 = 15 * SECOND_US;
/// The clock of a watch may be corrected by this much.
const SLACK_US: i64 = 2 * SECOND_US;

/// The times between which it was possible to judge it.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// Intervals in which at least one watch and the store worked, sorted.
    pub able_us: Vec<(i64, i64)>,
    /// The sensors stop here. A silence that begins later has no end.
    pub until_us: i64,
    /// When the device of the patient got its next wearer, by the first one.
    pub moved_us: BTreeMap<&'static str, i64>,
    /// Intervals in which the clock of a watch was ahead by [`STEP_S`], by the true time.
    pub ahead_us: Vec<(i64, i64)>,
}

pub fn judge(watched: &Watched, rows: &[Row], alerts: &[Raised], calls: &[Call]) -> Silences {
    let mut arrivals: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for row in rows {
        arrivals
            .entry(&row.device)
            .or_default()
            .push(row.arrived_us);
    }
    for times in arrivals.values_mut() {
        times.sort_unstable();
        times.dedup();
    }
    let judge = Judge {
        watched,
        everybody: {
            let mut all: Vec<i64> = arrivals.values().flatten().copied().collect();
            all.sort_unstable();
            all
        },
        arrivals,
        alerts,
        calls,
    };
    let mut faults = Vec::new();
    let silences: Vec<&Raised> = alerts
        .iter()
        .filter(|alert| alert.rule == DEVICE || alert.rule == PIPELINE)
        .collect();
    for silence in &silences {
        faults.extend(judge.end_of(silence));
        if silence.since_us + SILENT_AFTER_US < watched.until_us && !judge.is_told(silence) {
            faults.push((Fault::SilenceUntold, show(silence)));
        }
    }
    faults.extend(judge.doubled(&silences));
    for (gateway, patient) in patients() {
        faults.extend(judge.missing(gateway.name, patient));
    }
    Silences {
        faults,
        count: silences.len(),
    }
}

struct Judge<'a> {
    watched: &'a Watched,
    arrivals: BTreeMap<&'a str, Vec<i64>>,
    everybody: Vec<i64>,
    alerts: &'a [Raised],
    calls: &'a [Call],
}

impl Judge<'_> {
    fn arrivals_for(&self, silence: &Raised) -> &[i64] {
        match silence.rule.as_str() {
            DEVICE => self
                .arrivals
                .get(device_of(&silence.patient).as_str())
                .map_or(&[], Vec::as_slice),
            _ => &self.everybody,
        }
    }

    /// The first sign of life that ends this silence.
    fn heard_after(&self, silence: &Raised) -> Option<i64> {
        let times = self.arrivals_for(silence);
        let from = times.partition_point(|time| *time <= silence.since_us + SLACK_US);
        times.get(from).copied()
    }

    /// The silence with its true beginning, if a watch whose clock was ahead may have raised it.
    fn by_true_time(&self, silence: &Raised) -> Option<Raised> {
        let since_us = silence.since_us - STEP_S * SECOND_US;
        let raised_us = since_us + SILENT_AFTER_US;
        let mut ahead = self.watched.ahead_us.iter();
        let is_possible = ahead.any(|(from_us, to_us)| {
            (from_us - SLACK_US..to_us + JUDGED_WITHIN_US).contains(&raised_us)
        });
        is_possible.then(|| Raised {
            since_us,
            ..silence.clone()
        })
    }

    /// When the assignment of the sensor ended, if the silence had begun by then.
    fn unassigned_us(&self, silence: &Raised) -> Option<i64> {
        let moved_us = self.watched.moved_us.get(silence.patient.as_str()).copied();
        moved_us.filter(|it| silence.since_us <= *it)
    }

    fn end_of(&self, silence: &Raised) -> Option<(Fault, String)> {
        let heard_us = self.heard_after(silence);
        let unassigned_us = self.unassigned_us(silence);
        if silence.state == "resolved" {
            if unassigned_us.is_some_and(|it| it <= silence.changed_us + SLACK_US) {
                return None;
            }
            let is_in_time = |heard_us: Option<i64>| {
                heard_us.is_some_and(|it| it <= silence.changed_us + SLACK_US)
            };
            let is_heard = is_in_time(heard_us)
                || self
                    .by_true_time(silence)
                    .is_some_and(|silence| is_in_time(self.heard_after(&silence)));
            return (!is_heard).then(|| (Fault::SilenceEndedUnheard, show(silence)));
        }
        let is_over = heard_us.is_some() || unassigned_us.is_some();
        is_over.then(|| (Fault::SilenceOutlived, show(silence)))
    }

    fn is_told(&self, silence: &Raised) -> bool {
        let told = |alert: &Raised| self.calls.iter().any(|call| call.id == alert.id);
        told(silence)
            || self
                .alerts
                .iter()
                .filter(|alert| alert.rule == GATEWAY || alert.rule == PIPELINE)
                .any(|wider| overlap(wider, silence) && told(wider))
    }

    /// Two silences with no reading between their beginnings are one.
    fn doubled(&self, silences: &[&Raised]) -> Vec<(Fault, String)> {
        let mut faults = Vec::new();
        for (at, one) in silences.iter().enumerate() {
            for other in &silences[at + 1..] {
                let is_same = one.rule == other.rule && one.patient == other.patient;
                let (first, second) = if one.since_us <= other.since_us {
                    (one, other)
                } else {
                    (other, one)
                };
                let heard_us = self.heard_after(first);
                let is_apart = heard_us.is_some_and(|it| it <= second.since_us + SLACK_US);
                if is_same && !is_apart {
                    let text = format!("{} and {}", show(first), show(second));
                    faults.push((Fault::SilenceDoubled, text));
                }
            }
        }
        faults
    }

    /// Silences of this patient's sensor that nobody raised although a watch could.
    fn missing(&self, gateway: &str, patient: &str) -> Vec<(Fault, String)> {
        let device = device_of(patient);
        let times = self
            .arrivals
            .get(device.as_str())
            .map_or(&[][..], Vec::as_slice);
        let is_raised = |from_us: i64, to_us: i64| {
            self.alerts.iter().any(|alert| {
                let is_of = match alert.rule.as_str() {
                    DEVICE => device_of(&alert.patient) == device,
                    GATEWAY => alert.gateway == gateway,
                    rule => rule == PIPELINE,
                };
                is_of && alert.since_us <= to_us && end_us(alert) >= from_us
            })
        };
        let mut faults = Vec::new();
        for pair in times.windows(2) {
            let (from_us, to_us) = (pair[0] + SILENT_AFTER_US, pair[1]);
            let is_due = to_us <= self.watched.until_us
                && self
                    .watched
                    .able_us
                    .iter()
                    .any(|able| able.1.min(to_us) - able.0.max(from_us) >= JUDGED_WITHIN_US);
            if is_due && !is_raised(from_us, to_us) {
                let text = format!("{patient}, nothing from {} to {to_us}", pair[0]);
                faults.push((Fault::SilenceMissing, text));
            }
        }
        faults
    }
}

/// An open alert has no end yet.
fn end_us(alert: &Raised) -> i64 {
    match alert.state.as_str() {
        "resolved" => alert.changed_us,
        _ => i64::MAX,
    }
}

fn overlap(one: &Raised, other: &Raised) -> bool {
    one.since_us < end_us(other) && other.since_us < end_us(one)
}

fn show(silence: &Raised) -> String {
    let Raised {
        id,
        patient,
        rule,
        since_us,
        changed_us,
        state,
        ..
    } = silence;
    format!("{id} ({rule} {patient} since {since_us}, {state} at {changed_us})")
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = SECOND_US;
    const END_S: i64 = 300;

    /// Every patient is heard each second, but for `pause` of ada.
    fn rows(pause: std::ops::Range<i64>) -> Vec<Row> {
        let of = |patient: &'static str| {
            let pause = pause.clone();
            (0..END_S)
                .filter(move |second| patient != "ada" || !pause.contains(second))
                .map(move |second| Row {
                    device: crate::scenario::device_of(patient),
                    patient: patient.into(),
                    metric: "heart-rate",
                    number: second.cast_unsigned(),
                    time_us: second * S,
                    arrived_us: second * S,
                    value: 70.0,
                })
        };
        patients().flat_map(|(_, patient)| of(patient)).collect()
    }

    fn silence(since_s: i64, ended_s: Option<i64>) -> Raised {
        Raised {
            id: format!("silence-{since_s}"),
            patient: "ada".into(),
            gateway: "gw-1".into(),
            rule: DEVICE.into(),
            since_us: since_s * S,
            changed_us: ended_s.unwrap_or(since_s) * S,
            state: if ended_s.is_some() {
                "resolved"
            } else {
                "active"
            }
            .into(),
            acknowledged_by: String::new(),
        }
    }

    fn call(alert: &Raised) -> Call {
        Call {
            key: alert.id.clone(),
            id: alert.id.clone(),
            patient: alert.patient.clone(),
            rule: alert.rule.clone(),
            since_us: alert.since_us,
            revision: 1,
            state: "active".into(),
            is_reminder: false,
            at_us: alert.since_us,
        }
    }

    fn faults(able_s: (i64, i64), rows: &[Row], alerts: &[Raised], calls: &[Call]) -> Vec<Fault> {
        let watched = Watched {
            able_us: vec![(able_s.0 * S, able_s.1 * S)],
            until_us: END_S * S,
            moved_us: BTreeMap::new(),
            ahead_us: Vec::new(),
        };
        let judged = judge(&watched, rows, alerts, calls);
        judged.faults.into_iter().map(|(fault, _)| fault).collect()
    }

    const ALWAYS: (i64, i64) = (0, END_S);

    #[test]
    fn a_silence_that_is_raised_told_and_ended_by_a_reading_is_good() {
        let raised = silence(99, Some(151));
        let good = faults(
            ALWAYS,
            &rows(100..150),
            std::slice::from_ref(&raised),
            &[call(&raised)],
        );
        assert_eq!(good, []);
        assert_eq!(faults(ALWAYS, &rows(0..0), &[], &[]), []);
    }

    #[test]
    fn a_silence_that_nobody_raised_is_missing_if_a_watch_could_work() {
        let quiet = rows(100..150);
        assert_eq!(faults(ALWAYS, &quiet, &[], &[]), [Fault::SilenceMissing]);
        assert_eq!(faults((0, 120), &quiet, &[], &[]), [], "no time to judge");
        // The wider silence explains it.
        let mut wider = silence(99, Some(151));
        wider.rule = GATEWAY.into();
        wider.patient.clear();
        assert_eq!(
            faults(
                ALWAYS,
                &quiet,
                std::slice::from_ref(&wider),
                &[call(&wider)]
            ),
            []
        );
        wider.gateway = "gw-2".into();
        assert_eq!(
            faults(ALWAYS, &quiet, &[wider], &[]),
            [Fault::SilenceMissing]
        );
    }

    #[test]
    fn a_silence_ends_by_a_reading_and_by_nothing_else() {
        let told = |raised: &Raised| vec![call(raised)];
        let early = silence(99, Some(135));
        assert_eq!(
            faults(
                ALWAYS,
                &rows(100..150),
                std::slice::from_ref(&early),
                &told(&early)
            ),
            [Fault::SilenceEndedUnheard]
        );
        let open = silence(99, None);
        assert_eq!(
            faults(
                ALWAYS,
                &rows(100..150),
                std::slice::from_ref(&open),
                &told(&open)
            ),
            [Fault::SilenceOutlived]
        );
        let lasting = faults(
            ALWAYS,
            &rows(100..END_S),
            std::slice::from_ref(&open),
            &told(&open),
        );
        assert_eq!(lasting, []);
        let mut everybody = silence(299, Some(340));
        everybody.rule = PIPELINE.into();
        everybody.patient.clear();
        assert_eq!(
            faults(ALWAYS, &rows(0..0), &[everybody], &[]),
            [Fault::SilenceEndedUnheard]
        );
    }

    #[test]
    fn a_watch_whose_clock_is_ahead_is_judged_by_the_true_time() {
        // Heard at 150 s, and named by a clock that is 90 s ahead.
        let named = Raised {
            since_us: 189 * S,
            ..silence(189, Some(201))
        };
        let judged = |ahead_us: Vec<(i64, i64)>| -> Vec<Fault> {
            let watched = Watched {
                ahead_us,
                ..Watched::default()
            };
            let mut rows = rows(100..150);
            rows.retain(|row| row.patient != "ada" || row.arrived_us <= 150 * S);
            let alerts = std::slice::from_ref(&named);
            let judged = judge(&watched, &rows, alerts, &[call(&named)]);
            judged.faults.into_iter().map(|(fault, _)| fault).collect()
        };
        assert_eq!(judged(vec![(100 * S, 120 * S)]), []);
        assert_eq!(judged(Vec::new()), [Fault::SilenceEndedUnheard]);
        assert_eq!(judged(vec![(10 * S, 50 * S)]), [Fault::SilenceEndedUnheard]);
    }

    #[test]
    fn a_silence_raised_twice_or_told_to_nobody_is_found() {
        let raised = silence(99, Some(151));
        let again = silence(100, None);
        let calls = [call(&raised), call(&again)];
        let twice = [silence(99, None), again];
        let next = silence(169, Some(181));
        let rows_twice: Vec<Row> = rows(100..150)
            .into_iter()
            .filter(|row| row.patient != "ada" || !(170 * S..180 * S).contains(&row.arrived_us))
            .collect();
        // The end is written some seconds after the reading that ends it.
        let late = [silence(99, Some(175)), next.clone()];
        let told = [call(&raised), call(&next)];
        assert_eq!(faults(ALWAYS, &rows_twice, &late, &told), []);
        assert_eq!(
            faults(ALWAYS, &rows(100..END_S), &twice, &calls),
            [Fault::SilenceDoubled]
        );
        assert_eq!(
            faults(ALWAYS, &rows(100..150), &[raised], &[]),
            [Fault::SilenceUntold]
        );
    }

    #[test]
    fn a_silence_ends_when_another_patient_gets_the_sensor() {
        let moved = |silence: &Raised| -> Vec<Fault> {
            let watched = Watched {
                able_us: Vec::new(),
                until_us: END_S * S,
                moved_us: BTreeMap::from([("ada", 200 * S)]),
                ahead_us: Vec::new(),
            };
            let alerts = std::slice::from_ref(silence);
            let judged = judge(&watched, &rows(100..END_S), alerts, &[call(silence)]);
            judged.faults.into_iter().map(|(fault, _)| fault).collect()
        };
        assert_eq!(moved(&silence(99, Some(201))), []);
        assert_eq!(moved(&silence(99, Some(150))), [Fault::SilenceEndedUnheard]);
        assert_eq!(moved(&silence(99, None)), [Fault::SilenceOutlived]);
    }

    #[test]
    fn a_late_reading_of_the_former_wearer_shows_that_the_sensor_lives() {
        let raised = Raised {
            patient: "ines".into(),
            ..silence(99, Some(151))
        };
        let late = |device: &str| -> Vec<Fault> {
            let mut rows = rows(0..0);
            rows.retain(|row| row.device != "belt-ben" || row.arrived_us < 100 * S);
            rows.push(Row {
                device: device.into(),
                patient: "ben".into(),
                arrived_us: 150 * S,
                ..rows[0].clone()
            });
            let alerts = std::slice::from_ref(&raised);
            let judged = judge(&Watched::default(), &rows, alerts, &[call(&raised)]);
            judged.faults.into_iter().map(|(fault, _)| fault).collect()
        };
        assert_eq!(late("belt-ben"), []);
        assert_eq!(late("belt-gus"), [Fault::SilenceEndedUnheard]);
    }
}
