//! The built-in rule set.

use contracts::vitals::{
    Metric,
    Priority::{self, High, Low, Medium},
};

use crate::{
    catalogue::name,
    condition::{Condition, Direction},
    news2,
    rules::{Rule, RuleSet},
};

impl RuleSet {
    /// Thresholds for adults at home, for patients without a rule set of their own.
    ///
    /// Limits are the red and amber bands of NEWS2 (RCP 2017), and those of a hypertensive crisis
    /// (ACC/AHA 2017). Delays follow Gorges et al., Anesth Analg 2009: a delay of some seconds
    /// removes most alarms that need no action. Staleness limits follow the intervals of NEWS2; a
    /// worn sensor reports within minutes. A sudden desaturation must exceed AASM 2012 and the
    /// noise of a wearable oximeter. A sudden drop of the heart rate must exceed the recovery after
    /// exercise (Cole et al., NEJM 1999).
    ///
    /// Times of a frozen sensor are far beyond the longest rest of a worn sensor of common
    /// resolution. Metrics that people enter, cuffs, activity and battery may rest and have none.
    pub fn default_set() -> RuleSet {
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
        let groups = [
            heart_rate_rules(),
            breathing_rules(),
            temperature_and_pressure_rules(),
            other_threshold_rules(),
            change_rules(),
            fall_and_news2_rules(),
            frozen_rules(),
        ];
        RuleSet {
            name: "default".into(),
            version: 3,
            stale_after_s: stale_after_s
                .into_iter()
                .map(|(metric, seconds)| (name(metric).to_owned(), seconds))
                .collect(),
            rules: groups.into_iter().flatten().collect(),
        }
    }
}

fn above(id: &str, metric: Metric, limit: f64, clear: f64, priority: Priority, for_s: u64) -> Rule {
    let condition = Condition::Above {
        metric,
        limit,
        clear,
    };
    rule(id, condition, priority, for_s)
}

fn below(id: &str, metric: Metric, limit: f64, clear: f64, priority: Priority, for_s: u64) -> Rule {
    let condition = Condition::Below {
        metric,
        limit,
        clear,
    };
    rule(id, condition, priority, for_s)
}

/// A rule with the same delay before it alerts and before it clears.
fn rule(id: &str, condition: Condition, priority: Priority, for_s: u64) -> Rule {
    Rule {
        id: id.into(),
        priority,
        condition,
        for_ms: for_s * 1000,
        clear_for_ms: for_s * 1000,
    }
}

fn trend(id: &str, metric: Metric, per_hour: f64, clear_per_hour: f64, hours: u64) -> Rule {
    let condition = Condition::Trend {
        metric,
        per_hour,
        clear_per_hour,
        window_ms: hours * 3_600_000,
    };
    rule(id, condition, Low, 300)
}

fn news2(id: &str, condition: Condition, priority: Priority) -> Rule {
    Rule {
        id: id.into(),
        priority,
        condition,
        for_ms: 10_000,
        clear_for_ms: 30_000,
    }
}

/// Thresholds of the heart rate.
fn heart_rate_rules() -> Vec<Rule> {
    vec![
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
    ]
}

/// Thresholds of oxygen saturation and respiration.
fn breathing_rules() -> Vec<Rule> {
    vec![
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
    ]
}

/// Thresholds of temperature and blood pressure.
fn temperature_and_pressure_rules() -> Vec<Rule> {
    vec![
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
    ]
}

/// Thresholds of consciousness and battery.
fn other_threshold_rules() -> Vec<Rule> {
    vec![
        above(
            "consciousness-lowered",
            Metric::Consciousness,
            1.0,
            1.0,
            High,
            0,
        ),
        below("battery-low", Metric::Battery, 15.0, 20.0, Low, 0),
    ]
}

/// Sudden changes, deviations from the patient's own mean, and trends.
fn change_rules() -> Vec<Rule> {
    vec![
        rule(
            "heart-rate-sudden-rise",
            Condition::Change {
                metric: Metric::HeartRate,
                direction: Direction::Rise,
                by: 40.0,
                clear: 25.0,
                within_ms: 120_000,
            },
            Low,
            20,
        ),
        rule(
            "heart-rate-sudden-drop",
            Condition::Change {
                metric: Metric::HeartRate,
                direction: Direction::Drop,
                by: 40.0,
                clear: 25.0,
                within_ms: 60_000,
            },
            Medium,
            10,
        ),
        rule(
            "spo2-sudden-drop",
            Condition::Change {
                metric: Metric::Spo2,
                direction: Direction::Drop,
                by: 6.0,
                clear: 3.0,
                within_ms: 120_000,
            },
            Medium,
            15,
        ),
        rule(
            "heart-rate-unusual",
            Condition::Deviation {
                metric: Metric::HeartRate,
                direction: Direction::Either,
                z: 4.0,
                clear_z: 3.0,
                floor: 5.0,
                half_life_ms: 1_800_000,
            },
            Low,
            120,
        ),
        trend("temperature-rising", Metric::Temperature, 0.5, 0.2, 2),
        trend("spo2-falling", Metric::Spo2, -2.0, -1.0, 1),
    ]
}

/// Sensors that show exactly one value. They say nothing about the patient, so they are low.
fn frozen_rules() -> Vec<Rule> {
    let frozen = |id, metric, unchanged_s: u64| {
        let condition = Condition::Frozen {
            metric,
            unchanged_ms: unchanged_s * 1000,
        };
        rule(id, condition, Low, 0)
    };
    vec![
        // A heart rate of whole beats varies with each breath. A pacemaker may hold it.
        frozen("heart-rate-frozen", Metric::HeartRate, 1_800),
        // Whole per cents of a person asleep rest for minutes.
        frozen("spo2-frozen", Metric::Spo2, 3_600),
        frozen("respiration-rate-frozen", Metric::RespirationRate, 3_600),
        // A tenth of a degree rests for hours. The day's rhythm moves it by half a degree.
        frozen("temperature-frozen", Metric::Temperature, 12 * 3_600),
        // An amplifier has noise even without a heart.
        frozen("ecg-frozen", Metric::Ecg, 60),
    ]
}

/// Falls and the NEWS2 score.
fn fall_and_news2_rules() -> Vec<Rule> {
    vec![
        // Bourke et al., Gait & Posture 2007: peaks of 2.74 g at the thigh and 3.52 g at
        // the trunk find all falls. The mean over a sample's interval is lower than its
        // peak.
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
    ]
}
