//! Keepalive and measurement of one path, after Salsano et al., "Accurate and Efficient Measurements of IP Level Performance
//! to Drive Interface Selection in Heterogeneous Wireless Networks" (IEEE TMC, 2018). Numbers in parentheses are the
//! paper's equations.
//!
//! The client end sends a probe every T_KA, the server end answers; from the same 28 bytes both ends get the round-trip time
//! without synchronised clocks (4.1), the loss of each direction from counters of all packets (4.2), and the
//! client tells a dead path from K silent intervals (4.3). K and T_KA come out of the optimiser (5)-(8).
//!
//! Pure: time comes in as microseconds of any monotonic clock, commands go out.

mod connectivity;
mod endpoint;
mod ewma;
mod loss;
mod optimiser;
mod piggyback;
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
pub use wire::{NO_DELTA, PAYLOAD_BYTES, Payload};
