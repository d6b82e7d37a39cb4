//! The laboratory: the transport's two ends over simulated links in virtual time, and the experiments that Braid is measured by.

mod address;
pub mod bottleneck;
mod bounds;
mod chaos;
mod command;
pub mod drive;
pub mod exhibit;
pub mod experiments;
pub mod figure6;
pub mod figures;
mod host;
mod identity;
mod journal;
pub mod kernel;
pub mod lte;
pub mod many;
mod oracle;
pub mod pals;
pub mod plot;
pub mod references;
pub mod report;
pub mod rival;
pub mod robust;
mod runner;
pub mod scenario;
mod selection;
pub mod speed;
mod traffic;
mod wire;
mod world;

pub use command::{LabCommand, LabError, Options, RunOptions};
pub use host::Mechanisms;
pub use identity::{Identity, IdentityError};
pub use runner::Runner;
pub use selection::Selection;
pub use world::{run, run_within};
