//! The NEWS2 score of the metrics of this run, by a table of its own.
//!
//! The product's table is not used, so a wrong row in it shows as a missing or an undue alert.

use crate::{
    oracle::{Stretch, Timing, stretches_of},
    scenario::ScoreRule,
};

/// Points from this value on, in tenths of the metric's unit. The first row covers all lower ones.
type Rows = &'static [(i64, u32)];

/// The chart of the Royal College of Physicians, 2017, with scale 1 of the saturation.
const CHART: [(&str, Rows); 4] = [
    (
        "respiration-rate",
        &[(0, 3), (90, 1), (120, 0), (210, 2), (250, 3)],
    ),
    ("spo2", &[(0, 3), (920, 2), (940, 1), (960, 0)]),
    (
        "temperature",
        &[(0, 3), (351, 1), (361, 0), (381, 1), (391, 2)],
    ),
    (
        "heart-rate",
        &[(0, 3), (410, 1), (510, 0), (910, 1), (1_110, 2), (1_310, 3)],
    ),
];

fn points(metric: &str, value: f64) -> Option<u32> {
    let (name, rows) = CHART.iter().find(|(name, _)| *name == metric)?;
    // The chart has whole numbers, and tenths of a degree.
    let tenths = match *name {
        "temperature" => (value * 10.0).round(),
        _ => value.round() * 10.0,
    };
    let row = rows.iter().rfind(|(from, _)| *from as f64 <= tenths);
    row.map(|(_, points)| *points)
}

/// The score after each reading that changes or confirms it. `readings` are metric, time and value
/// of one patient in the order in which they were sent.
pub fn scores<'a>(readings: impl Iterator<Item = (&'a str, i64, f64)>) -> Vec<(i64, u32)> {
    let mut newest = [0; CHART.len()];
    let mut scores = Vec::new();
    for (metric, time_us, value) in readings {
        let place = CHART.iter().position(|(name, _)| *name == metric);
        if let (Some(place), Some(points)) = (place, points(metric, value)) {
            newest[place] = points;
            scores.push((time_us, newest.iter().sum()));
        }
    }
    scores
}

pub fn timing(rule: &ScoreRule) -> Timing {
    Timing {
        rule: rule.id,
        for_us: i64::from(rule.for_ms) * 1_000,
        clear_us: i64::from(rule.clear_for_ms) * 1_000,
        is_latched: rule.is_latched,
    }
}

/// The stretches in which the score is in the band of the rule.
pub fn stretches(rule: &ScoreRule, scores: &[(i64, u32)]) -> Vec<Stretch> {
    let band = rule.from..=rule.to;
    let scores = scores.iter();
    stretches_of(scores.map(|(time_us, score)| (*time_us, Some(band.contains(score)))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::SCORES;

    #[test]
    fn each_row_of_the_chart_begins_at_its_value() {
        let of = |metric, values: &[(f64, u32)]| {
            for (value, expected) in values {
                assert_eq!(points(metric, *value), Some(*expected), "{metric} {value}");
            }
        };
        of(
            "respiration-rate",
            &[
                (8.0, 3),
                (9.0, 1),
                (12.0, 0),
                (20.4, 0),
                (21.0, 2),
                (25.0, 3),
            ],
        );
        of(
            "spo2",
            &[
                (91.0, 3),
                (92.0, 2),
                (94.0, 1),
                (95.4, 1),
                (96.0, 0),
                (100.0, 0),
            ],
        );
        of(
            "temperature",
            &[
                (35.0, 3),
                (35.1, 1),
                (36.1, 0),
                (38.0, 0),
                (38.1, 1),
                (39.1, 2),
            ],
        );
        of(
            "heart-rate",
            &[
                (40.0, 3),
                (41.0, 1),
                (51.0, 0),
                (91.0, 1),
                (111.0, 2),
                (131.0, 3),
            ],
        );
        assert_eq!(points("activity", 3.0), None);
    }

    #[test]
    fn a_score_is_the_sum_of_the_newest_readings() {
        let readings = [
            ("heart-rate", 1, 121.0),
            ("spo2", 1, 88.0),
            ("activity", 1, 1.5),
            ("respiration-rate", 2, 31.0),
            ("heart-rate", 3, 70.0),
            ("spo2", 3, 97.0),
        ];
        let scores = scores(readings.into_iter());
        assert_eq!(scores, [(1, 2), (1, 5), (2, 8), (3, 6), (3, 3)]);
        let band = |rule| -> Vec<(i64, Option<i64>)> {
            let found = stretches(rule, &scores).into_iter();
            found.map(|it| (it.since_us, it.ended_us)).collect()
        };
        assert_eq!(band(&SCORES[0]), [(1, Some(2)), (3, Some(3))]);
        assert_eq!(band(&SCORES[1]), [(2, Some(3))]);
    }
}
