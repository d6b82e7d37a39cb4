//! The laboratory: the transport's two ends over simulated links in virtual time, and the
//! experiments that Braid is measured by.
//!
//! No file imports one that imports it, directly or through others. From below:
//!
//! 1. sizes, seeds, addresses and mechanisms; rows, references, charts and records of runs;
//! 2. traffic as data (`chaos`, `mix`, `thin`, `steered`), then `scenario`, then `bounds`;
//! 3. links, applications, `host`, `world` and `runner`;
//! 4. what each experiment needs: `error`, `options`, `task` and files of output;
//! 5. the experiments, and their parts of the report in `studies`;
//! 6. the lists of them: `experiments`, `studies`, `command`, `lanes` and `all`.

mod address;
mod all;
mod beside;
pub mod bottleneck;
mod bounds;
pub mod budget;
mod chaos;
mod classic;
mod command;
pub mod compare;
mod csv_trace;
pub mod drive;
mod error;
pub mod exhibit;
pub mod experiments;
mod exports;
pub mod figure6;
pub mod figures;
pub mod fluids;
mod given;
mod host;
mod identity;
mod journal;
pub mod keepalives;
pub mod kernel;
mod lanes;
pub mod lte;
pub mod many;
mod mechanisms;
pub mod mix;
mod options;
mod oracle;
mod output;
mod packet;
mod page;
pub mod pals;
mod pattern;
pub mod plans;
pub mod plot;
pub mod references;
pub mod report;
pub mod rival;
pub mod robust;
mod runner;
pub mod scenario;
mod seed;
mod selection;
pub mod shipped;
pub mod speed;
pub mod steered;
pub mod steering;
pub mod studies;
pub mod task;
pub mod thin;
mod to_terminal;
mod traces;
mod traffic;
mod wire;
mod world;

pub use command::{LabCommand, RunOptions};
pub use error::LabError;
pub use identity::{Identity, IdentityError};
pub use mechanisms::Mechanisms;
pub use options::{Options, ReportOptions};
pub use runner::Runner;
pub use selection::Selection;
pub use world::{run, run_within};
