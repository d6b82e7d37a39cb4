//! A simulated patient.
//!
//! The body is stepped once a second. Activity drives effort, and effort drives heart rate,
//! respiration and pressure. Temperature drives heart rate and respiration; low oxygen raises both.
//! Each value follows its target with its own time constant and autocorrelated noise, so the values
//! move together. Episodes (see `episode`) change the targets. Illness is compressed in time: a
//! fever rises within minutes instead of hours, so that a demonstration shows it.
//!
//! All random numbers come from the seed. Episodes have their own stream, so triggering one changes
//! no later schedule.

mod body;
mod ecg;
mod episode;
mod profile;

use contracts::vitals::{Metric, Sample, Waveform, sample::Reading};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use body::Body;
use ecg::Ecg;
use episode::Schedule;

pub use episode::Episode;
pub use profile::Profile;

const SECOND_US: i64 = 1_000_000;

/// Seconds of samples that one `next` makes; after a longer absence a caller gets the newest
/// samples, as from a sensor with limited memory.
const BACKLOG_SECONDS_MAX: i64 = 600;

/// Streams in the order of their samples within a second, with their periods.
const PERIODS_S: [(Metric, i64); 11] = [
    (Metric::HeartRate, 1),
    (Metric::Spo2, 1),
    (Metric::Activity, 1),
    (Metric::RespirationRate, 2),
    (Metric::Temperature, 10),
    (Metric::SystolicPressure, 30),
    (Metric::DiastolicPressure, 30),
    (Metric::Consciousness, 30),
    (Metric::SupplementalOxygen, 30),
    (Metric::Battery, 30),
    (Metric::Ecg, 1),
];

#[derive(Clone, Debug)]
pub struct Patient {
    profile: Profile,
    rng: ChaCha8Rng,
    schedule: Schedule,
    body: Body,
    ecg: Ecg,
    start_us: i64,
    /// Seconds simulated since the start.
    second: i64,
    /// Numbers of the samples, by index in PERIODS_S.
    sequences: [u64; PERIODS_S.len()],
    /// Last values of the streams that also report changes.
    reported: [Option<f64>; 2],
}

impl Patient {
    /// A patient whose first samples are those of `start_us`.
    pub fn new(seed: u64, profile: Profile, start_us: i64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(1);
        let schedule = Schedule::new(seed, profile.episode_interval_s);
        let body = Body::new(&profile, &mut rng);
        Self {
            profile,
            rng,
            schedule,
            body,
            ecg: Ecg::new(),
            start_us,
            second: 0,
            sequences: [0; PERIODS_S.len()],
            reported: [None; 2],
        }
    }

    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Begins an episode with the next second; returns false if the largest number is under way.
    pub fn trigger(&mut self, episode: Episode) -> bool {
        self.schedule.begin(episode, self.second)
    }

    /// The current episodes, oldest first.
    pub fn episodes(&self) -> Vec<Episode> {
        self.schedule.active()
    }

    /// Time at which the next samples are due.
    pub fn due_us(&self) -> i64 {
        self.start_us + self.second * SECOND_US
    }

    /// The samples of every second up to `until_us`, sorted by time.
    pub fn next(&mut self, until_us: i64) -> Vec<Sample> {
        let behind = (until_us - self.due_us()).div_euclid(SECOND_US);
        let mut samples = Vec::new();
        for n in 0..=behind {
            let wanted = behind - n < BACKLOG_SECONDS_MAX;
            self.step(wanted.then_some(&mut samples));
        }
        samples
    }

    fn step(&mut self, samples: Option<&mut Vec<Sample>>) {
        let second = self.second;
        let time_us = self.due_us();
        self.second += 1;
        let influence = self.schedule.step(second);
        self.body.step(&self.profile, &influence, &mut self.rng);
        // The chunk that ends with this second.
        let chunk = self.profile.ecg.then(|| {
            self.ecg.second(
                self.body.heart_rate,
                self.body.respiration_rate,
                self.body.effort,
                &mut self.rng,
            )
        });
        let mut made = Vec::new();
        for (place, (metric, period_s)) in PERIODS_S.iter().enumerate() {
            let value = self.body.reading(*metric);
            let changed = match *metric {
                Metric::Consciousness => self.reported[0].replace(value) != Some(value),
                Metric::SupplementalOxygen => self.reported[1].replace(value) != Some(value),
                _ => false,
            };
            let due = second.rem_euclid(*period_s) == 0;
            let (reading, at_us) = match (*metric, &chunk) {
                (Metric::Ecg, Some(values)) if second > 0 => {
                    let waveform = Waveform {
                        period_us: ecg::PERIOD_US,
                        values: values.clone(),
                    };
                    (Reading::Waveform(waveform), time_us - SECOND_US)
                }
                (Metric::Ecg, _) => continue,
                _ if due || changed => (Reading::Value(value), time_us),
                _ => continue,
            };
            self.sequences[place] += 1;
            let mut sample = Sample {
                device: self.profile.device.clone(),
                metric: (*metric).into(),
                device_time_us: at_us,
                reading: Some(reading),
                patient: self.profile.patient.clone(),
                sensor_sequence: Some(self.sequences[place]),
                ..Sample::default()
            };
            vitals::fill_defaults(&mut sample);
            made.push(sample);
        }
        if let Some(samples) = samples {
            samples.append(&mut made);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use super::*;

    const START_US: i64 = 1_800_000_000_000_000;

    fn calm() -> Profile {
        Profile {
            episode_interval_s: 0.0,
            ..Profile::adult("d1")
        }
    }

    fn values(samples: &[Sample], metric: Metric) -> Vec<f64> {
        samples
            .iter()
            .filter(|sample| sample.metric() == metric)
            .filter_map(|sample| match &sample.reading {
                Some(Reading::Value(value)) => Some(*value),
                _ => None,
            })
            .collect()
    }

    fn after(patient: &mut Patient, seconds: i64) -> Vec<Sample> {
        let until_us = patient.due_us() + (seconds - 1) * SECOND_US;
        patient.next(until_us)
    }

    #[test]
    fn samples_depend_on_seed_and_time_alone() {
        let mut once = Patient::new(7, Profile::varied(7, "d1"), START_US);
        let mut often = once.clone();
        let whole = once.next(START_US + 300 * SECOND_US);
        let mut parts = Vec::new();
        for ms in (0..=300_000).step_by(370) {
            parts.extend(often.next(START_US + ms * 1000));
        }
        parts.extend(often.next(START_US + 300 * SECOND_US));
        assert_eq!(whole, parts);
        let other =
            Patient::new(8, Profile::varied(7, "d1"), START_US).next(START_US + 300 * SECOND_US);
        assert_ne!(whole, other);
    }

    #[test]
    fn every_sample_is_valid_numbered_and_in_order() {
        for seed in 0..4 {
            let mut patient = Patient::new(seed, Profile::varied(seed, "d1"), START_US);
            for episode in Episode::ALL {
                assert!(patient.trigger(episode));
            }
            let samples = after(&mut patient, 600);
            let mut last: BTreeMap<i32, (u64, i64)> = BTreeMap::new();
            for sample in &samples {
                vitals::validate_reading(sample).unwrap();
                vitals::validate_time(
                    sample,
                    START_US + 600 * SECOND_US,
                    vitals::ClockBounds::GATEWAY,
                )
                .unwrap();
                let (number, time_us) = last.get(&sample.metric).copied().unwrap_or((0, i64::MIN));
                assert_eq!(sample.sensor_sequence, Some(number + 1));
                assert!(sample.device_time_us > time_us);
                last.insert(sample.metric, (number + 1, sample.device_time_us));
            }
            assert_eq!(last.len(), PERIODS_S.len());
        }
    }

    #[test]
    fn the_first_second_has_every_metric_of_news2() {
        let mut patient = Patient::new(1, calm(), START_US);
        let samples = patient.next(START_US);
        for metric in vitals::news2::PARAMETERS {
            assert_eq!(values(&samples, metric).len(), 1, "{metric:?}");
        }
    }

    #[test]
    fn a_calm_patient_stays_within_resting_bounds() {
        for seed in 0..20 {
            let profile = Profile {
                ecg: false,
                ..calm()
            };
            let mut patient = Patient::new(seed, profile, START_US);
            let samples = after(&mut patient, 600);
            let within = |metric, low: f64, high: f64| {
                let values = values(&samples, metric);
                assert!(values.len() > 10);
                for value in values {
                    assert!(
                        (low..=high).contains(&value),
                        "seed {seed}: {metric:?} {value}"
                    );
                }
            };
            within(Metric::HeartRate, 50.0, 90.0);
            within(Metric::Spo2, 96.0, 100.0);
            within(Metric::RespirationRate, 12.0, 20.0);
            within(Metric::Temperature, 36.2, 37.2);
            within(Metric::SystolicPressure, 111.0, 150.0);
            within(Metric::Consciousness, 0.0, 0.0);
        }
    }

    #[test]
    fn episodes_change_their_metrics_and_end() {
        let extremes = |episode, metric| {
            let profile = Profile {
                ecg: false,
                ..calm()
            };
            let mut patient = Patient::new(3, profile, START_US);
            after(&mut patient, 60);
            assert!(patient.trigger(episode));
            let mut samples = after(&mut patient, 600);
            samples.extend(after(&mut patient, 300));
            assert_eq!(patient.episodes(), []);
            let after = values(&after(&mut patient, 120), metric);
            let values = values(&samples, metric);
            let low = values.iter().copied().fold(f64::INFINITY, f64::min);
            let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            (low, high, after.last().copied().unwrap())
        };
        let (_, high, after) = extremes(Episode::Tachycardia, Metric::HeartRate);
        assert!(
            (131.0..180.0).contains(&high) && after < 95.0,
            "{high} {after}"
        );
        let (low, _, after) = extremes(Episode::Desaturation, Metric::Spo2);
        assert!(
            (78.0..=90.0).contains(&low) && after > 95.0,
            "{low} {after}"
        );
        let (_, high, after) = extremes(Episode::Fever, Metric::Temperature);
        assert!(
            (38.8..40.5).contains(&high) && after < 37.6,
            "{high} {after}"
        );
        let (_, high, _) = extremes(Episode::Fall, Metric::Activity);
        assert!(high > 2.0, "{high}");
        let (_, high, after) = extremes(Episode::Fall, Metric::Consciousness);
        assert!(high >= 2.0 && after == 0.0, "{high} {after}");
    }

    /// A demonstration, and a test of load, must not be full of alerts about sensors.
    #[test]
    fn no_sensor_of_a_resting_patient_counts_as_frozen() {
        use vitals::{Condition, Engine, Origin, RuleSet};
        let mut rules = RuleSet::default_set();
        let is_frozen = |it: &Condition| matches!(it, Condition::Frozen { .. });
        rules.rules.retain(|rule| is_frozen(&rule.condition));
        let rules = std::sync::Arc::new(rules);
        // With ECG for two minutes, without for longer than the time of SpO2.
        for (ecg, minutes) in [(true, 2), (false, 65)] {
            let profile = Profile { ecg, ..calm() };
            let mut patient = Patient::new(11, profile, START_US);
            let mut engine = Engine::new(
                "d1",
                rules.clone(),
                vitals::Profile::default(),
                Origin::Core,
            );
            for _ in 0..minutes {
                for sample in after(&mut patient, 60) {
                    assert_eq!(engine.on_sample(&sample), []);
                }
            }
        }
    }

    #[test]
    fn values_move_together() {
        let mut patient = Patient::new(5, calm(), START_US);
        after(&mut patient, 60);
        let before = values(&after(&mut patient, 30), Metric::RespirationRate);
        patient.trigger(Episode::Desaturation);
        let during = after(&mut patient, 120);
        let respiration = values(&during, Metric::RespirationRate);
        let heart_rate = values(&during, Metric::HeartRate);
        assert!(respiration.last().unwrap() > &(before[0] + 3.0));
        assert!(heart_rate.last().unwrap() > &(heart_rate[0] + 5.0));
        assert_eq!(
            values(&during, Metric::SupplementalOxygen).last(),
            Some(&1.0)
        );
    }

    #[test]
    fn the_schedule_brings_episodes_by_itself() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..10 {
            let profile = Profile {
                ecg: false,
                ..Profile::adult("d1")
            };
            let mut patient = Patient::new(seed, profile, START_US);
            for _ in 0..720 {
                after(&mut patient, 10);
                seen.extend(patient.episodes());
            }
        }
        assert_eq!(seen.len(), Episode::ALL.len());
    }

    #[test]
    fn a_long_absence_is_bounded() {
        let mut patient = Patient::new(1, calm(), START_US);
        let samples = patient.next(START_US + 1_200 * SECOND_US);
        let first = samples
            .iter()
            .map(|sample| sample.device_time_us)
            .min()
            .unwrap();
        assert!(first >= START_US + (1_200 - BACKLOG_SECONDS_MAX) * SECOND_US);
        assert_eq!(patient.due_us(), START_US + 1_201 * SECOND_US);
    }
}
