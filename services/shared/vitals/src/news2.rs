//! The National Early Warning Score 2 (Royal College of Physicians, 2017).
//!
//! Seven parameters score 0 to 3 each (oxygen 0 or 2). Their sum gives the risk class, and a 3 in
//! one parameter ("red") raises a low sum to low-medium.
//!
//! A parameter without a fresh reading does not count as 0. The score is then partial and names the
//! missing (never seen) and stale (too old) parameters. A partial score is a lower bound, because
//! no parameter scores below 0. So an alert on a partial score is never false for lack of data.

use contracts::{query, vitals::Metric};
use serde::{Deserialize, Serialize};

use crate::catalogue::display;

/// Column of the chart that scores oxygen saturation. A clinician chooses it for each patient.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spo2Scale {
    /// Scale 1, for every patient without a prescription of scale 2.
    #[default]
    One,
    /// Scale 2, target 88-92 %, for confirmed hypercapnic respiratory failure.
    Two,
}

impl Spo2Scale {
    /// The scale as contracts, tables and documents write it.
    pub const fn number(self) -> u8 {
        match self {
            Spo2Scale::One => 1,
            Spo2Scale::Two => 2,
        }
    }

    /// Any number other than 2 is scale 1, the default without a prescription.
    pub const fn of_number(number: i64) -> Spo2Scale {
        match number {
            2 => Spo2Scale::Two,
            _ => Spo2Scale::One,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Risk {
    Low,
    LowMedium,
    Medium,
    High,
}

/// The parameters in the order of the chart.
pub const PARAMETERS: [Metric; 7] = [
    Metric::RespirationRate,
    Metric::Spo2,
    Metric::SupplementalOxygen,
    Metric::SystolicPressure,
    Metric::HeartRate,
    Metric::Consciousness,
    Metric::Temperature,
];

pub const MEDIUM_FROM: u32 = 5;
pub const HIGH_FROM: u32 = 7;

/// The newest reading of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observation {
    pub metric: Metric,
    pub value: f64,
    pub time_us: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Score {
    /// Sum over the parameters with a fresh reading.
    pub aggregate: u32,
    /// The aggregate if stale readings still counted.
    pub with_stale: u32,
    pub missing: Vec<Metric>,
    pub stale: Vec<Metric>,
    /// Event time of the oldest stale reading.
    pub stale_since_us: Option<i64>,
    /// Parameters that scored 3.
    pub red: Vec<Metric>,
    pub risk: Risk,
}

impl Score {
    pub fn is_partial(&self) -> bool {
        !self.missing.is_empty() || !self.stale.is_empty()
    }

    /// Text for people: "NEWS2 5 (without temperature, consciousness)".
    pub fn describe(&self) -> String {
        if !self.is_partial() {
            return format!("NEWS2 {}", self.aggregate);
        }
        let without: Vec<&str> = self
            .missing
            .iter()
            .chain(&self.stale)
            .map(|metric| display(*metric))
            .collect();
        format!(
            "NEWS2 at least {} (without {})",
            self.aggregate,
            without.join(", ")
        )
    }
}

impl Score {
    /// Form for the API. `silent`: reason why no reading arrives. The score is unknown if the
    /// patient is silent, was never measured, or a measured parameter is too old. An unknown score
    /// is absent, never 0.
    pub fn to_wire(&self, silent: Option<query::Unknown>) -> query::News2 {
        let unknown = silent.or_else(|| self.unknown());
        let is_known = unknown.is_none();
        let is_certain = is_known && (!self.is_partial() || self.risk >= Risk::Medium);
        let codes = |metrics: &[Metric]| metrics.iter().map(|metric| metric.number()).collect();
        query::News2 {
            // A lower bound of 0 carries no information.
            score: (is_known && (!self.is_partial() || self.aggregate > 0))
                .then_some(self.aggregate),
            partial: self.is_partial() || !is_known,
            missing: codes(&[self.missing.as_slice(), &self.stale].concat()),
            red_parameter: !self.red.is_empty(),
            risk: if is_certain {
                self.risk.to_wire()
            } else {
                query::Risk::Unspecified
            }
            .into(),
            unknown,
            stale: codes(&self.stale),
            at_least: (!is_known && self.aggregate > 0).then_some(self.aggregate),
        }
    }

    fn unknown(&self) -> Option<query::Unknown> {
        if self.missing.len() == PARAMETERS.len() {
            return Some(query::Unknown {
                cause: query::UnknownCause::NeverMeasured.into(),
                since_us: 0,
                because: "nothing that the score needs was ever measured".to_owned(),
            });
        }
        let since_us = self.stale_since_us?;
        let names: Vec<&str> = self.stale.iter().copied().map(display).collect();
        Some(query::Unknown {
            cause: query::UnknownCause::Person.into(),
            since_us,
            because: format!("too old: {}", names.join(", ")),
        })
    }
}

impl Risk {
    fn to_wire(self) -> query::Risk {
        match self {
            Risk::Low => query::Risk::Low,
            Risk::LowMedium => query::Risk::LowMedium,
            Risk::Medium => query::Risk::Medium,
            Risk::High => query::Risk::High,
        }
    }
}

/// Scores the newest readings at `now_us`. A reading older than `stale_after_us` of its metric does
/// not count. A reading equally far in the future does not count either, because a clock stepped
/// back.
pub fn score(
    observations: impl IntoIterator<Item = Observation>,
    scale: Spo2Scale,
    stale_after_us: impl Fn(Metric) -> i64,
    now_us: i64,
) -> Score {
    let mut newest: [Option<Observation>; PARAMETERS.len()] = [None; PARAMETERS.len()];
    for observation in observations {
        let Some(index) = PARAMETERS
            .iter()
            .position(|metric| *metric == observation.metric)
        else {
            continue;
        };
        if newest[index].is_none_or(|known| known.time_us <= observation.time_us) {
            newest[index] = Some(observation);
        }
    }
    let is_fresh = |observation: &Observation| {
        now_us.abs_diff(observation.time_us) <= stale_after_us(observation.metric).unsigned_abs()
    };
    let oxygen = |fresh_only: bool| {
        newest[2].is_some_and(|oxygen| oxygen.value >= 1.0 && (!fresh_only || is_fresh(&oxygen)))
    };
    let mut score = Score {
        aggregate: 0,
        with_stale: 0,
        missing: Vec::new(),
        stale: Vec::new(),
        stale_since_us: None,
        red: Vec::new(),
        risk: Risk::Low,
    };
    for (index, metric) in PARAMETERS.into_iter().enumerate() {
        let Some(observation) = newest[index] else {
            score.missing.push(metric);
            continue;
        };
        score.with_stale += points(metric, observation.value, scale, oxygen(false));
        if !is_fresh(&observation) {
            score.stale.push(metric);
            let since_us = score.stale_since_us.unwrap_or(i64::MAX);
            score.stale_since_us = Some(since_us.min(observation.time_us));
            continue;
        }
        let points = points(metric, observation.value, scale, oxygen(true));
        score.aggregate += points;
        if points == 3 {
            score.red.push(metric);
        }
    }
    score.risk = match score.aggregate {
        HIGH_FROM.. => Risk::High,
        MEDIUM_FROM.. => Risk::Medium,
        _ if !score.red.is_empty() => Risk::LowMedium,
        _ => Risk::Low,
    };
    score
}

/// One row of the chart. Readings are first rounded to the chart's resolution: integers, or a tenth
/// of a degree. Metrics outside NEWS2 score 0.
fn points(metric: Metric, value: f64, scale: Spo2Scale, on_oxygen: bool) -> u32 {
    let value = match metric {
        Metric::Temperature => (value * 10.0).round(),
        _ => value.round(),
    } as i64;
    match metric {
        Metric::RespirationRate => match value {
            ..=8 => 3,
            9..=11 => 1,
            12..=20 => 0,
            21..=24 => 2,
            25.. => 3,
        },
        Metric::Spo2 => match scale {
            Spo2Scale::One => match value {
                ..=91 => 3,
                92..=93 => 2,
                94..=95 => 1,
                96.. => 0,
            },
            Spo2Scale::Two => match value {
                ..=83 => 3,
                84..=85 => 2,
                86..=87 => 1,
                88..=92 => 0,
                _ if !on_oxygen => 0,
                93..=94 => 1,
                95..=96 => 2,
                97.. => 3,
            },
        },
        Metric::SupplementalOxygen => match value {
            1.. => 2,
            _ => 0,
        },
        Metric::SystolicPressure => match value {
            ..=90 => 3,
            91..=100 => 2,
            101..=110 => 1,
            111..=219 => 0,
            220.. => 3,
        },
        Metric::HeartRate => match value {
            ..=40 => 3,
            41..=50 => 1,
            51..=90 => 0,
            91..=110 => 1,
            111..=130 => 2,
            131.. => 3,
        },
        Metric::Consciousness => match value {
            1.. => 3,
            _ => 0,
        },
        Metric::Temperature => match value {
            ..=350 => 3,
            351..=360 => 1,
            361..=380 => 0,
            381..=390 => 1,
            391.. => 2,
        },
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEALTHY: [(Metric, f64); 7] = [
        (Metric::RespirationRate, 16.0),
        (Metric::Spo2, 98.0),
        (Metric::SupplementalOxygen, 0.0),
        (Metric::SystolicPressure, 120.0),
        (Metric::HeartRate, 70.0),
        (Metric::Consciousness, 0.0),
        (Metric::Temperature, 37.0),
    ];

    fn with(changes: &[(Metric, f64)], scale: Spo2Scale) -> Score {
        let observations = HEALTHY.map(|(metric, value)| Observation {
            metric,
            value: changes
                .iter()
                .find(|(changed, _)| *changed == metric)
                .map_or(value, |(_, value)| *value),
            time_us: 1000,
        });
        score(observations, scale, |_| 10, 1000)
    }

    /// Tests every boundary of the RCP chart from both sides.
    #[test]
    fn chart_boundaries() {
        let chart: [(Metric, &[(f64, u32)]); 7] = [
            (
                Metric::RespirationRate,
                &[
                    (0.0, 3),
                    (8.0, 3),
                    (9.0, 1),
                    (11.0, 1),
                    (12.0, 0),
                    (20.0, 0),
                    (21.0, 2),
                    (24.0, 2),
                    (25.0, 3),
                ],
            ),
            (
                Metric::Spo2,
                &[
                    (91.0, 3),
                    (92.0, 2),
                    (93.0, 2),
                    (94.0, 1),
                    (95.0, 1),
                    (96.0, 0),
                    (95.4, 1),
                    (95.6, 0),
                ],
            ),
            (Metric::SupplementalOxygen, &[(0.0, 0), (1.0, 2)]),
            (
                Metric::SystolicPressure,
                &[
                    (90.0, 3),
                    (91.0, 2),
                    (100.0, 2),
                    (101.0, 1),
                    (110.0, 1),
                    (111.0, 0),
                    (219.0, 0),
                    (220.0, 3),
                ],
            ),
            (
                Metric::HeartRate,
                &[
                    (40.0, 3),
                    (41.0, 1),
                    (50.0, 1),
                    (51.0, 0),
                    (90.0, 0),
                    (91.0, 1),
                    (110.0, 1),
                    (111.0, 2),
                    (130.0, 2),
                    (131.0, 3),
                ],
            ),
            (
                Metric::Consciousness,
                &[(0.0, 0), (1.0, 3), (2.0, 3), (3.0, 3), (4.0, 3)],
            ),
            (
                Metric::Temperature,
                &[
                    (35.0, 3),
                    (35.1, 1),
                    (36.0, 1),
                    (36.1, 0),
                    (38.0, 0),
                    (38.1, 1),
                    (39.0, 1),
                    (39.1, 2),
                    (35.04, 3),
                ],
            ),
        ];
        for (metric, rows) in chart {
            for (value, points) in rows {
                let score = with(&[(metric, *value)], Spo2Scale::One);
                assert_eq!(score.aggregate, *points, "{metric:?} {value}");
                assert_eq!(score.red.is_empty(), *points != 3);
            }
        }
    }

    #[test]
    fn scale_two_depends_on_oxygen() {
        let rows = [
            (83.0, 3, 3),
            (84.0, 2, 2),
            (85.0, 2, 2),
            (86.0, 1, 1),
            (87.0, 1, 1),
            (88.0, 0, 0),
            (92.0, 0, 0),
            (93.0, 0, 1),
            (94.0, 0, 1),
            (95.0, 0, 2),
            (96.0, 0, 2),
            (97.0, 0, 3),
        ];
        for (spo2, air, oxygen) in rows {
            let on_air = with(&[(Metric::Spo2, spo2)], Spo2Scale::Two);
            let on_oxygen = with(
                &[(Metric::Spo2, spo2), (Metric::SupplementalOxygen, 1.0)],
                Spo2Scale::Two,
            );
            assert_eq!(on_air.aggregate, air, "{spo2} on air");
            // Oxygen itself scores 2.
            assert_eq!(on_oxygen.aggregate, oxygen + 2, "{spo2} on oxygen");
        }
    }

    #[test]
    fn risk_classes() {
        let risk = |changes: &[(Metric, f64)]| with(changes, Spo2Scale::One).risk;
        assert_eq!(risk(&[]), Risk::Low);
        assert_eq!(
            risk(&[(Metric::HeartRate, 120.0), (Metric::Spo2, 92.0)]),
            Risk::Low
        );
        assert_eq!(risk(&[(Metric::HeartRate, 135.0)]), Risk::LowMedium);
        assert_eq!(
            risk(&[(Metric::HeartRate, 135.0), (Metric::Spo2, 92.0)]),
            Risk::Medium
        );
        assert_eq!(
            risk(&[
                (Metric::HeartRate, 135.0),
                (Metric::Spo2, 92.0),
                (Metric::RespirationRate, 22.0)
            ]),
            Risk::High
        );
    }

    #[test]
    fn missing_and_stale_are_named_and_never_zero() {
        let mut observations: Vec<Observation> = HEALTHY
            .iter()
            .filter(|(metric, _)| *metric != Metric::Temperature)
            .map(|(metric, value)| Observation {
                metric: *metric,
                value: *value,
                time_us: 1000,
            })
            .collect();
        observations[4].value = 140.0;
        observations[4].time_us = 900;
        let partial = score(observations.clone(), Spo2Scale::One, |_| 50, 1000);
        assert_eq!(partial.missing, [Metric::Temperature]);
        assert_eq!(partial.stale, [Metric::HeartRate]);
        assert_eq!((partial.aggregate, partial.with_stale), (0, 3));
        assert_eq!(
            partial.describe(),
            "NEWS2 at least 0 (without Body temperature, Heart rate)"
        );
        let wire = partial.to_wire(None);
        assert!(wire.partial && wire.missing.len() == 2);
        assert_eq!((wire.score, wire.at_least), (None, None), "unknown, not 0");
        let unknown = wire.unknown.clone();
        assert_eq!(
            unknown.map(|it| (it.since_us, it.because)),
            Some((900, "too old: Heart rate".to_owned()))
        );
        assert_eq!(wire.risk(), query::Risk::Unspecified);

        let fresh = score(observations, Spo2Scale::One, |_| 100, 1000);
        assert_eq!((fresh.aggregate, fresh.stale.len()), (3, 0));
        let nothing = score([], Spo2Scale::One, |_| 100, 1000);
        assert_eq!(nothing.missing, PARAMETERS);
        let wire = nothing.to_wire(None);
        assert_eq!((wire.score, wire.risk()), (None, query::Risk::Unspecified));
        assert_eq!(
            wire.unknown.map(|it| it.cause()),
            Some(query::UnknownCause::NeverMeasured)
        );
    }

    #[test]
    fn a_partial_score_is_a_lower_bound_and_reassures_nobody() {
        let part = |heart_rate: f64, respiration: f64| {
            let reading = |metric, value| Observation {
                metric,
                value,
                time_us: 5,
            };
            let readings = [
                reading(Metric::HeartRate, heart_rate),
                reading(Metric::RespirationRate, respiration),
                reading(Metric::Spo2, 97.0),
            ];
            score(readings, Spo2Scale::One, |_| 100, 10).to_wire(None)
        };
        let calm = part(70.0, 16.0);
        assert_eq!((calm.score, calm.risk()), (None, query::Risk::Unspecified));
        let raised = part(115.0, 16.0);
        assert_eq!(
            (raised.score, raised.risk()),
            (Some(2), query::Risk::Unspecified)
        );
        let ill = part(135.0, 22.0);
        assert_eq!((ill.score, ill.risk()), (Some(5), query::Risk::Medium));
        assert!(calm.unknown.is_none() && ill.partial);
    }

    #[test]
    fn a_silent_patient_has_no_score_however_good_the_last_readings_were() {
        let silent = query::Unknown {
            since_us: 7,
            ..query::Unknown::default()
        };
        let good = with(&[], Spo2Scale::One).to_wire(Some(silent.clone()));
        assert_eq!((good.score, good.risk()), (None, query::Risk::Unspecified));
        assert_eq!(good.unknown, Some(silent.clone()));
        let bad = with(&[(Metric::HeartRate, 135.0)], Spo2Scale::One).to_wire(Some(silent));
        assert_eq!((bad.score, bad.at_least), (None, Some(3)));
    }

    #[test]
    fn the_newest_reading_counts() {
        let reading = |value, time_us| Observation {
            metric: Metric::HeartRate,
            value,
            time_us,
        };
        let forwards = score(
            [reading(140.0, 5), reading(70.0, 9)],
            Spo2Scale::One,
            |_| 100,
            10,
        );
        let backwards = score(
            [reading(70.0, 9), reading(140.0, 5)],
            Spo2Scale::One,
            |_| 100,
            10,
        );
        assert_eq!(forwards, backwards);
        assert_eq!(forwards.aggregate, 0);
    }
}
