//! Sources, routes and resources, and the condition under which they are stable.

use toml_errors::Invalid;

/// Bounds of a network; the solver's memory grows with them.
pub const ROUTES_MAX: usize = 256;
pub const RESOURCES_MAX: usize = 256;
pub const SOURCES_MAX: usize = 256;
/// Longest delay of a route; the ring of past rates grows with it.
pub const DELAY_S_MAX: f64 = 60.0;
/// Largest responsiveness; beyond it the penalty is a step for every purpose.
pub const RESPONSIVENESS_MAX: f64 = 10_000.0;

/// How the factor of a capacity falls with distance: the logistic function (11).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decay {
    pub alpha_per_m: f64,
    pub d0_m: f64,
}

impl Decay {
    /// rho(d) (11); 1 at distance zero.
    pub fn factor(&self, distance_m: f64) -> f64 {
        self.logistic(distance_m) / self.logistic(0.0)
    }

    /// The numerator of (11): 1 - 1/(1 + e^-u) is 1/(1 + e^u).
    pub(crate) fn logistic(&self, distance_m: f64) -> f64 {
        1.0 / (1.0 + (self.alpha_per_m * (distance_m - self.d0_m)).exp())
    }
}

/// Capacity of a resource over time.
#[derive(Debug, Clone, PartialEq)]
pub enum Capacity {
    Constant,
    /// Seconds and the factor of the nominal capacity from then on, ascending.
    Steps(Vec<(f64, f64)>),
    /// By the distance between a node of the way and a station.
    Distance {
        node: usize,
        station_m: (f64, f64),
        decay: Decay,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub struct Resource {
    pub name: String,
    /// C_j.
    pub nominal: f64,
    /// beta_j of (5).
    pub responsiveness: f64,
    pub capacity: Capacity,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    pub name: String,
    /// Number of like senders that this source stands for; each has an equal part of its flow.
    pub weight: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    pub name: String,
    pub source: usize,
    /// b_r.
    pub decrease: f64,
    pub round_trip_s: f64,
    /// Resource, T_rj and T_jr in seconds.
    pub resources: Vec<(usize, f64, f64)>,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Network {
    /// a of (1).
    pub increase: f64,
    pub sources: Vec<Source>,
    pub routes: Vec<Route>,
    pub resources: Vec<Resource>,
}

/// A network that can be solved, but whose result may mislead.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Warning {
    #[error(
        "condition (6) is violated: a (1 + max beta) = {value:.3} is not below pi/2 = 1.571, \
         so rates may oscillate; for example, choose a below {a_max:.5}"
    )]
    Unstable { value: f64, a_max: f64 },
    #[error(
        "the time step of {step_ms} ms is more than a fifth of the round trip of route {route}, \
         {round_trip_ms} ms; for example, step_ms = {example_ms}"
    )]
    CoarseStep {
        step_ms: f64,
        route: String,
        round_trip_ms: f64,
        example_ms: f64,
    },
}

impl Network {
    /// Left side of the stability condition (6), to be below pi/2.
    pub fn stability(&self) -> f64 {
        let beta = self.resources.iter().map(|it| it.responsiveness);
        self.increase * (1.0 + beta.fold(0.0, f64::max))
    }

    pub fn warnings(&self, step_s: f64) -> Vec<Warning> {
        let mut warnings = Vec::new();
        let value = self.stability();
        if value >= std::f64::consts::FRAC_PI_2 {
            let a_max = self.increase * std::f64::consts::FRAC_PI_2 / value;
            warnings.push(Warning::Unstable { value, a_max });
        }
        let shortest = self
            .routes
            .iter()
            .min_by(|one, other| one.round_trip_s.total_cmp(&other.round_trip_s));
        if let Some(route) = shortest
            && step_s * 5.0 > route.round_trip_s
        {
            warnings.push(Warning::CoarseStep {
                step_ms: step_s * 1e3,
                route: route.name.clone(),
                round_trip_ms: route.round_trip_s * 1e3,
                example_ms: route.round_trip_s * 1e3 / 20.0,
            });
        }
        warnings
    }

    /// Refuses what the equations cannot take.
    pub fn check(&self) -> Result<(), Invalid> {
        positive("increase", self.increase, 1.0, "0.025")?;
        count("source", self.sources.len(), SOURCES_MAX)?;
        count("resource", self.resources.len(), RESOURCES_MAX)?;
        count("route", self.routes.len(), ROUTES_MAX)?;
        for (index, source) in self.sources.iter().enumerate() {
            positive(
                &format!("source[{index}].weight"),
                source.weight,
                1e9,
                "1.0",
            )?;
        }
        for (index, resource) in self.resources.iter().enumerate() {
            check_resource(&format!("resource[{index}]"), resource)?;
        }
        for (index, route) in self.routes.iter().enumerate() {
            self.check_route(&format!("route[{index}]"), route)?;
        }
        Ok(())
    }

    fn check_route(&self, field: &str, route: &Route) -> Result<(), Invalid> {
        if route.source >= self.sources.len() {
            return refuse(format!("{field}.source"), "there is no such source");
        }
        positive(&format!("{field}.decrease"), route.decrease, 1.0, "0.875")?;
        if route.resources.is_empty() {
            let reason = "a route needs a resource; for example \
                          resources = [{ name = \"satellite\", there_ms = 15, back_ms = 15 }]";
            return refuse(format!("{field}.resources"), reason);
        }
        let trip = format!("{field}.round_trip_ms");
        positive(&trip, route.round_trip_s, DELAY_S_MAX, "30.0")?;
        for (index, &(resource, there_s, back_s)) in route.resources.iter().enumerate() {
            let field = format!("{field}.resources[{index}]");
            if resource >= self.resources.len() {
                return refuse(format!("{field}.name"), "there is no such resource");
            }
            if route.resources[..index].iter().any(|it| it.0 == resource) {
                return refuse(format!("{field}.name"), "the route uses it already");
            }
            let range = 0.0..=DELAY_S_MAX;
            for (name, delay_s) in [("there_ms", there_s), ("back_ms", back_s)] {
                if !range.contains(&delay_s) {
                    let reason = "not between 0 and 60000; for example 15.0";
                    return refuse(format!("{field}.{name}"), reason);
                }
            }
            if (there_s + back_s - route.round_trip_s).abs() > 1e-9 {
                let reason = format!(
                    "there_ms + back_ms is {} and the route's round trip {} ms; they must be equal",
                    (there_s + back_s) * 1e3,
                    route.round_trip_s * 1e3
                );
                return refuse(field, reason);
            }
        }
        Ok(())
    }
}

fn check_resource(field: &str, resource: &Resource) -> Result<(), Invalid> {
    positive(&format!("{field}.capacity"), resource.nominal, 1e12, "20.0")?;
    let beta = format!("{field}.responsiveness");
    positive(&beta, resource.responsiveness, RESPONSIVENESS_MAX, "15.0")?;
    match &resource.capacity {
        Capacity::Constant => Ok(()),
        Capacity::Steps(steps) => {
            let finite = |&(at_s, factor): &(f64, f64)| {
                (0.0..=1e9).contains(&at_s) && (0.0..=1e6).contains(&factor)
            };
            if !steps.iter().all(finite) || !steps.is_sorted_by(|one, two| one.0 < two.0) {
                let reason = "times must rise and factors not be negative; for example \
                              [[0.0, 1.0], [30.0, 0.2]]";
                return refuse(format!("{field}.steps"), reason);
            }
            Ok(())
        }
        Capacity::Distance { decay, .. } => {
            positive("decay.alpha_per_m", decay.alpha_per_m, 10.0, "0.007")?;
            positive("decay.d0_m", decay.d0_m, 1e6, "500.0")
        }
    }
}

fn refuse<T>(field: String, reason: impl Into<String>) -> Result<T, Invalid> {
    Err(Invalid {
        field,
        reason: reason.into(),
    })
}

fn count(field: &str, length: usize, most: usize) -> Result<(), Invalid> {
    if (1..=most).contains(&length) {
        return Ok(());
    }
    refuse(
        field.to_owned(),
        format!("{length} entries are not between 1 and {most}; for example one [[{field}]] table"),
    )
}

/// NaN and infinity are outside of every range.
pub(crate) fn positive(field: &str, value: f64, most: f64, example: &str) -> Result<(), Invalid> {
    if value > 0.0 && value <= most {
        return Ok(());
    }
    refuse(
        field.to_owned(),
        format!("{value} is not above 0 and at most {most}; for example {example}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capacity_factor_is_one_at_the_station_and_about_half_at_d0() {
        let decay = Decay {
            alpha_per_m: 0.007,
            d0_m: 500.0,
        };
        assert!((decay.factor(0.0) - 1.0).abs() < 1e-12);
        assert!((decay.factor(500.0) - 0.5 / 0.970_688).abs() < 1e-5);
        let sharp = Decay {
            alpha_per_m: 0.07,
            ..decay
        };
        assert!(sharp.factor(400.0) > 0.99 && sharp.factor(600.0) < 0.01);
    }
}
