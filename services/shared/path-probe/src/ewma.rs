//! The generalised EWMA for samples at irregular times (13): with one time constant, with several,
//! and asymmetric.

/// Weights a sample by the time since the sample before: S = (1 - e^(-dt/tau)) x + e^(-dt/tau) S.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ewma {
    tau_s: f64,
    last: Option<(f64, f64)>,
}

impl Ewma {
    pub fn new(tau_s: f64) -> Ewma {
        Ewma { tau_s, last: None }
    }

    /// The first sample is the first value (S_0 = x_0). A sample that is older than the last has no
    /// weight.
    pub fn update(&mut self, now_s: f64, sample: f64) -> f64 {
        self.update_with(now_s, sample, self.tau_s)
    }

    fn update_with(&mut self, now_s: f64, sample: f64, tau_s: f64) -> f64 {
        let (at_s, value) = match self.last {
            None => (now_s, sample),
            Some((last_s, value)) => {
                let elapsed_s = (now_s - last_s).max(0.0);
                let keep = (-elapsed_s / tau_s).exp();
                (now_s.max(last_s), (1.0 - keep) * sample + keep * value)
            }
        };
        self.last = Some((at_s, value));
        value
    }

    pub fn value(&self) -> Option<f64> {
        self.last.map(|(_, value)| value)
    }
}

/// Follows a growing value with a short time constant and a falling value with a long one. So a
/// short improvement has little effect (section 6, figure 18).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AsymmetricEwma {
    inner: Ewma,
    better_tau_s: f64,
}

impl AsymmetricEwma {
    pub fn new(worse_tau_s: f64, better_tau_s: f64) -> AsymmetricEwma {
        AsymmetricEwma {
            inner: Ewma::new(worse_tau_s),
            better_tau_s,
        }
    }

    pub fn update(&mut self, now_s: f64, sample: f64) -> f64 {
        let tau_s = match self.inner.value() {
            Some(value) if sample < value => self.better_tau_s,
            _ => self.inner.tau_s,
        };
        self.inner.update_with(now_s, sample, tau_s)
    }

    pub fn value(&self) -> Option<f64> {
        self.inner.value()
    }
}

/// Several time constants over the same samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scales<const N: usize> {
    scales: [Ewma; N],
}

impl<const N: usize> Scales<N> {
    pub fn new(taus_s: [f64; N]) -> Scales<N> {
        Scales {
            scales: taus_s.map(Ewma::new),
        }
    }

    pub fn update(&mut self, now_s: f64, sample: f64) -> [f64; N] {
        let mut values = [0.0; N];
        for (value, scale) in values.iter_mut().zip(&mut self.scales) {
            *value = scale.update(now_s, sample);
        }
        values
    }

    pub fn values(&self) -> [Option<f64>; N] {
        self.scales.map(|scale| scale.value())
    }
}

/// Time constant of smoothing factor `alpha` at interval `interval_s` (12).
pub fn tau_of_alpha(alpha: f64, interval_s: f64) -> f64 {
    -interval_s / (1.0 - alpha).ln()
}

/// Time in which the estimate comes within 10 % of a step: T_tml = tau ln 10 = 2.3 tau.
pub fn timeliness(tau_s: f64) -> f64 {
    tau_s * std::f64::consts::LN_10
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Figures 16 and 21: T_KA 200 ms and 2 s, alpha 0.8, 0.6, 0.4, 0.2. The paper prints 896 ms
    /// for alpha 0.2 and 392 ms for 0.4.
    #[test]
    fn time_constants_of_the_paper() {
        let printed_ms = [(0.8, 124.0), (0.6, 218.0), (0.4, 392.0), (0.2, 896.0)];
        for (alpha, tau_ms) in printed_ms {
            let ours_ms = tau_of_alpha(alpha, 0.2) * 1000.0;
            assert!((ours_ms - tau_ms).abs() < 1.0, "{alpha}: {ours_ms}");
            assert!((tau_of_alpha(alpha, 2.0) * 100.0 - tau_ms).abs() < 1.0);
        }
        assert!((timeliness(1.0) - 2.3).abs() < 0.01);
        assert!((2.0 / timeliness(1.0) - 0.87).abs() < 0.01);
    }

    /// Figure 16: after a step from 100 to 200 ms the estimate reaches 190 ms in 2.3 tau, for any
    /// spacing.
    #[test]
    fn a_step_is_followed_within_the_timeliness() {
        for spacing_s in [0.01, 0.05, 0.2] {
            for tau_s in [0.124, 0.896] {
                let mut ewma = Ewma::new(tau_s);
                ewma.update(0.0, 100.0);
                let mut now_s = 0.0;
                while ewma.value().unwrap() < 190.0 {
                    now_s += spacing_s;
                    ewma.update(now_s, 200.0);
                }
                let late_s = now_s - timeliness(tau_s);
                assert!((-1e-9..=spacing_s + 1e-9).contains(&late_s), "{now_s}");
            }
        }
    }

    #[test]
    fn irregular_samples_weigh_by_time() {
        let mut regular = Ewma::new(1.0);
        let mut sparse = Ewma::new(1.0);
        regular.update(0.0, 1.0);
        sparse.update(0.0, 1.0);
        for step in 1..=10 {
            regular.update(f64::from(step) * 0.1, 0.0);
        }
        sparse.update(1.0, 0.0);
        assert!((regular.value().unwrap() - sparse.value().unwrap()).abs() < 1e-12);
        assert!((sparse.value().unwrap() - (-1.0_f64).exp()).abs() < 1e-12);
        let before = sparse.value();
        sparse.update(0.5, 99.0);
        assert_eq!(
            sparse.value(),
            before,
            "a sample from the past has no weight"
        );
    }

    /// Figures 17 and 18: levels 200, 300, 200, 100 for 5 s each. The plain EWMA oscillates about
    /// the mean; the asymmetric EWMA stays near the upper level.
    #[test]
    fn the_asymmetric_variant_stays_near_the_worst() {
        let mut plain = Ewma::new(8.96);
        let mut careful = AsymmetricEwma::new(1.24, 8.96);
        let (mut plain_min, mut careful_min) = (f64::MAX, f64::MAX);
        let mut careful_max = f64::MIN;
        for step in 0..100 {
            let now_s = f64::from(step) * 2.0;
            let level = [200.0, 300.0, 200.0, 100.0][(now_s / 5.0) as usize % 4];
            let (p, c) = (plain.update(now_s, level), careful.update(now_s, level));
            if now_s > 40.0 {
                plain_min = plain_min.min(p);
                careful_min = careful_min.min(c);
                careful_max = careful_max.max(c);
            }
        }
        assert!(careful_min > plain_min + 10.0, "{careful_min} {plain_min}");
        assert!(careful_max > 285.0, "{careful_max}");
        let mut scales = Scales::new([0.1, 10.0]);
        scales.update(0.0, 0.0);
        let [fast, slow] = scales.update(1.0, 1.0);
        assert!(fast > 0.99 && slow < 0.1);
    }
}
