//! The built-in rule set.

use contracts::vitals::{Metric, Priority};

use crate::{
    catalogue::name,
    condition::{Condition, Direction},
    news2,
    rules::{Rule, RuleSet},
};

impl RuleSet {
    /// Thresholds for adults at home, when nobody chose others.
    ///
    /// Limits: the red and amber bands of NEWS2 (RCP 2017); hypertensive crisis 180/120 mmHg (ACC/AHA 2017).
    /// Delays: 14 s removed 50 % and 19 s 67 % of the alarms that were ignored or of no use (Gorges et al., Anesth Analg
    /// 2009). Staleness: a worn sensor reports within minutes; NEWS2 itself is taken at least every 12 h, and every 4 h from a
    /// score of 1 on. Sudden variation: a desaturation counts from 3 or 4 % on (AASM 2012), and six are past the noise of a
    /// wearable oximeter; a heart slows by 12 to 23 /min in the first minute after exercise (Cole et al., NEJM 1999), so 40
    /// is no recovery.
    pub fn default_set() -> RuleSet {
        use Priority::{High, Low, Medium};
        let above = |id: &str, metric, limit, clear, priority, for_s: u64| Rule {
            id: id.into(),
            priority,
            condition: Condition::Above {
                metric,
                limit,
                clear,
            },
            for_ms: for_s * 1000,
            clear_for_ms: for_s * 1000,
        };
        let below = |id: &str, metric, limit, clear, priority, for_s: u64| Rule {
            id: id.into(),
            priority,
            condition: Condition::Below {
                metric,
                limit,
                clear,
            },
            for_ms: for_s * 1000,
            clear_for_ms: for_s * 1000,
        };
        let change =
            |id: &str, metric, direction, by, clear, within_s: u64, priority, for_s: u64| Rule {
                id: id.into(),
                priority,
                condition: Condition::Change {
                    metric,
                    direction,
                    by,
                    clear,
                    within_ms: within_s * 1000,
                },
                for_ms: for_s * 1000,
                clear_for_ms: for_s * 1000,
            };
        let trend = |id: &str, metric, per_hour, clear_per_hour, hours: u64| Rule {
            id: id.into(),
            priority: Low,
            condition: Condition::Trend {
                metric,
                per_hour,
                clear_per_hour,
                window_ms: hours * 3_600_000,
            },
            for_ms: 300_000,
            clear_for_ms: 300_000,
        };
        let news2 = |id: &str, condition, priority| Rule {
            id: id.into(),
            priority,
            condition,
            for_ms: 10_000,
            clear_for_ms: 30_000,
        };
        let stale_after_s = [
            (Metric::HeartRate, 600),
            (Metric::RespirationRate, 600),
            (Metric::Spo2, 600),
            (Metric::Temperature, 4 * 3600),
            (Metric::SystolicPressure, 4 * 3600),
            (Metric::DiastolicPressure, 4 * 3600),
            (Metric::Consciousness, 12 * 3600),
            (Metric::SupplementalOxygen, 12 * 3600),
            (Metric::Battery, 3600),
        ];
        RuleSet {
            name: "default".into(),
            version: 2,
            stale_after_s: stale_after_s
                .into_iter()
                .map(|(metric, seconds)| (name(metric).to_owned(), seconds))
                .collect(),
            rules: vec![
                above(
                    "heart-rate-very-high",
                    Metric::HeartRate,
                    131.0,
                    126.0,
                    High,
                    10,
                ),
                above(
                    "heart-rate-high",
                    Metric::HeartRate,
                    111.0,
                    106.0,
                    Medium,
                    60,
                ),
                below(
                    "heart-rate-very-low",
                    Metric::HeartRate,
                    40.0,
                    43.0,
                    High,
                    10,
                ),
                below("heart-rate-low", Metric::HeartRate, 45.0, 48.0, Low, 60),
                below("spo2-very-low", Metric::Spo2, 85.0, 87.0, High, 10),
                below("spo2-low", Metric::Spo2, 90.0, 92.0, Medium, 15),
                above(
                    "respiration-rate-very-high",
                    Metric::RespirationRate,
                    30.0,
                    27.0,
                    High,
                    15,
                ),
                above(
                    "respiration-rate-high",
                    Metric::RespirationRate,
                    25.0,
                    23.0,
                    Medium,
                    30,
                ),
                below(
                    "respiration-rate-very-low",
                    Metric::RespirationRate,
                    8.0,
                    10.0,
                    High,
                    15,
                ),
                above(
                    "temperature-very-high",
                    Metric::Temperature,
                    39.1,
                    38.8,
                    Medium,
                    0,
                ),
                above("temperature-high", Metric::Temperature, 38.1, 37.8, Low, 0),
                below(
                    "temperature-low",
                    Metric::Temperature,
                    35.0,
                    35.4,
                    Medium,
                    0,
                ),
                below(
                    "systolic-pressure-low",
                    Metric::SystolicPressure,
                    90.0,
                    95.0,
                    High,
                    0,
                ),
                above(
                    "systolic-pressure-high",
                    Metric::SystolicPressure,
                    180.0,
                    170.0,
                    Medium,
                    0,
                ),
                above(
                    "diastolic-pressure-high",
                    Metric::DiastolicPressure,
                    120.0,
                    110.0,
                    Medium,
                    0,
                ),
                above(
                    "consciousness-lowered",
                    Metric::Consciousness,
                    1.0,
                    1.0,
                    High,
                    0,
                ),
                below("battery-low", Metric::Battery, 15.0, 20.0, Low, 0),
                change(
                    "heart-rate-sudden-rise",
                    Metric::HeartRate,
                    Direction::Rise,
                    40.0,
                    25.0,
                    120,
                    Low,
                    20,
                ),
                change(
                    "heart-rate-sudden-drop",
                    Metric::HeartRate,
                    Direction::Drop,
                    40.0,
                    25.0,
                    60,
                    Medium,
                    10,
                ),
                change(
                    "spo2-sudden-drop",
                    Metric::Spo2,
                    Direction::Drop,
                    6.0,
                    3.0,
                    120,
                    Medium,
                    15,
                ),
                Rule {
                    id: "heart-rate-unusual".into(),
                    priority: Low,
                    condition: Condition::Deviation {
                        metric: Metric::HeartRate,
                        direction: Direction::Either,
                        z: 4.0,
                        clear_z: 3.0,
                        floor: 5.0,
                        half_life_ms: 1_800_000,
                    },
                    for_ms: 120_000,
                    clear_for_ms: 120_000,
                },
                trend("temperature-rising", Metric::Temperature, 0.5, 0.2, 2),
                trend("spo2-falling", Metric::Spo2, -2.0, -1.0, 1),
                // Bourke et al., Gait & Posture 2007: peaks of 2.74 g at the thigh and 3.52 g at the trunk find all falls; the
                // mean over a sample's interval is lower than its peak.
                Rule {
                    id: "fall".into(),
                    priority: High,
                    condition: Condition::Fall {
                        impact_g: 2.5,
                        still_g: 0.1,
                        within_ms: 60_000,
                    },
                    for_ms: 10_000,
                    clear_for_ms: 30_000,
                },
                news2(
                    "news2-high",
                    Condition::News2 {
                        from: news2::HIGH_FROM,
                        to: u32::MAX,
                    },
                    High,
                ),
                news2(
                    "news2-medium",
                    Condition::News2 {
                        from: news2::MEDIUM_FROM,
                        to: news2::HIGH_FROM - 1,
                    },
                    Medium,
                ),
                news2("news2-red", Condition::News2Red, Medium),
            ],
        }
    }
}
