//! Stationary rates of a network with constant capacities. Equations (12)-(15) give them for one
//! route.
//!
//! Each iteration multiplies a rate by the exponential of its growth in (1), until the rates stay
//! constant. The exponent is at most 0.5 / (1 + beta), so a penalty changes by a factor below e and
//! the iteration does not overshoot.

use toml_errors::Invalid;

use crate::network::Network;

/// Largest number of iterations; the answer is refused when they do not suffice.
const ITERATIONS_MAX: u32 = 4_000_000;
/// Relative growth in one unit of the iteration at which rates count as stationary.
const GROWTH_MAX: f64 = 1e-9;
/// A rate below this share of the greatest capacity counts as none.
const SHARE_MIN: f64 = 1e-9;

/// Stationary rates, penalties and loads.
#[derive(Debug, Clone, PartialEq)]
pub struct Equilibrium {
    /// By route.
    pub rates: Vec<f64>,
    /// By resource.
    pub loads: Vec<f64>,
    pub iterations: u32,
}

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum NoEquilibrium {
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error("rates are not stationary after {ITERATIONS_MAX} iterations")]
    NotReached,
}

/// `demands`: by source, the most that it sends; infinity for a source that takes all it can get.
pub fn equilibrium(network: &Network, demands: &[f64]) -> Result<Equilibrium, NoEquilibrium> {
    network.check()?;
    if demands.len() != network.sources.len() || !demands.iter().all(|it| *it >= 0.0) {
        let reason = "one demand per source, not negative; for example 1.0".to_owned();
        let field = "demand".to_owned();
        return Err(Invalid { field, reason }.into());
    }
    let beta = network.resources.iter().map(|it| it.responsiveness);
    let pace = 0.5 / (1.0 + beta.fold(0.0, f64::max));
    let greatest = network.resources.iter().map(|it| it.nominal);
    let none = greatest.fold(0.0, f64::max) * SHARE_MIN;
    let mut rates: Vec<f64> = network
        .routes
        .iter()
        .map(|route| {
            let narrowest = route
                .resources
                .iter()
                .map(|it| network.resources[it.0].nominal);
            0.5 * narrowest.fold(f64::INFINITY, f64::min) / network.routes.len() as f64
        })
        .collect();
    for iterations in 1..=ITERATIONS_MAX {
        let growth = iterate(network, demands, &mut rates, pace, none);
        if growth < GROWTH_MAX {
            return Ok(Equilibrium {
                loads: loads(network, &rates),
                rates,
                iterations,
            });
        }
    }
    Err(NoEquilibrium::NotReached)
}

fn loads(network: &Network, rates: &[f64]) -> Vec<f64> {
    let mut loads = vec![0.0; network.resources.len()];
    for (route, rate) in network.routes.iter().zip(rates) {
        for used in &route.resources {
            loads[used.0] += rate;
        }
    }
    loads
}

/// One iteration; the greatest relative change of a rate that counts.
fn iterate(network: &Network, demands: &[f64], rates: &mut [f64], pace: f64, none: f64) -> f64 {
    let kept: Vec<f64> = loads(network, rates)
        .iter()
        .zip(&network.resources)
        .map(|(load, it)| 1.0 - (load / it.nominal).min(1.0).powf(it.responsiveness))
        .collect();
    let mut flows = vec![0.0; network.sources.len()];
    for (route, rate) in network.routes.iter().zip(rates.iter()) {
        flows[route.source] += rate;
    }
    let before = rates.to_vec();
    for (route, rate) in network.routes.iter().zip(rates.iter_mut()) {
        let kept: f64 = route.resources.iter().map(|used| kept[used.0]).product();
        let flow = flows[route.source] / network.sources[route.source].weight;
        let growth = kept - route.decrease * flow * (1.0 - kept) / network.increase;
        *rate = (*rate * (pace * growth.clamp(-1.0, 1.0)).exp()).max(none);
    }
    let mut flows = vec![0.0; network.sources.len()];
    for (route, rate) in network.routes.iter().zip(rates.iter()) {
        flows[route.source] += rate;
    }
    for (route, rate) in network.routes.iter().zip(rates.iter_mut()) {
        let (flow, demand) = (flows[route.source], demands[route.source]);
        if flow > demand {
            *rate *= demand / flow;
        }
    }
    let change = |(before, after): (&f64, &f64)| (after - before).abs() / before.max(1e3 * none);
    before
        .iter()
        .zip(rates.iter())
        .map(change)
        .fold(0.0, f64::max)
}
