//! Fluid model of multipath congestion control.
//!
//! After Bejan, Gibbens, Lim and Towsley, "A Performance Analysis Study of Multipath Routing in a
//! Hybrid Network with Mobile Users". Numbers in parentheses are the paper's equations.
//!
//! A network is a set of sources, routes and resources with delays. Capacities may change with
//! time, or with the distance between a moving node and a station. The solver integrates the
//! delay differential equations (1)-(5) by forward Euler. `equilibrium` gives the stationary
//! rates of constant capacities.
//!
//! Pure: text and numbers come in, numbers go out.

mod equilibrium;
mod file;
mod mobility;
mod network;
mod settle;
mod solver;

pub use equilibrium::{Equilibrium, NoEquilibrium, equilibrium};
pub use file::{Experiment, Panel, Show, Station};
pub use mobility::{NODE_AHEAD_M_MAX, Segment, Track, TrackError, WAY_SECONDS_MAX};
pub use network::{Capacity, Decay, Network, Resource, Route, Source, Warning};
pub use settle::settling_s;
pub use solver::{Run, Settings, solve};
