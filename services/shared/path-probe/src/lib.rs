//! Keepalive and measurement of one path.
//!
//! After Salsano et al., "Accurate and Efficient Measurements of IP Level Performance to Drive
//! Interface Selection in Heterogeneous Wireless Networks" (IEEE TMC, 2018). Numbers in
//! parentheses are the equations and sections of the paper.
//!
//! The client end sends a probe every T_KA, and the server end answers. From the same 28 bytes both
//! ends get the round-trip time without synchronised clocks (4.1). Counters of all packets give the
//! loss of each direction (4.2). After K intervals without an answer the client takes the path for
//! dead (4.3). The optimiser (5) to (8) chooses K and T_KA.
//!
//! Sans-IO: the caller passes the time as microseconds of any monotonic clock.

mod connectivity;
mod endpoint;
mod ewma;
mod loss;
mod optimiser;
mod piggyback;
mod selection;
mod wire;

pub use connectivity::{Check, Command, Connectivity};
pub use endpoint::{Client, Observation, RTT_US_MAX, Server};
pub use ewma::{AsymmetricEwma, Ewma, Scales, tau_of_alpha, timeliness};
pub use loss::{OneWayLoss, RoundTripLoss, round_trip_loss};
pub use optimiser::{
    Choice, Infeasible, K_MAX, Target, false_positive_interval_s, false_positive_probability,
    optimise, responsiveness_avg_s, responsiveness_max_s,
};
pub use piggyback::Piggyback;
pub use selection::{Estimate, Hysteresis, Need, Selector};
pub use wire::{NO_DELTA, PAYLOAD_BYTES, Payload};
