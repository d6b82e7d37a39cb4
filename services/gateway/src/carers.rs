//! Data for the people beside the gateway: its own newest values, and whether the core hears it.

mod hearing;
mod newest;

pub use hearing::{Heard, Hearing, Look};
pub use newest::{Newest, Shown};
