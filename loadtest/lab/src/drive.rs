//! Synthetic drives through several operators' LTE networks: RSRP by path loss and correlated
//! shadowing, and capacity by SINR.
//!
//! The model and its constants are those of the drive-test paper (see the README). There is one
//! cell per carrier, all other visible cells interfere with the load `QL`, and capacity is a
//! downscaled, truncated Shannon formula. The paper does not publish the places of the cells, so
//! they are drawn. Each carrier has a site every `spacing_m`, the vehicle passes it at `lateral_m`,
//! and shadowing is a first-order process over the distance driven. `Environment`'s numbers were
//! fitted to the published statistics.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::seed::derive_seed;

/// Share of the time that an interfering cell sends.
const QL: f64 = 0.1;
const NOISE_THERMAL_DBM: f64 = -132.24;
const NOISE_FIGURE_DB: f64 = 7.0;
const BANDWIDTH_HZ: f64 = 10e6;
const GAMMA: f64 = 0.4852;
/// Efficiency at CQI 15, bit/s/Hz; caps the capacity at 55.5 Mbit/s.
const C15: f64 = 5.5547;
const C: f64 = 0.9449;
/// Loss per decade of distance, dB.
const PATH_LOSS_DECADE_DB: f64 = 37.6;

/// A kind of drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Environment {
    /// The whole data set: two operators, buses in town and between towns.
    Dataset,
    Residential,
    Road,
}

struct Carrier {
    operator: usize,
    /// RSRP at half the spacing, dBm.
    edge_dbm: f64,
    /// Standard deviation of shadowing.
    shadowing_db: f64,
    spacing_m: f64,
    lateral_m: f64,
    decorrelation_m: f64,
    /// Share of the way on which the cell is visible.
    visible: f64,
}

impl Environment {
    pub const ALL: [Self; 3] = [Self::Dataset, Self::Residential, Self::Road];

    pub fn name(self) -> &'static str {
        match self {
            Self::Dataset => "dataset",
            Self::Residential => "residential",
            Self::Road => "road",
        }
    }

    fn speed_m_s(self) -> f64 {
        match self {
            Self::Dataset => 9.0,
            Self::Residential => 7.0,
            Self::Road => 15.0,
        }
    }

    fn carriers(self) -> Vec<Carrier> {
        let carrier = |operator, edge_dbm, shadowing_db, spacing_m, visible, lateral_m| Carrier {
            operator,
            edge_dbm,
            shadowing_db,
            spacing_m,
            lateral_m,
            decorrelation_m: 120.0,
            visible,
        };
        match self {
            Self::Dataset => vec![
                carrier(0, -112.85, 0.03, 1500.0, 1.0, 595.0),
                carrier(0, -127.53, 3.81, 1900.0, 0.694, 577.0),
                carrier(1, -120.97, 10.83, 1700.0, 1.0, 485.0),
                carrier(1, -112.48, 0.04, 2300.0, 0.271, 581.0),
            ],
            Self::Residential => vec![
                carrier(0, -132.0, 2.73, 1500.0, 1.0, 783.0),
                carrier(0, -125.4, 2.24, 1900.0, 1.0, 783.0),
                carrier(1, -124.4, 2.71, 1700.0, 1.0, 783.0),
                carrier(1, -131.95, 3.15, 2300.0, 0.99, 783.0),
            ],
            Self::Road => vec![
                carrier(0, -123.6, 1.21, 2500.0, 1.0, 799.0),
                carrier(0, -130.5, 5.65, 2900.0, 0.65, 799.0),
                carrier(1, -129.2, 3.0, 2700.0, 1.0, 799.0),
                carrier(1, -126.5, 1.57, 3300.0, 0.63, 799.0),
            ],
        }
    }
}

/// Capacity per carrier and second, Mbit/s; zero where the cell is not visible.
#[derive(Debug, Clone)]
pub struct Drive {
    pub operators: Vec<usize>,
    /// By second, then by carrier.
    pub seconds: Vec<Vec<f64>>,
}

impl Drive {
    /// The same seed gives the same drive.
    pub fn generate(environment: Environment, seconds: usize, seed: u64) -> Self {
        let carriers = environment.carriers();
        let mut walks: Vec<Walk> = carriers
            .iter()
            .enumerate()
            .map(|(index, carrier)| Walk::new(carrier, derive_seed(seed, 40 + index as u64)))
            .collect();
        let step_m = environment.speed_m_s();
        let seconds = (0..seconds)
            .map(|_| {
                let rsrp: Vec<Option<f64>> = carriers
                    .iter()
                    .zip(&mut walks)
                    .map(|(carrier, walk)| walk.step(carrier, step_m))
                    .collect();
                capacities_mbit(&rsrp)
            })
            .collect();
        Self {
            operators: carriers.iter().map(|carrier| carrier.operator).collect(),
            seconds,
        }
    }

    /// The carriers in order of capacity at a second, the best first.
    pub fn ranking(&self, second: usize) -> Vec<usize> {
        let now = &self.seconds[second % self.seconds.len()];
        let mut order: Vec<usize> = (0..now.len()).collect();
        order.sort_by(|a, b| now[*b].total_cmp(&now[*a]).then(a.cmp(b)));
        order
    }

    /// The number of visible cells by second.
    pub fn cells(&self) -> Vec<f64> {
        let visible = |second: &Vec<f64>| second.iter().filter(|&&mbit| mbit > 0.0).count() as f64;
        self.seconds.iter().map(visible).collect()
    }

    /// The sum of so many of the best cells by second.
    pub fn best(&self, count: usize) -> Vec<f64> {
        let sum = |second: &Vec<f64>| {
            let mut mbit = second.clone();
            mbit.sort_by(|a, b| b.total_cmp(a));
            mbit.iter().take(count).sum()
        };
        self.seconds.iter().map(sum).collect()
    }

    /// The best cell of one operator by second.
    pub fn operator(&self, wanted: usize) -> Vec<f64> {
        let best = |second: &Vec<f64>| {
            let own = second.iter().zip(&self.operators);
            own.filter(|(_, operator)| **operator == wanted)
                .map(|(mbit, _)| *mbit)
                .fold(0.0, f64::max)
        };
        self.seconds.iter().map(best).collect()
    }

    pub fn capacity(&self, second: usize, carrier: usize) -> f64 {
        self.seconds[second % self.seconds.len()][carrier]
    }
}

struct Walk {
    random: ChaCha8Rng,
    at_m: f64,
    shadowing: f64,
    visibility: f64,
}

impl Walk {
    fn new(carrier: &Carrier, seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let at_m = random.random::<f64>() * carrier.spacing_m;
        let shadowing = normal(&mut random);
        let visibility = normal(&mut random);
        Self {
            random,
            at_m,
            shadowing,
            visibility,
        }
    }

    /// RSRP in dBm after `step_m`, if the cell is visible.
    fn step(&mut self, carrier: &Carrier, step_m: f64) -> Option<f64> {
        self.at_m += step_m;
        let keep = (-step_m / carrier.decorrelation_m).exp();
        let fresh = (1.0 - keep * keep).sqrt();
        self.shadowing = keep * self.shadowing + fresh * normal(&mut self.random);
        // Visibility changes ten times slower than shadowing.
        let keep = (-step_m / (10.0 * carrier.decorrelation_m)).exp();
        let fresh = (1.0 - keep * keep).sqrt();
        self.visibility = keep * self.visibility + fresh * normal(&mut self.random);
        let along = (self.at_m % carrier.spacing_m) - carrier.spacing_m / 2.0;
        let distance = along.hypot(carrier.lateral_m);
        let edge = (carrier.spacing_m / 2.0).hypot(carrier.lateral_m);
        let rsrp = carrier.edge_dbm
            + PATH_LOSS_DECADE_DB * (edge / distance).log10()
            + carrier.shadowing_db * self.shadowing;
        (cumulative_normal(self.visibility) <= carrier.visible).then_some(rsrp)
    }
}

fn normal(random: &mut ChaCha8Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.random::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.random::<f64>()).cos()
}

/// Logistic approximation, exact to 0.01.
fn cumulative_normal(x: f64) -> f64 {
    1.0 / (1.0 + (-1.702 * x).exp())
}

/// Equations (1) and (2) of the paper for each visible cell.
pub fn capacities_mbit(rsrp_dbm: &[Option<f64>]) -> Vec<f64> {
    let noise = milliwatts(NOISE_THERMAL_DBM + NOISE_FIGURE_DB);
    let total: f64 = rsrp_dbm.iter().flatten().map(|&dbm| milliwatts(dbm)).sum();
    rsrp_dbm
        .iter()
        .map(|dbm| {
            let Some(dbm) = *dbm else { return 0.0 };
            let own = milliwatts(dbm);
            let sinr = own / (QL * (total - own).max(0.0) + noise);
            let ln2 = std::f64::consts::LN_2;
            BANDWIDTH_HZ * C / ln2 * (C15 * ln2 / C).min((1.0 + GAMMA * sinr).ln()) / 1e6
        })
        .collect()
}

fn milliwatts(dbm: f64) -> f64 {
    10f64.powf(dbm / 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_follows_the_paper() {
        // A lone strong cell is capped by CQI 15.
        assert!((capacities_mbit(&[Some(-80.0)])[0] - 55.547).abs() < 1e-9);
        // Four equal strong cells: SINR 1 / (3 * 0.1).
        let equal = capacities_mbit(&[Some(-80.0); 4]);
        let expected = 10.0 * 0.9449 / std::f64::consts::LN_2 * (1.0f64 + 0.4852 / 0.3).ln();
        assert!((equal[0] - expected).abs() < 0.01, "{equal:?} {expected}");
        assert_eq!(capacities_mbit(&[None, Some(-100.0)])[0], 0.0);
    }

    #[test]
    fn the_same_seed_gives_the_same_drive() {
        let a = Drive::generate(Environment::Road, 100, 5);
        let b = Drive::generate(Environment::Road, 100, 5);
        assert_eq!(a.seconds, b.seconds);
        assert_ne!(
            a.seconds,
            Drive::generate(Environment::Road, 100, 6).seconds
        );
    }
}
