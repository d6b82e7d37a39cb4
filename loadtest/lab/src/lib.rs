//! The laboratory: the transport's two ends over simulated links in virtual time, and the experiments that Braid is measured by.

mod command;
pub mod figures;
mod host;
mod identity;
pub mod pals;
pub mod report;
mod runner;
pub mod scenario;
mod traffic;
mod world;

pub use command::{LabCommand, LabError, Options, RunOptions};
pub use host::Mechanisms;
pub use identity::{Identity, IdentityError};
pub use runner::Runner;
pub use world::run;
