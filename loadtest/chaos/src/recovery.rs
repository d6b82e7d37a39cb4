//! How fast the system recovers. A fault is over when a reading that was taken after its end is at
//! ingest. People are told of an alert some time after its delay has ended.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    facts::{Call, Row},
    oracle::Due,
    plan::{Fault, Target},
    scenario::{GATEWAYS, wearers},
};

/// Percentiles of durations in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Percentiles {
    pub count: usize,
    pub p50_ms: i64,
    pub p99_ms: i64,
}

impl Percentiles {
    /// By the nearest rank.
    pub fn of(mut durations_us: Vec<i64>) -> Percentiles {
        durations_us.sort_unstable();
        let count = durations_us.len();
        let rank = |percent: usize| {
            let rank = (count * percent).div_ceil(100).max(1);
            durations_us.get(rank - 1).map_or(0, |it| it / 1_000)
        };
        Percentiles {
            count,
            p50_ms: rank(50),
            p99_ms: rank(99),
        }
    }
}

/// From the end of each fault until the first reading of a patient concerned. The faults count from
/// `began_us`.
pub fn of_faults(began_us: i64, faults: &[&Fault], rows: &[Row]) -> Percentiles {
    // Per patient the times of the readings, each with the first arrival of it or a later one.
    let mut arrivals: BTreeMap<&str, Vec<(i64, i64)>> = BTreeMap::new();
    for row in rows {
        let own = arrivals.entry(&row.patient).or_default();
        own.push((row.time_us, row.arrived_us));
    }
    for own in arrivals.values_mut() {
        own.sort_unstable();
        let mut first_us = i64::MAX;
        for (_, arrived_us) in own.iter_mut().rev() {
            first_us = first_us.min(*arrived_us);
            *arrived_us = first_us;
        }
    }
    let recovered = faults.iter().filter_map(|fault| {
        let ended_us = began_us + i64::from(fault.end_ms()) * 1_000;
        let first = concerned(&fault.target).filter_map(|patient| {
            let own = arrivals.get(patient)?;
            let from = own.partition_point(|(time_us, _)| *time_us < ended_us);
            own.get(from).map(|(_, arrived_us)| *arrived_us)
        });
        first.min().map(|arrived_us| arrived_us - ended_us)
    });
    Percentiles::of(recovered.collect())
}

fn concerned(target: &Target) -> impl Iterator<Item = &'static str> {
    let is_one = |gateway: &'static str, patient: &'static str| match target {
        Target::Radio { patient: own } | Target::Wearer { patient: own } => *own == patient,
        Target::Network { gateway: own } | Target::Link { gateway: own, .. } => *own == gateway,
        Target::Process(name) if GATEWAYS.iter().any(|it| it.name == *name) => *name == gateway,
        _ => true,
    };
    let all = wearers().filter(|(gateway, patient)| is_one(gateway.name, patient));
    let all: Vec<&str> = all.map(|(_, patient)| patient).collect();
    all.into_iter()
}

/// From the moment at which an alert is due until the first call about it.
pub fn of_alerts(due: &[Due], calls: &[Call]) -> Percentiles {
    let mut first: BTreeMap<(&str, &str, i64), i64> = BTreeMap::new();
    for call in calls {
        let at_us = first
            .entry((&call.patient, &call.rule, call.since_us))
            .or_insert(call.at_us);
        *at_us = (*at_us).min(call.at_us);
    }
    let told = due.iter().filter_map(|due| {
        let told_us = first.get(&(due.patient.as_str(), due.rule, due.since_us))?;
        Some(told_us - due.due_us)
    });
    Percentiles::of(told.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Kind;

    #[test]
    fn percentiles_are_by_the_nearest_rank() {
        assert_eq!(Percentiles::of(Vec::new()), Percentiles::default());
        let many = Percentiles::of((1..=200).rev().map(|it| it * 1_000).collect());
        assert_eq!((many.count, many.p50_ms, many.p99_ms), (200, 100, 198));
    }

    #[test]
    fn a_fault_is_over_when_a_reading_of_somebody_concerned_arrives() {
        let row = |patient: &str, time_s: i64, arrived_s: i64| Row {
            device: crate::scenario::device_of(patient),
            patient: patient.into(),
            metric: "spo2",
            number: 1,
            time_us: time_s * 1_000_000,
            arrived_us: arrived_s * 1_000_000,
            value: 97.0,
        };
        let rows = [
            row("ada", 9, 9),
            row("ada", 11, 30),
            row("ada", 12, 17),
            row("gus", 10, 11),
        ];
        let fault = |target| Fault {
            at_ms: 5_000,
            for_ms: 5_000,
            target,
            kind: Kind::Away,
        };
        let of = |target| of_faults(0, &[&fault(target)], &rows).p50_ms;
        assert_eq!(of(Target::Network { gateway: "gw-1" }), 7_000);
        assert_eq!(of(Target::Process("ingest")), 1_000);
        assert_eq!(
            of_faults(0, &[&fault(Target::Radio { patient: "eva" })], &rows).count,
            0
        );
    }
}
