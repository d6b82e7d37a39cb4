//! The body: targets, time constants and noise.

use contracts::vitals::Metric;
use rand::{Rng, RngExt};

use super::{episode::Influence, profile::Profile};

/// Autocorrelated noise: an Ornstein-Uhlenbeck process stepped once a second.
#[derive(Clone, Copy, Debug, Default)]
struct Drift {
    value: f64,
}

impl Drift {
    fn step(&mut self, sd: f64, memory_s: f64, rng: &mut impl Rng) -> f64 {
        let keep = (-1.0 / memory_s).exp();
        self.value = self.value * keep + normal(rng) * sd * (1.0 - keep * keep).sqrt();
        // Rare extremes would exceed the range of a calm patient.
        self.value = self.value.clamp(-2.5 * sd, 2.5 * sd);
        self.value
    }
}

/// Sum of twelve uniforms: normal enough, and bounded by six deviations.
pub fn normal(rng: &mut impl Rng) -> f64 {
    (0..12).map(|_| rng.random_range(0.0..1.0)).sum::<f64>() - 6.0
}

#[derive(Clone, Debug)]
pub struct Body {
    pub heart_rate: f64,
    pub respiration_rate: f64,
    pub effort: f64,
    spo2: f64,
    temperature: f64,
    systolic: f64,
    diastolic: f64,
    activity: f64,
    consciousness: f64,
    oxygen: f64,
    battery: f64,
    /// Wish to move, and its remaining seconds.
    zeal: f64,
    zeal_left_s: u32,
    drifts: [Drift; 6],
}

impl Body {
    pub fn new(profile: &Profile, rng: &mut impl Rng) -> Self {
        Self {
            heart_rate: profile.heart_rate,
            respiration_rate: profile.respiration_rate,
            effort: 0.0,
            spo2: profile.spo2,
            temperature: profile.temperature,
            systolic: profile.systolic,
            diastolic: profile.diastolic,
            activity: 1.0,
            consciousness: 0.0,
            oxygen: f64::from(u8::from(profile.on_oxygen)),
            battery: rng.random_range(60.0..100.0),
            zeal: 0.0,
            zeal_left_s: rng.random_range(20..60),
            drifts: [Drift::default(); 6],
        }
    }

    pub fn step(&mut self, profile: &Profile, influence: &Influence, rng: &mut impl Rng) {
        if self.zeal_left_s == 0 {
            let moves = rng.random_bool(0.35);
            self.zeal = if moves {
                rng.random_range(0.1..0.35)
            } else {
                0.0
            };
            self.zeal_left_s = if moves {
                rng.random_range(30..120)
            } else {
                rng.random_range(60..300)
            };
        }
        self.zeal_left_s -= 1;
        // A patient who has fallen, or lacks air, lies still.
        let stillness = influence
            .fall
            .max(influence.desaturation)
            .max(influence.fever * 0.7);
        let zeal = self.zeal * (1.0 - stillness);
        approach(&mut self.effort, zeal, 20.0);

        let [heart, breath, oxygen, warmth, pressure, motion] = &mut self.drifts;
        let air_hunger = (profile.spo2 - self.spo2 - 2.0).max(0.0);
        let warm = (self.temperature - profile.temperature).max(0.0);
        let heart_rate = profile.heart_rate
            + 30.0 * self.effort
            + 75.0 * influence.tachycardia
            + 22.0 * influence.fall
            + 8.5 * warm
            + 1.6 * air_hunger
            + heart.step(1.6, 25.0, rng);
        approach(
            &mut self.heart_rate,
            heart_rate,
            if influence.tachycardia > 0.0 {
                4.0
            } else {
                12.0
            },
        );
        let respiration = profile.respiration_rate
            + 6.0 * self.effort
            + 1.8 * warm
            + 0.85 * air_hunger
            + 4.0 * influence.fall
            + breath.step(0.6, 20.0, rng);
        approach(&mut self.respiration_rate, respiration, 10.0);

        let spo2 = profile.spo2 - 11.5 * influence.desaturation
            + if influence.oxygen { 2.5 } else { 0.0 }
            - 1.0 * influence.tachycardia
            + oxygen.step(0.25, 15.0, rng);
        approach(&mut self.spo2, spo2.min(99.8), 12.0);
        let temperature =
            profile.temperature + 2.6 * influence.fever + warmth.step(0.04, 120.0, rng);
        approach(&mut self.temperature, temperature, 30.0);

        let systolic = profile.systolic + 18.0 * self.effort - 16.0 * influence.tachycardia
            + 10.0 * influence.fall
            - 8.0 * influence.fever
            + pressure.step(2.0, 90.0, rng);
        approach(&mut self.systolic, systolic, 20.0);
        let diastolic = profile.diastolic + 0.45 * (self.systolic - profile.systolic);
        approach(&mut self.diastolic, diastolic, 20.0);

        self.activity = if influence.impact {
            3.4 + 0.3 * normal(rng).abs().min(2.0)
        } else {
            (1.0 + 0.8 * self.effort * (1.0 + motion.step(0.3, 2.0, rng)) + 0.004 * normal(rng))
                .max(0.05)
        };
        self.consciousness = if influence.fall > 0.9 {
            2.0
        } else if influence.fall > 0.4 {
            1.0
        } else {
            0.0
        };
        self.oxygen = f64::from(u8::from(profile.on_oxygen || influence.oxygen));
        // Three days from full to empty, then the device is charged.
        self.battery -= 100.0 / (3.0 * 86_400.0);
        if self.battery < 5.0 {
            self.battery = 100.0;
        }
    }

    /// The sensor's value, rounded to its resolution.
    pub fn reading(&self, metric: Metric) -> f64 {
        let (value, decimals) = match metric {
            Metric::HeartRate => (self.heart_rate, 0),
            Metric::RespirationRate => (self.respiration_rate, 1),
            Metric::Spo2 => (self.spo2.min(100.0), 1),
            Metric::Temperature => (self.temperature, 2),
            Metric::SystolicPressure => (self.systolic, 0),
            Metric::DiastolicPressure => (self.diastolic, 0),
            Metric::Activity => (self.activity, 3),
            Metric::Consciousness => (self.consciousness, 0),
            Metric::SupplementalOxygen => (self.oxygen, 0),
            Metric::Battery => (self.battery, 1),
            _ => (0.0, 0),
        };
        let scale = 10_f64.powi(decimals);
        (value * scale).round() / scale
    }
}

fn approach(value: &mut f64, target: f64, time_constant_s: f64) {
    *value += (target - *value) * (1.0 - (-1.0 / time_constant_s).exp());
}
