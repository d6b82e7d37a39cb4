//! A lead II electrocardiogram at 250 Hz that follows the heart rate.
//!
//! Each beat is a sum of Gaussians for P, Q, R, S and T around its R wave (McSharry et al., 2003).
//! The distance of T to R grows with the square root of the cycle (Bazett). Breathing modulates the
//! cycle (respiratory sinus arrhythmia) and the baseline; movement adds muscle noise.

use std::collections::VecDeque;

use rand::Rng;

use super::body::normal;

pub const PERIOD_US: u32 = 4_000;
const READINGS_PER_SECOND: usize = 250;
/// Time for which beats are kept: their waves may reach into the second being drawn.
const REACH_S: f64 = 1.0;
/// Beats that are kept: 350 beats a minute, over the reach on both sides and the second itself.
const BEATS_MAX: usize = 32;

struct Wave {
    /// Time from the R wave in seconds, at 60 beats a minute.
    at: f64,
    width: f64,
    height_mv: f64,
    /// Whether it moves with the cycle.
    stretches: bool,
}

const WAVES: [Wave; 5] = [
    Wave {
        at: -0.17,
        width: 0.024,
        height_mv: 0.14,
        stretches: true,
    },
    Wave {
        at: -0.030,
        width: 0.009,
        height_mv: -0.12,
        stretches: false,
    },
    Wave {
        at: 0.0,
        width: 0.011,
        height_mv: 1.10,
        stretches: false,
    },
    Wave {
        at: 0.032,
        width: 0.010,
        height_mv: -0.24,
        stretches: false,
    },
    Wave {
        at: 0.28,
        width: 0.055,
        height_mv: 0.30,
        stretches: true,
    },
];

#[derive(Clone, Copy, Debug)]
struct Beat {
    at: f64,
    cycle: f64,
}

#[derive(Clone, Debug)]
pub struct Ecg {
    /// Seconds drawn.
    now: f64,
    beats: VecDeque<Beat>,
    breath_phase: f64,
}

impl Ecg {
    pub fn new() -> Self {
        Self {
            now: 0.0,
            beats: VecDeque::new(),
            breath_phase: 0.0,
        }
    }

    /// The next second, in mV.
    pub fn second(
        &mut self,
        heart_rate: f64,
        respiration_rate: f64,
        effort: f64,
        rng: &mut impl Rng,
    ) -> Vec<f32> {
        let breaths_per_s = respiration_rate / 60.0;
        let cycle = 60.0 / heart_rate.clamp(20.0, 350.0);
        while self
            .beats
            .back()
            .is_none_or(|beat| beat.at < self.now + 1.0 + REACH_S)
            && self.beats.len() < BEATS_MAX
        {
            let last = self.beats.back().map_or(self.now - REACH_S, |beat| beat.at);
            let breath = self.breath_phase + (last - self.now) * breaths_per_s;
            // A fast heart leaves little room for the breath's rhythm.
            let arrhythmia = 0.04 * cycle.min(1.0) * (std::f64::consts::TAU * breath).sin();
            let cycle = cycle * (1.0 + arrhythmia + 0.008 * normal(rng));
            self.beats.push_back(Beat {
                at: last + cycle,
                cycle,
            });
        }
        let mut readings = Vec::with_capacity(READINGS_PER_SECOND);
        for n in 0..READINGS_PER_SECOND {
            let offset = n as f64 / READINGS_PER_SECOND as f64;
            let time = self.now + offset;
            let breath = std::f64::consts::TAU * (self.breath_phase + offset * breaths_per_s);
            let beats: f64 = self.beats.iter().map(|beat| beat.mv_at(time)).sum();
            let noise = (0.008 + 0.05 * effort) * normal(rng);
            readings.push((beats + 0.04 * breath.sin() + noise) as f32);
        }
        self.breath_phase = (self.breath_phase + breaths_per_s).fract();
        self.now += 1.0;
        let horizon = self.now - REACH_S;
        while self.beats.front().is_some_and(|beat| beat.at < horizon) {
            self.beats.pop_front();
        }
        readings
    }
}

impl Beat {
    fn mv_at(self, time: f64) -> f64 {
        let from_r = time - self.at;
        if from_r.abs() > REACH_S {
            return 0.0;
        }
        let stretch = self.cycle.sqrt();
        WAVES
            .iter()
            .map(|wave| {
                let scale = if wave.stretches { stretch } else { 1.0 };
                let distance = (from_r - wave.at * scale) / (wave.width * scale);
                // Beyond six deviations the wave is zero, and most points lie beyond.
                if distance.abs() > 6.0 {
                    return 0.0;
                }
                wave.height_mv * (-0.5 * distance * distance).exp()
            })
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    /// R waves in a minute, by a simple detector: crossings of half of their height.
    fn counted_beats(heart_rate: f64) -> usize {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut ecg = Ecg::new();
        let mut above = true;
        let mut beats = 0;
        for _ in 0..60 {
            for reading in ecg.second(heart_rate, 14.0, 0.0, &mut rng) {
                assert!((-0.6..1.6).contains(&reading), "{reading}");
                let is_above = reading > 0.6;
                beats += usize::from(is_above && !above);
                above = is_above;
            }
        }
        beats
    }

    #[test]
    fn the_waveform_has_as_many_r_waves_as_the_heart_beats() {
        for heart_rate in [45.0, 72.0, 110.0, 160.0] {
            let beats = counted_beats(heart_rate) as f64;
            assert!((beats - heart_rate).abs() <= 3.0, "{heart_rate}: {beats}");
        }
    }
}
